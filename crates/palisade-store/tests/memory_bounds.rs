//! The hard bound on keys and its overflow rule: expired first, then idle, never a
//! bucket that denies, and beyond that one strict bucket for all.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::sync::Arc;

use palisade_core::limit::{Algorithm, Window};
use palisade_core::record::{Flow, RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{Clock, DAY, HOUR, MINUTE, SECOND};
use palisade_store::conformance::{Rng, TestClock, TestLimits, spec};
use palisade_store::memory::{MemoryConfig, MemoryStore};
use palisade_store::{Commit, Store, Take};

type TestStore = MemoryStore<Arc<TestClock>>;

fn store(keys_max: u64) -> (TestStore, Arc<TestClock>) {
    let clock = Arc::new(TestClock::default());
    let config = MemoryConfig {
        keys_max,
        records_max: 50,
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
async fn then_idle_ones_and_never_one_that_denies() {
    for algorithm in ALGORITHMS {
        let (store, _) = store(100);
        let limits = limits(algorithm);
        for number in 0..20 {
            let subject = format!("blocked {number}");
            for expected in [true, true, false] {
                assert_eq!(admits(&store, &limits, "long", &subject).await, expected);
            }
        }
        for number in 0..1000 {
            assert!(admits(&store, &limits, "long", &format!("new {number}")).await);
            assert!(store.stats().tracked_keys <= 100, "{algorithm:?}");
        }
        assert!(store.stats().evictions >= 920, "{algorithm:?}");
        assert_eq!(store.stats().overflowed, 0, "{algorithm:?}");
        for number in 0..20 {
            let subject = format!("blocked {number}");
            assert!(
                !admits(&store, &limits, "long", &subject).await,
                "{algorithm:?}"
            );
        }
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
        // Two in all for everybody new, not two for each.
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
        assert!(admits(&store, &limits, "long", &format!("{number}")).await);
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

#[tokio::test]
async fn records_are_bounded_by_kind_and_the_soonest_to_expire_goes() {
    let (store, clock) = store(100);
    let kind = RecordKind::Account(Flow::Login);
    let mut rng = Rng::new(3);
    let write = |kind, number: u64, life: u64, rng: &mut Rng| RecordWrite {
        key: RecordKey {
            kind,
            digest: palisade_core::Digest(u128::from(rng.next()) << 64 | u128::from(number)),
        },
        expect: 0,
        bytes: Some(vec![1]),
        expires_at: clock.now().plus(life),
    };
    let blocked = write(kind, 0, DAY, &mut rng);
    let other = write(RecordKind::Lockout, 0, SECOND, &mut rng);
    let kept = [blocked.clone(), other.clone()];
    assert_eq!(store.commit(&kept).await.unwrap(), Commit::Done);
    for number in 1..500 {
        let new = write(kind, number, MINUTE + number, &mut rng);
        assert_eq!(store.commit(&[new]).await.unwrap(), Commit::Done);
    }
    let stats = store.stats();
    assert!(stats.tracked_keys <= 51, "{stats:?}");
    assert!(stats.evictions >= 449, "{stats:?}");
    let loaded = store.load(&[blocked.key, other.key]).await.unwrap();
    assert!(
        loaded.records.iter().all(Option::is_some),
        "the longest life and the other kind stay"
    );
}
