//! Buckets: each algorithm's behaviour, all-or-nothing, peek, refund, reset.

use palisade_core::limit::{Algorithm, BucketSpec, FIGURE_MAX, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::time::{Clock, DAY, HOUR, MINUTE, Micros, SECOND};

use super::{Bench, Make, Rng, TestLimits, bench, play, spec};
use crate::{ChargeReadings, Store, Take};

use Algorithm::{FixedWindow, SlidingLog, SlidingWheel, TokenBucket};

const MS: u64 = 1_000;
const YEAR: u64 = 365 * DAY;
/// The largest limit of 32 bits.
const WORD_MAX: u64 = u32::MAX as u64;

/// A case: its name, limit and script.
type Case = (&'static str, fn() -> BucketSpec, &'static str);

fn burst(limit: u64, window_us: u64, burst: u64) -> BucketSpec {
    use std::num::NonZeroU64;
    NonZeroU64::new(limit)
        .and_then(|limit| {
            BucketSpec::new(
                TokenBucket,
                limit,
                Window::Span(window_us),
                NonZeroU64::new(burst),
            )
            .ok()
        })
        .unwrap_or_else(|| spec(TokenBucket, limit, Window::Span(window_us)))
}

const SCRIPTS: [Case; 32] = [
    (
        "log: a hit exactly a window old is out",
        || spec(SlidingLog, 2, Window::Span(MINUTE)),
        "0ms A; 1000ms A; 1000ms D59000; 59999ms D1; 60000ms A; 60000ms D1000; 61000ms A; 61000ms U2",
    ),
    (
        "log: two hits of one instant are two hits",
        || spec(SlidingLog, 3, Window::Span(SECOND)),
        "0ms A; 0ms A; 0ms A; 0ms D1000; 0ms U3; 999999us D1us; 1000ms A",
    ),
    (
        "log: cost",
        || spec(SlidingLog, 10, Window::Span(MINUTE)),
        "0ms x4 A; 10000ms x6 A; 10000ms D50000; 10000ms x5 D60000; 60000ms x4 A; 60000ms U10; 60000ms x10 D60000",
    ),
    (
        "log: a cost of the whole limit",
        || spec(SlidingLog, 10, Window::Span(MINUTE)),
        "0ms x10 A; 0ms x10 D60000; 59999ms x1 D1; 60000ms x10 A; 60000ms x11 Dnever",
    ),
    (
        "log: limit 1",
        || spec(SlidingLog, 1, Window::Span(SECOND)),
        "0ms A; 0ms D1000; 999999us D1us; 1000ms A; 1000ms D1000",
    ),
    (
        "log: window 1 ms",
        || spec(SlidingLog, 2, Window::Span(MS)),
        "0ms A; 500us A; 500us D500us; 1000us A; 1499us D1us; 1500us A",
    ),
    (
        "log: window 1 year",
        || spec(SlidingLog, 2, Window::Span(YEAR)),
        "0ms A; 1ms A; 2ms D31535999998; 31535999999ms D1; 31536000000ms A; 31536000000ms D1",
    ),
    (
        "log: limit u32::MAX",
        || spec(SlidingLog, WORD_MAX, Window::Span(MINUTE)),
        "0ms x4294967294 A; 1000ms A; 1000ms D59000; 1000ms U4294967295; 60000ms x4294967294 A; 60000ms x2 D60000",
    ),
    (
        "log: refund gives back the oldest hits",
        || spec(SlidingLog, 3, Window::Span(MINUTE)),
        "0ms A; 1000ms A; 2000ms A; 2000ms D58000; 3000ms R; 3000ms U2; 3000ms A; 3000ms D58000; 3000ms x9 R; 3000ms U0; 3000ms x3 A",
    ),
    (
        "wheel: a hit is held to the end of its slot",
        || spec(SlidingWheel, 2, Window::Span(64 * SECOND)),
        "0ms A; 500ms A; 900ms D64099999us; 64000ms D999999us; 64999998us D1us; 64999999us A",
    ),
    (
        "wheel: cost",
        || spec(SlidingWheel, 1000, Window::Span(64 * SECOND)),
        "0ms x600 A; 10000ms x400 A; 10000ms D54999999us; 64999999us x600 A; 64999999us U1000; 64999999us x1001 Dnever",
    ),
    (
        "wheel: window 1 ms",
        || spec(SlidingWheel, 1, Window::Span(MS)),
        "0us A; 0us D1015us; 1014us D1us; 1015us A",
    ),
    (
        "wheel: limit u32::MAX in 1 year",
        || spec(SlidingWheel, WORD_MAX, Window::Span(YEAR)),
        "0ms x4294967295 A; 0ms U4294967295; 0ms x4294967295 R; 0ms U0",
    ),
    (
        "token bucket: refills one by one",
        || burst(10, SECOND, 2),
        "0ms A; 0ms A; 0ms D100; 99ms D1; 100ms A; 100ms D100; 300ms A; 300ms A; 300ms D100",
    ),
    (
        "token bucket: cost",
        || burst(10, SECOND, 5),
        "0ms x5 A; 0ms x5 D500; 200ms x3 D100; 300ms x3 A; 300ms U5; 300ms x6 Dnever",
    ),
    (
        "token bucket: limit 1 in 1 year",
        || spec(TokenBucket, 1, Window::Span(YEAR)),
        "0ms A; 0ms D31536000000; 31535999999ms D1; 31536000000ms A",
    ),
    (
        "token bucket: window 1 ms",
        || spec(TokenBucket, 2, Window::Span(MS)),
        "0us A; 0us A; 0us D500us; 499us D1us; 500us A; 500us D500us",
    ),
    (
        "token bucket: limit u32::MAX in 1 minute",
        || spec(TokenBucket, WORD_MAX, Window::Span(MINUTE)),
        "0ms x4294967295 A; 0ms D1us; 0ms U4294967295; 0ms x4294967295 R; 0ms U0",
    ),
    (
        "token bucket: an interval that is no whole number",
        || spec(TokenBucket, 3, Window::Span(SECOND)),
        "0ms A; 0ms A; 0ms A; 0ms D333334us; 333333us D1us; 333334us A; 333334us D333333us",
    ),
    (
        "token bucket: refund",
        || burst(10, SECOND, 2),
        "0ms A; 0ms A; 0ms D100; 0ms R; 0ms U1; 0ms A; 0ms x5 R; 0ms U0; 0ms A; 0ms A; 0ms D100",
    ),
    (
        "fixed window: aligned",
        || spec(FixedWindow, 2, Window::Span(MINUTE)),
        "59000ms A; 59999ms A; 59999ms D1; 60000ms A; 60000ms U1; 60000ms A; 60000ms D60000; 119999999us D1us; 120000ms A",
    ),
    (
        "fixed window: cost and refund",
        || spec(FixedWindow, 10, Window::Span(HOUR)),
        "0ms x7 A; 0ms x4 D3600000; 0ms x3 A; 0ms x2 R; 0ms U8; 0ms x2 A; 3600000ms U0; 3600000ms x10 A; 3600000ms x11 Dnever",
    ),
    (
        "fixed window: calendar months",
        || spec(FixedWindow, 2, Window::Month),
        // From 14 February it is 15 days to 1 March, and 31 more to 1 April.
        "0ms A; 1000ms A; 1000ms D1295999000; 1295999999ms D1; 1296000000ms A; 1296000000ms U1; 1296000000ms A; 1296000000ms D2678400000",
    ),
    (
        "fixed window: calendar years",
        || spec(FixedWindow, 2, Window::Year),
        // From 14 February it is 321 days to 1 January, and 365 more to the next one.
        "0ms A; 1000ms A; 1000ms D27734399000; 27734399999ms D1; 27734400000ms A; 27734400000ms U1; 27734400000ms A; 27734400000ms D31536000000",
    ),
    (
        "log: the largest limit",
        || spec(SlidingLog, FIGURE_MAX, Window::Span(MINUTE)),
        "0ms x140737488355327 A; 1000ms A; 1000ms D59000; 1000ms U140737488355328; 60000ms x140737488355327 A; 60000ms x2 D60000; 60000ms x140737488355329 Dnever",
    ),
    (
        "log: small and large hits side by side",
        || spec(SlidingLog, FIGURE_MAX, Window::Span(MINUTE)),
        "0ms A; 1ms x300 A; 2ms x5000000000 A; 2ms x5000000000 A; 3ms x7 A; 3ms x4294967295 A; 4ms x140720000000000 A; 4ms x140737488355328 D60000; 4ms U140734294967603; 5ms x10000000301 R; 5ms U140724294967302; 60003ms U140720000000000; 60004ms U0",
    ),
    (
        "wheel: the largest limit in 1 year",
        || spec(SlidingWheel, FIGURE_MAX, Window::Span(YEAR)),
        "0ms x140737488355328 A; 0ms U140737488355328; 0ms x140737488355327 R; 0ms U1; 1000ms x5000000000 A; 1000ms U5000000001",
    ),
    (
        "token bucket: the largest limit in 1 year",
        || spec(TokenBucket, FIGURE_MAX, Window::Span(YEAR)),
        "0ms x140737488355328 A; 0ms D1us; 0ms x140737488355328 R; 0ms U0; 0ms x140737488355329 Dnever",
    ),
    (
        // 2,592,000 s hold 2,123,366.4 ticks for each of 5,000,000,000: 2,123,367 of 244 ps.
        "token bucket: five thousand dollars of millionths in 30 days",
        || burst(5_000_000_000, 30 * DAY, 1_000_000_000),
        "0ms x1000000000 A; 0ms x1000000 D518400147us; 518400146us x1000000 D1us; 518400147us x1000000 A; 518400147us U1000000000",
    ),
    (
        "fixed window: the largest limit",
        || spec(FixedWindow, FIGURE_MAX, Window::Month),
        "0ms x140737488355327 A; 0ms x2 D1296000000; 0ms A; 0ms U140737488355328; 0ms x70368744177664 R; 0ms U70368744177664; 1296000000ms U0",
    ),
    (
        "fixed window: five thousand dollars of millionths",
        || spec(FixedWindow, 5_000_000_000, Window::Month),
        "0ms x4999999999 A; 0ms x2 D1296000000; 0ms A; 0ms D1296000000; 0ms U5000000000",
    ),
    (
        "fixed window: reset and peek",
        || spec(FixedWindow, WORD_MAX, Window::Span(YEAR)),
        "0ms x4294967295 A; 0ms U4294967295; 0ms Z; 0ms U0; 0ms P; 0ms U0; 0ms x4294967295 P; 0ms x4294967295 A",
    ),
];

pub(super) async fn run<S: Store>(make: &impl Make<S>) {
    scripts(make).await;
    peek_and_reset_on_each_algorithm(make).await;
    retry_is_exact(make).await;
    one_denial_leaves_the_others_unchanged(make).await;
    reporting_never_denies(make).await;
    one_bucket_twice_counts_twice(make).await;
    several_are_reset_at_once(make).await;
    readings_are_in_order(make).await;
}

async fn scripts<S: Store>(make: &impl Make<S>) {
    for (name, spec, text) in SCRIPTS {
        let Bench { store, clock } = bench(make).await;
        play(&*store, &clock, name, spec(), text).await;
    }
}

async fn peek_and_reset_on_each_algorithm<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    for algorithm in [SlidingLog, SlidingWheel, TokenBucket, FixedWindow] {
        let spec = spec(algorithm, 2, Window::Span(MINUTE));
        let name = format!("{}: peek and reset", algorithm.name());
        let text = "0ms P; 0ms U0; 0ms A; 0ms P; 0ms P; 0ms x2 U1; 0ms A; 0ms U2; 0ms Z; 0ms U0; 0ms Z; 0ms x2 A";
        play(&*store, &clock, &name, spec, text).await;
    }
}

