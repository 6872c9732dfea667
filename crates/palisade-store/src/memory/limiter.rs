//! One limit on one kind of identifier, for hosts that ask nothing else: the same
//! table and the same arithmetic as a whole decision, without what a whole decision
//! has to carry.

use std::sync::Arc;

use palisade_core::Digest;
use palisade_core::key::Namer;
use palisade_core::limit::{Algorithm, BucketSpec};
use palisade_core::time::{Clock, Micros};

use super::Inner;
use super::gcra::{Pace, Taken};

/// Decides on one limit by one identifier. Made by
/// [`MemoryStore::limiter`](super::MemoryStore::limiter).
///
/// A decision allocates nothing once the identifier is known; on a token bucket it
/// takes no lock either, and consists of one keyed name, one look at the clock and one
/// compare-and-swap. Not for quotas: what is taken here is not written to disk.
pub struct Limiter<C> {
    inner: Arc<Inner<C>>,
    limit: Digest,
    namer: Namer,
    spec: BucketSpec,
    pace: Option<Pace>,
}

/// What a limiter says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// There was room, and it was taken.
    Admitted,
    /// There was not, and nothing was taken.
    Denied {
        /// When there would be.
        retry_at: Micros,
    },
}

impl Verdict {
    /// True if it was admitted.
    #[must_use]
    pub const fn is_admitted(self) -> bool {
        matches!(self, Self::Admitted)
    }
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
    pub fn check_cost(&self, identifier: &[u8], cost: u32) -> Verdict {
        let id = self.namer.id(identifier);
        let now = self.inner.clock.now();
        match self.pace {
            Some(pace) if self.inner.table.admits(id, pace, cost, now) => Verdict::Admitted,
            _ => self.decide(id, cost, now),
        }
    }

    /// What the shortest way does not.
    #[inline(never)]
    fn decide(&self, id: Digest, cost: u32, now: Micros) -> Verdict {
        let Self { inner, spec, .. } = self;
        if spec.algorithm() == Algorithm::TokenBucket
            && let Some(taken) = inner.table.take_unlocked(id, spec, cost, now)
        {
            return match taken {
                Taken::Admitted(_) => Verdict::Admitted,
                Taken::Denied(_, retry_at) => Verdict::Denied { retry_at },
            };
        }
        match inner.table.take_locked(self.limit, id, spec, cost, now) {
            Ok(()) => Verdict::Admitted,
            Err(retry_at) => Verdict::Denied { retry_at },
        }
    }
}
