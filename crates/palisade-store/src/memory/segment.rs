//! A segment: slots that threads read without a lock, and, behind its lock, the states that do not
//! fit in a word.
//!
//! Owners of slots change in [`Segment::insert`], in [`Segment::drop_spent`], which closes the
//! gaps that it makes, and in [`Segment::drain`] followed by [`Segment::refill`], which split a
//! full segment. A reader that misses its bucket meanwhile takes the lock and looks again.

use std::sync::atomic::{AtomicBool, Ordering};

use palisade_core::Digest;
use palisade_core::limit::State;
use palisade_core::time::Micros;
use parking_lot::{Mutex, MutexGuard};

use super::slot::{Slot, SlotView};
use super::word::{VALUE_BITS, Word, WordContent};

/// Slots of one segment.
pub(crate) const SLOTS: usize = 8192;
/// Most slots with an owner: probes stay short.
pub(crate) const FILL_MAX: usize = SLOTS / 4 * 3;

/// Ticks in a microsecond, as in [`State::Gcra`].
pub(crate) const TICKS_PER_MICRO: u64 = 1 << 12;

/// More ticks than any word holds.
const WORD_TICKS: u64 = 1 << VALUE_BITS;

/// The instant that words count from, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin(u64);

impl Origin {
    pub(crate) const fn at(now: Micros) -> Self {
        Self(now.0.saturating_mul(TICKS_PER_MICRO))
    }

    /// Ticks from the origin to an arrival time; zero for one before the origin, which means an
    /// empty bucket.
    #[inline]
    pub(crate) const fn ticks(self, arrival: u64) -> u64 {
        arrival.saturating_sub(self.0)
    }

    /// Ticks from the origin to an instant, or `None` if a word could not hold them or the instant
    /// is before the origin.
    #[inline]
    pub(crate) const fn ticks_after(self, now: Micros) -> Option<u64> {
        let elapsed = now.0.wrapping_sub(self.0 / TICKS_PER_MICRO);
        if elapsed < WORD_TICKS / TICKS_PER_MICRO {
            Some(elapsed * TICKS_PER_MICRO)
        } else {
            None
        }
    }

    #[inline]
    pub(crate) const fn arrival(self, ticks: u64) -> u64 {
        self.0.saturating_add(ticks)
    }

    const fn expiry(self, ticks: u64) -> Micros {
        Micros(self.arrival(ticks).div_ceil(TICKS_PER_MICRO))
    }
}

/// A state with what the table must know about it.
#[derive(Clone, Debug)]
pub(crate) struct StoredState {
    /// The whole id, for the log.
    pub(crate) id: Digest,
    pub(crate) state: State,
    pub(crate) expires_at: Micros,
    pub(crate) family: Durability,
}

/// Whether a bucket survives the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// A crash may lose the bucket.
    Volatile,
    /// The log has the bucket as it is.
    Saved,
    /// The bucket has changed since it was last written.
    Dirty,
}

/// Everything that the lock guards.
#[derive(Default)]
pub(crate) struct Body {
    /// First entry of the directory that leads to this segment.
    pub(crate) first: u32,
    /// Number of leading bits of an id that lead here.
    pub(crate) depth: u32,
    /// Slots with an owner.
    pub(crate) len: usize,
    /// No bucket here expires before this instant.
    pub(crate) next_expiry: Micros,
    /// Upper 32 bits of the owners' ids, by slot: a split divides the buckets by them.
    highs: Vec<u32>,
    dirty: Vec<Digest>,
    slab: Vec<Option<StoredState>>,
    vacant: Vec<u16>,
}

/// A bucket that is being moved to another place.
pub(crate) struct MovedBucket {
    /// Upper 32 bits of the bucket's id.
    pub(crate) high: u32,
    tag: u64,
    content: Content,
}

enum Content {
    Ticks(u64),
    Kept(StoredState),
}

/// A segment. Its slots begin on a cache line.
#[repr(C, align(64))]
pub(crate) struct Segment {
    slots: [Slot; SLOTS],
    origin: Origin,
    body: Mutex<Body>,
    has_dirty: AtomicBool,
}

/// The half of an id that a slot holds.
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
#[inline]
const fn tag_of(id: Digest) -> u64 {
    id.0 as u64
}

