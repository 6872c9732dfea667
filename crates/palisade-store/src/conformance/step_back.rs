//! F-CLOCK: after a clock has stepped back, nobody waits for longer than a window.

use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::time::{HOUR, MINUTE, SECOND};

use super::{Bench, Make, START, TestLimits, bench, spec};
use crate::{ChargeReadings, Store, Take};

use Algorithm::{FixedWindow, SlidingLog, SlidingWheel, TokenBucket};

const LIMIT: u64 = 5;
const STEP: u64 = 2 * HOUR;

fn cases() -> Vec<(&'static str, BucketSpec)> {
    let minute = Window::Span(MINUTE);
    vec![
        ("log", spec(SlidingLog, LIMIT, minute)),
        ("wheel", spec(SlidingWheel, LIMIT, minute)),
        ("tokens", spec(TokenBucket, LIMIT, minute)),
        ("window", spec(FixedWindow, LIMIT, minute)),
        ("day", spec(SlidingLog, LIMIT, Window::Span(24 * HOUR))),
        ("month", spec(FixedWindow, LIMIT, Window::Month)),
    ]
}

pub(super) async fn run<S: Store>(make: &impl Make<S>) {
    no_wait_is_longer_than_a_window(make).await;
    what_was_used_stays_used(make).await;
    each_of_several_decisions(make).await;
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn charge<S: Store>(store: &S, charges: &[Charge<'_>], take: Take) -> ChargeReadings {
    store.charge(charges, take).await.unwrap()
}

/// A bucket is used up, and then the clock steps back.
async fn no_wait_is_longer_than_a_window<S: Store>(make: &impl Make<S>) {
    let limits = TestLimits::new(cases());
    for (name, spec) in cases() {
        let Bench { store, clock } = bench(make).await;
        clock.set(START.plus(10 * HOUR));
        let one = [limits.charge(name, "hot")];
        for n in 0..LIMIT {
            clock.advance(SECOND / 10);
            assert!(
                charge(&*store, &one, Take::Consume).await.admitted,
                "{name} {n}"
            );
        }
        let back = START.plus(10 * HOUR).minus(STEP);
        clock.set(back);
        let found = charge(&*store, &one, Take::Consume).await;
        assert!(!found.admitted, "{name}: what was used stays used");
        assert_eq!(found.readings[0].used, LIMIT, "{name}");
        let wait = found.readings[0].retry_at.map_or(0, |at| at.since(back));
        assert!(wait <= spec.longest_wait_us(), "{name} waits {wait}");
        clock.advance(wait - 1);
        let found = charge(&*store, &one, Take::Consume).await;
        assert!(!found.admitted, "{name}: not before its wait is over");
        clock.advance(1);
        let found = charge(&*store, &one, Take::Consume).await;
        assert!(found.admitted, "{name}: after its wait");
    }
}

/// A step back grants nothing anew, however often the clock steps.
async fn what_was_used_stays_used<S: Store>(make: &impl Make<S>) {
    let limits = TestLimits::new(cases());
    for (name, _) in cases() {
        let Bench { store, clock } = bench(make).await;
        let one = [limits.charge(name, "steps")];
        let mut admitted = 0;
        for step in 0..10 {
            clock.set(START.plus(20 * HOUR).minus(step * HOUR));
            for _ in 0..2 {
                let found = charge(&*store, &one, Take::Consume).await;
                admitted += u64::from(found.admitted);
            }
        }
        assert!(admitted <= LIMIT, "{name}: {admitted}");
        // A token bucket is a single instant: how much was used before the step is unknown, so all
        // of it counts as used.
        assert!(admitted == LIMIT || name == "tokens", "{name}: {admitted}");
    }
}

/// Decisions that are made together, and one that only peeks.
async fn each_of_several_decisions<S: Store>(make: &impl Make<S>) {
    let limits = TestLimits::new(cases());
    let Bench { store, clock } = bench(make).await;
    clock.set(START.plus(10 * HOUR));
    let all: Vec<Charge<'_>> = cases()
        .into_iter()
        .map(|(name, _)| limits.charge_of(name, "several", LIMIT, OnExceed::Deny))
        .collect();
    assert!(charge(&*store, &all, Take::Consume).await.admitted);
    clock.set(START.plus(10 * HOUR).minus(STEP));
    let longest = |charges: &[Charge<'_>], charged: &ChargeReadings| {
        for (charge, reading) in charges.iter().zip(&charged.readings) {
            let wait = reading.retry_at.map_or(0, |at| at.since(charged.now));
            let name = &charge.limit.name;
            assert!(
                wait > 0 && wait <= charge.spec.longest_wait_us(),
                "{name} waits {wait}"
            );
        }
    };
    longest(&all, &charge(&*store, &all, Take::Peek).await);
    #[expect(clippy::unwrap_used, reason = "part of a test suite")]
    let each = store.charge_each(&all, Take::Consume).await.unwrap();
    for (one, charged) in all.iter().zip(&each) {
        longest(std::slice::from_ref(one), charged);
    }
}
