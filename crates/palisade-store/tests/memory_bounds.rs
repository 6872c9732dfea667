//! The hard bound on keys and its overflow rule: expired and idle buckets make room,
//! whatever still counts stays, and beyond that there is one strict bucket for all.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use palisade_core::guard::{Account, Attempt};
use palisade_core::key::Keyring;
use palisade_core::limit::{Algorithm, Window};
use palisade_core::lockout::{CaptchaProof, Lockout, LockoutPolicy};
use palisade_core::record::{Flow, RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{Clock, DAY, HOUR, MINUTE, Micros, SECOND};
use palisade_store::conformance::{Rng, TestClock, TestLimits, spec};
use palisade_store::memory::{MemoryConfig, MemoryStore};
use palisade_store::model::ModelStore;
use palisade_store::{Buckets, Commit, Records, StoreError, Take, Vitals};
use proptest::prelude::*;

type TestStore = MemoryStore<Arc<TestClock>>;

/// A store that is swept only when a test says so: a background sweep might have covered only a
/// part of the table.
fn store(keys_max: u64) -> (TestStore, Arc<TestClock>) {
    let clock = Arc::new(TestClock::default());
    let config = MemoryConfig {
        keys_max,
        records_max: 50,
        sweep_every: Duration::from_secs(3_600),
        ..MemoryConfig::default()
    };
    (MemoryStore::new(Arc::clone(&clock), &config), clock)
}

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::TokenBucket,
    Algorithm::SlidingLog,
    Algorithm::SlidingWheel,
    Algorithm::FixedWindow,
];

fn limits(algorithm: Algorithm) -> TestLimits {
    TestLimits::new([
        ("short", spec(algorithm, 2, Window::Span(SECOND))),
        ("long", spec(algorithm, 2, Window::Span(HOUR))),
    ])
}

async fn admits(store: &TestStore, limits: &TestLimits, limit: &str, subject: &str) -> bool {
    let charge = [limits.charge(limit, subject)];
    store.charge(&charge, Take::Consume).await.unwrap().admitted
}

async fn used(store: &TestStore, limits: &TestLimits, limit: &str, subject: &str) -> u64 {
    let charge = [limits.charge(limit, subject)];
    store.charge(&charge, Take::Peek).await.unwrap().readings[0].used
}

#[tokio::test]
async fn expired_buckets_go_first() {
    for algorithm in ALGORITHMS {
        let (store, clock) = store(100);
        let limits = limits(algorithm);
        for number in 0..50 {
            assert!(admits(&store, &limits, "long", &format!("{number}")).await);
            assert!(admits(&store, &limits, "short", &format!("{number}")).await);
        }
        assert_eq!(store.stats().tracked_keys, 100);
        clock.advance(2 * SECOND);
        for number in 50..100 {
            assert!(admits(&store, &limits, "long", &format!("{number}")).await);
        }
        let stats = store.stats();
        assert_eq!((stats.evictions, stats.overflowed), (0, 0), "{algorithm:?}");
        for number in 0..100 {
            let used = used(&store, &limits, "long", &format!("{number}")).await;
            assert_eq!(used, 1, "{algorithm:?} {number}");
        }
    }
}

#[tokio::test]
async fn what_the_background_sweep_removes_is_counted() {
    for algorithm in ALGORITHMS {
        let (store, clock) = store(100);
        let limits = limits(algorithm);
        for number in 0..50 {
            assert!(admits(&store, &limits, "short", &format!("{number}")).await);
        }
        assert_eq!(store.stats().expired, 0);
        clock.advance(2 * SECOND);
        store.sweep(u32::MAX);
        let stats = store.stats();
        assert_eq!(
            (stats.tracked_keys, stats.expired),
            (0, 50),
            "{algorithm:?}"
        );
        assert_eq!(stats.evictions, 0, "{algorithm:?}");
    }
}

#[tokio::test]
async fn then_idle_ones_and_nothing_that_still_counts() {
    for algorithm in ALGORITHMS {
        let (store, _) = store(100);
        let limits = limits(algorithm);
        for number in 0..100 {
            let subject = format!("{number}");
            assert!(admits(&store, &limits, "long", &subject).await);
            if number % 2 == 0 {
                store
                    .reset(&[limits.charge("long", &subject)])
                    .await
                    .unwrap();
            }
        }
        for number in 100..150 {
            let subject = format!("{number}");
            assert!(admits(&store, &limits, "long", &subject).await);
            assert!(store.stats().tracked_keys <= 100, "{algorithm:?}");
        }
        let stats = store.stats();
        assert_eq!((stats.evictions, stats.overflowed), (0, 0), "{algorithm:?}");
        for number in (1..100).step_by(2).chain(100..150) {
            let used = used(&store, &limits, "long", &format!("{number}")).await;
            assert_eq!(used, 1, "{algorithm:?} {number}");
        }
    }
}

