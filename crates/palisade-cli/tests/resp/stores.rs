//! The same answers on every store, and what is said without it.

use super::postgres_server::PostgresServer;
use super::redis_server::{RedisCluster, RedisServer};
use super::*;

const KEY: (&str, &str) = ("KEY", "0123456789abcdef0123456789abcdef0123456789abcdef");

fn on(store: &str, timeout: &str) -> (Server, SocketAddr) {
    let config = format!(
        "[store]\nurl = \"{store}\"\ntimeout = \"{timeout}\"\n[secrets]\nkey = \"env:KEY\"\n"
    );
    start(&config, &[KEY])
}

/// Bursts, looks, resets, changing figures and a pipeline on one key.
fn holds(store: &str) {
    let (_first, first) = on(store, "10s");
    let (_second, second) = on(store, "10s");
    let (mut a, mut b) = (Raw::connect(first), Raw::connect(second));
    assert_eq!(a.ask("CL.THROTTLE ann 2 1 3600"), "0 3 2 -1 3600");
    let shared = b.ask("CL.THROTTLE ann 2 1 3600 2");
    assert!(shared.starts_with("0 3 0 -1 10"), "{shared}");
    assert!(a.ask("PEEK ann 2 1 3600").starts_with("1 3 0 3"));
    // Twice as many in twice the time: what was used stays used.
    let other = b.ask("CL.THROTTLE ann 4 1 3600 2");
    assert!(other.starts_with("0 5 0 -1 1"), "{other}");
    // Under figures that forget sooner nobody waits longer than they remember (F-CLOCK): what
    // was used beyond that fills the bucket and no more.
    let shorter = a.ask("CL.THROTTLE ann 99 1 60 0");
    assert!(shorter.starts_with("0 100 0 -1 "), "{shorter}");
    assert!(a.ask("PEEK ann 99 1 60").starts_with("1 100 0 "));
    assert_eq!(a.ask("RESET ann"), "+OK");
    assert_eq!(b.ask("CL.THROTTLE ann 2 1 3600 0"), "0 3 3 -1 0");

    let mut pipeline = Vec::new();
    for number in 0..100 {
        pipeline.extend(request(&["CL.THROTTLE", "many", "79", "1", "3600"]));
        let own = format!("key-{number}");
        pipeline.extend(request(&["CL.THROTTLE", &own, "1", "1", "3600"]));
    }
    a.send(&pipeline);
    for number in 0..100_usize {
        let left = 79_usize.saturating_sub(number);
        let limited = u8::from(number >= 80);
        let many = a.answer();
        assert!(
            many.starts_with(&format!("{limited} 80 {left} ")),
            "{number}: {many}"
        );
        assert_eq!(a.answer(), "0 2 1 -1 3600");
    }
}

#[test]
fn l_keyed_holds_on_redis_over_two_nodes() {
    let redis = RedisServer::start();
    holds(&redis.url());
}

#[test]
fn l_keyed_holds_on_a_redis_cluster_over_two_nodes() {
    let cluster = RedisCluster::start();
    holds(&cluster.url());
}

#[tokio::test(flavor = "multi_thread")]
async fn l_keyed_holds_on_postgres_over_two_nodes() {
    let server = PostgresServer::start(&[]).await;
    let url = server.url().await;
    let made = common::palisade()
        .args(["migrate", "--store", &url])
        .output();
    assert!(made.unwrap().status.success());
    tokio::task::spawn_blocking(move || holds(&url))
        .await
        .unwrap();
}

#[test]
fn l_keyed_without_the_store_half_of_a_burst_is_counted_here_and_the_mode_says_so() {
    let mut redis = RedisServer::start();
    let (_server, address) = on(&redis.url(), "500ms");
    let mut client = Raw::connect(address);
    assert_eq!(client.ask("CL.THROTTLE ann 9 1 3600"), "0 10 9 -1 3600");
    assert_eq!(client.ask("MODE"), "normal");
    redis.kill();
    assert!(client.ask("RESET ann").starts_with("-TRYAGAIN"));
    let answers: Vec<String> = (0..8)
        .map(|_| client.ask("CL.THROTTLE bob 9 1 3600"))
        .collect();
    let admitted = answers.iter().filter(|answer| answer.starts_with('0'));
    assert_eq!(admitted.count(), 5, "{answers:?}");
    assert_eq!(client.ask("MODE"), "degraded");
}
