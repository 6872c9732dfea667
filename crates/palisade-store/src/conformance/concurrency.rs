//! Many tasks at once: no bucket over-admits, and no refund is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use palisade_core::limit::{Algorithm, Window};
use palisade_core::record::RecordKind;
use palisade_core::time::MINUTE;

use super::records::{key, write};
use super::{Bench, Commits, Make, Rng, TestLimits, bench, spec};
use crate::{Commit, Store, Take};

const TASKS: u64 = 64;
const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::SlidingLog,
    Algorithm::SlidingWheel,
    Algorithm::TokenBucket,
    Algorithm::FixedWindow,
];

pub(super) async fn run<S: Store>(make: &impl Make<S>, commits: Commits) {
    one_key_is_never_over_admitted(make).await;
    many_keys_are_never_over_admitted(make).await;
    no_refund_is_lost(make).await;
    crossing_charges_stay_whole(make).await;
    let together = match commits {
        Commits::Together => 2,
        Commits::OneByOne => 1,
    };
    no_commit_is_lost(make, together).await;
}

fn limits(limit: u64) -> Arc<TestLimits> {
    let of = |algorithm: Algorithm| {
        (
            algorithm.name(),
            spec(algorithm, limit, Window::Span(MINUTE)),
        )
    };
    Arc::new(TestLimits::new(ALGORITHMS.map(of)))
}

/// Runs `task` [`TASKS`] times at once, with its number, and waits for all.
#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn swarm<Fut>(task: impl Fn(u64) -> Fut)
where
    Fut: Future<Output = ()> + Send + 'static,
{
    let tasks: Vec<_> = (0..TASKS)
        .map(|task_no| tokio::spawn(task(task_no)))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn admits<S: Store>(store: &S, limits: &TestLimits, limit: &str, subject: &str) -> bool {
    let charge = [limits.charge(limit, subject)];
    store.charge(&charge, Take::Consume).await.unwrap().admitted
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn used<S: Store>(store: &S, limits: &TestLimits, limit: &str, subject: &str) -> u64 {
    let charge = [limits.charge(limit, subject)];
    store.charge(&charge, Take::Peek).await.unwrap().readings[0].used
}

async fn one_key_is_never_over_admitted<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let limits = limits(300);
    for algorithm in ALGORITHMS.map(Algorithm::name) {
        let admitted = Arc::new(AtomicU32::new(0));
        swarm(|_| {
            let (store, limits, admitted) = (
                Arc::clone(&store),
                Arc::clone(&limits),
                Arc::clone(&admitted),
            );
            async move {
                for _ in 0..10 {
                    let one = admits(&*store, &limits, algorithm, "hot").await;
                    admitted.fetch_add(u32::from(one), Ordering::Relaxed);
                }
            }
        })
        .await;
        assert_eq!(admitted.load(Ordering::Relaxed), 300, "{algorithm}");
    }
}

async fn many_keys_are_never_over_admitted<S: Store>(make: &impl Make<S>) {
    const KEYS: usize = 10_000;
    let Bench { store, .. } = bench(make).await;
    let limits = limits(1);
    let tally =
        || -> Arc<Vec<AtomicU32>> { Arc::new((0..KEYS).map(|_| AtomicU32::new(0)).collect()) };
    let (asked, admitted) = (tally(), tally());
    swarm(|task| {
        let (store, limits) = (Arc::clone(&store), Arc::clone(&limits));
        let (asked, admitted) = (Arc::clone(&asked), Arc::clone(&admitted));
        async move {
            let mut rng = Rng::new(task);
            for _ in 0..200 {
                let index = rng.index(KEYS);
                let algorithm = ALGORITHMS[index % 4].name();
                let one = admits(&*store, &limits, algorithm, &format!("{index}")).await;
                asked[index].fetch_add(1, Ordering::Relaxed);
                admitted[index].fetch_add(u32::from(one), Ordering::Relaxed);
            }
        }
    })
    .await;
    for (index, (asked, admitted)) in asked.iter().zip(&*admitted).enumerate() {
        let expected = asked.load(Ordering::Relaxed).min(1);
        assert_eq!(admitted.load(Ordering::Relaxed), expected, "key {index}");
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn no_refund_is_lost<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let limits = limits(1000);
    for algorithm in ALGORITHMS.map(Algorithm::name) {
        swarm(|_| {
            let (store, limits) = (Arc::clone(&store), Arc::clone(&limits));
            async move {
                for _ in 0..8 {
                    assert!(admits(&*store, &limits, algorithm, "refunded").await);
                    let charge = [limits.charge(algorithm, "refunded")];
                    store.refund(&charge).await.unwrap();
                }
                assert!(admits(&*store, &limits, algorithm, "refunded").await);
            }
        })
        .await;
        let kept = used(&*store, &limits, algorithm, "refunded").await;
        assert_eq!(kept, TASKS, "{algorithm}");
    }
}

/// Tasks charge the same buckets in different orders: no deadlock, and each
/// bucket has counted exactly the admitted decisions.
#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn crossing_charges_stay_whole<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let limits = limits(250);
    let admitted = Arc::new(AtomicU32::new(0));
    swarm(|task| {
        let (store, limits, admitted) = (
            Arc::clone(&store),
            Arc::clone(&limits),
            Arc::clone(&admitted),
        );
        async move {
            let turn = usize::try_from(task % 4).unwrap();
            for _ in 0..10 {
                let mut charges: Vec<_> = ALGORITHMS
                    .iter()
                    .map(|algorithm| limits.charge(algorithm.name(), "crossing"))
                    .collect();
                charges.rotate_left(turn);
                let charged = store.charge(&charges, Take::Consume).await.unwrap();
                admitted.fetch_add(u32::from(charged.admitted), Ordering::Relaxed);
            }
        }
    })
    .await;
    assert_eq!(admitted.load(Ordering::Relaxed), 250);
    for algorithm in ALGORITHMS {
        let counted = used(&*store, &limits, algorithm.name(), "crossing").await;
        assert_eq!(counted, 250, "{}", algorithm.name());
    }
}

/// Every task raises `together` counters in one commit, and repeats it until it succeeds.
#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn no_commit_is_lost<S: Store>(make: &impl Make<S>, together: u128) {
    let Bench { store, .. } = bench(make).await;
    let keys: Vec<_> = (1..=together)
        .map(|number| key(RecordKind::Lockout, number))
        .collect();
    swarm(|_| {
        let (store, keys) = (Arc::clone(&store), keys.clone());
        async move {
            let mut tries = 0;
            loop {
                tries += 1;
                assert!(tries < 100_000, "a commit never succeeds");
                let read = store.load(&keys).await.unwrap().records;
                let raised = keys.iter().zip(read).map(|(key, record)| {
                    let (revision, count) = record.map_or((0, 0), |record| {
                        let bytes = record.bytes.as_slice().try_into().unwrap();
                        (record.revision, u64::from_be_bytes(bytes))
                    });
                    write(*key, revision, &(count + 1).to_be_bytes())
                });
                let writes: Vec<_> = raised.collect();
                if store.commit(&writes).await.unwrap() == Commit::Done {
                    break;
                }
            }
        }
    })
    .await;
    for record in store.load(&keys).await.unwrap().records {
        let record = record.unwrap();
        assert_eq!(record.revision, TASKS);
        assert_eq!(record.bytes, TASKS.to_be_bytes());
    }
}