#[tokio::test]
async fn a_flood_of_new_keys_forgets_neither_a_block_nor_what_was_used() {
    for algorithm in ALGORITHMS {
        let (store, _) = store(100);
        let limits = limits(algorithm);
        for number in 0..20 {
            let subject = format!("blocked {number}");
            for expected in [true, true, false] {
                assert_eq!(admits(&store, &limits, "long", &subject).await, expected);
            }
            let subject = format!("half {number}");
            assert!(admits(&store, &limits, "long", &subject).await);
        }
        for number in 0..1000 {
            admits(&store, &limits, "long", &format!("new {number}")).await;
            assert!(store.stats().tracked_keys <= 100, "{algorithm:?}");
        }
        let stats = store.stats();
        assert_eq!(
            (stats.evictions, stats.overflowed),
            (0, 940),
            "{algorithm:?}"
        );
        for number in 0..20 {
            let subject = format!("blocked {number}");
            assert!(!admits(&store, &limits, "long", &subject).await);
            let subject = format!("half {number}");
            for expected in [true, false] {
                assert_eq!(admits(&store, &limits, "long", &subject).await, expected);
            }
        }
    }
}

#[tokio::test]
async fn a_key_that_shared_gets_no_second_helping_with_a_bucket_of_its_own() {
    for algorithm in ALGORITHMS {
        let (store, _) = store(1);
        let limits = limits(algorithm);
        assert!(admits(&store, &limits, "long", "first").await);
        for expected in [true, true, false] {
            assert_eq!(admits(&store, &limits, "long", "late").await, expected);
        }
        let freed = [limits.charge("long", "first")];
        store.reset(&freed).await.unwrap();
        assert!(
            !admits(&store, &limits, "long", "late").await,
            "{algorithm:?}"
        );
    }
}

#[tokio::test]
async fn l_atomic_one_bucket_twice_in_a_plan_is_charged_twice() {
    for algorithm in ALGORITHMS {
        let (store, _) = store(100);
        let limits = TestLimits::new([("l", spec(algorithm, 5, Window::Span(HOUR)))]);
        let twice = [limits.charge("l", "a"), limits.charge("l", "a")];
        for expected in [true, true, false] {
            let charged = store.charge(&twice, Take::Consume).await.unwrap();
            assert_eq!(charged.admitted, expected, "{algorithm:?}");
        }
        assert_eq!(used(&store, &limits, "l", "a").await, 4, "{algorithm:?}");
    }
}

/// A bucket that is charged alone, which takes the short way once it is known, gives the same
/// readings as in a plan.
#[tokio::test]
async fn l_atomic_one_bucket_at_once_is_charged_as_it_is_in_a_plan() {
    for algorithm in ALGORITHMS {
        let ((one, clock), (other, other_clock)) = (store(100), store(100));
        let limits = limits(algorithm);
        for step in 0..40 {
            let charge = limits.charge("short", &format!("{}", step % 3));
            let of_nobody = limits.charge("long", &format!("nobody {step}"));
            let alone = one.charge(std::slice::from_ref(&charge), Take::Consume);
            let alone = alone.await.unwrap();
            let plan = [charge, of_nobody];
            let expected = other.charge(&plan, Take::Consume).await.unwrap();
            assert_eq!(
                (alone.readings[0], alone.now, alone.admitted),
                (expected.readings[0], expected.now, expected.admitted),
                "{algorithm:?} {step}"
            );
            clock.advance(SECOND / 7);
            other_clock.advance(SECOND / 7);
        }
    }
}

/// One step of a random sequence at the bound.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Ask(Vec<(usize, u8)>),
    Refund(usize, u8),
    Reset(usize, u8),
    Sweep,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bucket = || (0_usize..2, 0_u8..12);
    let step = prop_oneof![
        2 => (0_u64..2 * SECOND).prop_map(Step::Wait),
        12 => prop::collection::vec(bucket(), 1..4).prop_map(Step::Ask),
        1 => bucket().prop_map(|(limit, subject)| Step::Refund(limit, subject)),
        1 => bucket().prop_map(|(limit, subject)| Step::Reset(limit, subject)),
        1 => Just(Step::Sweep),
    ];
    prop::collection::vec(step, 1..120)
}

