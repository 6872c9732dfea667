//! Returns that name their charge (L-GIVE-BACK): credited while the bucket still counts the
//! charge, dropped afterwards, and never admitting one too many.

use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::time::{Clock, Micros, SECOND};

use super::{Bench, Make, Rng, TestClock, TestLimits, bench, spec};
use crate::{Store, Take, TakenCharge};

use Algorithm::{FixedWindow, SlidingLog, SlidingWheel, TokenBucket};

const ALGORITHMS: [Algorithm; 4] = [SlidingLog, SlidingWheel, TokenBucket, FixedWindow];
const WINDOW: u64 = 64 * SECOND;
const LIMIT: u64 = 16;

pub(super) async fn run<S: Store>(make: &impl Make<S>) {
    a_return_at_once_is_as_if_nothing_was_taken(make).await;
    a_return_after_the_window_is_dropped(make).await;
    a_return_takes_its_own_hits(make).await;
    what_has_drained_stays_drained(make).await;
    several_buckets_each_at_its_own_instant(make).await;
    what_was_never_taken_is_not_given_back(make).await;
    a_return_never_admits_one_too_many(make).await;
}

fn limits(algorithm: Algorithm) -> TestLimits {
    TestLimits::new([("returned", spec(algorithm, LIMIT, Window::Span(WINDOW)))])
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn take<'p, S: Store>(store: &S, charge: &Charge<'p>) -> Option<TakenCharge<'p>> {
    let charges = std::slice::from_ref(charge);
    let charged = store.charge(charges, Take::Consume).await.unwrap();
    charged.taken(charges).pop()
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn must_take<'p, S: Store>(store: &S, charge: &Charge<'p>) -> TakenCharge<'p> {
    take(store, charge).await.unwrap()
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn used<S: Store>(store: &S, charge: &Charge<'_>) -> u64 {
    let charges = std::slice::from_ref(charge);
    let charged = store.charge(charges, Take::Peek).await.unwrap();
    charged.readings[0].used
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn give_back<S: Store>(store: &S, taken: TakenCharge<'_>) -> u64 {
    let charged = store.give_back(&[taken]).await.unwrap();
    assert!(charged.admitted);
    charged.readings[0].used
}

async fn a_return_at_once_is_as_if_nothing_was_taken<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    for algorithm in ALGORITHMS {
        let limits = limits(algorithm);
        let name = algorithm.name();
        let earlier = limits.charge_of("returned", name, 5, OnExceed::Deny);
        must_take(&*store, &earlier).await;
        let charge = limits.charge_of("returned", name, 11, OnExceed::Deny);
        let mut taken = must_take(&*store, &charge).await;
        taken.charge.cost = 4;
        assert_eq!(give_back(&*store, taken.clone()).await, 12, "{name}: part");
        taken.charge.cost = 7;
        assert_eq!(give_back(&*store, taken).await, 5, "{name}: the rest");
        assert!(take(&*store, &charge).await.is_some(), "{name}");
    }
}

async fn a_return_after_the_window_is_dropped<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    for algorithm in ALGORITHMS {
        let limits = limits(algorithm);
        let name = algorithm.name();
        let all = limits.charge_of("returned", name, LIMIT, OnExceed::Deny);
        let taken = must_take(&*store, &all).await;
        clock.advance(2 * WINDOW);
        must_take(&*store, &all).await;
        let left = give_back(&*store, taken).await;
        assert_eq!(left, LIMIT, "{name}: others' uses stay");
        assert!(
            take(&*store, &limits.charge("returned", name))
                .await
                .is_none()
        );
    }
}

/// The hits that are removed are those of the charge's instant, not the oldest.
async fn a_return_takes_its_own_hits<S: Store>(make: &impl Make<S>) {
    for algorithm in [SlidingLog, SlidingWheel] {
        let Bench { store, clock } = bench(make).await;
        let limits = limits(algorithm);
        let name = algorithm.name();
        let half = limits.charge_of("returned", name, LIMIT / 2, OnExceed::Deny);
        must_take(&*store, &half).await;
        clock.advance(WINDOW / 2);
        let taken = must_take(&*store, &half).await;
        assert_eq!(give_back(&*store, taken.clone()).await, 8, "{name}");
        clock.advance(WINDOW / 2 + SECOND);
        assert_eq!(used(&*store, &half).await, 0, "{name}: the old hits left");
        must_take(&*store, &half).await;
        assert_eq!(
            give_back(&*store, taken).await,
            8,
            "{name}: hits of another instant are not given back"
        );
    }
    let Bench { store, clock } = bench(make).await;
    let limits = limits(FixedWindow);
    let half = limits.charge_of("returned", "fixed", LIMIT / 2, OnExceed::Deny);
    let taken = must_take(&*store, &half).await;
    clock.advance(WINDOW);
    must_take(&*store, &half).await;
    assert_eq!(
        give_back(&*store, taken).await,
        8,
        "another window's count stays"
    );
}

