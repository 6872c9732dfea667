//! What new keys share when the table is full of buckets that must stay.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use palisade_core::Digest;
use palisade_core::limit::State;
use parking_lot::{Mutex, MutexGuard};

/// Most limits that have an overflow bucket of their own.
const LIMITS_MAX: usize = 4096;

/// Names one shared bucket: the limit, and how often a plan has met it already.
pub(crate) type Shared = (Digest, u8);

/// The shared buckets.
#[derive(Default)]
pub(crate) struct Overflow {
    states: Mutex<HashMap<Shared, State>>,
    count: AtomicU64,
}

impl Overflow {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<Shared, State>> {
        self.states.lock()
    }

    /// Counts a decision on a shared bucket.
    pub(crate) fn count(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counted(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// The bucket to use: beyond the bound all limits share one.
pub(crate) fn bounded(states: &HashMap<Shared, State>, shared: Shared) -> Shared {
    if states.len() < LIMITS_MAX || states.contains_key(&shared) {
        shared
    } else {
        (Digest::default(), shared.1)
    }
}
