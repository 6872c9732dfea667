//! A Redis that is dead, hangs, is full, comes back: typed, in time, healed by itself.
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

#[path = "common/redis_server.rs"]
mod redis_server;
#[path = "common/redis_stores.rs"]
mod redis_stores;

use std::io::Read;
use std::net::TcpListener;
use std::num::NonZeroU8;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use palisade_core::limit::{Algorithm, Window};
use palisade_core::time::HOUR;
use palisade_store::conformance::{TestLimits, spec};
use palisade_store::redis::{RedisConfig, RedisStore};
use palisade_store::{Buckets, ChargeReadings, Records, StoreError, Take, Vitals};
use redis_server::RedisServer;
use redis_stores::patient;
use tokio::time::Instant;

const DEADLINE: Duration = Duration::from_millis(100);
/// Time that a busy machine may add to a deadline; far less than a hanging call would take.
const SLACK: Duration = Duration::from_millis(900);

fn limits() -> TestLimits {
    let window = Window::Span(HOUR);
    TestLimits::new([("log", spec(Algorithm::SlidingLog, 10_000, window))])
}

#[expect(clippy::unwrap_used, reason = "part of the tests")]
fn strict(url: &str) -> RedisStore {
    RedisStore::new(RedisConfig::new(url)).unwrap()
}

async fn charge(store: &RedisStore) -> Result<ChargeReadings, StoreError> {
    let limits = limits();
    let charges = [limits.charge("log", "someone")];
    let asked = Instant::now();
    let result = store.charge(&charges, Take::Consume).await;
    assert!(asked.elapsed() < DEADLINE + SLACK, "the call hung");
    result
}

/// Repeats a charge until the store serves again.
async fn healed(store: &RedisStore) -> ChargeReadings {
    let begun = Instant::now();
    loop {
        match charge(store).await {
            Ok(charged) => return charged,
            Err(_) => assert!(begun.elapsed() < Duration::from_secs(20), "never healed"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_server_that_was_never_there_is_unreachable_at_once() {
    let store = strict(&format!("redis://127.0.0.1:{}", redis_server::free_port()));
    for _ in 0..20 {
        let error = charge(&store).await.unwrap_err();
        assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
    }
    assert!(store.probe().await.is_err());
    assert!(store.load(&[]).await.is_err());
}

#[tokio::test]
async fn a_killed_server_is_unreachable_and_its_successor_is_found() {
    let mut server = RedisServer::start();
    let store = strict(&server.url());
    healed(&store).await;
    server.kill();
    for _ in 0..20 {
        let error = charge(&store).await.unwrap_err();
        assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
    }
    server.restart();
    let first = healed(&store).await;
    assert_eq!(first.readings[0].used, 1, "it came back empty");
    for expected in 2..20 {
        assert_eq!(charge(&store).await.unwrap().readings[0].used, expected);
    }
}

#[tokio::test]
async fn a_frozen_server_times_out_then_fails_at_once_then_heals() {
    let server = RedisServer::start();
    let store = strict(&server.url());
    healed(&store).await;
    server.freeze();
    let first = charge(&store).await.unwrap_err();
    assert_eq!(first, StoreError::TimedOut);
    // After some silence the connections are given up, and calls stop waiting.
    let mut at_once = 0;
    for _ in 0..60 {
        let asked = Instant::now();
        charge(&store).await.unwrap_err();
        at_once += u32::from(asked.elapsed() < DEADLINE / 2);
    }
    assert!(at_once > 10, "only {at_once} calls failed at once");
    server.thaw();
    healed(&store).await;
    charge(&store).await.unwrap();
}

#[tokio::test]
async fn connecting_to_a_frozen_server_keeps_the_deadline() {
    let server = RedisServer::start();
    server.freeze();
    let store = strict(&server.url());
    charge(&store).await.unwrap_err();
    server.thaw();
    healed(&store).await;
}

#[tokio::test]
async fn a_paused_server_times_out_and_heals() {
    let server = RedisServer::start();
    let store = strict(&server.url());
    healed(&store).await;
    server.pause(1_500);
    assert_eq!(charge(&store).await.unwrap_err(), StoreError::TimedOut);
    healed(&store).await;
}

#[tokio::test]
async fn f_store_full_a_server_without_memory_is_exhausted_and_changes_nothing() {
    let server = RedisServer::start();
    let store = strict(&server.url());
    let before = healed(&store).await.readings[0].used;
    assert!(
        server
            .says(&["CONFIG", "SET", "maxmemory", "1"])
            .contains("OK")
    );
    for error in [
        charge(&store).await.unwrap_err(),
        store.probe().await.unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Exhausted(_)), "{error:?}");
    }
    server.says(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(charge(&store).await.unwrap().readings[0].used, before + 1);
    store.probe().await.unwrap();
}

#[tokio::test]
async fn a_read_only_replica_is_exhausted() {
    let primary = RedisServer::start();
    let port = primary.port.to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    redis_server::eventually("the replica's link", || {
        replica
            .says(&["INFO", "replication"])
            .contains("master_link_status:up")
    });
    let store = patient(&replica.url());
    for error in [
        charge(&store).await.unwrap_err(),
        store.probe().await.unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Exhausted(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_persist_is_exhausted() {
    let server = RedisServer::start();
    let store = patient(&server.url());
    charge(&store).await.unwrap();
    server.says(&["CONFIG", "SET", "save", "3600 1"]);
    std::fs::remove_dir_all(server.dir()).unwrap();
    server.says(&["BGSAVE"]);
    redis_server::eventually("the failed save", || {
        server
            .says(&["INFO", "persistence"])
            .contains("rdb_last_bgsave_status:err")
    });
    let error = charge(&store).await.unwrap_err();
    assert!(matches!(error, StoreError::Exhausted(_)), "{error:?}");
}

#[tokio::test]
async fn f_pool_a_server_without_connections_is_exhausted() {
    let server = RedisServer::start_with(&["--maxclients", "1"]);
    let first = patient(&server.url());
    // One connection is in use from here on; the next one is refused.
    first.probe().await.unwrap();
    let second = patient(&server.url());
    let error = second.probe().await.unwrap_err();
    assert!(
        matches!(error, StoreError::Exhausted(_) | StoreError::Unreachable(_)),
        "{error:?}"
    );
}

/// A server that lets connections in and says nothing: calls keep to their deadline, or fail
/// at once, and the attempt to connect lives as long as it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_to_connect_has_a_time_of_its_own() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (given_up, seen) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            while stream.read(&mut [0; 256]).is_ok_and(|size| size > 0) {}
            let _ = given_up.send(Instant::now());
        }
    });
    for connect_timeout in [Duration::from_millis(1_500), Duration::from_millis(20)] {
        let begun = Instant::now();
        let store = RedisStore::new(RedisConfig {
            connect_timeout,
            connections: NonZeroU8::MIN,
            ..RedisConfig::new(format!("redis://127.0.0.1:{port}"))
        })
        .unwrap();
        charge(&store).await.unwrap_err();
        let second = Instant::now();
        charge(&store).await.unwrap_err();
        assert!(second.elapsed() < DEADLINE, "it waited a second time");
        let given_up = tokio::task::block_in_place(|| seen.recv_timeout(3 * SLACK)).unwrap();
        let kept = given_up.duration_since(begun);
        assert!(kept >= connect_timeout, "given up after {kept:?}");
        assert!(kept < connect_timeout + SLACK, "kept for {kept:?}");
    }
}

/// A caller that waits for a connection on a slow path gives up at its deadline; the next call
/// finds the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_takes_longer_than_a_call_serves_the_calls_after_it() {
    let server = RedisServer::start();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = listener.local_addr().unwrap().port();
    let far = server.port;
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                tokio::time::sleep(DEADLINE * 3).await;
                let server = tokio::net::TcpStream::connect(("127.0.0.1", far)).await;
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server.unwrap()).await;
            });
        }
    });
    let store = RedisStore::new(RedisConfig {
        connect_timeout: Duration::from_secs(20),
        ..RedisConfig::new(format!("redis://127.0.0.1:{near}"))
    })
    .unwrap();
    assert_eq!(charge(&store).await.unwrap_err(), StoreError::TimedOut);
    healed(&store).await;
}

