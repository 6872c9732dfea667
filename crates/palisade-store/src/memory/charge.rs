//! Decisions on several buckets at once: their segments are locked in one order,
//! the states are taken out, the pure functions decide, the states go back.

use palisade_core::Digest;
use palisade_core::limit::{Algorithm, BucketSpec, Reading, State};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::Family;
use palisade_core::time::Micros;
use parking_lot::MutexGuard;

use super::Lifetime;
use super::gcra::Taken;
use super::overflow::{Shared, bounded};
use super::segment::{Body, Durability, FILL_MAX, Kept, Put, Segment};
use super::slot::Slot;
use super::table::{Room, Table};
use super::word::Word;
use crate::Take;
use crate::model::evaluate;

/// How often a decision looks for room before it shares the overflow bucket.
const ROUNDS_MAX: u32 = 16;

/// The locked segments of one decision.
struct Locked<'t> {
    segments: Vec<(u32, &'t Segment, MutexGuard<'t, Body>)>,
}

/// Where one charge's state was taken from.
enum Place<'t> {
    Slot(usize, &'t Slot, Word),
    Absent(usize),
    Shared(Shared),
}

impl<'t> Locked<'t> {
    /// Locks what `charges` lead to. Every caller locks in the order of the
    /// segments' numbers, so none waits for another in a circle.
    fn new(table: &'t Table, charges: &[Charge<'_>]) -> Self {
        loop {
            let mut numbers: Vec<u32> = charges.iter().map(|c| table.route(c.id)).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let segments: Vec<_> = numbers
                .into_iter()
                .filter_map(|number| Some((number, table.segment(number)?)))
                .map(|(number, segment)| (number, segment, segment.lock()))
                .collect();
            let locked = Self { segments };
            // A split may have come first.
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

/// Which charges of a plan have to share, by position.
#[derive(Default)]
struct Sharing(Vec<bool>);

impl Sharing {
    fn has(&self, position: usize) -> bool {
        self.0.get(position).copied().unwrap_or(false)
    }

    fn add(&mut self, position: usize, len: usize) {
        self.0.resize(len, false);
        if let Some(flag) = self.0.get_mut(position) {
            *flag = true;
        }
    }

    /// The shared bucket of the charge at `position`.
    fn name(&self, charges: &[Charge<'_>], position: usize) -> Shared {
        let limit = charges[position].limit.digest;
        let met = (0..position)
            .filter(|earlier| self.has(*earlier) && charges[*earlier].limit.digest == limit)
            .count();
        (limit, u8::try_from(met).unwrap_or(u8::MAX))
    }
}

impl Table {
    /// Evaluates `charges` at one instant, all or nothing.
    pub(crate) fn charge(
        &self,
        charges: &[Charge<'_>],
        take: Take,
        now: Micros,
        lifetime: Lifetime,
    ) -> (bool, Vec<Reading>) {
        if let ([charge], Take::Consume) = (charges, take)
            && is_simple(charge)
            && let Some(taken) = self.take_unlocked(charge.id, charge.spec, charge.cost, now)
        {
            let (arrival, retry_at) = match taken {
                Taken::Admitted(arrival) => (arrival, None),
                Taken::Denied(arrival, retry_at) => (arrival, Some(retry_at)),
            };
            let state = State::Gcra(arrival);
            let reading = Reading {
                retry_at,
                ..charge.spec.read(&state, now, charge.cost)
            };
            return (retry_at.is_none(), vec![reading]);
        }
        self.charge_locked(charges, take, now, lifetime)
    }

    fn charge_locked(
        &self,
        charges: &[Charge<'_>],
        take: Take,
        now: Micros,
        lifetime: Lifetime,
    ) -> (bool, Vec<Reading>) {
        let (mut locked, sharing, reserved) = match take {
            Take::Consume => self.lock_with_room(charges, now),
            Take::Peek => (Locked::new(self, charges), Sharing::default(), 0),
        };
        let mut decision = Decision::open(self, &mut locked, &sharing, charges);
        let (admitted, readings) = evaluate(charges, &mut decision.states, now, take);
        let blocked = |position: usize| match take {
            Take::Consume => Some(readings[position].retry_at.is_some()),
            Take::Peek => None,
        };
        let inserted = decision.close(&mut locked, charges, lifetime, blocked);
        self.release(reserved - inserted);
        (admitted, readings)
    }

    /// Changes the states of known buckets; unknown ones are left unknown.
    pub(crate) fn change(
        &self,
        charges: &[Charge<'_>],
        lifetime: Lifetime,
        mut change: impl FnMut(&Charge<'_>, &mut State) -> Reading,
    ) -> Vec<Reading> {
        let mut locked = Locked::new(self, charges);
        let mut decision = Decision::open(self, &mut locked, &Sharing::default(), charges);
        let readings = charges
            .iter()
            .zip(&mut decision.states)
            .map(|(charge, state)| change(charge, state))
            .collect();
        decision.close(&mut locked, charges, lifetime, |_| Some(false));
        readings
    }

    /// Takes from one bucket.
    pub(crate) fn take_locked(
        &self,
        id: Digest,
        spec: &BucketSpec,
        cost: u32,
        now: Micros,
    ) -> Result<(), Micros> {
        for round in 0..=ROUNDS_MAX {
            let Some((segment, mut body)) = self.lock(id) else {
                break;
            };
            let known = segment.find(id);
            if known.is_none() && (body.len >= FILL_MAX || !self.reserve(1)) {
                drop(body);
                if round == ROUNDS_MAX || self.make_room(id, 1, now) == Room::Full {
                    break;
                }
                continue;
            }
            let (word, mut state) = match known {
                Some(slot) => segment.take(&mut body, slot),
                None => (Word::FREE, State::Empty),
            };
            let taken = take_one(spec, &mut state, cost, now);
            let blocked = taken.is_err();
            let kept = keep(id, spec, state, Durability::Volatile);
            match known {
                Some(slot) => segment.put(&mut body, (slot, word), Put { blocked, kept }),
                None if kept.state == State::Empty => self.release(1),
                None => {
                    segment.insert(&mut body, Put { blocked, kept });
                }
            }
            return taken;
        }
        self.overflow.count();
        let mut states = self.overflow.lock();
        let shared = bounded(&states, (spec_name(spec), 0));
        take_one(spec, states.entry(shared).or_default(), cost, now)
    }

    /// Locks the segments of `charges` with room for those that are new.
    fn lock_with_room(&self, charges: &[Charge<'_>], now: Micros) -> (Locked<'_>, Sharing, u64) {
        let mut sharing = Sharing::default();
        for round in 0_u32.. {
            let locked = Locked::new(self, charges);
            let mut needed = vec![0; locked.segments.len()];
            let mut short = None;
            let mut total = 0;
            for (position, charge) in charges.iter().enumerate() {
                let index = locked.of(self, charge.id).unwrap_or(0);
                let (_, segment, body) = &locked.segments[index];
                if sharing.has(position) || segment.find(charge.id).is_some() {
                    continue;
                }
                needed[index] += 1;
                total += 1;
                if body.len + needed[index] > FILL_MAX {
                    short = short.or(Some((position, needed[index])));
                }
            }
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
            drop(locked);
            let room = self.make_room(charges[position].id, count, now);
            if room == Room::Full || round >= ROUNDS_MAX {
                sharing.add(position, charges.len());
            }
        }
        (Locked::new(self, charges), sharing, 0)
    }
}

/// The states of one decision, out of the table.
struct Decision<'t> {
    places: Vec<Place<'t>>,
    states: Vec<State>,
    overflow: Option<MutexGuard<'t, hashbrown::HashMap<Shared, State>>>,
}

impl<'t> Decision<'t> {
    fn open(
        table: &'t Table,
        locked: &mut Locked<'t>,
        sharing: &Sharing,
        charges: &[Charge<'_>],
    ) -> Self {
        let mut decision = Self {
            places: Vec::with_capacity(charges.len()),
            states: Vec::with_capacity(charges.len()),
            overflow: None,
        };
        for (position, charge) in charges.iter().enumerate() {
            let (place, state) = if sharing.has(position) {
                table.overflow.count();
                let states = decision
                    .overflow
                    .get_or_insert_with(|| table.overflow.lock());
                let shared = bounded(states, sharing.name(charges, position));
                let state = states.remove(&shared).unwrap_or_default();
                (Place::Shared(shared), state)
            } else {
                locked.find(table, charge.id)
            };
            decision.places.push(place);
            decision.states.push(state);
        }
        decision
    }

    /// Puts the states back and returns how many were inserted. `blocked` says
    /// whether a bucket denied; `None` leaves it as it was.
    fn close(
        self,
        locked: &mut Locked<'t>,
        charges: &[Charge<'_>],
        lifetime: Lifetime,
        blocked: impl Fn(usize) -> Option<bool>,
    ) -> u64 {
        let mut inserted = 0;
        let mut overflow = self.overflow;
        let states = self.places.into_iter().zip(self.states);
        for ((position, charge), (place, state)) in charges.iter().enumerate().zip(states) {
            let durability = match (lifetime, charge.limit.family) {
                (Lifetime::Durable, Family::Quota) => Durability::Dirty,
                _ => Durability::Volatile,
            };
            match place {
                Place::Slot(index, slot, word) => {
                    let (_, segment, body) = &mut locked.segments[index];
                    match blocked(position) {
                        None => segment.put_back(body, slot, word, state),
                        Some(blocked) => {
                            let put = put(charge, state, durability, blocked);
                            segment.put(body, (slot, word), put);
                        }
                    }
                }
                Place::Absent(_) if state == State::Empty => {}
                Place::Absent(index) => {
                    let (_, segment, body) = &mut locked.segments[index];
                    let blocked = blocked(position).unwrap_or(false);
                    let put = put(charge, state, durability, blocked);
                    inserted += u64::from(segment.insert(body, put));
                }
                Place::Shared(shared) => {
                    if let Some(states) = &mut overflow {
                        states.insert(shared, state);
                    }
                }
            }
        }
        inserted
    }
}

/// True if the lock-free path may serve it.
fn is_simple(charge: &Charge<'_>) -> bool {
    charge.spec.algorithm() == Algorithm::TokenBucket
        && charge.on_exceed == OnExceed::Deny
        && charge.limit.family == Family::Limit
}

fn put(charge: &Charge<'_>, state: State, family: Durability, blocked: bool) -> Put {
    Put {
        blocked,
        kept: keep(charge.id, charge.spec, state, family),
    }
}

fn keep(id: Digest, spec: &BucketSpec, state: State, family: Durability) -> Kept {
    Kept {
        id,
        expires_at: spec.expires_at(&state),
        state,
        family,
    }
}

fn take_one(spec: &BucketSpec, state: &mut State, cost: u32, now: Micros) -> Result<(), Micros> {
    match spec.fits(state, now, cost) {
        Some(retry_at) => Err(retry_at),
        None => {
            spec.take(state, now, cost);
            Ok(())
        }
    }
}

/// Stands for a limit where only its figures are known.
fn spec_name(spec: &BucketSpec) -> Digest {
    let (interval, tolerance) = spec.gcra_ticks();
    let figures = u128::from(interval) << 64 | u128::from(tolerance);
    let kind = spec.algorithm() as u128;
    Digest(figures ^ u128::from(spec.window_us()).rotate_left(40) ^ kind << 120)
}
