//! The engine over a real Redis that is killed, frozen, paused, full, emptied, or
//! loses a master.
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
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::time::Duration;

use faults_support::{Bench, DEADLINE, Data};
use futures_util::future::join_all;
use palisade::core::Mode;
use palisade::core::facts::GuardOp;
use palisade::core::time::SECOND;
use palisade::store::redis::{RedisConfig, RedisStore};
use redis_server::{RedisCluster, RedisServer};

fn bench(url: &str) -> Bench {
    let config = RedisConfig {
        deadline: DEADLINE,
        ..RedisConfig::new(url)
    };
    Bench::new(RedisStore::new(config).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_killed_redis_that_comes_back_empty() {
    let mut server = RedisServer::start();
    let bench = bench(&server.url());
    bench.healthy().await;
    server.kill();
    bench.broken().await;
    server.restart();
    bench.recovered(Data::Lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_killed_redis_that_comes_back_with_its_data() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let bench = bench(&server.url());
    bench.healthy().await;
    server.kill();
    bench.broken().await;
    server.restart();
    bench.recovered(Data::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_frozen_redis_hangs_no_request() {
    let server = RedisServer::start();
    let bench = bench(&server.url());
    bench.healthy().await;
    server.freeze();
    bench.broken().await;
    server.thaw();
    bench.recovered(Data::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_redis_that_is_paused_by_its_operator() {
    let server = RedisServer::start();
    let bench = bench(&server.url());
    bench.healthy().await;
    server.pause(30_000);
    bench.broken().await;
    bench.recovered(Data::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_store_full_a_redis_without_memory_is_an_outage() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let bench = bench(&server.url());
    bench.healthy().await;
    assert!(
        server
            .says(&["CONFIG", "SET", "maxmemory", "1"])
            .contains("OK")
    );
    bench.broken().await;
    assert_eq!(bench.engine.health().store.last_error, Some("exhausted"));
    server.says(&["CONFIG", "SET", "maxmemory", "0"]);
    bench.recovered(Data::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_redis_that_was_never_there() {
    let mut server = RedisServer::start();
    let url = server.url();
    server.kill();
    let bench = bench(&url);
    bench.broken().await;
    server.restart();
    bench.answers().await;
    bench.sleep(21 * SECOND).await;
    assert_eq!(
        bench.admitted("192.0.2.5", "/auth/token", 15).await,
        [Mode::Normal; 10]
    );
}

/// Probes that fail start the waiting time again, and no request is used as a probe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_fallback_a_redis_that_is_still_away_at_the_first_probe() {
    let mut server = RedisServer::start();
    let bench = bench(&server.url());
    bench.healthy().await;
    server.kill();
    bench.broken().await;
    bench.sleep(11 * SECOND).await;
    assert_eq!(bench.engine.health().circuits[3], ("limits", "open"));
    server.restart();
    bench.answers().await;
    bench.sleep(8 * SECOND).await;
    assert_eq!(
        bench.engine.health().circuits[3],
        ("limits", "open"),
        "ten seconds from the probe"
    );
    bench.sleep(2 * SECOND).await;
    assert_eq!(bench.engine.health().circuits[3], ("limits", "half_open"));
    bench.sleep(10 * SECOND).await;
    assert_eq!(bench.engine.health().circuits[3], ("limits", "closed"));
}

/// Requests whose slots were on the dead master fail, and logins among them are refused. Its
/// replica takes over and everything is exact again without a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_closed_a_cluster_that_loses_a_master() {
    let mut cluster = RedisCluster::start();
    let bench = bench(&cluster.url());
    bench.answers().await;
    assert_eq!(
        bench.admitted("192.0.2.1", "/auth/token", 15).await,
        [Mode::Normal; 10]
    );
    let is_master = |node: &RedisServer| node.says(&["ROLE"]).contains("master");
    let dead = cluster.nodes.iter().position(is_master).unwrap();
    cluster.nodes[dead].kill();
    // In the meantime every answer is the store's, or its mode says that it is not.
    for n in 0..30 {
        let decision = bench.guard(GuardOp::LoginCheck, &format!("c{n}")).await;
        let request = bench
            .check(&format!("192.0.2.{}", 100 + n), "/auth/token")
            .await;
        assert!(matches!(
            decision.mode,
            Mode::Normal | Mode::FailClosed | Mode::Degraded
        ));
        assert!(matches!(request.mode, Mode::Normal | Mode::Degraded));
    }
    let replaced = || {
        let masters = cluster.nodes.iter().filter(|node| is_master(node)).count();
        masters == 3
    };
    redis_server::eventually("the replica's promotion", replaced);
    tokio::time::sleep(Duration::from_millis(500)).await;
    bench.answers().await;
    bench.sleep(9 * 60 * SECOND).await;
    assert!(
        bench
            .engine
            .health()
            .circuits
            .iter()
            .all(|(_, state)| *state == "closed")
    );
    for host in 200..230 {
        let admitted = bench
            .admitted(&format!("192.0.2.{host}"), "/auth/token", 12)
            .await;
        assert_eq!(admitted, [Mode::Normal; 10], "exact in every slot");
    }
    for n in 0..20 {
        let modes = bench.modes(GuardOp::OtpFailure, &format!("d{n}"), 1).await;
        assert!(modes[0].starts_with("normal"), "{modes:?}");
    }
}

/// Sends four logins, four codes and eight limited requests at once.
async fn many_at_once(bench: &Bench) -> Vec<Mode> {
    let accounts: Vec<String> = (0..4).map(|n| format!("at-once-{n}")).collect();
    let logins = accounts
        .iter()
        .map(|account| bench.guard(GuardOp::LoginCheck, account));
    let codes = accounts
        .iter()
        .map(|account| bench.guard(GuardOp::OtpCheck, account));
    let requests = (0..8).map(|_| bench.check("192.0.2.77", "/things"));
    let (logins, codes, requests) =
        tokio::join!(join_all(logins), join_all(codes), join_all(requests));
    let answers = [logins, codes, requests].into_iter().flatten();
    answers.map(|decision| decision.mode).collect()
}

fn all_closed(bench: &Bench) -> bool {
    let circuits = bench.engine.health().circuits;
    circuits.iter().all(|(_, state)| *state == "closed")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_stall_one_stall_of_redis_opens_no_breaker_and_three_do() {
    let server = RedisServer::start();
    let bench = bench(&server.url());
    bench.answers().await;
    for stall in 1..=3 {
        server.freeze();
        let modes = many_at_once(&bench).await;
        assert!(!modes.contains(&Mode::Normal), "{modes:?}");
        server.thaw();
        bench.answers().await;
        assert_eq!(all_closed(&bench), stall < 3, "after stall {stall}");
        if stall < 3 {
            assert_eq!(many_at_once(&bench).await, [Mode::Normal; 16]);
        }
    }
    let circuits = bench.engine.health().circuits;
    assert_eq!(
        (circuits[0], circuits[3]),
        (("login", "open"), ("limits", "closed"))
    );
}

/// Stands for a balancer or an operator that closes idle connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_stall_idle_connections_that_are_cut_refuse_nobody() {
    let server = RedisServer::start();
    let bench = bench(&server.url());
    bench.answers().await;
    assert_eq!(many_at_once(&bench).await, [Mode::Normal; 16]);
    let connections = || {
        server
            .says(&["CLIENT", "LIST", "TYPE", "normal"])
            .lines()
            .filter(|line| line.contains("id="))
            .count()
    };
    let before = connections();
    for _ in 0..5 {
        server.says(&["CLIENT", "KILL", "TYPE", "normal"]);
        // No call is made meanwhile: the store notices closed connections by itself.
        redis_server::eventually("the connections' return", || connections() >= before);
        assert_eq!(many_at_once(&bench).await, [Mode::Normal; 16]);
        assert!(all_closed(&bench));
        assert_eq!(bench.engine.health().store.last_error, None);
    }
}
