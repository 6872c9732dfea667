//! Decisions on several buckets at once: their segments are locked in one order, the states are
//! taken out, the pure functions decide, and the states are put back.

use std::borrow::Cow;

use palisade_core::Digest;
use palisade_core::limit::{Algorithm, BucketSpec, COUNT_MAX, Reading, State};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::Family;
use palisade_core::time::Micros;
use parking_lot::MutexGuard;
use smallvec::{SmallVec, smallvec};

use super::Lifetime;
use super::evaluate::evaluate;
use super::overflow::{self, SharedBucket, States};
use super::segment::{Body, Durability, FILL_MAX, Segment, StoredState};
use super::slot::Slot;
use super::table::{Room, Table};
use super::word::Word;
use crate::{BucketReadings, Take};

/// Attempts at finding room before a decision uses the overflow bucket.
const ROUNDS_MAX: u32 = 16;

/// One entry for each charge of a plan, stored inline up to the usual number of charges, so that a
/// decision allocates nothing for itself.
pub(super) type PerCharge<T> = SmallVec<[T; 6]>;

/// The locked segments of one decision.
struct Locked<'t> {
    segments: PerCharge<(u32, &'t Segment, MutexGuard<'t, Body>)>,
}

/// Place that one charge's state was taken from.
enum Place<'t> {
    Slot(usize, &'t Slot, Word),
    Absent(usize),
    Shared(SharedBucket),
    /// That of an earlier charge of the plan on the same bucket.
    Same(usize),
    /// There is no bucket, and no room for one.
    Nowhere,
}

impl<'t> Locked<'t> {
    /// Locks the segments of `charges`. Every caller locks in the order of the segments' numbers,
    /// so no two wait for each other.
    fn new(table: &'t Table, charges: &[Charge<'_>]) -> Self {
        loop {
            let mut numbers: PerCharge<u32> = charges.iter().map(|c| table.route(c.id)).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let segments: PerCharge<_> = numbers
                .into_iter()
                .filter_map(|number| Some((number, table.segment(number)?)))
                .map(|(number, segment)| (number, segment, segment.lock()))
                .collect();
            let locked = Self { segments };
            // Between routing and locking a split may have moved a bucket to a segment
            // that is not locked here.
            if charges.iter().all(|c| locked.of(table, c.id).is_some()) {
                return locked;
            }
        }
    }

    fn of(&self, table: &Table, id: Digest) -> Option<usize> {
        let number = table.route(id);
        self.segments
            .binary_search_by_key(&number, |(number, ..)| *number)
            .ok()
    }

    fn find(&mut self, table: &Table, id: Digest) -> (Place<'t>, State) {
        let index = self.of(table, id).unwrap_or(0);
        let (_, segment, body) = &mut self.segments[index];
        let segment: &'t Segment = segment;
        match segment.find(id) {
            Some(slot) => {
                let (word, state) = segment.take(body, slot);
                (Place::Slot(index, slot, word), state)
            }
            None => (Place::Absent(index), State::Empty),
        }
    }
}

/// Charges of a plan that use an overflow bucket, by position.
#[derive(Default)]
struct Sharing(Vec<bool>);

impl Sharing {
    fn has(&self, position: usize) -> bool {
        self.0.get(position).copied().unwrap_or(false)
    }

