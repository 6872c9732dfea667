//! Three services on one store: each limit holds over all of them together.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "nodes/budgets.rs"]
mod budgets;
mod common;
#[path = "../../palisade-store/tests/common/postgres_server.rs"]
mod postgres_server;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::sync::Barrier;
use std::thread;

use common::{Client, Options, Server, palisade};
use postgres_server::PostgresServer;
use redis_server::{RedisCluster, RedisServer};
use serde_json::{Value, json};

const NODES: usize = 3;
const AT_ONCE: usize = 300;
const ROUNDS: usize = 20;
/// One secret for all, as a shared store needs.
const SECRET: (&str, &str) = ("KEY", "0123456789abcdef0123456789abcdef0123456789abcdef");

/// Decisions are what is tested here, not how soon a busy machine gives up.
fn policy(store: &str, limits: &str) -> String {
    format!(
        r#"
        [store]
        url = "{store}"
        timeout = "10s"
        [secrets]
        key = "env:KEY"
        [policy]
        defaults = false
        default_class = "all"
        [[class]]
        name = "all"
        {limits}
        "#
    )
}

fn nodes(config: &str) -> Vec<Server> {
    let options = Options {
        config: Some(config),
        env: &[SECRET],
        ..Options::default()
    };
    (0..NODES).map(|_| Server::with(&options)).collect()
}

fn facts(ip: &str, user: &str) -> String {
    json!({"ip": ip, "user": user, "method": "GET", "path": "/things"}).to_string()
}

fn check(client: &mut Client, user: &str) -> Value {
    let reply = client.send(
        "POST",
        "/v1/check",
        &[],
        facts("203.0.113.7", user).as_bytes(),
    );
    assert_eq!(reply.status, 200, "{}", reply.text());
    let answer = reply.json();
    assert_eq!(answer["mode"], "normal", "{answer}");
    answer
}

/// All clients ask at once, a hundred of each node; how many were admitted, by node.
fn race(nodes: &[Server], user: &str) -> [usize; NODES] {
    let start = Barrier::new(AT_ONCE);
    let admitted = thread::scope(|scope| {
        let clients: Vec<_> = (0..AT_ONCE)
            .map(|number| {
                let start = &start;
                scope.spawn(move || {
                    let node = number % NODES;
                    let mut client = nodes[node].connect();
                    start.wait();
                    (node, check(&mut client, user)["decision"] == "allow")
                })
            })
            .collect();
        let answers = clients.into_iter().map(|client| client.join().unwrap());
        answers.collect::<Vec<_>>()
    });
    let mut by_node = [0; NODES];
    for (node, is_admitted) in admitted {
        by_node[node] += usize::from(is_admitted);
    }
    by_node
}

/// What is left of a limit, seen from a node, without taking any; asked from another
/// address, whose own limits are untouched.
fn remaining(node: &Server, user: &str, limit: &str) -> u64 {
    let peeked = node.post("/v1/peek", &facts("203.0.113.8", user)).json();
    let limits = peeked["limits"].as_array().unwrap();
    let one = limits.iter().find(|one| one["name"] == limit);
    one.unwrap()["remaining"].as_u64().unwrap()
}

fn everything_holds(store: &str) {
    exact(store);
    local_and_shared(store);
    one_denies(store);
}

fn exact(store: &str) {
    let limit = r#"
        [[limit]]
        name = "shared"
        by = ["user"]
        rate = "250/min"
    "#;
    let nodes = nodes(&policy(store, limit));
    for round in 0..ROUNDS {
        let user = format!("exact-{round}");
        let admitted: usize = race(&nodes, &user).iter().sum();
        assert_eq!(admitted, 250, "round {round} on {}", kind(store));
        for node in &nodes {
            assert_eq!(remaining(node, &user, "shared"), 0);
        }
    }
}

fn local_and_shared(store: &str) {
    let limits = r#"
        [[limit]]
        name = "shared"
        by = ["user"]
        rate = "250/min"
        [[limit]]
        name = "each"
        by = ["user"]
        rate = "EACH"
        accuracy = "local"
    "#;
    let roomy = limits.replace("EACH", "100/min");
    let admitted = race(&nodes(&policy(store, &roomy)), "roomy");
    assert!(admitted.iter().all(|count| *count <= 100), "{admitted:?}");
    assert_eq!(admitted.iter().sum::<usize>(), 250, "{admitted:?}");
    let tight = limits.replace("EACH", "80/min");
    let admitted = race(&nodes(&policy(store, &tight)), "tight");
    assert_eq!(admitted, [80; NODES], "each node holds its own");
}

