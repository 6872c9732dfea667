//! Leased limits: a node takes tokens in batches and serves them locally.
//!
//! A token may be used up to [`LEASE_US`] after it was taken, so the store counts
//! it that much longer: a sliding window is charged with its window widened by a
//! lease, a token bucket with its burst lowered by what flows in during one. Every
//! window slice of *uses* then lies in a window slice of *takings* that the store
//! bounded: no slice is ever exceeded. Tokens that were not used go back.

use std::num::NonZeroU32;
use std::sync::Arc;

use hashbrown::HashMap;
use palisade_core::Digest;
use palisade_core::limit::{Algorithm, BucketSpec, Reading, Window};
use palisade_core::plan::Charge;
use palisade_core::time::{DAY, Micros};
use parking_lot::{Mutex, RwLock};

/// How long a token may be kept before it is used.
pub(super) const LEASE_US: u64 = 100_000;

/// Most buckets that are leased at once; others are charged in the store directly.
const LEASES_MAX: usize = 10_000;

/// Parts of the map with a lock of their own.
const SHARDS: usize = 16;

/// A batch is at most this share of the limit.
const BATCHES_PER_LIMIT: u32 = 50;

/// The tokens this node holds, by the bucket's digest.
#[derive(Default)]
pub(super) struct Leases {
    shards: [RwLock<HashMap<Digest, Arc<Lease>>>; SHARDS],
}

/// The tokens of one bucket. Filling is serialised: one node asks once.
pub(super) struct Lease {
    /// The limit that it is a lease of.
    wanted: BucketSpec,
    /// What the store is charged with.
    pub(super) charged: BucketSpec,
    tokens: Mutex<Tokens>,
    pub(super) filling: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tokens {
    left: u32,
    until: Micros,
    denied_until: Micros,
    /// The smallest cost that was denied.
    denied_cost: u32,
    /// By this node's clock.
    reading: Option<Reading>,
}

/// What a lease says to a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Served {
    /// Taken from the batch that may be used until then.
    Taken(Reading, Micros),
    /// The store said no until then.
    Denied(Reading),
    /// The lease is empty or over: ask the store.
    Ask,
}

impl Leases {
    /// The lease of a bucket with this limit; `None` if the limit cannot be leased or
    /// too many are held.
    pub(super) fn of(&self, id: Digest, wanted: &BucketSpec) -> Option<Arc<Lease>> {
        let shard = &self.shards[usize::try_from(id.0 % SHARDS as u128).unwrap_or(0)];
        if let Some(lease) = shard.read().get(&id)
            && lease.wanted == *wanted
        {
            return Some(Arc::clone(lease));
        }
        let charged = leased_spec(wanted)?;
        let mut held = shard.write();
        if let Some(lease) = held.get(&id)
            && lease.wanted == *wanted
        {
            return Some(Arc::clone(lease));
        }
        if held.len() >= LEASES_MAX / SHARDS {
            held.retain(|_, lease| Arc::strong_count(lease) > 1 || lease.tokens.lock().left > 0);
        }
        if held.len() >= LEASES_MAX / SHARDS {
            return None;
        }
        let lease = Arc::new(Lease {
            wanted: *wanted,
            charged,
            tokens: Mutex::default(),
            filling: tokio::sync::Mutex::default(),
        });
        held.insert(id, Arc::clone(&lease));
        Some(lease)
    }

    /// Buckets that are leased.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Forgets every cached denial and token, as after a reset.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            shard.write().clear();
        }
    }
}

impl Lease {
    pub(super) fn serve(&self, cost: u32, now: Micros) -> Served {
        let mut tokens = self.tokens.lock();
        let Some(mut reading) = tokens.reading else {
            return Served::Ask;
        };
        if tokens.until > now && tokens.left >= cost {
            tokens.left -= cost;
            reading.retry_at = None;
            reading.remaining += u64::from(tokens.left);
            return Served::Taken(reading, tokens.until);
        }
        if tokens.denied_until > now && cost >= tokens.denied_cost {
            reading.retry_at = Some(tokens.denied_until);
            return Served::Denied(reading);
        }
        Served::Ask
    }

    /// The bucket as the store last described it.
    pub(super) fn last_reading(&self) -> Option<Reading> {
        self.tokens.lock().reading
    }

    /// Tokens of the batch of `until` that were taken but not used. Those of an
    /// earlier batch are lost: in a younger one they would be kept too long.
    pub(super) fn put_back(&self, cost: u32, until: Micros) {
        let mut tokens = self.tokens.lock();
        if tokens.until == until {
            tokens.left = tokens.left.saturating_add(cost);
        }
    }

    /// The store gave `batch` tokens when it was asked at `asked`. Returns until
    /// when they may be used, and what was left of the last batch, to go back to
    /// the store.
    pub(super) fn fill(&self, batch: u32, reading: Reading, asked: Micros) -> (Micros, u32) {
        let until = asked.plus(LEASE_US);
        let fresh = Tokens {
            left: batch,
            until,
            reading: Some(reading),
            ..Tokens::default()
        };
        let stale = std::mem::replace(&mut *self.tokens.lock(), fresh);
        (until, stale.left)
    }

