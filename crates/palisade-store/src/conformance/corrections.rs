//! Corrections: buckets change once, together with the record that marks it (B-ONCE).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::limit::{Algorithm, Window};
use palisade_core::plan::OnExceed;
use palisade_core::record::RecordKind;
use palisade_core::time::{Clock, MINUTE, Micros, SECOND};

use super::records::key;
use super::{Bench, Make, START, TestLimits, bench, spec};
use crate::{ChargeReadings, Correction, CorrectionOutcome, Mark, Store, Take, TakenCharge};

use Algorithm::{FixedWindow, SlidingLog, SlidingWheel, TokenBucket};

const NAMES: [&str; 4] = ["log", "wheel", "tokens", "window"];

pub(super) async fn run<S: Store>(make: &impl Make<S>) {
    b_once_a_correction_changes_buckets_with_its_mark(make).await;
    b_once_a_repetition_changes_nothing(make).await;
    b_once_another_correction_changes_nothing(make).await;
    b_once_a_mark_alone(make).await;
    b_once_an_expired_mark_is_none(make).await;
    b_once_a_correction_that_comes_too_late_changes_nothing(make).await;
    b_once_many_at_once_correct_once(make).await;
}

fn limits() -> TestLimits {
    let algorithms = [SlidingLog, SlidingWheel, TokenBucket, FixedWindow];
    let specs = algorithms.map(|algorithm| spec(algorithm, 10, Window::Span(MINUTE)));
    TestLimits::new(NAMES.into_iter().zip(specs))
}

fn mark(expect: u64, bytes: &[u8]) -> Mark {
    Mark {
        key: key(RecordKind::Reservation, 1),
        expect,
        bytes: bytes.to_vec(),
        expires_at: START.plus(10 * MINUTE),
    }
}

