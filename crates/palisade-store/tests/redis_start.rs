//! A Redis that is far away, or may lose data: how a node deals with it before its first decision.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking and says why"
)]

#[path = "common/redis_server.rs"]
mod redis_server;
#[path = "common/slow_path.rs"]
mod slow_path;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};
use std::time::Duration;

use palisade_core::limit::{Algorithm, Window};
use palisade_core::time::HOUR;
use palisade_store::conformance::{TestLimits, spec};
use palisade_store::redis::{RedisConfig, RedisStore};
use palisade_store::{Buckets, StoreError, StoreRisks, Take, Vitals};
use redis_server::{RedisCluster, RedisServer, eventually};

const FAR: Duration = Duration::from_millis(50);

fn store_at(url: String) -> RedisStore {
    RedisStore::new(RedisConfig::new(url)).unwrap()
}

async fn charge(store: &RedisStore) -> Result<bool, StoreError> {
    let spec = spec(Algorithm::SlidingLog, 10_000, Window::Span(HOUR));
    let limits = TestLimits::new([("log", spec)]);
    let charges = [limits.charge("log", "someone")];
    let charged = store.charge(&charges, Take::Consume).await;
    charged.map(|charged| charged.admitted)
}

/// The risks that a probe finds.
async fn risks(store: &RedisStore) -> Option<StoreRisks> {
    // The first probe makes the connections.
    for _ in 0..2 {
        let _ = store.probe().await;
    }
    store.stats().risks
}

#[tokio::test]
async fn x6_f_ready_a_connected_store_decides_over_a_long_path_within_its_deadline() {
    let server = RedisServer::start();
    let near = slow_path::open(server.port, FAR);
    let url = format!("redis://127.0.0.1:{near}");
    let cold = store_at(url.clone());
    assert_eq!(charge(&cold).await, Err(StoreError::TimedOut));
    let store = store_at(url);
    store.connect().await.unwrap();
    assert_eq!(charge(&store).await, Ok(true), "the first decision");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x6_f_ready_a_connected_cluster_decides_at_once() {
    let cluster = RedisCluster::start();
    let store = store_at(cluster.url());
    store.connect().await.unwrap();
    assert_eq!(charge(&store).await, Ok(true));
    for node in &cluster.nodes {
        node.freeze();
    }
    let frozen = store_at(cluster.url());
    assert!(frozen.connect().await.is_err(), "nothing to connect to");
    for node in &cluster.nodes {
        node.thaw();
    }
}

#[tokio::test]
async fn x6_a_connection_knows_every_script_before_its_first_call() {
    let mut server = RedisServer::start();
    let store = store_at(server.url());
    store.connect().await.unwrap();
    assert_eq!(charge(&store).await, Ok(true));
    let unknown = |server: &RedisServer| {
        let stats = server.says(&["INFO", "errorstats"]);
        stats.contains("errorstat_NOSCRIPT")
    };
    assert!(!unknown(&server), "a call was sent twice");
    server.restart();
    while charge(&store).await.is_err() {
        tokio::task::yield_now().await;
    }
    assert!(!unknown(&server), "a call was sent twice after the restart");
}

#[tokio::test]
async fn s4_f_evict_a_server_that_drops_keys_by_itself_is_a_risk() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "volatile-lru"]);
    let store = store_at(server.url());
    assert_eq!(store.stats().risks, None, "nobody has asked yet");
    assert!(risks(&store).await.unwrap().eviction);
    server.says(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert_eq!(risks(&store).await, Some(StoreRisks::default()));
}

#[tokio::test]
async fn s4_f_evict_keys_that_a_server_drops_are_counted() {
    let policy = ["--maxmemory-policy", "allkeys-lru"];
    let debug = ["--enable-debug-command", "yes"];
    let server = RedisServer::start_with(&[policy, debug].concat());
    let store = store_at(server.url());
    assert_eq!(risks(&store).await.unwrap().evicted_keys, 0);
    server.says(&["DEBUG", "POPULATE", "20000", "filler", "200"]);
    server.says(&["CONFIG", "SET", "maxmemory", "4mb"]);
    charge(&store).await.unwrap();
    assert!(risks(&store).await.unwrap().evicted_keys > 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s4_f_evict_one_node_of_a_cluster_that_drops_keys_is_a_risk() {
    let cluster = RedisCluster::start();
    let store = store_at(cluster.url());
    store.connect().await.unwrap();
    let safe = risks(&store).await.unwrap();
    assert!(!safe.eviction);
    let master = cluster.nodes.iter().rev();
    let master = master.into_iter().find(|node| {
        let role = node.says(&["ROLE"]);
        role.contains("master")
    });
    let policy = ["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"];
    assert!(master.unwrap().says(&policy).contains("OK"));
    assert!(risks(&store).await.unwrap().eviction);
}

#[tokio::test]
async fn s4_replicas_of_a_server_that_saves_nothing_are_a_risk() {
    let server = RedisServer::start();
    let port = server.port.to_string();
    let store = store_at(server.url());
    assert!(!risks(&store).await.unwrap().unsaved_replication);
    let _replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    eventually("the replica's link", || {
        let info = server.says(&["INFO", "replication"]);
        info.contains("connected_slaves:1")
    });
    assert!(risks(&store).await.unwrap().unsaved_replication);
    server.says(&["CONFIG", "SET", "save", "3600 1"]);
    assert!(!risks(&store).await.unwrap().unsaved_replication);
}

/// Managed services and careful operators refuse `CONFIG`, some `INFO` too.
#[tokio::test]
async fn s4_a_server_that_does_not_show_its_settings_serves_all_the_same() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "allkeys-lfu"]);
    let user = |name: &str, more: &str| {
        let rules = format!("on >secret ~* +@read +@write +@scripting +@connection +time {more}");
        let mut words = vec!["ACL", "SETUSER", name];
        words.extend(rules.split_whitespace());
        assert!(server.says(&words).contains("OK"));
        store_at(format!("redis://{name}:secret@127.0.0.1:{}", server.port))
    };
    let (blind, half_blind) = (user("blind", ""), user("half", "+info"));
    assert_eq!(risks(&blind).await, None);
    assert!(blind.probe().await.is_ok());
    assert!(risks(&half_blind).await.unwrap().eviction);
    server.says(&["ACL", "LOG", "RESET"]);
    half_blind.probe().await.unwrap();
    let log = server.says(&["ACL", "LOG"]);
    assert!(!log.contains("config"), "asked again: {log}");
}

/// An address that leads to the master, whoever that is: a proxy that asks for the role, as where
/// Sentinel decides. The old master keeps its connections when it becomes a replica.
#[tokio::test]
async fn x11_the_successor_behind_the_same_address_is_found() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let master = Arc::new(AtomicU16::new(old.port));
    let near = slow_path::open_to(Arc::clone(&master), Duration::ZERO);
    let store = store_at(format!("redis://127.0.0.1:{near}"));
    store.connect().await.unwrap();
    assert_eq!(charge(&store).await, Ok(true));
    master.store(new.port, SeqCst);
    let demoted = ["REPLICAOF", "127.0.0.1", &new.port.to_string()];
    assert!(old.says(&demoted).contains("OK"));
    let first = charge(&store).await;
    assert!(matches!(first, Err(StoreError::Exhausted(_))), "{first:?}");
    for _ in 0..200 {
        if charge(&store).await == Ok(true) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("still asks the old master");
}
