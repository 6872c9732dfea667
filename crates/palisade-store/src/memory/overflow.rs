//! Buckets that new keys share when the table is full of buckets that must stay.
//!
//! A key that has shared may get a bucket of its own once there is room again. Its use is then
//! only known to be part of what all sharers used, so its bucket starts with all of that: no key
//! is ever admitted more than its limit allows.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use palisade_core::Digest;
use palisade_core::limit::{BucketSpec, Hits, State};
use palisade_core::time::Micros;
use parking_lot::{Mutex, MutexGuard};

/// Most shared buckets. Beyond that a key without a bucket is denied.
const SHARED_MAX: usize = 4096;

/// Name of a shared bucket: a limit and the spec in force for it. (A tenant's spec may differ, and
/// must not end another's window early.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SharedBucket(Digest, BucketSpec);

impl SharedBucket {
    pub(crate) const fn new(limit: Digest, spec: &BucketSpec) -> Self {
        Self(limit, *spec)
    }
}

/// All shared buckets.
#[derive(Default)]
pub(crate) struct Overflow {
    states: Mutex<States>,
    /// Instant from which no shared bucket counts any more.
    live_until: AtomicU64,
    count: AtomicU64,
}

/// State of each shared bucket, and when it expires.
#[derive(Default)]
pub(crate) struct States(HashMap<SharedBucket, (State, Micros)>);

impl Overflow {
    pub(crate) fn lock(&self) -> MutexGuard<'_, States> {
        self.states.lock()
    }

    /// False if no shared bucket counts any more.
    pub(crate) fn is_live(&self, now: Micros) -> bool {
        self.live_until.load(Ordering::Acquire) > now.0
    }

    /// As [`States::seed`], but takes no lock as long as no shared bucket counts.
    pub(crate) fn seed(&self, shared: &SharedBucket, now: Micros) -> State {
        if self.is_live(now) {
            self.lock().seed(shared, now)
        } else {
            State::Empty
        }
    }

    /// Stores the new state of a shared bucket.
    pub(crate) fn keep(&self, states: &mut States, shared: SharedBucket, state: State) {
        let until = shared.1.expires_at(&state);
        // Before the state is stored, so that `seed` never takes a live bucket for an expired one.
        self.live_until.fetch_max(until.0, Ordering::AcqRel);
        states.0.insert(shared, (state, until));
    }

    /// Counts a decision on a shared bucket.
    pub(crate) fn count(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counted(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl States {
    /// State that a new bucket starts with.
    pub(crate) fn seed(&self, shared: &SharedBucket, now: Micros) -> State {
        let live = self.0.get(shared).filter(|(_, until)| *until > now);
        live.map(|(state, _)| state.clone()).unwrap_or_default()
    }

    /// State of a shared bucket; `None` if there is no room for another one.
    pub(crate) fn find(&mut self, shared: &SharedBucket, now: Micros) -> Option<State> {
        if let Some((state, _)) = self.0.get(shared) {
            return Some(state.clone());
        }
        // Expired states are removed only when room is needed.
        if self.0.len() >= SHARED_MAX {
            self.0.retain(|_, (_, until)| *until > now);
        }
        (self.0.len() < SHARED_MAX).then_some(State::Empty)
    }
}

/// A state that denies, for a key that cannot even get a shared bucket.
pub(crate) fn full(spec: &BucketSpec, now: Micros) -> State {
    let mut state = State::Empty;
    spec.take(&mut state, now, spec.capacity());
    state
}

/// The state in the form in which a bucket of its own keeps it: all hits count as if they came
/// with the last one, so that a flood of new keys does not copy the shared bucket's log.
pub(crate) fn folded(state: State) -> State {
    let State::Hits(hits) = &state else {
        return state;
    };
    if hits.len() <= 1 {
        return state;
    }
    let last = hits.entries().last().map_or(Micros(0), |(at, _)| at);
    let total = hits.entries().map(|(_, count)| count).sum::<u64>();
    State::Hits(Hits::from_entries([(last, total)]))
}
