//! The table of buckets: a directory that leads from an id's first bits to a
//! segment. A full segment splits in two, so the table grows in small steps and no
//! thread ever waits for more than one segment.
//!
//! Overflow rule: at most `keys_max` buckets are held. Beyond that a new bucket takes the place of
//! expired and idle ones (those that were given back or reset). A bucket that still counts stays,
//! above all one that denies: without it, its key would be admitted anew. If there is no room, new
//! keys share one strict bucket per limit, and `overflowed` counts them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use palisade_core::Digest;
use palisade_core::limit::{BucketSpec, State};
use palisade_core::time::Micros;
use parking_lot::MutexGuard;

use super::gcra::{self, Pace, TakeOutcome};
use super::overflow::Overflow;
use super::segment::{Body, Durability, FILL_MAX, MovedBucket, Origin, Segment, StoredState};

/// Segments that an insertion at the bound searches for expired buckets.
const SWEEP_AT_BOUND: u32 = 64;
/// Largest directory, as a power of 2.
const BITS_MAX: u32 = 20;
/// Segments that a large table starts with, as a power of 2.
const BITS_START: u32 = 1;

/// The table.
pub(crate) struct Table {
    pub(super) origin: Origin,
    bits: u32,
    /// Right shift that turns the upper 63 bits of an id into its entry in the directory.
    shift: u32,
    directory: Box<[AtomicU32]>,
    segments: Box<[OnceLock<Box<Segment>>]>,
    /// Number of segments.
    allocated: AtomicU32,
    cursor: AtomicU32,
    keys_max: u64,
    tracked: AtomicU64,
    evictions: AtomicU64,
    expired: AtomicU64,
    pub(super) overflow: Overflow,
}

/// Whether there is room for a new bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is room now: try again.
    Made,
    /// There is no room: use the shared bucket.
    Full,
}

impl Table {
    pub(crate) fn new(now: Micros, keys_max: u64) -> Self {
        let bits = bits_for(keys_max);
        let start = bits.min(BITS_START);
        let origin = Origin::at(now);
        let table = Self {
            origin,
            bits,
            shift: 63 - bits,
            directory: (0..1_u32 << bits)
                .map(|entry| AtomicU32::new(entry >> (bits - start)))
                .collect(),
            segments: (0..1_u32 << bits).map(|_| OnceLock::new()).collect(),
            allocated: AtomicU32::new(1 << start),
            cursor: AtomicU32::new(0),
            keys_max,
            tracked: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            overflow: Overflow::default(),
        };
        for number in 0..1_u32 << start {
            let first = number << (bits - start);
            table.segments[number as usize].get_or_init(|| Segment::new(origin, first, start));
        }
        table
    }

    /// Number of the segment that `id` leads to now.
    #[inline]
    pub(super) fn route(&self, id: Digest) -> u32 {
        // In two steps: with a directory of one entry the shift would be by all 64 bits, which is
        // not a shift.
        let entry = (id.0 >> 65) as u64 >> self.shift;
        self.directory[entry as usize].load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn segment(&self, number: u32) -> Option<&Segment> {
        self.segments
            .get(number as usize)?
            .get()
            .map(|segment| &**segment)
    }

    /// Takes from a token bucket in the shortest way. False does not mean a denial:
    /// [`Table::take_unlocked`] decides.
    #[inline]
    pub(crate) fn admits(&self, id: Digest, pace: Pace, cost: u64, now: Micros) -> bool {
        let admit = || {
            let (slot, word) = self.segment(self.route(id))?.glance(id)?;
            let now = self.origin.ticks_after(now)?;
            let after = pace.admit(word.ticks()?, now, cost)?;
            Some(slot.swap(word, word.with_ticks(after).ok()?))
        };
        admit() == Some(true)
    }

    /// Takes from a token bucket without a lock. `None` if the bucket is new, if another thread is
    /// working on it, or if its state does not fit in the word: take the lock.
    pub(crate) fn take_unlocked(
        &self,
        id: Digest,
        spec: &BucketSpec,
        cost: u64,
        now: Micros,
    ) -> Option<TakeOutcome> {
        let segment = self.segment(self.route(id))?;
        loop {
            let (slot, word) = segment.look(id)?;
            let arrival = self.origin.arrival(word.ticks()?);
            let taken = gcra::take(spec, arrival, now, cost);
            let TakeOutcome::Admitted(after) = taken else {
                return Some(taken);
            };
            // Fails if another thread was faster: then judge again on what it left.
            if slot.swap(word, word.with_ticks(self.origin.ticks(after)).ok()?) {
                return Some(taken);
            }
        }
    }

    /// Reserves room for `count` new buckets under the bound.
    pub(super) fn reserve(&self, count: u64) -> bool {
        let add = |tracked: u64| {
            let sum = tracked.saturating_add(count);
            (sum <= self.keys_max).then_some(sum)
        };
        self.tracked
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, add)
            .is_ok()
    }

    /// Returns room that was reserved and not used.
    pub(super) fn release(&self, count: u64) {
        if count > 0 {
            self.tracked.fetch_sub(count, Ordering::AcqRel);
        }
    }

