//! The store on one real Redis server.

#[path = "common/redis_server.rs"]
mod redis_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use palisade_store::conformance::{
    Conversions, Differential, TestClock, differential, registry_is_bounded, run_with,
};
use palisade_store::redis::{RedisConfig, RedisStore, TimeSource};
use redis_server::RedisServer;

/// Long enough for a busy machine: these tests are not about time.
const PATIENT: Duration = Duration::from_secs(10);

/// A new store on `server`, empty because no other has its prefix.
fn store_at(server: &RedisServer, clock: Arc<TestClock>) -> RedisStore {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    RedisStore::new(RedisConfig {
        deadline: PATIENT,
        key_prefix: format!("t{number}:"),
        time: TimeSource::Injected(clock),
        ..RedisConfig::new(server.url())
    })
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_redis_conforms() {
    let server = RedisServer::start();
    run_with(
        |clock| {
            let store = store_at(&server, clock);
            async move { store }
        },
        Conversions::All,
    )
    .await;
}

#[tokio::test]
async fn a_single_redis_bounds_its_registries() {
    let server = RedisServer::start();
    registry_is_bounded(|clock| {
        let store = store_at(&server, clock);
        async move { store }
    })
    .await;
}

#[tokio::test]
async fn random_plans_are_decided_as_by_the_pure_functions() {
    let server = RedisServer::start();
    for seed in 100..140 {
        let clock = Arc::new(TestClock::default());
        let store = store_at(&server, Arc::clone(&clock));
        let plan = Differential {
            seed,
            steps: 250,
            conversions: Conversions::All,
        };
        differential(&store, &clock, plan).await;
    }
}