/// Whatever the bounded store admits, a store without a bound admits too if it has admitted the
/// same before.
async fn never_over_admits(algorithm: Algorithm, keys_max: u64, steps: &[Step]) {
    let (store, clock) = store(keys_max);
    let model = ModelStore::new(Arc::clone(&clock));
    let names = ["a", "b"];
    let limits = TestLimits::new([
        ("a", spec(algorithm, 3, Window::Span(SECOND))),
        ("b", spec(algorithm, 2, Window::Span(5 * SECOND))),
    ]);
    let charge = |limit: usize, subject: u8| limits.charge(names[limit], &format!("{subject}"));
    for step in steps {
        match step {
            Step::Wait(us) => clock.advance(*us),
            Step::Sweep => store.sweep(1_000),
            Step::Ask(buckets) => {
                let mut buckets = buckets.clone();
                buckets.sort_unstable();
                buckets.dedup();
                let charges: Vec<_> = buckets.iter().map(|(l, s)| charge(*l, *s)).collect();
                let charged = store.charge(&charges, Take::Consume).await.unwrap();
                assert!(store.stats().tracked_keys <= keys_max);
                if charged.admitted {
                    let exact = model.charge(&charges, Take::Consume).await.unwrap();
                    assert!(exact.admitted, "{algorithm:?} over-admitted: {charged:?}");
                }
            }
            Step::Refund(limit, subject) => {
                let charges = [charge(*limit, *subject)];
                store.refund(&charges).await.unwrap();
                model.refund(&charges).await.unwrap();
            }
            Step::Reset(limit, subject) => {
                let charges = [charge(*limit, *subject)];
                store.reset(&charges).await.unwrap();
                model.reset(&charges).await.unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn l_atomic_no_sequence_over_admits_at_the_bound(keys_max in 1_u64..8, steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for algorithm in ALGORITHMS {
            runtime.block_on(never_over_admits(algorithm, keys_max, &steps));
        }
    }

    /// Until the instant that a denial named, the key stays denied: no flood of other
    /// keys evicts a block.
    #[test]
    fn l_atomic_a_denied_key_stays_denied_at_the_bound(
        keys_max in 1_u64..8,
        asks in prop::collection::vec((0_u8..20, 0_u64..SECOND / 4), 1..200),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for algorithm in ALGORITHMS {
            let (store, clock) = store(keys_max);
            let limits = limits(algorithm);
            let mut denied_until = HashMap::new();
            for (subject, wait) in &asks {
                clock.advance(*wait);
                let charge = [limits.charge("short", &format!("{subject}"))];
                let charged = runtime.block_on(store.charge(&charge, Take::Consume)).unwrap();
                let until = denied_until.get(subject).copied().unwrap_or(Micros(0));
                prop_assert!(!charged.admitted || until <= charged.now, "{:?}", algorithm);
                if let Some(retry_at) = charged.readings[0].retry_at {
                    denied_until.insert(*subject, retry_at);
                }
            }
        }
    }
}

/// Buckets come and go while threads charge them; each key is admitted no more than its limit.
#[test]
fn l_atomic_threads_at_the_bound_never_over_admit_a_key() {
    const SUBJECTS: usize = 12;
    for algorithm in ALGORITHMS {
        let (store, _) = store(3);
        let limits = limits(algorithm);
        let admitted: Vec<AtomicU32> = (0..SUBJECTS).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (store, limits, admitted) = (&store, &limits, &admitted);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    let mut runtime = tokio::runtime::Builder::new_current_thread();
                    let runtime = runtime.build().unwrap();
                    for _ in 0..2_000 {
                        let subject = rng.index(SUBJECTS);
                        let short = [limits.charge("short", &format!("{subject}"))];
                        let long = [limits.charge("long", &format!("{subject}"))];
                        // Refunded at once, so that there is room now and then.
                        if store.charge_now(&short, Take::Consume).admitted {
                            runtime.block_on(store.refund(&short)).unwrap();
                        }
                        let taken = store.charge_now(&long, Take::Consume).admitted;
                        admitted[subject].fetch_add(u32::from(taken), Ordering::Relaxed);
                    }
                });
            }
        });
        for admitted in admitted {
            assert!(admitted.into_inner() <= 2, "{algorithm:?}");
        }
    }
}