    /// The store denied `cost`, until `until` by this node's clock.
    pub(super) fn deny(&self, cost: u32, until: Micros, reading: Reading) {
        let mut tokens = self.tokens.lock();
        tokens.denied_until = until;
        tokens.denied_cost = cost;
        tokens.reading = Some(reading);
    }
}

fn inflow(spec: &BucketSpec, span: u64) -> u64 {
    u64::from(spec.limit())
        .saturating_mul(LEASE_US)
        .div_ceil(span)
}

/// Whether [`leased_spec`] gives something, without making it.
pub(super) fn is_leasable(spec: &BucketSpec) -> bool {
    match (spec.algorithm(), spec.window()) {
        (Algorithm::TokenBucket, Window::Span(span)) => {
            inflow(spec, span) < u64::from(spec.capacity())
        }
        (Algorithm::SlidingLog | Algorithm::SlidingWheel, Window::Span(span)) => {
            // Near the longest window there may be no room to widen it.
            span < 3_650 * DAY || leased_spec(spec).is_some()
        }
        _ => false,
    }
}

/// What the store is charged with for a leased limit; `None` if the limit is too
/// small to lease without losing it.
pub(super) fn leased_spec(spec: &BucketSpec) -> Option<BucketSpec> {
    let limit = NonZeroU32::new(spec.limit())?;
    match (spec.algorithm(), spec.window()) {
        (Algorithm::TokenBucket, Window::Span(span)) => {
            let burst = u64::from(spec.capacity()).checked_sub(inflow(spec, span))?;
            let burst = NonZeroU32::new(u32::try_from(burst).ok()?)?;
            BucketSpec::new(
                Algorithm::TokenBucket,
                limit,
                Window::Span(span),
                Some(burst),
            )
            .ok()
        }
        (algorithm @ (Algorithm::SlidingLog | Algorithm::SlidingWheel), Window::Span(span)) => {
            let widened = Window::Span(span.checked_add(LEASE_US)?);
            BucketSpec::new(algorithm, limit, widened, None).ok()
        }
        _ => None,
    }
}

/// How many tokens to ask for at once.
pub(super) fn batch_of(charge: &Charge<'_>) -> u32 {
    (charge.spec.capacity() / BATCHES_PER_LIMIT).max(charge.cost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_core::limit::State;
    use palisade_core::time::{MINUTE, SECOND};
    use proptest::prelude::*;

    fn spec(algorithm: Algorithm, limit: u32, window: u64) -> BucketSpec {
        let limit = NonZeroU32::new(limit).unwrap();
        BucketSpec::new(algorithm, limit, Window::Span(window), None).unwrap()
    }

    #[test]
    fn a_small_token_bucket_is_not_leased() {
        assert!(leased_spec(&spec(Algorithm::TokenBucket, 10_000, SECOND)).is_some());
        let tiny = BucketSpec::new(
            Algorithm::TokenBucket,
            NonZeroU32::new(1000).unwrap(),
            Window::Span(SECOND),
            NonZeroU32::new(50),
        );
        assert!(leased_spec(&tiny.unwrap()).is_none());
    }

    proptest! {
        #[test]
        fn a_limit_is_leasable_if_there_is_something_to_charge_for_it(
            algorithm in prop_oneof![
                Just(Algorithm::TokenBucket), Just(Algorithm::SlidingLog),
                Just(Algorithm::SlidingWheel), Just(Algorithm::FixedWindow),
            ],
            limit in prop_oneof![1_u32..2_000, any::<u32>().prop_map(|n| n.max(1))],
            burst in prop_oneof![1_u32..2_000, any::<u32>().prop_map(|n| n.max(1))],
            window in prop_oneof![1_u64..10 * SECOND, 3_649 * DAY..=3_660 * DAY],
        ) {
            let spec = BucketSpec::new(
                algorithm,
                NonZeroU32::new(limit).unwrap(),
                Window::Span(window),
                NonZeroU32::new(burst),
            );
            if let Ok(spec) = spec {
                prop_assert_eq!(is_leasable(&spec), leased_spec(&spec).is_some());
            }
        }

        /// Tokens taken in batches and used any time within the lease: no slice of
        /// uses exceeds the limit.
        #[test]
        fn no_window_slice_of_uses_exceeds_a_leased_limit(
            steps in proptest::collection::vec((0_u64..90_000, 1_u32..6), 1..150),
            limit in 5_u32..40,
        ) {
            let window = MINUTE / 60;
            let wanted = spec(Algorithm::SlidingLog, limit, window);
            let charged = leased_spec(&wanted).unwrap();
            let (mut state, mut now, mut held) = (State::Empty, 10 * MINUTE, Vec::<u64>::new());
            let mut uses: Vec<u64> = Vec::new();
            for (gap, batch) in steps {
                now += gap;
                held.retain(|until| *until > now);
                let batch = batch.min(limit);
                if charged.fits(&state, Micros(now), batch).is_none() {
                    charged.take(&mut state, Micros(now), batch);
                    held.extend(std::iter::repeat_n(now + LEASE_US, batch as usize));
                }
                if held.pop().is_some() {
                    uses.push(now);
                }
                let in_window = uses.iter().filter(|at| **at + window > now).count();
                prop_assert!(in_window <= limit as usize);
            }
        }
    }
}