/// Four are taken of each bucket; three of them go back to the first two, and nine more are taken
/// of the others.
#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn held<'p, S: Store>(store: &S, limits: &'p TestLimits, mark: Mark) -> Correction<'p> {
    let of = |name, cost, on_exceed| limits.charge_of(name, "one", cost, on_exceed);
    let all = NAMES.map(|name| of(name, 4, OnExceed::Deny));
    let taken = store.charge(&all, Take::Consume).await.unwrap();
    let back = |name| TakenCharge {
        charge: of(name, 3, OnExceed::Count),
        at: taken.now,
    };
    Correction {
        mark,
        more: ["tokens", "window"]
            .map(|name| of(name, 9, OnExceed::Count))
            .into(),
        back: ["log", "wheel"].map(back).into(),
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn used<S: Store>(store: &S, limits: &TestLimits) -> [u64; 4] {
    let all = NAMES.map(|name| limits.charge(name, "one"));
    let found = store.charge(&all, Take::Peek).await.unwrap();
    [0, 1, 2, 3].map(|position| found.readings[position].used)
}

#[expect(clippy::panic, reason = "part of a test suite")]
fn made(outcome: CorrectionOutcome) -> ChargeReadings {
    match outcome {
        CorrectionOutcome::Made(readings) => readings,
        other => panic!("{other:?}"),
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn b_once_a_correction_changes_buckets_with_its_mark<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    let limits = limits();
    let correction = held(&*store, &limits, mark(0, b"settled")).await;
    clock.advance(SECOND);
    let readings = made(store.correct(&correction).await.unwrap());
    assert_eq!(readings.now, clock.now());
    let found: Vec<u64> = readings.readings.iter().map(|one| one.used).collect();
    assert_eq!(
        found,
        [13, 13, 1, 1],
        "more comes first, then what went back"
    );
    let waits = readings.readings.iter().map(|one| one.retry_at.is_some());
    assert_eq!(waits.collect::<Vec<_>>(), [true, true, false, false]);
    assert_eq!(used(&*store, &limits).await, [1, 1, 13, 13]);
    let keys = [correction.mark.key];
    let record = store
        .load(&keys)
        .await
        .unwrap()
        .records
        .pop()
        .unwrap()
        .unwrap();
    assert_eq!((record.revision, &*record.bytes), (1, &b"settled"[..]));
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn b_once_a_repetition_changes_nothing<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let limits = limits();
    let correction = held(&*store, &limits, mark(0, b"settled")).await;
    made(store.correct(&correction).await.unwrap());
    for _ in 0..3 {
        let again = store.correct(&correction).await.unwrap();
        let CorrectionOutcome::Repeated(readings) = again else {
            unreachable!("{again:?}");
        };
        assert_eq!(readings.readings.len(), 4);
        assert_eq!(used(&*store, &limits).await, [1, 1, 13, 13]);
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn b_once_another_correction_changes_nothing<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let limits = limits();
    let mut correction = held(&*store, &limits, mark(1, b"settled")).await;
    let outcome = store.correct(&correction).await.unwrap();
    assert_eq!(outcome, CorrectionOutcome::Conflict, "there is no record");
    assert_eq!(used(&*store, &limits).await, [4, 4, 4, 4]);
    correction.mark = mark(0, b"settled");
    made(store.correct(&correction).await.unwrap());
    for other in [mark(0, b"settled otherwise"), mark(2, b"settled")] {
        correction.mark = other;
        let outcome = store.correct(&correction).await.unwrap();
        assert_eq!(outcome, CorrectionOutcome::Conflict);
        assert_eq!(used(&*store, &limits).await, [1, 1, 13, 13]);
    }
    // The next revision is another correction, even with the same content.
    correction.mark = mark(1, b"settled");
    correction.more.clear();
    correction.back.truncate(1);
    correction.back[0].charge.cost = 1;
    made(store.correct(&correction).await.unwrap());
    assert_eq!(used(&*store, &limits).await, [0, 1, 13, 13]);
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn b_once_a_mark_alone<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    let correction = Correction {
        mark: mark(0, b"held"),
        more: Vec::new(),
        back: Vec::new(),
    };
    let readings = made(store.correct(&correction).await.unwrap());
    assert_eq!((readings.now, readings.readings.len()), (clock.now(), 0));
    let again = store.correct(&correction).await.unwrap();
    assert!(matches!(again, CorrectionOutcome::Repeated(_)), "{again:?}");
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn b_once_an_expired_mark_is_none<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    let limits = limits();
    let mut correction = held(&*store, &limits, mark(0, b"settled")).await;
    made(store.correct(&correction).await.unwrap());
    clock.set(correction.mark.expires_at);
    correction.mark.expires_at = Micros(correction.mark.expires_at.0 * 2);
    made(store.correct(&correction).await.unwrap());
    assert_eq!(
        used(&*store, &limits).await,
        [0, 0, 9, 9],
        "windows have passed"
    );
}

/// Its mark may have been written before, and be forgotten by now.
#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn b_once_a_correction_that_comes_too_late_changes_nothing<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    let limits = limits();
    let mut correction = held(&*store, &limits, mark(0, b"settled")).await;
    correction.mark.expires_at = clock.now().plus(SECOND);
    made(store.correct(&correction).await.unwrap());
    clock.advance(SECOND);
    let outcome = store.correct(&correction).await.unwrap();
    assert_eq!(outcome, CorrectionOutcome::Conflict);
    assert_eq!(used(&*store, &limits).await[2..], [13, 13]);
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn b_once_many_at_once_correct_once<S: Store>(make: &impl Make<S>) {
    const TASKS: usize = 16;
    let Bench { store, .. } = bench(make).await;
    let limits = Arc::new(limits());
    let counts = Arc::new([const { AtomicU64::new(0) }; 3]);
    let at = held(&*store, &limits, mark(0, b"")).await.back[0].at;
    let tasks = (0..TASKS).map(|task| {
        let (store, limits, counts) =
            (Arc::clone(&store), Arc::clone(&limits), Arc::clone(&counts));
        tokio::spawn(async move {
            // Two kinds of settles compete; each is repeated.
            let correction = Correction {
                mark: mark(0, &[u8::try_from(task % 2).unwrap()]),
                more: vec![limits.charge_of("window", "one", 9, OnExceed::Count)],
                back: vec![TakenCharge {
                    charge: limits.charge_of("log", "one", 3, OnExceed::Count),
                    at,
                }],
            };
            let outcome = store.correct(&correction).await.unwrap();
            let which = match outcome {
                CorrectionOutcome::Made(_) => 0,
                CorrectionOutcome::Repeated(_) => 1,
                CorrectionOutcome::Conflict => 2,
            };
            counts[which].fetch_add(1, Ordering::Relaxed);
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let counts = [0, 1, 2].map(|which| counts[which].load(Ordering::Relaxed));
    let half = TASKS as u64 / 2;
    assert_eq!(counts, [1, half - 1, half]);
    assert_eq!(used(&*store, &limits).await, [1, 4, 4, 13]);
}