fn one_denies(store: &str) {
    let limits = r#"
        [[limit]]
        name = "wide"
        by = ["user"]
        rate = "1000/min"
        [[limit]]
        name = "narrow"
        by = ["ip"]
        rate = "40/min"
    "#;
    let nodes = nodes(&policy(store, limits));
    let admitted: usize = race(&nodes, "both").iter().sum();
    assert_eq!(admitted, 40);
    for node in &nodes {
        assert_eq!(
            remaining(node, "both", "wide"),
            960,
            "what was denied took nothing of the other limit"
        );
    }
}

fn kind(store: &str) -> &str {
    store.split(':').next().unwrap()
}

#[test]
fn l_atomic_three_services_on_redis_admit_250_of_300() {
    let server = RedisServer::start();
    everything_holds(&server.url());
}

/// Five seconds of load, as fast as the machine takes it, on callers whose limits are used up
/// many times over.
#[test]
fn l_atomic_load_over_three_services_on_redis_admits_not_one_too_many() {
    let limit = r#"
        [[limit]]
        name = "per-address"
        by = ["ip"]
        rate = "200/h"
    "#;
    let store = RedisServer::start();
    let nodes = nodes(&policy(&store.url(), limit));
    let targets: Vec<String> = nodes.iter().map(|node| node.listen.to_string()).collect();
    let output = palisade()
        .args(["bench", "--json", "--seconds", "5", "--keys", "20"])
        .args(["--concurrency", "48", "--limit", "200"])
        .args(["--target", &targets.join(",")])
        .output()
        .unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(
        (&said["over_admitted"], &said["errors"]),
        (&json!(0), &json!(0)),
        "{said}"
    );
    let admitted = said["decisions"].as_u64().unwrap() - said["denied"].as_u64().unwrap();
    assert_eq!(
        admitted,
        20 * 200,
        "every caller gets all of its limit: {said}"
    );
}

/// A limit that the service does not keep is found.
#[test]
fn a_load_that_is_told_the_limit_finds_what_was_admitted_beyond_it() {
    let limit = "[[limit]]\nname = \"per-address\"\nby = [\"ip\"]\nrate = \"50/h\"";
    let node = Server::with(&Options {
        config: Some(&policy("memory:", limit)),
        env: &[SECRET],
        ..Options::default()
    });
    let output = palisade()
        .args([
            "bench",
            "--json",
            "--seconds",
            "1",
            "--keys",
            "2",
            "--limit",
            "49",
        ])
        .args(["--concurrency", "2", "--target", &node.listen.to_string()])
        .output()
        .unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), &said["over_admitted"]),
        (Some(1), &json!(2)),
        "{said}"
    );
}

#[test]
fn l_atomic_three_services_on_a_redis_cluster_admit_250_of_300() {
    let cluster = RedisCluster::start();
    everything_holds(&cluster.url());
}

#[tokio::test(flavor = "multi_thread")]
async fn l_atomic_three_services_on_postgres_admit_250_of_300() {
    let server = PostgresServer::start(&[]).await;
    let url = server.url().await;
    let made = palisade().args(["migrate", "--store", &url]).output();
    assert!(made.unwrap().status.success());
    tokio::task::spawn_blocking(move || everything_holds(&url))
        .await
        .unwrap();
}

/// Each worker has a socket of its own on an address. One that waits for a store leaves its core
/// to another.
#[test]
fn a_node_has_a_worker_for_each_core_and_two_more_if_they_wait_for_a_store() {
    let cores = thread::available_parallelism().unwrap().get();
    let redis = RedisServer::start();
    for (store, expected) in [("memory:", cores), (&redis.url(), cores + 2)] {
        let config = policy(store, "");
        let server = Server::with(&Options {
            config: Some(&config),
            env: &[SECRET],
            ..Options::default()
        });
        let listens = format!(":{:04X} 00000000:0000 0A ", server.listen.port());
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        assert_eq!(table.matches(&listens).count(), expected, "{store}");
    }
}
