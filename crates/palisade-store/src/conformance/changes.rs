//! A limit that changes keeps what was used.

use palisade_core::limit::{Algorithm, Window};
use palisade_core::plan::OnExceed;
use palisade_core::time::{MINUTE, SECOND};

use super::{Bench, Make, TestLimits, bench, spec};
use crate::{Store, Take};

use Algorithm::{FixedWindow, SlidingLog, SlidingWheel, TokenBucket};

/// Changes of a limit that a store follows exactly. After any other change it must only not admit
/// more than the new limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversions {
    /// Changes between log and wheel, and of the amount.
    LogAndWheel,
    /// Changes between any two algorithms, as the pure functions follow them.
    All,
}

const ALGORITHMS: [Algorithm; 4] = [SlidingLog, SlidingWheel, TokenBucket, FixedWindow];
const USED: u64 = 3;
const LIMIT: u64 = 5;

fn limits(algorithm: Algorithm, limit: u64) -> TestLimits {
    TestLimits::new([("changed", spec(algorithm, limit, Window::Span(MINUTE)))])
}

pub(super) async fn run<S: Store>(make: &impl Make<S>, conversions: Conversions) {
    amounts(make).await;
    algorithms(make, conversions).await;
    a_hit_keeps_its_instant(make).await;
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn use_some<S: Store>(store: &S, limits: &TestLimits, subject: &str) {
    let charge = [limits.charge_of("changed", subject, USED, OnExceed::Deny)];
    assert!(store.charge(&charge, Take::Consume).await.unwrap().admitted);
}

/// Number of single charges that are admitted now.
#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn drain<S: Store>(store: &S, limits: &TestLimits, subject: &str) -> u64 {
    let charge = [limits.charge("changed", subject)];
    let mut admitted = 0;
    while admitted <= 2 * LIMIT && store.charge(&charge, Take::Consume).await.unwrap().admitted {
        admitted += 1;
    }
    admitted
}

/// A raised limit leaves more and a lowered one less; what was used stays used.
async fn amounts<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    for algorithm in [SlidingLog, SlidingWheel, FixedWindow] {
        for (now, left) in [(LIMIT + 2, 4), (LIMIT, 2), (USED, 0), (1, 0)] {
            let subject = format!("{} to {now}", algorithm.name());
            use_some(&*store, &limits(algorithm, LIMIT), &subject).await;
            let got = drain(&*store, &limits(algorithm, now), &subject).await;
            assert_eq!(got, left, "{subject}");
        }
    }
}

async fn algorithms<S: Store>(make: &impl Make<S>, conversions: Conversions) {
    let Bench { store, .. } = bench(make).await;
    let sliding = [SlidingLog, SlidingWheel];
    for from in ALGORITHMS {
        for to in ALGORITHMS {
            let subject = format!("{} to {}", from.name(), to.name());
            use_some(&*store, &limits(from, LIMIT), &subject).await;
            let got = drain(&*store, &limits(to, LIMIT), &subject).await;
            assert!(got <= LIMIT - USED, "{subject} admitted {got} more");
            let is_exact = conversions == Conversions::All
                || from == to
                || (sliding.contains(&from) && sliding.contains(&to));
            assert!(
                !is_exact || got == LIMIT - USED,
                "{subject} admitted only {got}"
            );
        }
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn a_hit_keeps_its_instant<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    use_some(&*store, &limits(SlidingLog, USED), "instant").await;
    let wheel = limits(SlidingWheel, USED);
    let charge = [wheel.charge("changed", "instant")];
    clock.advance(MINUTE - 1);
    let early = store.charge(&charge, Take::Consume).await.unwrap();
    assert!(!early.admitted, "a log's hit counts on the wheel");
    clock.advance(1);
    let again = store.charge(&charge, Take::Consume).await.unwrap();
    assert!(again.admitted, "and leaves with its window");
    let log = limits(SlidingLog, 1);
    let charge = [log.charge("changed", "instant")];
    clock.advance(MINUTE - 1);
    let early = store.charge(&charge, Take::Consume).await.unwrap();
    assert!(!early.admitted, "a wheel's hit counts on the log");
    clock.advance(SECOND);
    let again = store.charge(&charge, Take::Consume).await.unwrap();
    assert!(again.admitted, "until its slot is out of the window");
}