/// One microsecond before `retry_at` a charge is denied, and at `retry_at` it is admitted.
async fn retry_is_exact<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    let mut rng = Rng::new(7);
    for (algorithm, window_us) in [
        (SlidingLog, 10 * SECOND),
        (SlidingWheel, 10 * SECOND),
        (TokenBucket, 7 * SECOND),
        (FixedWindow, 10 * SECOND),
    ] {
        let limits = TestLimits::new([("exact", spec(algorithm, 13, Window::Span(window_us)))]);
        let mut denials = 0;
        while denials < 12 {
            clock.advance(rng.below(SECOND / 3));
            let cost = 1 + rng.below(4);
            let charge = limits.charge_of("exact", algorithm.name(), cost, OnExceed::Deny);
            let Some(retry_at) = take(&*store, &charge).await.readings[0].retry_at else {
                continue;
            };
            denials += 1;
            clock.set(retry_at.minus(1));
            let early = take(&*store, &charge).await;
            assert_eq!(
                early.readings[0].retry_at,
                Some(retry_at),
                "{} early",
                algorithm.name()
            );
            clock.set(retry_at);
            assert!(
                take(&*store, &charge).await.admitted,
                "{} at it",
                algorithm.name()
            );
        }
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn take<S: Store>(store: &S, charge: &Charge<'_>) -> ChargeReadings {
    store
        .charge(std::slice::from_ref(charge), Take::Consume)
        .await
        .unwrap()
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn used<S: Store>(store: &S, charges: &[Charge<'_>]) -> Vec<u64> {
    let peeked = store.charge(charges, Take::Peek).await.unwrap();
    peeked.readings.iter().map(|reading| reading.used).collect()
}

fn four(limit: u64) -> TestLimits {
    let of = |algorithm| spec(algorithm, limit, Window::Span(MINUTE));
    TestLimits::new([
        ("log", of(SlidingLog)),
        ("wheel", of(SlidingWheel)),
        ("bucket", of(TokenBucket)),
        ("fixed", of(FixedWindow)),
        ("small", spec(SlidingLog, 2, Window::Span(MINUTE))),
    ])
}

const NAMES: [&str; 4] = ["log", "wheel", "bucket", "fixed"];

/// L-ATOMIC: a denial by one bucket consumes nothing in the others.
#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn one_denial_leaves_the_others_unchanged<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let limits = four(10);
    for place in 0..=NAMES.len() {
        let subject = format!("atomic {place}");
        let mut charges: Vec<_> = NAMES
            .iter()
            .map(|name| limits.charge_of(name, &subject, 3, OnExceed::Deny))
            .collect();
        charges.insert(place, limits.charge("small", &subject));
        for _ in 0..2 {
            assert!(
                store
                    .charge(&charges, Take::Consume)
                    .await
                    .unwrap()
                    .admitted
            );
        }
        let before = used(&*store, &charges).await;
        let denied = store.charge(&charges, Take::Consume).await.unwrap();
        assert!(!denied.admitted, "all or nothing, denied at {place}");
        let waiting: Vec<usize> = denied
            .readings
            .iter()
            .enumerate()
            .filter_map(|(index, reading)| reading.retry_at.map(|_| index))
            .collect();
        assert_eq!(waiting, [place], "only the full bucket says when to retry");
        assert_eq!(
            used(&*store, &charges).await,
            before,
            "nothing consumed, denied at {place}"
        );
    }
}

async fn reporting_never_denies<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let limits = four(2);
    for name in NAMES {
        for (on_exceed, expected) in [
            (OnExceed::Report, [1, 2, 2, 2]),
            (OnExceed::Count, [1, 2, 3, 4]),
        ] {
            let subject = format!("{on_exceed:?}");
            let charge = limits.charge_of(name, &subject, 1, on_exceed);
            for (step, expected) in (1_u64..).zip(expected) {
                let charged = take(&*store, &charge).await;
                let reading = charged.readings[0];
                assert!(charged.admitted, "{name} {on_exceed:?} denied at {step}");
                assert_eq!(reading.used, expected, "{name} {on_exceed:?} at {step}");
                assert_eq!(reading.retry_at.is_some(), step > 2, "{name} {on_exceed:?}");
            }
        }
    }
    let dear = limits.charge_of("fixed", "dear", 5, OnExceed::Count);
    let charged = take(&*store, &dear).await;
    assert!(charged.admitted, "a counted cost above the limit");
    assert_eq!(charged.readings[0].used, 5);
    assert_eq!(charged.readings[0].retry_at, Some(Micros(u64::MAX)));
    assert_eq!(charged.readings[0].remaining, 0);
}

/// L-ATOMIC: a plan that has a bucket twice takes both costs from it, or nothing.
#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn one_bucket_twice_counts_twice<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let limits = four(5);
    for name in NAMES {
        let other = limits.charge(name, "other");
        let twice = [
            limits.charge(name, "twice"),
            other.clone(),
            limits.charge(name, "twice"),
        ];
        for expected in [[1, 1, 2], [3, 2, 4]] {
            let charged = store.charge(&twice, Take::Consume).await.unwrap();
            let used: Vec<u64> = charged.readings.iter().map(|r| r.used).collect();
            assert!(charged.admitted, "{name}");
            assert_eq!(used, expected, "{name}");
        }
        let denied = store.charge(&twice, Take::Consume).await.unwrap();
        assert!(!denied.admitted, "{name}: one is left, two are asked for");
        let waits: Vec<bool> = denied
            .readings
            .iter()
            .map(|r| r.retry_at.is_some())
            .collect();
        assert_eq!(waits, [false, false, true], "{name}");
        let [once, other, _] = &twice;
        assert_eq!(
            used(&*store, std::slice::from_ref(once)).await,
            [4],
            "{name}"
        );
        assert_eq!(
            used(&*store, std::slice::from_ref(other)).await,
            [2],
            "{name}"
        );
        store.refund(&twice).await.unwrap();
        assert_eq!(
            used(&*store, std::slice::from_ref(once)).await,
            [2],
            "{name}: refunded"
        );
        assert_eq!(
            used(&*store, std::slice::from_ref(other)).await,
            [1],
            "{name}: refunded"
        );
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn several_are_reset_at_once<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let limits = four(5);
    let charges: Vec<_> = NAMES
        .iter()
        .flat_map(|name| ["a", "b"].map(|subject| limits.charge(name, subject)))
        .collect();
    store.charge(&charges, Take::Consume).await.unwrap();
    assert_eq!(used(&*store, &charges).await, [1; 8]);
    let (cleared, kept) = charges.split_at(5);
    let done = store.reset(cleared).await.unwrap();
    assert_eq!(done.done, [true; 5]);
    assert_eq!(used(&*store, cleared).await, [0; 5]);
    assert_eq!(used(&*store, kept).await, [1; 3]);
    let unknown = [limits.charge("log", "unknown")];
    assert_eq!(store.reset(&unknown).await.unwrap().done, [true]);
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn readings_are_in_order<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    let limits = four(50);
    let charges: Vec<_> = (1..)
        .zip(NAMES)
        .map(|(cost, name)| limits.charge_of(name, "order", cost, OnExceed::Deny))
        .collect();
    let charged = store.charge(&charges, Take::Consume).await.unwrap();
    assert_eq!(charged.now, clock.now(), "judged by the given clock");
    assert_eq!(charged.rebuilt, 0);
    let left: Vec<_> = charged
        .readings
        .iter()
        .map(|r| (r.used, r.remaining))
        .collect();
    assert_eq!(left, [(1, 49), (2, 48), (3, 47), (4, 46)]);
    assert!(charged.readings.iter().all(|r| r.reset_at > charged.now));
    let none = store.charge(&[], Take::Consume).await.unwrap();
    assert!(
        none.admitted && none.readings.is_empty(),
        "no bucket, no denial"
    );
}
