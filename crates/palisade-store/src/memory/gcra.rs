//! The token bucket's decision on a bare arrival time: a translation of the pure functions for the
//! path without a lock. The comparison with the model holds it to them.

use palisade_core::limit::{Algorithm, BucketSpec, Reading, State};
use palisade_core::time::Micros;

use super::segment::TICKS_PER_MICRO;

/// Outcome of taking a cost from a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeOutcome {
    /// The cost was taken; this is the new arrival time.
    Admitted(u64),
    /// The cost did not fit. The arrival time stays as given, and the cost fits at the instant.
    Denied(u64, Micros),
}

impl TakeOutcome {
    /// Reading of the bucket after this outcome, for a request at `now`.
    pub(crate) fn reading(self, spec: &BucketSpec, now: Micros) -> Reading {
        let (arrival, retry_at) = match self {
            Self::Admitted(arrival) => (arrival, None),
            Self::Denied(arrival, retry_at) => (arrival, Some(retry_at)),
        };
        spec.read_waiting(&State::Gcra(arrival), now, retry_at)
    }
}

/// Takes `cost` from a bucket with this arrival time, if it fits.
#[inline]
pub(crate) fn take(spec: &BucketSpec, arrival: u64, now: Micros, cost: u64) -> TakeOutcome {
    if cost > spec.capacity() {
        return TakeOutcome::Denied(arrival, Micros(u64::MAX));
    }
    let (interval, tolerance) = spec.gcra_ticks();
    let now = now.0.saturating_mul(TICKS_PER_MICRO);
    let after = arrival
        .max(now)
        .saturating_add(interval.saturating_mul(cost));
    let allowed_at = after.saturating_sub(tolerance);
    if allowed_at > now {
        TakeOutcome::Denied(arrival, Micros(allowed_at.div_ceil(TICKS_PER_MICRO)))
    } else {
        TakeOutcome::Admitted(after)
    }
}

/// A token bucket whose numbers are so small that no sum of them can overflow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    interval: u64,
    tolerance: u64,
}

/// Sums of two instants, intervals or bursts below this cannot overflow.
const TICKS_MAX: u64 = 1 << 62;

impl Pace {
    pub(crate) fn of(spec: &BucketSpec) -> Option<Self> {
        let (interval, tolerance) = spec.gcra_ticks();
        let fits = spec.algorithm() == Algorithm::TokenBucket && tolerance < TICKS_MAX;
        fits.then_some(Self {
            interval,
            tolerance,
        })
    }

    /// Arrival time after an admission, or `None` if [`take`] has to decide. All values are ticks
    /// after the same origin, whichever that is: only differences count.
    #[inline]
    pub(crate) const fn admit(self, arrival: u64, now: u64, cost: u64) -> Option<u64> {
        let step = self.interval.saturating_mul(cost);
        if step > self.tolerance || now >= TICKS_MAX || arrival >= TICKS_MAX {
            return None;
        }
        let after = if arrival > now { arrival } else { now } + step;
        if after <= now + self.tolerance {
            Some(after)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU64;

    use palisade_core::limit::{COUNT_MAX, FIGURE_MAX, Window};
    use palisade_core::time::DAY;
    use proptest::prelude::*;

    /// A token bucket, unless its figures cannot be held.
    fn spec(limit: u64, burst: u64, span: u64) -> Option<BucketSpec> {
        let [limit, burst] = [limit, burst].map(NonZeroU64::new);
        let algorithm = Algorithm::TokenBucket;
        BucketSpec::new(algorithm, limit?, Window::Span(span), burst).ok()
    }

    proptest! {
        #[test]
        fn it_is_the_pure_function(
            limit in prop_oneof![1_u64..1 << 32, 1_u64..=FIGURE_MAX],
            burst in prop_oneof![1_u64..1000, 1_u64..=FIGURE_MAX],
            span in prop_oneof![1_u64..1_000_000_000, 1_u64..3_650 * DAY],
            arrival in any::<u64>(),
            ahead in 0_u64..1_000_000_000_000,
            now in 0_u64..1 << 52,
            cost in prop_oneof![1_u64..10, any::<u32>().prop_map(u64::from), 1..=COUNT_MAX],
        ) {
            let Some(spec) = spec(limit, burst, span) else { return Ok(()) };
            let now = Micros(now);
            let near = now.0.saturating_mul(TICKS_PER_MICRO).saturating_add(ahead);
            for arrival in [arrival, near] {
                let mut state = State::Gcra(arrival);
                let expected = match spec.fits(&state, now, cost) {
                    Some(at) => TakeOutcome::Denied(arrival, at),
                    None => {
                        spec.take(&mut state, now, cost);
                        let State::Gcra(after) = state else { unreachable!() };
                        TakeOutcome::Admitted(after)
                    }
                };
                prop_assert_eq!(take(&spec, arrival, now, cost), expected);
            }
        }

        #[test]
        fn the_short_way_admits_what_the_long_way_does(
            limit in prop_oneof![1_u64..1 << 32, 1_u64..=FIGURE_MAX],
            burst in prop_oneof![1_u64..1000, 1_u64..=FIGURE_MAX],
            span in prop_oneof![1_u64..1_000_000_000, 1_u64..3_650 * DAY],
            origin in 0_u64..1 << 51,
            later in 0_u64..1 << 46,
            ahead in -1_000_000_000_i64..1_000_000_000_000,
            cost in prop_oneof![1_u64..10, any::<u32>().prop_map(u64::from), 1..=COUNT_MAX],
        ) {
            let Some(spec) = spec(limit, burst, span) else { return Ok(()) };
            let now = Micros(origin + later);
            let ticks = (later * TICKS_PER_MICRO).saturating_add_signed(ahead);
            let arrival = origin * TICKS_PER_MICRO + ticks;
            let Some(pace) = Pace::of(&spec) else { return Ok(()) };
            let short = pace.admit(ticks, later * TICKS_PER_MICRO, cost);
            let expected = match take(&spec, arrival, now, cost) {
                TakeOutcome::Admitted(after) => Some(after - origin * TICKS_PER_MICRO),
                TakeOutcome::Denied(..) => None,
            };
            prop_assert_eq!(short, expected);
        }
    }
}
