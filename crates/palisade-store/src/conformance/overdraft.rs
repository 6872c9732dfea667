//! B-OVERDRAFT: admitted while anything is left, charged in full, below zero if need be.

use std::num::NonZeroU64;

use palisade_core::limit::{Algorithm, BucketSpec, FIGURE_MAX, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::time::{MINUTE, SECOND};

use super::{Bench, Make, TestLimits, bench, spec};
use crate::{ChargeReadings, Store, Take};

use Algorithm::{FixedWindow, SlidingLog, SlidingWheel, TokenBucket};

const LIMIT: u64 = 5;
const NAMES: [&str; 4] = ["log", "wheel", "tokens", "window"];

fn limits() -> TestLimits {
    let algorithms = [SlidingLog, SlidingWheel, TokenBucket, FixedWindow];
    let specs = algorithms.map(|algorithm| spec(algorithm, LIMIT, Window::Span(MINUTE)));
    TestLimits::new(NAMES.into_iter().zip(specs))
}

pub(super) async fn run<S: Store>(make: &impl Make<S>) {
    b_overdraft_the_whole_cost_is_charged_while_anything_is_left(make).await;
    b_overdraft_a_look_is_denied_when_nothing_is_left(make).await;
    b_overdraft_one_bucket_that_is_used_up_denies_all(make).await;
    b_overdraft_a_bucket_that_a_plan_has_twice(make).await;
    b_bound_a_debt_of_a_token_bucket_is_one_window(make).await;
    b_bound_a_debt_is_no_step_of_the_clock(make).await;
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn charge<S: Store>(store: &S, charges: &[Charge<'_>], take: Take) -> ChargeReadings {
    store.charge(charges, take).await.unwrap()
}

async fn b_overdraft_the_whole_cost_is_charged_while_anything_is_left<S: Store>(
    make: &impl Make<S>,
) {
    let limits = limits();
    for name in NAMES {
        let Bench { store, clock } = bench(make).await;
        let of = |cost| [limits.charge_of(name, "one", cost, OnExceed::Overdraft)];
        for (cost, used) in [(4, 4), (5, 9)] {
            let found = charge(&*store, &of(cost), Take::Consume).await;
            assert!(found.admitted, "{name} {cost}");
            assert_eq!(found.readings[0].used, used, "{name} {cost}");
            assert_eq!(found.readings[0].retry_at, None, "{name} {cost}");
        }
        let found = charge(&*store, &of(1), Take::Consume).await;
        assert!(!found.admitted, "{name}: nothing is left");
        assert_eq!(found.readings[0].used, 9, "{name}: nothing was charged");
        assert_eq!(found.readings[0].remaining, 0, "{name}");
        let retry_at = found.readings[0].retry_at;
        let wait = retry_at.map_or(0, |at| at.since(found.now));
        assert!(wait > 0 && wait <= 2 * MINUTE, "{name} waits {wait}");
        clock.advance(wait - 1);
        let found = charge(&*store, &of(100), Take::Consume).await;
        assert!(!found.admitted, "{name}: not before its wait is over");
        clock.advance(1);
        let found = charge(&*store, &of(100), Take::Consume).await;
        assert!(found.admitted, "{name}: a cost above the limit");
    }
}

async fn b_overdraft_a_look_is_denied_when_nothing_is_left<S: Store>(make: &impl Make<S>) {
    let limits = limits();
    for name in NAMES {
        let Bench { store, .. } = bench(make).await;
        let look = [limits.charge_of(name, "look", 0, OnExceed::Overdraft)];
        for take in [Take::Consume, Take::Peek] {
            let found = charge(&*store, &look, take).await;
            assert!(found.admitted, "{name}");
            assert_eq!(found.readings[0].used, 0, "{name}: it takes nothing");
        }
        let all = [limits.charge_of(name, "look", LIMIT, OnExceed::Overdraft)];
        assert!(charge(&*store, &all, Take::Consume).await.admitted);
        for take in [Take::Consume, Take::Peek] {
            let found = charge(&*store, &look, take).await;
            assert!(!found.admitted, "{name}: nothing is left");
        }
    }
}

async fn b_overdraft_one_bucket_that_is_used_up_denies_all<S: Store>(make: &impl Make<S>) {
    let limits = limits();
    for name in NAMES {
        let Bench { store, .. } = bench(make).await;
        let debt = [limits.charge_of(name, "debt", 2 * LIMIT, OnExceed::Overdraft)];
        assert!(charge(&*store, &debt, Take::Consume).await.admitted);
        for order in [[0, 1], [1, 0]] {
            let both = [
                limits.charge_of(name, "debt", 1, OnExceed::Overdraft),
                limits.charge_of("log", "other", 1, OnExceed::Deny),
            ];
            let both = order.map(|at| both[at].clone());
            let found = charge(&*store, &both, Take::Consume).await;
            assert!(!found.admitted, "{name} {order:?}");
            let used = order.map(|at| found.readings[at].used);
            assert_eq!(used, [2 * LIMIT, 0], "{name} {order:?}");
        }
    }
}

async fn b_overdraft_a_bucket_that_a_plan_has_twice<S: Store>(make: &impl Make<S>) {
    let limits = limits();
    for name in NAMES {
        let Bench { store, .. } = bench(make).await;
        let one = limits.charge_of(name, "twice", 4, OnExceed::Overdraft);
        let twice = [one.clone(), one];
        let found = charge(&*store, &twice, Take::Consume).await;
        assert!(found.admitted, "{name}: something was left for both");
        let look = charge(&*store, &twice, Take::Peek).await;
        assert_eq!(look.readings[0].used, 8, "{name}");
        assert!(!look.admitted, "{name}");
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
fn small_burst() -> BucketSpec {
    let [limit, burst] = [60, 6].map(|n| NonZeroU64::new(n).unwrap());
    BucketSpec::new(TokenBucket, limit, Window::Span(MINUTE), Some(burst)).unwrap()
}

async fn b_bound_a_debt_of_a_token_bucket_is_one_window<S: Store>(make: &impl Make<S>) {
    let limits = TestLimits::new([("tokens", small_burst())]);
    let Bench { store, clock } = bench(make).await;
    let of = |cost, on_exceed| [limits.charge_of("tokens", "deep", cost, on_exceed)];
    for cost in [10_000, u64::from(u32::MAX), FIGURE_MAX] {
        let found = charge(&*store, &of(cost, OnExceed::Count), Take::Consume).await;
        assert_eq!(found.readings[0].used, 66, "{cost}: the rest is forgiven");
    }
    clock.advance(MINUTE);
    let found = charge(&*store, &of(1, OnExceed::Overdraft), Take::Consume).await;
    assert!(!found.admitted, "the debt has just been worked off");
    clock.advance(SECOND);
    let deep = of(500, OnExceed::Overdraft);
    let found = charge(&*store, &deep, Take::Consume).await;
    assert!(found.admitted, "a token has flown in");
    assert_eq!(found.readings[0].used, 66);
    // L-GIVE-BACK: the five tokens that others took stay.
    let back = found.taken(&deep);
    #[expect(clippy::unwrap_used, reason = "part of a test suite")]
    let left = store.give_back(&back).await.unwrap();
    assert_eq!(left.readings[0].used, 5);
}

/// The wait until a debt is worked off is longer than any without a debt: it is not taken for one
/// that a step back of the clock has made (F-CLOCK).
async fn b_bound_a_debt_is_no_step_of_the_clock<S: Store>(make: &impl Make<S>) {
    let limits = TestLimits::new([("tokens", small_burst())]);
    let Bench { store, .. } = bench(make).await;
    let debt = [limits.charge_of("tokens", "debt", 1_000, OnExceed::Overdraft)];
    assert!(charge(&*store, &debt, Take::Consume).await.admitted);
    for (cost, on_exceed) in [(1, OnExceed::Overdraft), (6, OnExceed::Deny)] {
        let more = [limits.charge_of("tokens", "debt", cost, on_exceed)];
        let found = charge(&*store, &more, Take::Consume).await;
        assert!(!found.admitted, "{on_exceed:?}");
        assert_eq!(found.readings[0].used, 66, "{on_exceed:?}: still owed");
    }
}