/// A server that accepts and hangs up is not flooded with attempts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_not_answered_with_a_storm_of_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, SeqCst);
            drop(stream);
        }
    });
    let store = Arc::new(strict(&format!("redis://127.0.0.1:{port}")));
    let end = Instant::now() + Duration::from_secs(2);
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                while Instant::now() < end {
                    charge(&store).await.unwrap_err();
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let attempts = attempts.load(SeqCst);
    // Two connections, pauses of 20, 40, 80 … ms.
    assert!((2..=24).contains(&attempts), "{attempts} attempts in 2 s");
}

/// Callers that give up, or are dropped, leave nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_leave_do_not_block_the_queue() {
    let server = RedisServer::start();
    let store = Arc::new(strict(&server.url()));
    healed(&store).await;
    server.freeze();
    let tasks: Vec<_> = (0..500)
        .map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let limits = limits();
                let charges = [limits.charge("log", "leaving")];
                let call = store.charge(&charges, Take::Consume);
                if number % 2 == 0 {
                    let _ = tokio::time::timeout(Duration::from_millis(5), call).await;
                } else {
                    let _ = call.await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    server.thaw();
    healed(&store).await;
    // A queue drops abandoned decisions when its calls in progress have ended.
    redis_server::eventually("the queues' end", || store.stats().queue_depth == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_pool_a_full_queue_is_exhausted_at_once() {
    let server = RedisServer::start();
    let store = Arc::new(
        RedisStore::new(RedisConfig {
            deadline: Duration::from_secs(3),
            // Every connection has a queue of its own.
            connections: NonZeroU8::MIN,
            ..RedisConfig::new(server.url())
        })
        .unwrap(),
    );
    healed(&store).await;
    server.freeze();
    let tasks: Vec<_> = (0..5_000)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let limits = limits();
                let charges = [limits.charge("log", "crowd")];
                store.charge(&charges, Take::Consume).await
            })
        })
        .collect();
    redis_server::eventually("the queue's filling", || store.stats().queue_depth >= 4_000);
    let asked = Instant::now();
    let (mut exhausted, mut timed_out) = (0, 0);
    server.thaw();
    for task in tasks {
        match task.await.unwrap() {
            Err(StoreError::Exhausted(_)) => exhausted += 1,
            Err(_) => timed_out += 1,
            Ok(_) => {}
        }
    }
    assert!(exhausted > 0, "none was refused; {timed_out} timed out");
    assert!(asked.elapsed() < Duration::from_secs(10));
    healed(&store).await;
}
