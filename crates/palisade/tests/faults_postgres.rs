//! The engine over a real Postgres that is killed, stopped, read-only or out of
//! connections.
#![allow(
    clippy::disallowed_methods,
    reason = "how long something takes is part of what is tested"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]
#![recursion_limit = "256"]

mod faults_support;
#[path = "../../palisade-store/tests/common/postgres_server.rs"]
mod postgres_server;

use std::time::Duration;

use faults_support::{Bench, DEADLINE, Data};
use palisade::store::Registry;
use palisade::store::postgres::{PostgresConfig, PostgresStore};
use postgres_server::PostgresServer;
use tokio::time::Instant;

/// The schema is created with a generous deadline; the store then has the one of the test.
async fn bench(mut config: PostgresConfig) -> Bench {
    PostgresStore::connect(&config).await.unwrap();
    config.deadline = DEADLINE;
    config.connect_timeout = DEADLINE;
    Bench::new(PostgresStore::open(&config, None).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_killed_postgres_comes_back_with_its_data() {
    let mut server = PostgresServer::start(&[]).await;
    let bench = bench(server.database().await).await;
    bench.healthy().await;
    server.kill();
    bench.broken().await;
    server.restart().await;
    bench.recovered(Data::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_stopped_postgres_hangs_no_request() {
    let server = PostgresServer::start(&[]).await;
    let bench = bench(server.database().await).await;
    bench.healthy().await;
    server.pause();
    bench.broken().await;
    server.resume();
    bench.recovered(Data::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_store_full_a_read_only_postgres_is_an_outage() {
    let server = PostgresServer::start(&[]).await;
    let bench = bench(server.database().await).await;
    bench.healthy().await;
    set_read_only(&server, "on").await;
    let begun = Instant::now();
    while bench
        .engine
        .store()
        .remove_entry(Registry::Tiers, "none")
        .await
        .is_ok()
    {
        assert!(begun.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    bench.broken().await;
    assert_eq!(bench.engine.health().store.last_error, Some("exhausted"));
    set_read_only(&server, "off").await;
    let begun = Instant::now();
    while bench
        .engine
        .store()
        .remove_entry(Registry::Tiers, "none")
        .await
        .is_err()
    {
        assert!(begun.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    bench.recovered(Data::Kept).await;
}

async fn set_read_only(server: &PostgresServer, value: &str) {
    let sql = format!("ALTER SYSTEM SET default_transaction_read_only = {value}");
    server.sql("postgres", &sql).await;
    server.sql("postgres", "SELECT pg_reload_conf()").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_pool_a_postgres_whose_connections_are_all_taken_is_an_outage() {
    let server = PostgresServer::start(&[]).await;
    let mut config = server.database().await;
    config.connections = 1;
    let bench = bench(config).await;
    bench.healthy().await;
    let address = format!(
        "host={} port=5432 user=palisade dbname={}",
        server.folder().display(),
        server.last_database()
    );
    let (holder, connection) = tokio_postgres::connect(&address, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let lock = "BEGIN; LOCK TABLE palisade.record; LOCK TABLE palisade.bucket";
    holder.batch_execute(lock).await.unwrap();
    bench.broken().await;
    holder.batch_execute("COMMIT").await.unwrap();
    bench.recovered(Data::Kept).await;
}
