//! Stores for the tests on Redis.

#![allow(dead_code, reason = "every test binary uses a part of it")]
#![expect(clippy::unwrap_used, reason = "part of the tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use palisade_core::limit::{Algorithm, Window};
use palisade_core::plan::Charge;
use palisade_core::time::HOUR;
use palisade_store::conformance::{TestClock, TestLimits, spec};
use palisade_store::redis::{RedisConfig, RedisStore, TimeSource};
use palisade_store::{Buckets, Take};

/// Deadline for tests that are not about time: long enough for a busy machine.
pub(crate) const PATIENT: Duration = Duration::from_secs(10);

/// A new store that judges by `clock`; empty, because no other store has its prefix.
pub(crate) fn store_at(url: &str, clock: Arc<TestClock>) -> RedisStore {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    RedisStore::new(RedisConfig {
        deadline: PATIENT,
        connect_timeout: PATIENT,
        key_prefix: format!("t{number}:"),
        time: TimeSource::Injected(clock),
        ..RedisConfig::new(url)
    })
    .unwrap()
}

/// A store that judges by the server's clock, with a long deadline.
pub(crate) fn patient(url: &str) -> RedisStore {
    RedisStore::new(RedisConfig {
        deadline: PATIENT,
        connect_timeout: PATIENT,
        ..RedisConfig::new(url)
    })
    .unwrap()
}

pub(crate) async fn used(store: &RedisStore, charge: &Charge<'_>) -> u64 {
    let peeked = store.charge(std::slice::from_ref(charge), Take::Peek).await;
    peeked.unwrap().readings[0].used
}

/// Sends 300 requests at once, spread over the stores, to one bucket of 250; returns how many are
/// admitted.
pub(crate) async fn race_for(stores: &[Arc<RedisStore>], subject: &str) -> u32 {
    let algorithms = [
        ("log", Algorithm::SlidingLog),
        ("wheel", Algorithm::SlidingWheel),
        ("fixed", Algorithm::FixedWindow),
    ];
    // A fixed window may end during the race; a sliding one cannot.
    let day = Window::Span(24 * HOUR);
    let limits = algorithms.map(|(name, algorithm)| (name, spec(algorithm, 250, day)));
    let limits = Arc::new(TestLimits::new(limits));
    let tasks: Vec<_> = (0..300)
        .map(|task| {
            let store = Arc::clone(&stores[task % stores.len()]);
            let (limits, subject) = (Arc::clone(&limits), subject.to_owned());
            tokio::spawn(async move {
                let charges = ["log", "wheel", "fixed"].map(|name| limits.charge(name, &subject));
                store
                    .charge(&charges, Take::Consume)
                    .await
                    .unwrap()
                    .admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += u32::from(task.await.unwrap());
    }
    admitted
}
