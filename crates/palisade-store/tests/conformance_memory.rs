//! The embedded store passes the suite, and answers as the model does.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::sync::Arc;

use palisade_store::conformance::{
    Conversions, Differential, TestClock, differential, registry_is_bounded, run_with,
};
use palisade_store::memory::{MemoryConfig, MemoryStore};

fn config() -> MemoryConfig {
    MemoryConfig {
        keys_max: 100_000,
        ..MemoryConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_store_conforms() {
    run_with(
        |clock| async move { MemoryStore::new(clock, &config()) },
        Conversions::All,
    )
    .await;
}

#[tokio::test]
async fn the_memory_store_bounds_its_registries() {
    registry_is_bounded(|clock| async move { MemoryStore::new(clock, &config()) }).await;
}

#[tokio::test]
async fn the_memory_store_answers_as_the_model_does() {
    for seed in 0..300 {
        let clock = Arc::new(TestClock::default());
        let store = MemoryStore::new(Arc::clone(&clock), &config());
        let plan = Differential {
            seed,
            steps: 200,
            conversions: Conversions::All,
        };
        differential(&store, &clock, plan).await;
    }
}

/// On a real directory, each store in one of its own.
#[tokio::test(flavor = "multi_thread")]
async fn the_durable_memory_store_conforms() {
    let root = tempfile::tempdir().unwrap();
    let number = std::sync::atomic::AtomicU32::new(0);
    run_with(
        |clock| {
            let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let directory = root.path().join(number.to_string());
            async move { MemoryStore::open(&directory, clock, &config()).unwrap().0 }
        },
        Conversions::All,
    )
    .await;
}
