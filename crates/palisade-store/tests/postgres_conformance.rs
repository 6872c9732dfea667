//! The Postgres store passes the suite, on a real server and a virtual clock.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "common/postgres_server.rs"]
mod postgres_server;

use std::num::NonZeroU32;
use std::sync::Arc;

use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::plan::OnExceed;
use palisade_core::time::{DAY, HOUR};
use palisade_store::conformance::{
    Conversions, Differential, Rng, START, TestClock, TestLimits, differential, run_with,
};
use palisade_store::model::ModelStore;
use palisade_store::postgres::PostgresStore;
use palisade_store::{Store, Take};
use postgres_server::PostgresServer;

async fn store(server: &PostgresServer, clock: Arc<TestClock>) -> PostgresStore {
    let config = server.database().await;
    PostgresStore::connect_with_clock(&config, clock)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_postgres_store_conforms() {
    let server = Arc::new(PostgresServer::start(&[]).await);
    let make = |clock| {
        let server = Arc::clone(&server);
        async move { store(&server, clock).await }
    };
    run_with(make, Conversions::All).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sql_function_is_a_translation_of_the_pure_functions() {
    let server = PostgresServer::start(&[]).await;
    for seed in 100..130 {
        let clock = Arc::new(TestClock::default());
        let store = store(&server, Arc::clone(&clock)).await;
        let plan = Differential {
            seed,
            steps: 200,
            conversions: Conversions::All,
        };
        differential(&store, &clock, plan).await;
    }
}

/// Ticks beyond 2^63, bursts of centuries, costs beyond the burst: wherever the sums
/// change from one kind of number to the other.
#[tokio::test(flavor = "multi_thread")]
async fn token_buckets_are_exact_at_the_edges_of_their_numbers() {
    let server = PostgresServer::start(&[]).await;
    let clock = Arc::new(TestClock::default());
    let store = store(&server, Arc::clone(&clock)).await;
    let model = ModelStore::new(Arc::clone(&clock));
    let mut rng = Rng::new(5);
    let amounts = [1, 255, 70_000, u32::MAX].map(|n| NonZeroU32::new(n).unwrap());
    for span in [1_000, HOUR, 366 * DAY, 3_660 * DAY] {
        for (limit, burst) in amounts.iter().flat_map(|l| amounts.map(|b| (*l, b))) {
            let window = Window::Span(span);
            let Ok(spec) = BucketSpec::new(Algorithm::TokenBucket, limit, window, Some(burst))
            else {
                continue;
            };
            let limits = TestLimits::new([("edge", spec)]);
            clock.set(START);
            for step in 0..24 {
                clock.advance(rng.below(span / 6 + 2));
                let cost = match rng.below(5) {
                    0 => burst.get(),
                    1 => 1,
                    2 => u32::MAX,
                    _ => 1 + u32::try_from(rng.below(u64::from(burst.get()))).unwrap(),
                };
                let on_exceed = match rng.below(3) {
                    0 => OnExceed::Count,
                    _ => OnExceed::Deny,
                };
                let charges = [limits.charge_of("edge", "e", cost, on_exceed)];
                let (got, expected) = if rng.one_in(5) {
                    (store.refund(&charges).await, model.refund(&charges).await)
                } else {
                    let take = Take::Consume;
                    let got = store.charge(&charges, take).await;
                    (got, model.charge(&charges, take).await)
                };
                let case = format!("{limit} per {span} us, burst {burst}, step {step}");
                assert_eq!(got.unwrap(), expected.unwrap(), "{case}");
            }
            let charges = [limits.charge("edge", "e")];
            store.reset(&charges).await.unwrap();
            model.reset(&charges).await.unwrap();
        }
    }
}
