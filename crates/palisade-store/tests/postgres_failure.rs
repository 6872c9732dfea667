//! A real server that is killed, stopped, full or read-only: typed errors within the
//! deadline, and recovery without help.
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

#[path = "common/postgres_server.rs"]
mod postgres_server;

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use palisade_core::Digest;
use palisade_core::limit::{Algorithm, Window};
use palisade_core::record::{RecordKey, RecordKind};
use palisade_core::time::HOUR;
use palisade_store::conformance::{TestLimits, spec};
use palisade_store::postgres::{PostgresConfig, PostgresStore, StartError};
use palisade_store::{
    Buckets, CONNECT_TIMEOUT_DEFAULT, Records, Registries, Registry, StoreError, Take, Vitals,
};
use postgres_server::{PgBouncer, PostgresServer};
use tokio::net::{TcpListener, UnixStream};
use tokio::time::Instant;

const DEADLINE: Duration = Duration::from_millis(300);
/// Longest time that any call may take; generous, because machines that run tests are slow.
const BOUND: Duration = Duration::from_secs(3);

fn limits() -> TestLimits {
    let window = spec(Algorithm::FixedWindow, 1_000, Window::Span(24 * HOUR));
    TestLimits::new([("window", window)])
}

async fn used(store: &PostgresStore, take: Take) -> Result<u64, StoreError> {
    let limits = limits();
    let charge = [limits.charge("window", "a")];
    let started = Instant::now();
    let charged = store.charge(&charge, take).await;
    assert!(started.elapsed() < BOUND, "a call hung");
    charged.map(|charged| charged.readings[0].used)
}

/// Errors of all other calls.
async fn others(store: &PostgresStore) -> Vec<StoreError> {
    let key = RecordKey {
        kind: RecordKind::Lockout,
        digest: Digest(1),
    };
    vec![
        store.load(&[key]).await.unwrap_err(),
        store.set_aside(key).await.unwrap_err(),
        store.remove_entry(Registry::Tiers, "a").await.unwrap_err(),
        store.probe().await.unwrap_err(),
    ]
}