const fn high_of(id: Digest) -> u32 {
    (id.0 >> 96) as u32
}

/// Slots in one cache line.
const LINE: usize = 4;

/// First slot of a probe for `tag`: the first of a line, so that most probes end within it.
#[expect(clippy::cast_possible_truncation, reason = "below SLOTS")]
#[inline]
const fn start(tag: u64) -> usize {
    ((tag as u128 * (SLOTS / LINE) as u128) >> 64) as usize * LINE
}

#[inline]
const fn after(slot: usize) -> usize {
    if slot + 1 == SLOTS { 0 } else { slot + 1 }
}

/// Number of steps of a probe from one slot to another.
const fn steps(from: usize, to: usize) -> usize {
    (to + SLOTS - from) % SLOTS
}

/// When a bucket stops counting, and whether it can be dropped then.
struct Ends {
    at: Micros,
    /// False while the bucket must be written first.
    spent: bool,
}

impl Segment {
    pub(crate) fn new(origin: Origin, first: u32, depth: u32) -> Box<Self> {
        Box::new(Self {
            origin,
            body: Mutex::new(Body {
                first,
                depth,
                next_expiry: Micros(u64::MAX),
                highs: vec![0; SLOTS],
                ..Body::default()
            }),
            has_dirty: AtomicBool::new(false),
            slots: std::array::from_fn(|_| Slot::free()),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Body> {
        self.body.lock()
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Body>> {
        self.body.try_lock()
    }

    /// Returns the slot and word with the bucket's tag, if they are where most are: in the line
    /// that a probe starts with. Without the lock, either may be outdated at once.
    ///
    /// Tags are compared one by one. A predicted branch lets the processor go on to the next
    /// decision while this one waits for memory; a slot computed from what is read would stop it,
    /// because nothing overtakes a compare-and-swap whose address is unknown.
    #[inline]
    pub(crate) fn glance(&self, id: Digest) -> Option<(&Slot, Word)> {
        let tag = tag_of(id);
        let (lines, _) = self.slots.as_chunks::<LINE>();
        let line = lines.get(start(tag) / LINE)?;
        line.iter()
            .find_map(|slot| Some((slot, slot.word_of(tag)?)))
    }

    /// Returns the bucket's slot and word. Without the lock, either may be outdated at once.
    #[inline]
    pub(crate) fn look(&self, id: Digest) -> Option<(&Slot, Word)> {
        self.glance(id)
            .filter(|(_, word)| !word.is_empty())
            .or_else(|| self.probe(start(tag_of(id)), tag_of(id)))
    }

    fn probe(&self, first: usize, tag: u64) -> Option<(&Slot, Word)> {
        let mut at = first;
        for _ in 0..SLOTS {
            let slot = &self.slots[at];
            match slot.look(tag) {
                SlotView::Own(word) => return Some((slot, word)),
                SlotView::Empty => return None,
                SlotView::Other => at = after(at),
            }
        }
        None
    }

    /// Returns the bucket's slot. Only under the lock.
    pub(crate) fn find(&self, id: Digest) -> Option<&Slot> {
        self.look(id).map(|(slot, _)| slot)
    }

    /// Locks a bucket's slot and takes its state out, until [`Segment::put`] or
    /// [`Segment::put_back`].
    pub(crate) fn take(&self, body: &mut Body, slot: &Slot) -> (Word, State) {
        let word = slot.lock();
        let state = match word.held() {
            WordContent::Ticks(0) | WordContent::Empty | WordContent::Locked => State::Empty,
            WordContent::Ticks(ticks) => State::Gcra(self.origin.arrival(ticks)),
            WordContent::Slab(index) => body
                .kept_mut(index)
                .map(|kept| std::mem::take(&mut kept.state))
                .unwrap_or_default(),
        };
        (word, state)
    }

    /// Ends [`Segment::take`] with a new state.
    pub(crate) fn put(&self, body: &mut Body, taken: (&Slot, Word), kept: StoredState) {
        let (slot, word) = taken;
        // One mark is enough: the log gets the state of the time when it is written.
        let is_new_to_log = kept.family == Durability::Dirty && !body.is_dirty(word);
        if is_new_to_log {
            body.dirty.push(kept.id);
            self.has_dirty.store(true, Ordering::Release);
        }
        body.next_expiry = body.next_expiry.min(kept.expires_at);
        let word = self.store(body, word, kept);
        slot.unlock(word);
    }

    /// Changes a state in place if it is in the slab, behind the lock. `change` returns a result,
    /// and whether it has changed anything; the result is `None` for a state in the word. No slot
    /// is locked: only a holder of the segment's lock changes a word that leads to the slab.
    pub(crate) fn change_kept<T>(
        &self,
        body: &mut Body,
        word: Word,
        durability: Durability,
        change: impl FnOnce(&mut StoredState) -> (T, bool),
    ) -> Option<T> {
        let WordContent::Slab(index) = word.held() else {
            return None;
        };
        let kept = body.kept_mut(index)?;
        let was_dirty = kept.family == Durability::Dirty;
        let (changed, has_changed) = change(kept);
        if has_changed {
            kept.family = durability;
            let (id, expires_at) = (kept.id, kept.expires_at);
            body.next_expiry = body.next_expiry.min(expires_at);
            if durability == Durability::Dirty && !was_dirty {
                body.dirty.push(id);
                self.has_dirty.store(true, Ordering::Release);
            }
        }
        Some(changed)
    }

    /// Ends [`Segment::take`] with the state as it was.
    pub(crate) fn put_back(&self, body: &mut Body, slot: &Slot, word: Word, state: State) {
        if let WordContent::Slab(index) = word.held()
            && let Some(kept) = body.kept_mut(index)
        {
            kept.state = state;
        }
        slot.unlock(word);
    }

    /// Gives a new bucket a slot; false if the segment is full.
    pub(crate) fn insert(&self, body: &mut Body, kept: StoredState) -> bool {
        let id = kept.id;
        if body.len >= FILL_MAX {
            return false;
        }
        let tag = tag_of(id);
        let mut at = start(tag);
        while !self.slots[at].word().is_empty() {
            at = after(at);
        }
        if kept.family == Durability::Dirty {
            body.dirty.push(id);
            self.has_dirty.store(true, Ordering::Release);
        }
        body.len += 1;
        body.next_expiry = body.next_expiry.min(kept.expires_at);
        // Before the slot is assigned: a split divides the buckets by these bits.
        body.highs[at] = high_of(id);
        self.slots[at].assign(tag, |free| self.store(body, free, kept));
        true
    }

    /// Returns the word for a state. The state goes to the slab if it does not fit in a word, or
    /// is durable.
    fn store(&self, body: &mut Body, word: Word, kept: StoredState) -> Word {
        let inline = match kept.state {
            State::Gcra(arrival) => word.with_ticks(self.origin.ticks(arrival)).ok(),
            State::Empty => word.with_ticks(0).ok(),
            State::Hits(_) | State::Fixed { .. } => None,
        };
        match inline.filter(|_| kept.family == Durability::Volatile) {
            Some(inline) => {
                body.vacate(word);
                inline
            }
            None => word.with_slab(body.keep(word, kept)),
        }
    }

    /// Takes every bucket out. The slots stay locked until [`Segment::refill`].
    pub(crate) fn drain(&self, body: &mut Body) -> Vec<MovedBucket> {
        let mut moved = Vec::with_capacity(body.len);
        for (at, slot) in self.slots.iter().enumerate() {
            if slot.word().is_empty() {
                continue;
            }
            let word = slot.lock();
            let content = match word.held() {
                WordContent::Ticks(ticks) => Content::Ticks(ticks),
                WordContent::Slab(index) => {
                    match body.slab.get_mut(usize::from(index)).and_then(Option::take) {
                        Some(kept) => Content::Kept(kept),
                        None => Content::Ticks(0),
                    }
                }
                WordContent::Empty | WordContent::Locked => Content::Ticks(0),
            };
            moved.push(MovedBucket {
                high: body.highs[at],
                tag: slot.tag(),
                content,
            });
        }
        body.slab.clear();
        body.vacant.clear();
        // The list is filled again as the buckets get their new places.
        body.dirty.clear();
        moved
    }

    /// Ends [`Segment::drain`] with these buckets, at most [`FILL_MAX`].
    pub(crate) fn refill(&self, body: &mut Body, moved: Vec<MovedBucket>) {
        body.len = moved.len();
        let soonest = moved.iter().map(|one| one.expires_at(self.origin)).min();
        body.next_expiry = soonest.unwrap_or(Micros(u64::MAX));
        // Arranged first, so that each slot changes only once.
        let mut places: Vec<Option<MovedBucket>> = (0..SLOTS).map(|_| None).collect();
        for one in moved {
            let mut at = start(one.tag);
            while places[at].is_some() {
                at = after(at);
            }
            places[at] = Some(one);
        }
        for (at, (slot, place)) in self.slots.iter().zip(places).enumerate() {
            match place {
                Some(one) => {
                    body.highs[at] = one.high;
                    place_at(body, slot, one);
                }
                None if !slot.word().is_empty() => slot.vacate(),
                None => {}
            }
        }
        self.has_dirty
            .store(!body.dirty.is_empty(), Ordering::Release);
    }

    /// Drops the buckets that no longer count; returns their number.
    pub(crate) fn drop_spent(&self, body: &mut Body, now: Micros) -> usize {
        if body.next_expiry > now {
            return 0;
        }
        let before = body.len;
        let mut soonest = Micros(u64::MAX);
        let mut at = 0;
        while let Some(slot) = self.slots.get(at) {
            match self.ends_at(body, slot.word()) {
                // Another bucket may have moved to this slot: look again.
                Some(Ends { at: end, spent }) if spent && end <= now => {
                    if !self.remove_spent(body, at, now) {
                        at += 1;
                    }
                }
                Some(ends) => {
                    soonest = soonest.min(ends.at);
                    at += 1;
                }
                None => at += 1,
            }
        }
        // A bucket that was charged meanwhile expires later, never sooner.
        body.next_expiry = soonest;
        before - body.len
    }

    fn ends_at(&self, body: &Body, word: Word) -> Option<Ends> {
        match word.held() {
            WordContent::Ticks(ticks) => Some(Ends {
                at: self.origin.expiry(ticks),
                spent: true,
            }),
            WordContent::Slab(index) => {
                let kept = body.slab.get(usize::from(index))?.as_ref()?;
                Some(Ends {
                    at: kept.expires_at,
                    spent: kept.family != Durability::Dirty,
                })
            }
            WordContent::Empty | WordContent::Locked => None,
        }
    }

    /// Drops the bucket at `gap` unless it was charged meanwhile.
    fn remove_spent(&self, body: &mut Body, gap: usize, now: Micros) -> bool {
        let slot = &self.slots[gap];
        let word = slot.lock();
        let is_spent = self
            .ends_at(body, word)
            .is_some_and(|ends| ends.spent && ends.at <= now);
        if !is_spent {
            slot.unlock(word);
            return false;
        }
        body.vacate(word);
        body.len -= 1;
        self.close_gap(body, gap);
        true
    }

    /// Removes the owner of a locked slot. Those behind it move up where their probes allow it, so
    /// that no probe ends before its bucket.
    fn close_gap(&self, body: &mut Body, mut gap: usize) {
        let mut at = after(gap);
        while !self.slots[at].word().is_empty() {
            let slot = &self.slots[at];
            let tag = slot.tag();
            // The owner's probe passes the gap on its way here, so it may move there. An owner
            // whose probe starts behind the gap must stay, or it would not be found.
            if steps(start(tag), at) >= steps(gap, at) {
                let word = slot.lock();
                body.highs[gap] = body.highs[at];
                self.slots[gap].assign(tag, |free| free.holding(word));
                gap = at;
            }
            at = after(at);
        }
        self.slots[gap].vacate();
    }

    /// Yields the buckets that have changed since they were last written, or all durable ones.
    pub(crate) fn collect_durable(&self, which: Which, mut each: impl FnMut(&StoredState)) {
        // Cleared before the lock is taken: a later change sets it again.
        if which == Which::Dirty && !self.has_dirty.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut body = self.lock();
        if which == Which::All {
            let all = body.slab.iter().flatten();
            all.filter(|kept| kept.family != Durability::Volatile)
                .for_each(each);
            return;
        }
        for id in std::mem::take(&mut body.dirty) {
            if let Some((_, word)) = self.look(id)
                && let WordContent::Slab(index) = word.held()
                && let Some(kept) = body.kept_mut(index)
                && kept.family == Durability::Dirty
            {
                kept.family = Durability::Saved;
                each(kept);
            }
        }
    }

    /// Yields the buckets that are in no log and still count. The ids of those in slots have zeros
    /// in the middle: neither the way to a segment nor a tag needs these bits.
    pub(crate) fn collect_volatile(
        &self,
        now: Micros,
        mut each: impl FnMut(Digest, &State, Micros),
    ) {
        let body = self.lock();
        for (at, slot) in self.slots.iter().enumerate() {
            match slot.word().held() {
                WordContent::Ticks(ticks @ 1..) if self.origin.expiry(ticks) > now => {
                    let id = u128::from(body.highs[at]) << 96 | u128::from(slot.tag());
                    let state = State::Gcra(self.origin.arrival(ticks));
                    each(Digest(id), &state, self.origin.expiry(ticks));
                }
                WordContent::Slab(index) => {
                    let kept = body.slab.get(usize::from(index)).and_then(Option::as_ref);
                    let live = kept.filter(|kept| {
                        kept.family == Durability::Volatile && kept.expires_at > now
                    });
                    if let Some(kept) = live {
                        each(kept.id, &kept.state, kept.expires_at);
                    }
                }
                WordContent::Ticks(_) | WordContent::Empty | WordContent::Locked => {}
            }
        }
    }

    /// Marks a durable bucket as dirty again that could not be written.
    pub(crate) fn mark_dirty(&self, body: &mut Body, id: Digest) {
        let Some((_, word)) = self.look(id) else {
            return;
        };
        if let WordContent::Slab(index) = word.held()
            && let Some(kept) = body.kept_mut(index)
            && kept.family == Durability::Saved
        {
            kept.family = Durability::Dirty;
            body.dirty.push(id);
            self.has_dirty.store(true, Ordering::Release);
        }
    }
}

fn place_at(body: &mut Body, slot: &Slot, one: MovedBucket) {
    let MovedBucket { tag, content, .. } = one;
    slot.assign(tag, |free| match content {
        Content::Ticks(ticks) => free.with_ticks(ticks).unwrap_or(free),
        Content::Kept(kept) => {
            if kept.family == Durability::Dirty {
                body.dirty.push(kept.id);
            }
            free.with_slab(body.keep(free, kept))
        }
    });
}

/// Selection of durable buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Buckets that have changed; they count as written from then on.
    Dirty,
    /// All durable buckets.
    All,
}

impl MovedBucket {
    fn expires_at(&self, origin: Origin) -> Micros {
        match &self.content {
            Content::Ticks(ticks) => origin.expiry(*ticks),
            Content::Kept(kept) => kept.expires_at,
        }
    }
}

impl Body {
    fn kept_mut(&mut self, index: u16) -> Option<&mut StoredState> {
        self.slab.get_mut(usize::from(index))?.as_mut()
    }

    fn is_dirty(&self, word: Word) -> bool {
        let WordContent::Slab(index) = word.held() else {
            return false;
        };
        self.slab
            .get(usize::from(index))
            .and_then(Option::as_ref)
            .is_some_and(|kept| kept.family == Durability::Dirty)
    }

    /// Stores a state in the slab, at the word's own index if it has one.
    fn keep(&mut self, word: Word, kept: StoredState) -> u16 {
        if let WordContent::Slab(index) = word.held()
            && let Some(place) = self.slab.get_mut(usize::from(index))
        {
            *place = Some(kept);
            return index;
        }
        if let Some(index) = self.vacant.pop()
            && let Some(place) = self.slab.get_mut(usize::from(index))
        {
            *place = Some(kept);
            return index;
        }
        let index = u16::try_from(self.slab.len()).unwrap_or(u16::MAX);
        self.slab.push(Some(kept));
        index
    }

    fn vacate(&mut self, word: Word) {
        if let WordContent::Slab(index) = word.held()
            && let Some(place) = self.slab.get_mut(usize::from(index))
        {
            *place = None;
            self.vacant.push(index);
        }
    }
}