/// A limiter gives the same verdicts from buckets of its own, at the bound too.
#[tokio::test]
async fn a_limiter_decides_as_the_store_does() {
    for algorithm in ALGORITHMS {
        let clock = Arc::new(TestClock::default());
        let config = MemoryConfig {
            keys_max: 2,
            ..MemoryConfig::default()
        };
        let store = MemoryStore::new(Arc::clone(&clock), &config);
        let keyring = Keyring::new(&[9; 32], None).unwrap();
        let limits = limits(algorithm);
        let whole = limits.charge("long", "a");
        let limiter = store.limiter(&keyring, "long", *whole.spec);
        let twin = store.limiter(&keyring, "long", *whole.spec);
        for _ in 0..2 {
            assert!(limiter.check(b"a").is_admitted(), "{algorithm:?}");
            let charged = store.charge_now(std::slice::from_ref(&whole), Take::Consume);
            assert!(charged.admitted, "{algorithm:?}: its buckets are its own");
        }
        assert!(!twin.check(b"a").is_admitted(), "{algorithm:?}: two used");
        let charged = store.charge_now(&[whole], Take::Consume);
        assert!(!charged.admitted, "{algorithm:?}");
        // Beyond the bound of keys, all new ones share a bucket.
        for (subject, admitted) in [("b", true), ("c", true), ("d", false), ("b", false)] {
            let verdict = limiter.check(subject.as_bytes());
            assert_eq!(verdict.is_admitted(), admitted, "{algorithm:?} {subject}");
        }
        clock.advance(2 * HOUR);
        assert!(limiter.check(b"d").is_admitted(), "{algorithm:?}");
    }
}

#[tokio::test]
async fn beyond_that_new_keys_share_a_strict_bucket() {
    for algorithm in ALGORITHMS {
        let (store, clock) = store(10);
        let limits = limits(algorithm);
        for number in 0..10 {
            let subject = format!("blocked {number}");
            for expected in [true, true, false] {
                assert_eq!(admits(&store, &limits, "long", &subject).await, expected);
            }
        }
        // Two in all for the new keys together, not two for each.
        let mut admitted = 0;
        for number in 0..50 {
            admitted += u32::from(admits(&store, &limits, "long", &format!("{number}")).await);
        }
        assert_eq!(admitted, 2, "{algorithm:?}");
        let stats = store.stats();
        assert_eq!(stats.overflowed, 50, "{algorithm:?}");
        assert_eq!((stats.tracked_keys, stats.evictions), (10, 0));
        clock.advance(2 * HOUR);
        assert!(admits(&store, &limits, "long", "later").await, "room again");
        assert_eq!(
            store.stats().evictions,
            0,
            "what has expired is not evicted"
        );
        assert!(store.stats().expired > 0, "{algorithm:?}");
        assert_eq!(store.stats().overflowed, 50, "{algorithm:?}");
    }
}

#[tokio::test]
async fn a_quota_is_not_evicted() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let config = MemoryConfig {
        keys_max: 50,
        ..MemoryConfig::default()
    };
    let (store, _) = MemoryStore::open(directory.path(), clock, &config).unwrap();
    let quota = TestLimits::quotas([("quota", spec(Algorithm::FixedWindow, 9, Window::Month))]);
    assert!(admits(&store, &quota, "quota", "q").await);
    let limits = limits(Algorithm::SlidingLog);
    for number in 0..500 {
        admits(&store, &limits, "long", &format!("{number}")).await;
    }
    assert_eq!(used(&store, &quota, "quota", "q").await, 1);
}

/// Many segments, splits, sweeps and a full table: every bucket that is still known
/// is known exactly.
#[tokio::test]
async fn a_growing_table_forgets_nothing_before_its_bound() {
    let (store, clock) = store(60_000);
    let limits = limits(Algorithm::TokenBucket);
    let fixed = self::limits(Algorithm::FixedWindow);
    let count = 25_000;
    for number in 0..count {
        let subject = format!("{number}");
        assert!(admits(&store, &limits, "long", &subject).await);
        assert!(admits(&store, &fixed, "long", &format!("f{subject}")).await);
    }
    store.sweep(1_000);
    for number in 0..count {
        let subject = format!("{number}");
        assert_eq!(used(&store, &limits, "long", &subject).await, 1);
        assert_eq!(
            used(&store, &fixed, "long", &format!("f{subject}")).await,
            1
        );
    }
    assert_eq!(store.stats().evictions, 0);
    clock.advance(DAY);
    store.sweep(1_000);
    assert_eq!(store.stats().tracked_keys, 0, "the sweep finds them all");
}