    /// Makes room for `count` buckets in the segment of `id`.
    pub(super) fn make_room(&self, id: Digest, count: usize, now: Micros) -> Room {
        let number = self.route(id);
        let Some(segment) = self.segment(number) else {
            return Room::Full;
        };
        let is_at_bound = || self.tracked.load(Ordering::Acquire) + count as u64 > self.keys_max;
        let mut body = segment.lock();
        // Another thread split the segment before this one had the lock: that made room.
        if self.route(id) != number {
            return Room::Made;
        }
        let is_full = |body: &Body| body.len + count > FILL_MAX;
        if is_full(&body) || is_at_bound() {
            self.drop_spent(segment, &mut body, now);
        }
        if is_full(&body) {
            // The directory has no further bit to split by.
            if body.depth == self.bits {
                return Room::Full;
            }
            self.split(segment, number, &mut body);
        }
        drop(body);
        if is_at_bound() {
            // After the lock is released: this takes the locks of other segments.
            self.sweep_some(SWEEP_AT_BOUND, now);
        }
        if is_at_bound() {
            Room::Full
        } else {
            Room::Made
        }
    }

    fn drop_spent(&self, segment: &Segment, body: &mut Body, now: Micros) {
        let dropped = segment.drop_spent(body, now);
        self.expired.fetch_add(dropped as u64, Ordering::Relaxed);
        self.release(dropped as u64);
    }

    fn split(&self, segment: &Segment, number: u32, body: &mut Body) {
        let new = self.allocated.fetch_add(1, Ordering::AcqRel);
        let depth = body.depth + 1;
        // Half of the directory's entries for this segment will lead to the new one: those with
        // the next bit of the id set.
        let span = 1 << (self.bits - depth);
        let first = body.first + span;
        let Some(place) = self.segments.get(new as usize) else {
            return;
        };
        let upper = place.get_or_init(|| Segment::new(self.origin, first, depth));
        // `high` is the id's upper 32 bits, and segments at this depth differ in the bit
        // that is `depth` from its top.
        let is_upper = |one: &mut MovedBucket| one.high >> (32 - depth) & 1 == 1;
        let mut moved = segment.drain(body);
        let went: Vec<MovedBucket> = moved.extract_if(.., is_upper).collect();
        // Filled before any entry leads there: a reader that follows the new entry finds
        // its bucket; one that followed the old one misses it, takes the lock and looks
        // again.
        upper.refill(&mut upper.lock(), went);
        for entry in &self.directory[first as usize..(first + span) as usize] {
            debug_assert_eq!(entry.load(Ordering::Relaxed), number);
            entry.store(new, Ordering::Release);
        }
        body.depth = depth;
        segment.refill(body, moved);
    }

    /// Drops expired buckets of the next `count` segments.
    pub(crate) fn sweep_some(&self, count: u32, now: Micros) {
        let allocated = self.allocated();
        for _ in 0..count.min(allocated) {
            let number = self.cursor.fetch_add(1, Ordering::Relaxed) % allocated;
            let Some(segment) = self.segment(number) else {
                continue;
            };
            // A segment in use is left for the next round: a sweep must not hold up anybody.
            if let Some(mut body) = segment.try_lock() {
                self.drop_spent(segment, &mut body, now);
            }
        }
    }

    /// Number of segments.
    pub(crate) fn allocated(&self) -> u32 {
        let all = u32::try_from(self.segments.len()).unwrap_or(u32::MAX);
        self.allocated.load(Ordering::Acquire).min(all)
    }

    pub(crate) fn tracked(&self) -> u64 {
        self.tracked.load(Ordering::Relaxed)
    }

    /// Fill level of the table, in percent.
    pub(crate) fn used_percent(&self) -> u64 {
        self.tracked() * 100 / self.keys_max.max(1)
    }

    pub(crate) fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Restores a bucket from a file, or removes it.
    pub(crate) fn restore(
        &self,
        id: Digest,
        held: Option<(State, Micros)>,
        durability: Durability,
        now: Micros,
    ) {
        let (state, expires_at) = held
            .filter(|(_, expires_at)| *expires_at > now)
            .unwrap_or((State::Empty, Micros(0)));
        let kept = StoredState {
            id,
            state,
            expires_at,
            family: durability,
        };
        let Some((segment, mut body)) = self.lock(id) else {
            return;
        };
        if let Some(slot) = segment.find(id) {
            let (word, _) = segment.take(&mut body, slot);
            segment.put(&mut body, (slot, word), kept);
            return;
        }
        drop(body);
        if expires_at > now {
            self.insert_restored(kept, now);
        }
    }

    fn insert_restored(&self, kept: StoredState, now: Micros) {
        while let Some((segment, mut body)) = self.lock(kept.id) {
            if body.len < FILL_MAX && self.reserve(1) {
                segment.insert(&mut body, kept);
                return;
            }
            drop(body);
            if self.make_room(kept.id, 1, now) == Room::Full {
                // The bound is lower than the number of buckets that were held before.
                self.evictions.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Marks a durable bucket as dirty again that could not be written.
    pub(crate) fn mark_dirty(&self, id: Digest) {
        if let Some((segment, mut body)) = self.lock(id) {
            segment.mark_dirty(&mut body, id);
        }
    }

    /// All segments.
    pub(crate) fn all_segments(&self) -> impl Iterator<Item = &Segment> {
        (0..self.allocated()).filter_map(|number| self.segment(number))
    }

    /// Locks the segment that `id` leads to.
    pub(super) fn lock(&self, id: Digest) -> Option<(&Segment, MutexGuard<'_, Body>)> {
        loop {
            let number = self.route(id);
            let segment = self.segment(number)?;
            let body = segment.lock();
            // A split between routing and locking may have moved the bucket elsewhere.
            if self.route(id) == number {
                return Some((segment, body));
            }
        }
    }
}

/// Bits of the directory: enough that segments are half full at the bound.
fn bits_for(keys_max: u64) -> u32 {
    let fit = FILL_MAX as u64;
    if keys_max <= fit {
        return 0;
    }
    (keys_max * 3 / 2)
        .div_ceil(fit)
        .next_power_of_two()
        .trailing_zeros()
        .min(BITS_MAX)
}
