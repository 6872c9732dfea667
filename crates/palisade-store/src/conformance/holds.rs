//! Charges that a bucket of hits counts from another instant than now: holds, which end by
//! themselves before their window has passed, and what was used earlier (B-EXPIRE, B-SHARE).

use palisade_core::limit::{Algorithm, CountsFrom, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::time::{Clock, MINUTE, SECOND};

use super::{Bench, Make, TestLimits, bench, spec};
use crate::{Store, Take, TakenCharge};

use Algorithm::{SlidingLog, SlidingWheel};

const ALGORITHMS: [Algorithm; 2] = [SlidingLog, SlidingWheel];
const LIMIT: u64 = 1_000;

pub(super) async fn run<S: Store>(make: &impl Make<S>) {
    for algorithm in ALGORITHMS {
        a_hold_ends_exactly_whatever_was_charged_before_it(make, algorithm).await;
        a_hold_is_given_back_once_and_alone(make, algorithm).await;
        what_was_used_earlier_leaves_with_its_own_window(make, algorithm).await;
    }
}

fn limits(algorithm: Algorithm) -> TestLimits {
    TestLimits::new([("held", spec(algorithm, LIMIT, Window::Span(MINUTE)))])
}

/// A charge that ends `hold` seconds from now.
fn held<'p>(limits: &'p TestLimits, cost: u64, hold: u64) -> Charge<'p> {
    Charge {
        from: CountsFrom::Ago(MINUTE - hold * SECOND),
        ..limits.charge_of("held", "x", cost, OnExceed::Deny)
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn take<'p, S: Store>(store: &S, charge: &Charge<'p>) -> Option<TakenCharge<'p>> {
    let charges = std::slice::from_ref(charge);
    let charged = store.charge(charges, Take::Consume).await.unwrap();
    charged.taken(charges).pop()
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn used<S: Store>(store: &S, limits: &TestLimits) -> u64 {
    let charges = [limits.charge("held", "x")];
    let charged = store.charge(&charges, Take::Peek).await.unwrap();
    charged.readings[0].used
}

async fn a_hold_ends_exactly_whatever_was_charged_before_it<S: Store>(
    make: &impl Make<S>,
    algorithm: Algorithm,
) {
    let Bench { store, clock } = bench(make).await;
    let limits = limits(algorithm);
    let now = limits.charge_of("held", "x", 1, OnExceed::Deny);
    // The longest first, one that shares an instant, and one that counts from now.
    for (cost, hold) in [(300, 50), (20, 10), (20, 30), (20, 10)] {
        assert!(take(&*store, &held(&limits, cost, hold)).await.is_some());
    }
    assert!(take(&*store, &now).await.is_some());
    assert_eq!(used(&*store, &limits).await, 361, "{algorithm:?}");
    let full = held(&limits, 640, 5);
    assert!(take(&*store, &full).await.is_none(), "{algorithm:?}: full");
    for (ends, left) in [(10, 321), (30, 301), (50, 1)] {
        clock.set(super::START.plus(ends * SECOND - 1));
        assert!(used(&*store, &limits).await > left, "{algorithm:?} {ends}");
        clock.advance(1);
        let found = used(&*store, &limits).await;
        assert_eq!(found, left, "{algorithm:?} at {ends} s");
    }
}

async fn a_hold_is_given_back_once_and_alone<S: Store>(make: &impl Make<S>, algorithm: Algorithm) {
    let Bench { store, clock } = bench(make).await;
    let limits = limits(algorithm);
    let mut taken = Vec::new();
    for (cost, hold) in [(300, 50), (20, 10), (7, 30)] {
        taken.extend(take(&*store, &held(&limits, cost, hold)).await);
    }
    clock.advance(11 * SECOND);
    // The one that has ended gives back nothing, so that no other goes in its place.
    for (one, left) in taken.into_iter().zip([7, 7, 0]) {
        let back = [one];
        let Ok(charged) = store.give_back(&back).await else {
            continue;
        };
        assert_eq!(charged.readings[0].used, left, "{algorithm:?}");
    }
}

async fn what_was_used_earlier_leaves_with_its_own_window<S: Store>(
    make: &impl Make<S>,
    algorithm: Algorithm,
) {
    let Bench { store, clock } = bench(make).await;
    let limits = limits(algorithm);
    let began = clock.now();
    clock.advance(20 * SECOND);
    let later = limits.charge_of("held", "x", 5, OnExceed::Deny);
    assert!(take(&*store, &later).await.is_some());
    let earlier = Charge {
        from: CountsFrom::Instant(began),
        ..limits.charge_of("held", "x", 40, OnExceed::Count)
    };
    assert!(take(&*store, &earlier).await.is_some());
    assert_eq!(used(&*store, &limits).await, 45, "{algorithm:?}");
    // A slot of the wheel is a 64th of its window.
    clock.set(began.plus(MINUTE + SECOND));
    assert_eq!(used(&*store, &limits).await, 5, "{algorithm:?}");
    // One that has left its window before it is charged changes nothing.
    assert!(take(&*store, &earlier).await.is_some());
    assert_eq!(used(&*store, &limits).await, 5, "{algorithm:?}");
}