fn record(kind: RecordKind, number: u64, bytes: Vec<u8>, expires_at: Micros) -> RecordWrite {
    let digest = u128::from(Rng::new(number).next()) << 64 | u128::from(number);
    RecordWrite {
        key: RecordKey {
            kind,
            digest: palisade_core::Digest(digest),
        },
        expect: 0,
        bytes: Some(bytes),
        expires_at,
    }
}

/// Record of a lockout after this many failures.
fn lockout(failures: u32, now: Micros) -> Vec<u8> {
    let mut lockout = Lockout::default();
    for _ in 0..failures {
        let policy = LockoutPolicy::default();
        lockout.apply(&policy, Attempt::Failure, CaptchaProof::Missing, now);
    }
    lockout.encode()
}

#[tokio::test]
async fn records_are_bounded_by_kind_and_the_soonest_to_expire_goes() {
    let (store, clock) = store(100);
    let kind = RecordKind::Account(Flow::Login);
    let plain = || Account::default().encode();
    let lasting = record(kind, 0, plain(), clock.now().plus(DAY));
    let other = record(
        RecordKind::Lockout,
        0,
        lockout(1, clock.now()),
        clock.now().plus(1),
    );
    let kept = [lasting.clone(), other.clone()];
    assert_eq!(store.commit(&kept).await.unwrap(), Commit::Done);
    for number in 1..500 {
        let new = record(kind, number, plain(), clock.now().plus(MINUTE + number));
        assert_eq!(store.commit(&[new]).await.unwrap(), Commit::Done);
    }
    let stats = store.stats();
    assert!(stats.tracked_keys <= 51, "{stats:?}");
    assert!(stats.evictions >= 449, "{stats:?}");
    let loaded = store.load(&[lasting.key, other.key]).await.unwrap();
    assert!(
        loaded.records.iter().all(Option::is_some),
        "the longest life and the other kind stay"
    );
}

#[tokio::test]
async fn a_record_with_a_running_block_is_never_evicted() {
    let (store, clock) = store(100);
    let now = clock.now();
    // The blocked ones would be the first to expire.
    let blocked: Vec<_> = (0..20)
        .map(|number| {
            record(
                RecordKind::Lockout,
                number,
                lockout(10, now),
                now.plus(MINUTE),
            )
        })
        .collect();
    for write in &blocked {
        assert_eq!(
            store.commit(std::slice::from_ref(write)).await.unwrap(),
            Commit::Done
        );
    }
    for number in 20..500 {
        let new = record(RecordKind::Lockout, number, lockout(1, now), now.plus(DAY));
        assert_eq!(store.commit(&[new]).await.unwrap(), Commit::Done);
    }
    let keys: Vec<_> = blocked.iter().map(|write| write.key).collect();
    let loaded = store.load(&keys).await.unwrap();
    assert!(loaded.records.iter().all(Option::is_some));
}

#[tokio::test]
async fn f_store_full_when_every_record_blocks_a_new_one_is_refused_whole() {
    let (store, clock) = store(100);
    let now = clock.now();
    let kind = RecordKind::Lockout;
    for number in 0..50 {
        let write = record(kind, number, lockout(10, now), now.plus(DAY));
        assert_eq!(store.commit(&[write]).await.unwrap(), Commit::Done);
    }
    let account = RecordKind::Account(Flow::Login);
    let both = [
        record(account, 1, Account::default().encode(), now.plus(DAY)),
        record(kind, 99, lockout(1, now), now.plus(DAY)),
    ];
    let refused = store.commit(&both).await;
    assert!(
        matches!(refused, Err(StoreError::Exhausted(_))),
        "{refused:?}"
    );
    let loaded = store.load(&[both[0].key]).await.unwrap();
    assert_eq!(loaded.records, [None], "nothing of it was written");
    clock.advance(2 * DAY);
    assert_eq!(
        store.commit(&both).await.unwrap(),
        Commit::Done,
        "expired ones go"
    );
}