async fn recovered(store: &PostgresStore, at_least: u64) {
    let wait = async {
        loop {
            match used(store, Take::Consume).await {
                Ok(used) => break used,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let used = tokio::time::timeout(Duration::from_secs(30), wait)
        .await
        .expect("recovers by itself");
    assert!(used > at_least, "what was counted is still counted: {used}");
}

/// A store with a short deadline, whose schema was made with a long one.
async fn store(config: &PostgresConfig) -> PostgresStore {
    PostgresStore::connect(config).await.unwrap();
    let mut config = config.clone();
    config.deadline = DEADLINE;
    config.connect_timeout = CONNECT_TIMEOUT_DEFAULT;
    let store = PostgresStore::open(&config, None).unwrap();
    recovered(&store, 0).await;
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_is_unreachable_and_its_return_is_noticed() {
    let mut server = PostgresServer::start(&[]).await;
    let store = store(&server.database().await).await;
    let before = used(&store, Take::Peek).await.unwrap();
    server.kill();
    for _ in 0..3 {
        let error = used(&store, Take::Consume).await.unwrap_err();
        assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
    }
    for error in others(&store).await {
        assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
    }
    server.restart().await;
    recovered(&store, before).await;
    assert!(store.probe().await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn f_clock_a_stopped_server_costs_the_deadline_and_no_more() {
    let server = PostgresServer::start(&[]).await;
    let store = store(&server.database().await).await;
    let before = used(&store, Take::Peek).await.unwrap();
    server.pause();
    let started = Instant::now();
    assert_eq!(used(&store, Take::Consume).await, Err(StoreError::TimedOut));
    assert!(started.elapsed() >= DEADLINE);
    for error in others(&store).await {
        assert_eq!(error, StoreError::TimedOut);
    }
    server.resume();
    recovered(&store, before).await;
}

/// Starts a server that accepts connections and never answers. The receiver gets the time for
/// which the other side kept each.
fn silent() -> (u16, mpsc::Receiver<Duration>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (kept, seen) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, since, kept) = (stream.unwrap(), Instant::now(), kept.clone());
            std::thread::spawn(move || {
                while stream.read(&mut [0; 256]).is_ok_and(|size| size > 0) {}
                let _ = kept.send(since.elapsed());
            });
        }
    });
    (port, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_to_connect_has_a_time_of_its_own_and_a_call_keeps_to_its_deadline() {
    let (port, seen) = silent();
    let address = format!("host=127.0.0.1 port={port} user=palisade dbname=palisade");
    let mut config = PostgresConfig::parse(&address).unwrap();
    config.deadline = Duration::from_millis(100);
    config.sweep = None;
    for connect_timeout in [Duration::from_millis(900), Duration::from_millis(20)] {
        config.connect_timeout = connect_timeout;
        let store = PostgresStore::open(&config, None).unwrap();
        let started = Instant::now();
        assert_eq!(used(&store, Take::Consume).await, Err(StoreError::TimedOut));
        let took = started.elapsed();
        assert!(
            took < Duration::from_millis(800),
            "the call waited {took:?}"
        );
        let kept = tokio::task::block_in_place(|| seen.recv_timeout(BOUND)).unwrap();
        assert!(kept > connect_timeout / 2, "given up after {kept:?}");
        assert!(kept < connect_timeout + BOUND / 2, "kept for {kept:?}");
    }
}

/// While no connection can be made, there are more calls than connections: none is told that
/// others have them all.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lets_nobody_in_is_late_and_not_out_of_connections() {
    let (port, _seen) = silent();
    let address = format!("host=127.0.0.1 port={port} user=palisade dbname=palisade");
    let mut config = PostgresConfig::parse(&address).unwrap();
    config.deadline = Duration::from_millis(50);
    config.connections = 2;
    config.sweep = None;
    let store = PostgresStore::open(&config, None).unwrap();
    for _ in 0..8 {
        assert_eq!(used(&store, Take::Consume).await, Err(StoreError::TimedOut));
    }
}

/// Opens a path on which a handshake takes longer than a call may take.
async fn slow_path(to: PathBuf, by: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let to = to.clone();
            tokio::spawn(async move {
                tokio::time::sleep(by).await;
                let mut far = UnixStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_takes_longer_than_a_call_serves_the_calls_after_it() {
    let server = PostgresServer::start(&[]).await;
    PostgresStore::connect(&server.database().await)
        .await
        .unwrap();
    let socket = server.folder().join(".s.PGSQL.5432");
    let port = slow_path(socket, DEADLINE * 2).await;
    let name = server.last_database();
    let address = format!("host=127.0.0.1 port={port} user=palisade dbname={name}");
    let mut config = PostgresConfig::parse(&address).unwrap();
    config.deadline = DEADLINE;
    config.connect_timeout = Duration::from_secs(20);
    config.sweep = None;
    let store = PostgresStore::open(&config, None).unwrap();
    assert_eq!(used(&store, Take::Consume).await, Err(StoreError::TimedOut));
    recovered(&store, 0).await;
}

/// Opens a session that has begun a transaction with `sql` and stays in it.
async fn hold(server: &PostgresServer, sql: &str) -> tokio_postgres::Client {
    let address = format!(
        "host={} port=5432 user=palisade dbname={}",
        server.folder().display(),
        server.last_database()
    );
    let (client, connection) = tokio_postgres::connect(&address, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
        .batch_execute(&format!("BEGIN; {sql}"))
        .await
        .unwrap();
    client
}

/// Waits until this many of the store's calls wait for a lock.
async fn blocked(server: &PostgresServer, count: &str) {
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE application_name = 'palisade' AND wait_event_type = 'Lock'";
    let wait = async {
        while server.sql("postgres", waiting).await != [count] {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(BOUND, wait)
        .await
        .expect("calls block, or end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_timed_out_does_not_linger_on_the_server() {
    let server = PostgresServer::start(&[]).await;
    let store = store(&server.database().await).await;
    let before = used(&store, Take::Peek).await.unwrap();
    let holder = hold(&server, "SELECT FROM palisade.bucket FOR UPDATE").await;
    assert_eq!(used(&store, Take::Consume).await, Err(StoreError::TimedOut));
    blocked(&server, "0").await;
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(
        used(&store, Take::Peek).await,
        Ok(before),
        "nor does it count"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn f_pool_no_free_connection_is_told_from_a_slow_answer() {
    let server = PostgresServer::start(&[]).await;
    let mut config = server.database().await;
    config.connections = 1;
    let store = Arc::new(store(&config).await);
    assert!(store.scan(RecordKind::Lockout, None, 10).await.is_ok());
    let holder = hold(&server, "LOCK TABLE palisade.record").await;
    // A listing may take longer than a decision; it holds the only connection.
    let listing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.scan(RecordKind::Lockout, None, 10).await }
    });
    blocked(&server, "1").await;
    let error = used(&store, Take::Consume).await.unwrap_err();
    assert!(matches!(error, StoreError::Exhausted(_)), "{error:?}");
    let error = store.probe().await.unwrap_err();
    assert!(matches!(error, StoreError::Exhausted(_)), "{error:?}");
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(listing.await.unwrap().unwrap().records, []);
    recovered(&store, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f_store_full_a_read_only_server_is_exhausted() {
    let server = PostgresServer::start(&[]).await;
    let store = store(&server.database().await).await;
    let set = async |value: &str| {
        let sql = format!("ALTER SYSTEM SET default_transaction_read_only = {value}");
        server.sql("postgres", &sql).await;
        server.sql("postgres", "SELECT pg_reload_conf()").await;
    };
    set("on").await;
    let refused = async {
        loop {
            match used(&store, Take::Consume).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(error) => break error,
            }
        }
    };
    let error = tokio::time::timeout(BOUND, refused).await.unwrap();
    assert_eq!(error.kind().name(), "exhausted", "{error:?}");
    let probed = store.probe().await.unwrap_err();
    assert_eq!(
        probed.kind().name(),
        "exhausted",
        "a probe writes: {probed:?}"
    );
    set("off").await;
    recovered(&store, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f_pool_a_server_without_connections_is_exhausted() {
    let server = PostgresServer::start(&[]).await;
    drop(store(&server.database().await).await);
    let sql = "CREATE ROLE crowded LOGIN CONNECTION LIMIT 0";
    server.sql("postgres", sql).await;
    let address = format!(
        "host={} port=5432 user=crowded dbname={}",
        server.folder().display(),
        server.last_database()
    );
    let config = PostgresConfig::parse(&address).unwrap();
    let refused = PostgresStore::connect(&config).await.err();
    assert!(
        matches!(refused, Some(StartError::Store(StoreError::Exhausted(_)))),
        "{refused:?}"
    );
    let store = PostgresStore::open(&config, None).unwrap();
    let error = used(&store, Take::Consume).await.unwrap_err();
    assert_eq!(error.kind().name(), "exhausted", "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_carry_no_address_and_no_name() {
    let server = PostgresServer::start(&[]).await;
    let folder = server.folder().display().to_string();
    let addresses = [
        format!("host={folder} port=5432 user=palisade password=hunter2 dbname=hunter2"),
        format!("host={folder} port=5432 user=hunter2 password=hunter2 dbname=postgres"),
        format!("host={folder} port=5433 user=hunter2 password=hunter2 dbname=postgres"),
        "host=127.0.0.1 port=1 user=hunter2 password=hunter2 dbname=postgres".to_owned(),
    ];
    for address in addresses {
        let config = PostgresConfig::parse(&address).unwrap();
        let refused = PostgresStore::connect(&config).await.err().unwrap();
        let store = PostgresStore::open(&config, None).unwrap();
        let error = used(&store, Take::Consume).await.unwrap_err();
        assert_eq!(error.kind().name(), "unreachable", "{error:?}");
        for text in [
            format!("{refused} {refused:?}"),
            format!("{error} {error:?}"),
        ] {
            for secret in ["hunter2", folder.as_str(), "127.0.0.1"] {
                assert!(!text.contains(secret), "{text}");
            }
        }
    }
}

/// Behind a pooler that gives each transaction another session, neither prepared statements nor
/// settings last. The store says so at its start, or in every call if it was opened before the
/// pooler could be asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x8_a_pooler_in_transaction_mode_is_refused_with_the_reason() {
    let server = PostgresServer::start(&[]).await;
    PostgresStore::connect(&server.database().await)
        .await
        .unwrap();
    let pooler = PgBouncer::start(&server, "transaction").await;
    let mut config = PostgresConfig::parse(&pooler.url(&server.last_database())).unwrap();
    config.sweep = None;
    let refused = PostgresStore::connect(&config).await.err().unwrap();
    assert!(matches!(refused, StartError::Pooled), "{refused}");
    let refused = palisade_store::postgres::migrate(&config).await;
    assert!(matches!(refused, Err(StartError::Pooled)), "{refused:?}");

    let store = Arc::new(PostgresStore::open(&config, None).unwrap());
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                [
                    used(&store, Take::Consume).await.err(),
                    store.probe().await.err(),
                ]
            })
        })
        .collect();
    let mut reasons = Vec::new();
    for call in calls {
        reasons.extend(call.await.unwrap().into_iter().flatten());
    }
    for error in &reasons {
        let says = error.to_string();
        assert!(!says.contains("migrate"), "{says}");
        assert!(!matches!(error, StoreError::Corrupt(_)), "{says}");
    }
    assert!(
        reasons
            .iter()
            .any(|error| error.to_string().contains("session pooling")),
        "{reasons:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x8_a_pooler_in_session_mode_serves() {
    let server = PostgresServer::start(&[]).await;
    PostgresStore::connect(&server.database().await)
        .await
        .unwrap();
    let pooler = PgBouncer::start(&server, "session").await;
    let mut config = PostgresConfig::parse(&pooler.url(&server.last_database())).unwrap();
    config.deadline = Duration::from_secs(20);
    config.sweep = None;
    let store = PostgresStore::connect(&config).await.unwrap();
    store.connect().await.unwrap();
    for expected in 1..=20 {
        assert_eq!(used(&store, Take::Consume).await.unwrap(), expected);
    }
}