    /// Makes the bucket at `position` share, wherever the plan has it.
    fn add(&mut self, charges: &[Charge<'_>], position: usize) {
        self.0.resize(charges.len(), false);
        for (flag, charge) in self.0.iter_mut().zip(charges) {
            *flag |= charge.id == charges[position].id;
        }
    }

    /// Notes that the bucket at `position` has got a slot meanwhile.
    fn remove(&mut self, position: usize) {
        if let Some(flag) = self.0.get_mut(position) {
            *flag = false;
        }
    }

    /// The first earlier charge on the bucket of the one at `position`.
    fn same(&self, charges: &[Charge<'_>], position: usize) -> Option<usize> {
        let charge = &charges[position];
        let is_shared = self.has(position);
        (0..position).find(|earlier| {
            let other = &charges[*earlier];
            self.has(*earlier) == is_shared
                && (other.id == charge.id || (is_shared && shared(other) == shared(charge)))
        })
    }
}

fn shared(charge: &Charge<'_>) -> SharedBucket {
    SharedBucket::new(charge.limit.digest, charge.spec)
}

impl Table {
    /// Evaluates `charges` at one instant, all or nothing.
    pub(crate) fn charge(
        &self,
        charges: &[Charge<'_>],
        take: Take,
        now: Micros,
        lifetime: Lifetime,
    ) -> (bool, BucketReadings) {
        if let ([charge], Take::Consume) = (charges, take)
            && let Some(reading) = self.charge_one(charge, now, lifetime)
        {
            let admitted = reading.retry_at.is_none() || !charge.on_exceed.denies();
            return (admitted, smallvec![reading]);
        }
        self.charge_locked(charges, take, now, lifetime)
    }

    /// Charges one bucket that has a slot already; `None`, and nothing is taken, if it has none.
    fn charge_one(&self, charge: &Charge<'_>, now: Micros, lifetime: Lifetime) -> Option<Reading> {
        if is_simple(charge, lifetime)
            && let Some(taken) = self.take_unlocked(charge.id, charge.spec, charge.cost, now)
        {
            return Some(taken.reading(charge.spec, now));
        }
        self.charge_known(charge, now, lifetime)
    }

    /// Charges one bucket that has a slot already, as most decisions do: there is nothing to sort,
    /// and no room to make. `None` if it has none.
    fn charge_known(
        &self,
        charge: &Charge<'_>,
        now: Micros,
        lifetime: Lifetime,
    ) -> Option<Reading> {
        let (segment, mut body) = self.lock(charge.id)?;
        let (slot, word) = segment.look(charge.id)?;
        let spec = charge.spec;
        if spec.algorithm() != Algorithm::TokenBucket {
            let durability = durability(charge, lifetime);
            let charged = |kept: &mut StoredState| charge_kept(charge, kept, now);
            let reading = segment.change_kept(&mut body, word, durability, charged);
            if reading.is_some() {
                return reading;
            }
        }
        let (word, mut state) = segment.take(&mut body, slot);
        let wait = spec.fits(&state, now, charge.required());
        let takes = wait.is_none() || charge.on_exceed == OnExceed::Count;
        if takes {
            charge.take(&mut state, now);
        }
        let reading = spec.read_waiting(&state, now, wait);
        if takes {
            let kept = keep(charge.id, spec, state, durability(charge, lifetime));
            segment.put(&mut body, (slot, word), kept);
        } else {
            segment.put_back(&mut body, slot, word, state);
        }
        Some(reading)
    }

    fn charge_locked(
        &self,
        charges: &[Charge<'_>],
        take: Take,
        now: Micros,
        lifetime: Lifetime,
    ) -> (bool, BucketReadings) {
        let (mut locked, sharing, reserved) = match take {
            Take::Consume => self.lock_with_room(charges, now),
            Take::Peek => (Locked::new(self, charges), Sharing::default(), 0),
        };
        let mut decision = Decision::open(self, &mut locked, &sharing, charges, now);
        // Before judging: a key that shared and now gets a bucket must not start from zero.
        decision.seed(charges, now);
        let summed = decision.sum(charges);
        let (admitted, readings) = evaluate(&summed, &mut decision.states, now, take);
        let taken = |position: usize| {
            let is_counted = charges[position].on_exceed == OnExceed::Count;
            let fits = readings[position].retry_at.is_none();
            admitted && take == Take::Consume && (fits || is_counted)
        };
        let inserted = decision.close(&mut locked, charges, lifetime, taken);
        self.release(reserved - inserted);
        (admitted, readings)
    }

    /// Changes the states of known buckets; unknown ones are left unknown.
    pub(crate) fn change(
        &self,
        charges: &[Charge<'_>],
        lifetime: Lifetime,
        mut change: impl FnMut(usize, &Charge<'_>, &mut State) -> Reading,
    ) -> BucketReadings {
        let mut locked = Locked::new(self, charges);
        let sharing = Sharing::default();
        // No bucket is shared here, so the instant does not matter.
        let mut decision = Decision::open(self, &mut locked, &sharing, charges, Micros(0));
        let readings = charges
            .iter()
            .enumerate()
            .map(|(position, charge)| {
                let state = decision.home(position);
                change(position, charge, &mut decision.states[state])
            })
            .collect();
        let is_known = |place: &Place<'_>| matches!(place, Place::Slot(..));
        let known: PerCharge<bool> = decision.places.iter().map(is_known).collect();
        decision.close(&mut locked, charges, lifetime, |position| known[position]);
        readings
    }

    /// Reads one bucket of `limit` as a request of `cost` finds it.
    pub(crate) fn read_one(
        &self,
        limit: Digest,
        id: Digest,
        spec: &BucketSpec,
        cost: u64,
        now: Micros,
    ) -> Reading {
        if let Some((segment, mut body)) = self.lock(id)
            && let Some(slot) = segment.find(id)
        {
            let (word, state) = segment.take(&mut body, slot);
            let reading = spec.read(&state, now, cost);
            segment.put_back(&mut body, slot, word, state);
            return reading;
        }
        let state = self.overflow.seed(&SharedBucket::new(limit, spec), now);
        spec.read(&state, now, cost)
    }

    /// Clears one bucket, if it is known.
    pub(crate) fn clear_one(&self, id: Digest) {
        if let Some((segment, mut body)) = self.lock(id)
            && let Some(slot) = segment.find(id)
        {
            let (word, _) = segment.take(&mut body, slot);
            let kept = StoredState {
                id,
                state: State::Empty,
                expires_at: Micros(0),
                family: Durability::Volatile,
            };
            segment.put(&mut body, (slot, word), kept);
        }
    }

    /// Takes from one bucket of `limit`.
    pub(crate) fn take_locked(
        &self,
        limit: Digest,
        id: Digest,
        spec: &BucketSpec,
        cost: u64,
        now: Micros,
    ) -> Result<(), Micros> {
        let mut rounds = 0;
        while let Some((segment, mut body)) = self.lock(id) {
            if let Some(slot) = segment.find(id) {
                let (word, mut state) = segment.take(&mut body, slot);
                let taken = take_one(spec, &mut state, cost, now);
                match taken {
                    Ok(()) => {
                        let kept = keep(id, spec, state, Durability::Volatile);
                        segment.put(&mut body, (slot, word), kept);
                    }
                    Err(_) => segment.put_back(&mut body, slot, word, state),
                }
                return taken;
            }
            let shared = SharedBucket::new(limit, spec);
            if body.len < FILL_MAX && self.reserve(1) {
                let mut state = self.overflow.seed(&shared, now);
                let taken = take_one(spec, &mut state, cost, now);
                let is_inserted = taken.is_ok()
                    && segment.insert(&mut body, own(id, spec, state, Durability::Volatile));
                self.release(u64::from(!is_inserted));
                return taken;
            }
            // Under the lock, so that the bucket cannot get a slot while it shares: its uses in
            // both would be admitted twice.
            if rounds >= ROUNDS_MAX {
                return self.take_shared(&shared, spec, cost, now);
            }
            drop(body);
            rounds = match self.make_room(id, 1, now) {
                Room::Made => rounds + 1,
                Room::Full => ROUNDS_MAX,
            };
        }
        // The directory always leads to a segment; if it did not, nothing must be admitted.
        Err(Micros(u64::MAX))
    }

    fn take_shared(
        &self,
        shared: &SharedBucket,
        spec: &BucketSpec,
        cost: u64,
        now: Micros,
    ) -> Result<(), Micros> {
        self.overflow.count();
        let mut states = self.overflow.lock();
        let Some(mut state) = states.find(shared, now) else {
            return take_one(spec, &mut overflow::full(spec, now), cost, now);
        };
        let taken = take_one(spec, &mut state, cost, now);
        if taken.is_ok() {
            self.overflow.keep(&mut states, *shared, state);
        }
        taken
    }

    /// Locks the segments of `charges` with room for those that are new.
    fn lock_with_room(&self, charges: &[Charge<'_>], now: Micros) -> (Locked<'_>, Sharing, u64) {
        let mut sharing = Sharing::default();
        for round in 0_u32.. {
            let locked = Locked::new(self, charges);
            // By segment: two new buckets of one plan may lead to the same one.
            let mut needed: PerCharge<usize> = smallvec![0; locked.segments.len()];
            let mut short = None;
            let mut total = 0;
            for (position, charge) in charges.iter().enumerate() {
                let index = locked.of(self, charge.id).unwrap_or(0);
                let (_, segment, body) = &locked.segments[index];
                if segment.find(charge.id).is_some() {
                    // Another decision has given it a slot since it was made to share: it must not
                    // count in both.
                    sharing.remove(position);
                    continue;
                }
                if sharing.has(position) {
                    continue;
                }
                needed[index] += 1;
                total += 1;
                if body.len + needed[index] > FILL_MAX {
                    short = short.or(Some((position, needed[index])));
                }
            }
            // All at once and before judging: an admitted plan must find room for all of its
            // buckets, or it would have charged only some.
            if short.is_none() && total > 0 && !self.reserve(total) {
                let is_new = |(position, charge): &(usize, &Charge<'_>)| {
                    let index = locked.of(self, charge.id).unwrap_or(0);
                    !sharing.has(*position) && locked.segments[index].1.find(charge.id).is_none()
                };
                short = charges
                    .iter()
                    .enumerate()
                    .find(is_new)
                    .map(|(position, _)| (position, usize::try_from(total).unwrap_or(1)));
            }
            let Some((position, count)) = short else {
                return (locked, sharing, total);
            };
            // Making room may split a segment that is locked here.
            drop(locked);
            let room = self.make_room(charges[position].id, count, now);
            if room == Room::Full || round >= ROUNDS_MAX {
                sharing.add(charges, position);
            }
        }
        (Locked::new(self, charges), sharing, 0)
    }
}

/// States of one decision, taken out of the table.
struct Decision<'t> {
    table: &'t Table,
    places: PerCharge<Place<'t>>,
    states: PerCharge<State>,
    shared: Option<MutexGuard<'t, States>>,
}

impl<'t> Decision<'t> {
    fn open(
        table: &'t Table,
        locked: &mut Locked<'t>,
        sharing: &Sharing,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Self {
        let mut decision = Self {
            table,
            places: PerCharge::with_capacity(charges.len()),
            states: PerCharge::with_capacity(charges.len()),
            shared: None,
        };
        for (position, charge) in charges.iter().enumerate() {
            let (place, state) = if let Some(first) = sharing.same(charges, position) {
                (Place::Same(first), State::Empty)
            } else if sharing.has(position) {
                decision.share(charge, now)
            } else {
                locked.find(table, charge.id)
            };
            decision.places.push(place);
            decision.states.push(state);
        }
        decision
    }

    fn share(&mut self, charge: &Charge<'_>, now: Micros) -> (Place<'t>, State) {
        self.table.overflow.count();
        let table = self.table;
        let states = self.shared.get_or_insert_with(|| table.overflow.lock());
        let name = shared(charge);
        match states.find(&name, now) {
            Some(state) => (Place::Shared(name), state),
            None => (Place::Nowhere, overflow::full(charge.spec, now)),
        }
    }

    /// Starts new buckets with what their keys may have used in a shared one.
    fn seed(&mut self, charges: &[Charge<'_>], now: Micros) {
        let overflow = &self.table.overflow;
        if !overflow.is_live(now) {
            return;
        }
        for ((place, state), charge) in self.places.iter().zip(&mut self.states).zip(charges) {
            if matches!(place, Place::Absent(_)) {
                let states = self.shared.get_or_insert_with(|| overflow.lock());
                *state = states.seed(&shared(charge), now);
            }
        }
    }

    /// Position of the charge whose state stands for the bucket.
    fn home(&self, position: usize) -> usize {
        match self.places[position] {
            Place::Same(first) => first,
            _ => position,
        }
    }

    /// Adds to each charge the costs of earlier charges on the same bucket.
    fn sum<'c, 'p>(&mut self, charges: &'c [Charge<'p>]) -> Cow<'c, [Charge<'p>]> {
        let is_same = |place: &Place<'_>| matches!(place, Place::Same(_));
        if !self.places.iter().any(is_same) {
            return Cow::Borrowed(charges);
        }
        let mut summed = charges.to_vec();
        for (position, charge) in summed.iter_mut().enumerate() {
            let home = self.home(position);
            self.states[position] = self.states[home].clone();
            charge.cost = (0..=position)
                .filter(|earlier| self.home(*earlier) == home)
                .fold(0, |sum, earlier| charges[earlier].cost.saturating_add(sum))
                .min(COUNT_MAX);
        }
        Cow::Owned(summed)
    }

    /// Puts the states back; returns how many buckets were inserted. `changed` returns whether a
    /// charge has changed its state.
    fn close(
        mut self,
        locked: &mut Locked<'t>,
        charges: &[Charge<'_>],
        lifetime: Lifetime,
        changed: impl Fn(usize) -> bool,
    ) -> u64 {
        let mut has_changed: PerCharge<bool> = (0..charges.len()).map(changed).collect();
        // Each charge of a bucket was judged on a copy that includes all earlier costs; the last
        // copy that took is the bucket's new state.
        for position in 0..charges.len() {
            let home = self.home(position);
            if home != position && has_changed[position] {
                self.states.swap(home, position);
                has_changed[home] = true;
            }
        }
        let mut inserted = 0;
        let states = self.places.into_iter().zip(self.states).zip(has_changed);
        for (charge, ((place, state), has_changed)) in charges.iter().zip(states) {
            let durability = durability(charge, lifetime);
            match place {
                Place::Slot(index, slot, word) => {
                    let (_, segment, body) = &mut locked.segments[index];
                    if has_changed {
                        let kept = keep(charge.id, charge.spec, state, durability);
                        segment.put(body, (slot, word), kept);
                    } else {
                        segment.put_back(body, slot, word, state);
                    }
                }
                Place::Absent(index) if has_changed => {
                    let (_, segment, body) = &mut locked.segments[index];
                    let kept = own(charge.id, charge.spec, state, durability);
                    inserted += u64::from(segment.insert(body, kept));
                }
                Place::Shared(name) if has_changed => {
                    if let Some(states) = &mut self.shared {
                        self.table.overflow.keep(states, name, state);
                    }
                }
                Place::Absent(_) | Place::Shared(_) | Place::Same(_) | Place::Nowhere => {}
            }
        }
        inserted
    }
}

/// Charges a bucket in place; returns its reading, and whether anything was taken.
fn charge_kept(charge: &Charge<'_>, kept: &mut StoredState, now: Micros) -> (Reading, bool) {
    let (spec, state) = (charge.spec, &mut kept.state);
    let wait = spec.fits(state, now, charge.required());
    let takes = wait.is_none() || charge.on_exceed == OnExceed::Count;
    if takes {
        charge.take(state, now);
        kept.expires_at = spec.expires_at(state);
    }
    (spec.read_waiting(state, now, wait), takes)
}

/// True if the lock-free path may serve the charge: that path marks nothing as changed.
fn is_simple(charge: &Charge<'_>, lifetime: Lifetime) -> bool {
    charge.spec.algorithm() == Algorithm::TokenBucket
        && charge.on_exceed == OnExceed::Deny
        && charge.limit.family == Family::Limit
        && (lifetime == Lifetime::Process || !charge.is_durable())
}

fn durability(charge: &Charge<'_>, lifetime: Lifetime) -> Durability {
    match lifetime {
        Lifetime::Durable if charge.is_durable() => Durability::Dirty,
        _ => Durability::Volatile,
    }
}

/// State of a new bucket.
fn own(id: Digest, spec: &BucketSpec, state: State, family: Durability) -> StoredState {
    keep(id, spec, overflow::folded(state), family)
}

fn keep(id: Digest, spec: &BucketSpec, state: State, family: Durability) -> StoredState {
    StoredState {
        id,
        expires_at: spec.expires_at(&state),
        state,
        family,
    }
}

fn take_one(spec: &BucketSpec, state: &mut State, cost: u64, now: Micros) -> Result<(), Micros> {
    match spec.fits(state, now, cost) {
        Some(retry_at) => Err(retry_at),
        None => {
            spec.take(state, now, cost);
            Ok(())
        }
    }
}
