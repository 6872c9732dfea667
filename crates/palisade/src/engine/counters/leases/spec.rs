//! The figures that the store is charged with for a leased limit.

use std::num::NonZeroU64;

use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::time::DAY;

use super::LEASE_US;

fn inflow(spec: &BucketSpec, span: u64) -> u64 {
    let inflow = u128::from(spec.limit()) * u128::from(LEASE_US);
    u64::try_from(inflow.div_ceil(u128::from(span))).unwrap_or(u64::MAX)
}

/// Whether a limit can be leased, which is cheaper than [`leased_spec`].
pub(in crate::engine::counters) fn is_leasable(spec: &BucketSpec) -> bool {
    match (spec.algorithm(), spec.window()) {
        (Algorithm::TokenBucket, Window::Span(span)) => inflow(spec, span) < spec.capacity(),
        (Algorithm::SlidingLog | Algorithm::SlidingWheel, Window::Span(span)) => {
            // Near the longest window there may be no room to widen it.
            span < 3_650 * DAY || leased_spec(spec).is_some()
        }
        _ => false,
    }
}

/// The figures that the store is charged with for a leased limit; `None` if the limit is too
/// small to be leased.
pub(in crate::engine::counters) fn leased_spec(spec: &BucketSpec) -> Option<BucketSpec> {
    let limit = NonZeroU64::new(spec.limit())?;
    match (spec.algorithm(), spec.window()) {
        (Algorithm::TokenBucket, Window::Span(span)) => {
            let burst = spec.capacity().checked_sub(inflow(spec, span))?;
            let burst = NonZeroU64::new(burst)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_core::limit::{FIGURE_MAX, State};
    use palisade_core::time::{MINUTE, Micros, SECOND};
    use proptest::prelude::*;

    fn spec(algorithm: Algorithm, limit: u64, window: u64) -> BucketSpec {
        let limit = NonZeroU64::new(limit).unwrap();
        BucketSpec::new(algorithm, limit, Window::Span(window), None).unwrap()
    }

    #[test]
    fn a_small_token_bucket_is_not_leased() {
        assert!(leased_spec(&spec(Algorithm::TokenBucket, 10_000, SECOND)).is_some());
        let tiny = BucketSpec::new(
            Algorithm::TokenBucket,
            NonZeroU64::new(1000).unwrap(),
            Window::Span(SECOND),
            NonZeroU64::new(50),
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
            limit in prop_oneof![1_u64..2_000, 1..=FIGURE_MAX],
            burst in prop_oneof![1_u64..2_000, 1..=FIGURE_MAX],
            window in prop_oneof![1_u64..10 * SECOND, 3_649 * DAY..=3_660 * DAY],
        ) {
            let spec = BucketSpec::new(
                algorithm,
                NonZeroU64::new(limit).unwrap(),
                Window::Span(window),
                NonZeroU64::new(burst),
            );
            if let Ok(spec) = spec {
                prop_assert_eq!(is_leasable(&spec), leased_spec(&spec).is_some());
            }
        }

        /// Tokens taken in batches and used any time within the lease: no slice of
        /// uses exceeds the limit.
        #[test]
        fn no_window_slice_of_uses_exceeds_a_leased_limit(
            steps in proptest::collection::vec((0_u64..90_000, 1_u64..6), 1..150),
            limit in 5_u64..40,
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
                    held.extend(std::iter::repeat_n(now + LEASE_US, usize::try_from(batch).unwrap()));
                }
                if held.pop().is_some() {
                    uses.push(now);
                }
                let in_window = uses.iter().filter(|at| **at + window > now).count();
                prop_assert!(in_window as u64 <= limit);
            }
        }
    }
}
