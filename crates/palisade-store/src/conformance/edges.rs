//! Token buckets where their numbers are largest: ticks beyond 2⁶³, bursts of
//! centuries, costs beyond the burst.

use std::num::NonZeroU64;
use std::sync::Arc;

use palisade_core::limit::{Algorithm, BucketSpec, FIGURE_MAX, Window};
use palisade_core::plan::OnExceed;
use palisade_core::time::{DAY, HOUR};

use super::{Bench, Make, Rng, START, TestClock, TestLimits, bench};
use crate::model::ModelStore;
use crate::{Buckets, ChargeReadings, Store, Take};

const AMOUNTS: [NonZeroU64; 6] = [
    NonZeroU64::MIN,
    NonZeroU64::MIN.saturating_add(254),
    NonZeroU64::MIN.saturating_add(69_999),
    NonZeroU64::MIN.saturating_add(u32::MAX as u64 - 1),
    NonZeroU64::MIN.saturating_add(1_234_567_890_123),
    NonZeroU64::MIN.saturating_add(FIGURE_MAX - 1),
];
const SPANS: [u64; 4] = [1_000, HOUR, 366 * DAY, 3_660 * DAY];

pub(super) async fn run<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    let mut edge = Edge {
        model: ModelStore::new(Arc::clone(&clock)),
        rng: Rng::new(5),
        store: &*store,
        clock,
    };
    let amounts = || AMOUNTS.into_iter();
    for (span, limit) in SPANS
        .into_iter()
        .flat_map(|s| amounts().map(move |l| (s, l)))
    {
        for burst in amounts() {
            let spec = BucketSpec::new(
                Algorithm::TokenBucket,
                limit,
                Window::Span(span),
                Some(burst),
            );
            if let Ok(spec) = spec {
                edge.live(spec, &format!("{limit} per {span} us, burst {burst}"))
                    .await;
            }
        }
    }
}

struct Edge<'s, S> {
    store: &'s S,
    model: ModelStore<Arc<TestClock>>,
    clock: Arc<TestClock>,
    rng: Rng,
}

impl<S: Store> Edge<'_, S> {
    /// Plays random calls on one bucket, in the store and in the model. Each play begins at the
    /// same instant, so none may use the bucket of an earlier one.
    #[expect(clippy::unwrap_used, reason = "part of a test suite")]
    async fn live(&mut self, spec: BucketSpec, case: &str) {
        let limits = TestLimits::new([("edge", spec)]);
        self.clock.set(START);
        let mut taken = Vec::new();
        for step in 0..24 {
            self.clock.advance(self.rng.below(spec.window_us() / 6 + 2));
            let on_exceed = match self.rng.below(4) {
                0 => OnExceed::Count,
                1 => OnExceed::Overdraft,
                _ => OnExceed::Deny,
            };
            let cost = self.cost(spec.capacity());
            let charges = [limits.charge_of("edge", case, cost, on_exceed)];
            let (got, expected) = if self.rng.one_in(5)
                && let Some(taken) = taken.pop()
            {
                let taken = [taken];
                (
                    self.store.give_back(&taken).await,
                    self.model.give_back(&taken).await,
                )
            } else if self.rng.one_in(5) {
                (
                    self.store.refund(&charges).await,
                    self.model.refund(&charges).await,
                )
            } else {
                let take = Take::Consume;
                (
                    self.store.charge(&charges, take).await,
                    self.model.charge(&charges, take).await,
                )
            };
            let (got, expected) = (comparable(got.unwrap()), comparable(expected.unwrap()));
            taken.extend(expected.taken(&charges));
            assert_eq!(got, expected, "{case}, step {step}");
        }
    }

    fn cost(&mut self, burst: u64) -> u64 {
        match self.rng.below(6) {
            0 => burst,
            1 => 1,
            2 => u32::MAX.into(),
            3 => FIGURE_MAX,
            _ => 1 + self.rng.below(burst),
        }
    }
}

/// Removes what the suite leaves open: `reset_at` of a bucket of which nothing is used.
fn comparable(mut charged: ChargeReadings) -> ChargeReadings {
    for reading in charged.readings.iter_mut().filter(|r| r.used == 0) {
        reading.reset_at = charged.now;
    }
    charged
}
