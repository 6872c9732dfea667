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

use std::sync::Arc;

use palisade_store::conformance::{Conversions, Differential, TestClock, differential, run_with};
use palisade_store::postgres::PostgresStore;
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
