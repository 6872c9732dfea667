//! One limit on one kind of identifier, for hosts that need nothing else: the table and the
//! arithmetic of a whole decision, without everything else that a decision carries.

use std::sync::Arc;

use palisade_core::Digest;
use palisade_core::key::Namer;
use palisade_core::limit::{Algorithm, BucketSpec, Reading};
use palisade_core::time::{Clock, Micros};

use super::Inner;
use super::gcra::{Pace, TakeOutcome};

/// Decides on one limit by one identifier. Made by
/// [`MemoryStore::limiter`](super::MemoryStore::limiter).
///
/// A decision allocates nothing once the identifier is known. On a token bucket it takes no lock
/// either: it hashes the identifier, reads the clock and makes one compare-and-swap. Not for
/// quotas: what is taken here survives a graceful shutdown only.
pub struct Limiter<C> {
    inner: Arc<Inner<C>>,
    limit: Digest,
    namer: Namer,
    spec: BucketSpec,
    pace: Option<Pace>,
}

impl<C> Clone for Limiter<C> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            limit: self.limit,
            namer: self.namer.clone(),
            spec: self.spec,
            pace: self.pace,
        }
    }
}

/// Decision of a limiter.
///
/// ```
/// use palisade_core::time::Micros;
/// use palisade_store::memory::Verdict;
///
/// let denied = Verdict::Denied { retry_at: Micros(5) };
/// assert!(!denied.is_admitted() && Verdict::Admitted.is_admitted());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The cost fitted, and was taken.
    Admitted,
    /// The cost did not fit, and nothing was taken.
    Denied {
        /// When the cost would fit.
        retry_at: Micros,
    },
}

impl Verdict {
    /// True if the cost was taken.
    #[must_use]
    pub const fn is_admitted(self) -> bool {
        matches!(self, Self::Admitted)
    }
}

/// Decision of a limiter with the state of the bucket after it.
#[derive(Clone, Copy, Debug)]
pub struct TimedReading {
    /// The bucket after the decision; `retry_at` says when the cost would have fitted, if it did
    /// not.
    pub reading: Reading,
    /// Instant of the decision.
    pub now: Micros,
}

impl<C: Clock> Limiter<C> {
    pub(super) fn new(inner: Arc<Inner<C>>, limit: Digest, namer: Namer, spec: BucketSpec) -> Self {
        Self {
            inner,
            limit,
            namer,
            pace: Pace::of(&spec),
            spec,
        }
    }

    /// Takes one from the identifier's bucket.
    #[inline]
    pub fn check(&self, identifier: &[u8]) -> Verdict {
        self.check_cost(identifier, 1)
    }

    /// Takes `cost` from the identifier's bucket, all or nothing.
    #[inline]
    pub fn check_cost(&self, identifier: &[u8], cost: u64) -> Verdict {
        let id = self.namer.id(identifier);
        self.take(id, cost, self.inner.clock.now())
    }

    /// Takes one from the identifier's bucket and reads what is left in it, with one hash of the
    /// identifier and at one instant.
    pub fn check_and_read(&self, identifier: &[u8]) -> TimedReading {
        let id = self.namer.id(identifier);
        let now = self.inner.clock.now();
        let table = &self.inner.table;
        if self.spec.algorithm() == Algorithm::TokenBucket
            && let Some(taken) = table.take_unlocked(id, &self.spec, 1, now)
        {
            let reading = taken.reading(&self.spec, now);
            return TimedReading { reading, now };
        }
        let verdict = self.take(id, 1, now);
        // Another thread may have charged the bucket since: when to retry is what the decision
        // said.
        let mut reading = table.read_one(self.limit, id, &self.spec, 1, now);
        reading.retry_at = match verdict {
            Verdict::Admitted => None,
            Verdict::Denied { retry_at } => Some(retry_at),
        };
        TimedReading { reading, now }
    }

    #[inline]
    fn take(&self, id: Digest, cost: u64, now: Micros) -> Verdict {
        match self.pace {
            Some(pace) if self.inner.table.admits(id, pace, cost, now) => Verdict::Admitted,
            _ => self.decide(id, &self.spec, cost, now),
        }
    }

    /// Like [`Limiter::check_cost`], by another limit for this call and this identifier. What was
    /// used stays used.
    pub fn check_by(&self, identifier: &[u8], spec: &BucketSpec, cost: u64) -> Verdict {
        let now = self.inner.clock.now();
        self.decide(self.namer.id(identifier), spec, cost, now)
    }

    /// Reads the identifier's bucket as a request of `cost` would find it; takes nothing.
    pub fn peek(&self, identifier: &[u8], spec: &BucketSpec, cost: u64) -> Reading {
        let now = self.inner.clock.now();
        let id = self.namer.id(identifier);
        self.inner.table.read_one(self.limit, id, spec, cost, now)
    }

    /// Clears the identifier's bucket.
    pub fn reset(&self, identifier: &[u8]) {
        self.inner.table.clear_one(self.namer.id(identifier));
    }

    /// The limit that the limiter was made with.
    pub const fn spec(&self) -> &BucketSpec {
        &self.spec
    }

    /// Decides what the fast path cannot: denials, new buckets and algorithms with a lock.
    #[inline(never)]
    fn decide(&self, id: Digest, spec: &BucketSpec, cost: u64, now: Micros) -> Verdict {
        let inner = &self.inner;
        if spec.algorithm() == Algorithm::TokenBucket
            && let Some(taken) = inner.table.take_unlocked(id, spec, cost, now)
        {
            return match taken {
                TakeOutcome::Admitted(_) => Verdict::Admitted,
                TakeOutcome::Denied(_, retry_at) => Verdict::Denied { retry_at },
            };
        }
        match inner.table.take_locked(self.limit, id, spec, cost, now) {
            Ok(()) => Verdict::Admitted,
            Err(retry_at) => Verdict::Denied { retry_at },
        }
    }
}