/// 16 tokens in 64 s drain at one in 4 s.
async fn what_has_drained_stays_drained<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    let limits = limits(TokenBucket);
    let charge = |cost| limits.charge_of("returned", "tokens", cost, OnExceed::Deny);
    let taken = must_take(&*store, &charge(4)).await;
    clock.advance(4 * SECOND);
    must_take(&*store, &charge(8)).await;
    assert_eq!(used(&*store, &charge(1)).await, 11);
    assert_eq!(
        give_back(&*store, taken).await,
        8,
        "one of four has drained"
    );
    let late = must_take(&*store, &charge(4)).await;
    clock.advance(16 * SECOND);
    must_take(&*store, &charge(8)).await;
    assert_eq!(used(&*store, &charge(1)).await, 16);
    assert_eq!(give_back(&*store, late).await, 16, "all four have drained");
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn several_buckets_each_at_its_own_instant<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    let limits = TestLimits::new([
        ("first", spec(SlidingLog, LIMIT, Window::Span(WINDOW))),
        ("second", spec(SlidingLog, LIMIT, Window::Span(WINDOW))),
    ]);
    let [first, second] = ["first", "second"].map(|name| limits.charge(name, "both"));
    let mut taken = Vec::new();
    for charge in [&first, &second, &first, &second] {
        taken.push(must_take(&*store, charge).await);
        clock.advance(SECOND);
    }
    taken.truncate(2);
    let charged = store.give_back(&taken).await.unwrap();
    let used: Vec<u64> = charged.readings.iter().map(|r| r.used).collect();
    assert_eq!(used, [1, 1]);
    assert_eq!(charged.now, clock.now());
    let both = [first, second];
    clock.advance(WINDOW - 2 * SECOND);
    let later = store.charge(&both, Take::Peek).await.unwrap();
    let used: Vec<u64> = later.readings.iter().map(|r| r.used).collect();
    assert_eq!(used, [0, 1], "each lost the hit that was named");
    let none = store.give_back(&[]).await.unwrap();
    assert!(none.readings.is_empty());
}

async fn what_was_never_taken_is_not_given_back<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    for algorithm in [SlidingLog, SlidingWheel, FixedWindow] {
        let limits = limits(algorithm);
        let name = algorithm.name();
        let charge = limits.charge_of("returned", name, 3, OnExceed::Deny);
        let unknown = TakenCharge {
            charge: charge.clone(),
            at: clock.now(),
        };
        assert_eq!(give_back(&*store, unknown).await, 0, "{name}: no bucket");
        let mut taken = must_take(&*store, &charge).await;
        taken.at = taken.at.minus(2 * WINDOW);
        assert_eq!(
            give_back(&*store, taken).await,
            3,
            "{name}: another instant"
        );
    }
    let limits = limits(SlidingLog);
    let full = limits.charge_of("returned", "reports", LIMIT, OnExceed::Report);
    must_take(&*store, &full).await;
    assert!(
        take(&*store, &full).await.is_none(),
        "a full bucket that only reports has taken nothing"
    );
}

/// Uses of one bucket: their instants, and the amounts that were not given back.
type Uses = Vec<(Micros, u64)>;

/// Random charges and returns: the uses that were not given back keep the algorithm's bound.
async fn a_return_never_admits_one_too_many<S: Store>(make: &impl Make<S>) {
    for algorithm in ALGORITHMS {
        let Bench { store, clock } = bench(make).await;
        let limits = limits(algorithm);
        let mut rng = Rng::new(11);
        for round in 0..3 {
            let subject = format!("{} {round}", algorithm.name());
            let uses = live(&*store, &clock, &limits, &subject, &mut rng).await;
            let spec = spec(algorithm, LIMIT, Window::Span(WINDOW));
            assert_bound(&spec, &uses, &subject);
        }
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn live<S: Store>(
    store: &S,
    clock: &TestClock,
    limits: &TestLimits,
    subject: &str,
    rng: &mut Rng,
) -> Uses {
    let mut uses: Uses = Vec::new();
    for _ in 0..60 {
        clock.advance(match rng.below(4) {
            0 => 0,
            1 => rng.below(SECOND),
            2 => rng.below(8 * SECOND),
            _ => rng.below(WINDOW),
        });
        let cost = 1 + rng.below(LIMIT);
        let charge = limits.charge_of("returned", subject, cost, OnExceed::Deny);
        if rng.one_in(3) && !uses.is_empty() {
            let recent = rng.index(uses.len().min(7));
            let (at, left) = &mut uses[recent];
            let part = cost.min(*left);
            *left -= part;
            let charge = limits.charge_of("returned", subject, part, OnExceed::Deny);
            store
                .give_back(&[TakenCharge { charge, at: *at }])
                .await
                .unwrap();
        } else if let Some(taken) = take(store, &charge).await {
            uses.insert(0, (taken.at, cost));
        }
    }
    uses.reverse();
    uses
}

fn assert_bound(spec: &BucketSpec, uses: &Uses, subject: &str) {
    for (first, (from, _)) in uses.iter().enumerate() {
        let within = |at: Micros| match spec.algorithm() {
            FixedWindow => spec.window_start(at) == spec.window_start(*from),
            SlidingLog | SlidingWheel => at.since(*from) < WINDOW,
            TokenBucket => true,
        };
        let mut sum = 0;
        for (at, cost) in uses[first..].iter().take_while(|(at, _)| within(*at)) {
            sum += *cost;
            let refilled = match spec.algorithm() {
                TokenBucket => at.since(*from) * LIMIT / WINDOW,
                _ => 0,
            };
            assert!(sum <= LIMIT + refilled, "{subject}: {sum} in one window");
        }
    }
}
