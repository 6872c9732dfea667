//! Reservations and places over three services on one store.
#![allow(
    clippy::disallowed_methods,
    reason = "a load lasts for a time of the real clock"
)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{NODES, SECRET, nodes, policy};
use crate::common::{Client, Options, Server, signal};
use crate::postgres_server::PostgresServer;
use crate::redis_server::{RedisCluster, RedisServer};

const LIMITS: &str = r#"
    [[limit]]
    name = "tokens"
    by = ["org"]
    rate = "100000/h"
    unit = "tokens"
    [[limit]]
    name = "in-all"
    by = []
    rate = "1000000/h"
    unit = "tokens"
    [[limit]]
    name = "places"
    by = ["user"]
    concurrency = 8
    hold = "3s"
"#;
/// As many as may be in progress.
const PLACES: usize = 8;
const CALLERS: usize = 64;
const LOAD: Duration = Duration::from_secs(4);
const HOLD: Duration = Duration::from_secs(3);

fn post(client: &mut Client, path: &str, body: &Value) -> Value {
    let reply = client.send("POST", path, &[], body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    reply.json()
}

fn asking(user: &str, tokens: u64) -> Value {
    json!({"ip": "203.0.113.7", "org": "acme", "user": user, "method": "POST", "path": "/chat",
        "costs": {"requests": 0, "tokens": tokens}})
}

fn left(node: &Server) -> u64 {
    let mut asked = asking("looks", 1);
    asked["ip"] = json!("203.0.113.8");
    let found = post(&mut node.connect(), "/v1/peek", &asked);
    let limits = found["limits"].as_array().unwrap();
    let tokens = limits.iter().find(|one| one["name"] == "tokens");
    tokens.unwrap()["remaining"].as_u64().unwrap()
}

fn reservations_hold(store: &str) {
    let nodes = nodes(&policy(store, LIMITS));
    settled_once(&nodes);
    never_too_many(&nodes);
}

/// Reserved on one node, extended on the second, settled on the third, and again on each.
fn settled_once(nodes: &[Server]) {
    let mut clients: Vec<Client> = (0..NODES)
        .map(|number| nodes[number % nodes.len()].connect())
        .collect();
    let before = left(&nodes[0]);
    for round in 0..5 {
        let reserved = post(&mut clients[0], "/v1/reserve", &asking("settles", 4_000));
        assert_eq!(reserved["decision"], "allow", "{reserved}");
        let token = &reserved["reservation"];
        let more = json!({"reservation": token, "costs": {"tokens": 500}});
        let extended = post(&mut clients[1], "/v1/extend", &more);
        assert_eq!(extended["decision"], "allow", "{extended}");
        let used = json!({"reservation": token, "costs": {"tokens": 812}});
        let first = post(&mut clients[2], "/v1/settle", &used);
        assert_eq!(first["reserved"]["tokens"], 4_500, "{first}");
        for client in &mut clients {
            let other = json!({"reservation": token, "costs": {"tokens": 9_999}});
            let again = post(client, "/v1/settle", &other);
            assert_eq!(again["used"], first["used"], "B-ONCE");
        }
        for node in nodes {
            assert_eq!(left(node), before - 812 * (round + 1), "B-BOUND");
        }
    }
}

/// What the callers of a load saw.
#[derive(Default)]
struct Seen {
    in_progress: AtomicUsize,
    over: AtomicU64,
    worked: AtomicU64,
}

/// B-EXACT: however many ask, never more are in progress than may be. Some of the callers
/// die, and the places of the dead come back.
fn never_too_many(nodes: &[Server]) {
    let seen = Seen::default();
    let until = Instant::now() + LOAD;
    thread::scope(|scope| {
        for number in 0..CALLERS {
            let (seen, node) = (&seen, &nodes[number % NODES]);
            scope.spawn(move || call(node, number, seen, until));
        }
    });
    assert_eq!(seen.over.into_inner(), 0, "never more than {PLACES}");
    assert!(seen.worked.into_inner() > 50, "they did work");
    thread::sleep(HOLD + Duration::from_millis(200));
    let mut client = nodes[0].connect();
    let held: Vec<Value> = (0..=PLACES)
        .map(|_| post(&mut client, "/v1/reserve", &asking("load", 0)))
        .collect();
    let admitted = held.iter().filter(|one| one["decision"] == "allow").count();
    assert_eq!(admitted, PLACES, "every place is free again, and no more");
}

fn call(node: &Server, number: usize, seen: &Seen, until: Instant) {
    let mut client = node.connect();
    for round in 0_usize.. {
        if Instant::now() >= until {
            return;
        }
        let reserved = post(&mut client, "/v1/reserve", &asking("load", 0));
        if reserved["decision"] != "allow" {
            thread::sleep(Duration::from_millis(20));
            continue;
        }
        let others = seen.in_progress.fetch_add(1, Ordering::SeqCst);
        seen.over
            .fetch_add(u64::from(others >= PLACES), Ordering::SeqCst);
        seen.worked.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(100));
        let token = json!({"reservation": reserved["reservation"]});
        if (number + round).is_multiple_of(7) {
            let extended = post(&mut client, "/v1/extend", &token);
            assert_eq!(extended["decision"], "allow", "{extended}");
        }
        seen.in_progress.fetch_sub(1, Ordering::SeqCst);
        // One in so many dies, and its place stays taken until its hold has passed.
        if (number * 31 + round) % 40 != 39 {
            post(&mut client, "/v1/release", &token);
        }
    }
}

#[test]
fn b_exact_three_services_on_redis_never_admit_one_too_many() {
    let server = RedisServer::start();
    reservations_hold(&server.url());
}

#[test]
fn b_exact_three_services_on_a_redis_cluster_never_admit_one_too_many() {
    let cluster = RedisCluster::start();
    reservations_hold(&cluster.url());
}

#[tokio::test(flavor = "multi_thread")]
async fn b_exact_three_services_on_postgres_never_admit_one_too_many() {
    let server = PostgresServer::start(&[]).await;
    let url = server.url().await;
    let made = crate::common::palisade()
        .args(["migrate", "--store", &url])
        .output();
    assert!(made.unwrap().status.success());
    tokio::task::spawn_blocking(move || reservations_hold(&url))
        .await
        .unwrap();
}

#[test]
fn b_exact_one_service_in_memory_never_admits_one_too_many() {
    let config = policy("memory:", LIMITS);
    let options = Options {
        config: Some(&config),
        env: &[SECRET],
        ..Options::default()
    };
    let node = || Server::with(&options);
    let only = node();
    let mut client = only.connect();
    let unknown = json!({"ip": "203.0.113.7", "method": "GET", "path": "/", "costs": {"tokns": 1}});
    for path in ["/v1/check", "/v1/reserve"] {
        let reply = client.send("POST", path, &[], unknown.to_string().as_bytes());
        assert_eq!(reply.status, 400, "B-UNIT");
        assert_eq!(reply.json()["field"], "costs");
    }
    let forged = json!({"reservation": "AAAA", "costs": {"tokens": 1}}).to_string();
    let reply = client.send("POST", "/v1/settle", &[], forged.as_bytes());
    assert_eq!(
        (reply.status, &reply.json()["field"]),
        (400, &json!("reservation"))
    );
    batched(&mut client);
    settled_once(&[only]);
}

/// A batch mixes checks, reservations and what follows them.
fn batched(client: &mut Client) {
    let mut reserve = asking("batch", 10);
    reserve["op"] = json!("reserve");
    let check = asking("batch", 1);
    let first = post(client, "/v1/batch", &json!({"checks": [reserve, check]}));
    let answers = first["answers"].as_array().unwrap();
    assert_eq!(answers[1]["decision"], "allow", "{first}");
    let token = &answers[0]["reservation"];
    let used = json!({"op": "settle", "reservation": token, "costs": {"tokens": 3}});
    let forged = json!({"op": "release", "reservation": "AAAA"});
    let second = post(client, "/v1/batch", &json!({"checks": [used, forged]}));
    assert_eq!(second["answers"][0]["used"]["tokens"], 3, "{second}");
    assert_eq!(second["answers"][1]["field"], "reservation");
    let nameless = json!({"checks": [{"op": "settle", "reservation": token}]}).to_string();
    let reply = client.send("POST", "/v1/batch", &[], nameless.as_bytes());
    assert_eq!(
        (reply.status, &reply.json()["field"]),
        (400, &json!("checks[0].costs"))
    );
}

/// Limits that may be overdrawn, in two slots of a cluster, and one that refuses.
const OVERDRAWN: &str = r#"
    [[limit]]
    name = "bytes"
    by = ["org"]
    rate = "1000/h"
    unit = "bytes"
    overdraft = "always"
    [[limit]]
    name = "bytes-in-all"
    by = []
    rate = "1000/h"
    algorithm = "fixed-window"
    unit = "bytes"
    overdraft = "always"
    [[limit]]
    name = "tokens"
    by = ["org"]
    rate = "200/h"
    unit = "tokens"
    [[limit]]
    name = "few"
    by = ["user"]
    rate = "1/h"
"#;

fn decided(node: &Server, more: &Value) -> Value {
    let mut asked = asking("reporter", 0);
    for (name, value) in more.as_object().unwrap() {
        asked[name] = value.clone();
    }
    let answer = post(&mut node.connect(), "/v1/check", &asked);
    assert_eq!(answer["mode"], "normal", "{answer}");
    answer["decision"].clone()
}

fn unused(node: &Server, unit: &str) -> Vec<u64> {
    let mut asked = asking("looks", 1);
    asked["costs"] = json!({ unit: 1 });
    let found = post(&mut node.connect(), "/v1/peek", &asked);
    let mut limits = found["limits"].as_array().unwrap().clone();
    limits.sort_by_key(|one| one["name"].as_str().unwrap().to_owned());
    let left = limits.iter().map(|one| one["remaining"].as_u64().unwrap());
    left.collect()
}

/// Charged below zero by one node, in debt on the others, whichever refuses.
fn overdrawn(nodes: &[Server]) {
    let node = |number: usize| &nodes[number % nodes.len()];
    let used = json!({"costs": {"requests": 1, "bytes": 100}});
    assert_eq!(decided(node(0), &used), "allow");
    assert_eq!(decided(node(1), &used), "deny", "one request an hour");
    assert_eq!(unused(node(2), "bytes"), [800, 800], "charged all the same");
    let report = json!({"costs": {"requests": 1, "tokens": 150}, "report": true});
    assert_eq!(decided(node(2), &report), "deny");
    assert_eq!(unused(node(0), "tokens"), [50]);
    let dear = json!({"costs": {"bytes": 5_000}});
    assert_eq!(decided(node(0), &dear), "allow", "something is left");
    for number in 0..NODES {
        let look = json!({"costs": {"bytes": 0}});
        assert_eq!(decided(node(number), &look), "deny", "nothing is left");
        assert_eq!(decided(node(number), &dear), "deny");
        // Of a remembered denial only the bucket that denies is known.
        let left = unused(node(number), "bytes");
        assert!(left.iter().all(|left| *left == 0), "{left:?}");
    }
    let above = json!({"costs": {"tokens": 9_000}, "report": true});
    assert_eq!(decided(node(1), &above), "allow", "no error of L-COST");
    assert_eq!(unused(node(2), "tokens"), [0]);
}

#[test]
fn b_overdraft_three_services_on_redis_share_a_debt() {
    let server = RedisServer::start();
    overdrawn(&nodes(&policy(&server.url(), OVERDRAWN)));
}

#[test]
fn b_overdraft_three_services_on_a_redis_cluster_share_a_debt() {
    let cluster = RedisCluster::start();
    overdrawn(&nodes(&policy(&cluster.url(), OVERDRAWN)));
}

#[tokio::test(flavor = "multi_thread")]
async fn b_overdraft_three_services_on_postgres_share_a_debt() {
    let server = PostgresServer::start(&[]).await;
    let url = server.url().await;
    let made = crate::common::palisade()
        .args(["migrate", "--store", &url])
        .output();
    assert!(made.unwrap().status.success());
    tokio::task::spawn_blocking(move || overdrawn(&nodes(&policy(&url, OVERDRAWN))))
        .await
        .unwrap();
}

#[test]
fn b_overdraft_one_service_on_the_embedded_store_keeps_its_debt() {
    let config = policy("embedded:./data", OVERDRAWN);
    let options = Options {
        config: Some(&config),
        env: &[SECRET],
        ..Options::default()
    };
    let only = Server::with(&options);
    overdrawn(&[only]);
}

/// Longer than a service takes to start again on a busy machine.
const LONG_HOLD: Duration = Duration::from_secs(12);

/// A service that counts in its own directory, at which it may have died before.
fn embedded(home: tempfile::TempDir) -> Server {
    let places = "[[limit]]\nname = \"places\"\nby = [\"user\"]\nconcurrency = 2\nhold = \"12s\"\n";
    let config = policy("embedded:./data", places);
    let options = Options {
        config: Some(&config),
        env: &[SECRET],
        ..Options::default()
    };
    Server::at(home, &options)
}

fn reserved(client: &mut Client) -> Value {
    let mut asked = asking("holder", 0);
    asked["costs"] = json!({"requests": 0});
    post(client, "/v1/reserve", &asked)
}

#[test]
fn b_crash_a_killed_service_keeps_the_places_of_the_living_and_frees_those_of_the_dead() {
    let service = embedded(tempfile::tempdir().unwrap());
    let mut client = service.connect();
    let held: Vec<Value> = (0..2).map(|_| reserved(&mut client)).collect();
    let since = Instant::now();
    assert!(
        held.iter().all(|one| one["decision"] == "allow"),
        "{held:?}"
    );
    assert_eq!(reserved(&mut client)["decision"], "deny");
    // L-DURABLE: what is older than 100 ms is on disk.
    thread::sleep(Duration::from_millis(400));
    signal(service.pid(), "KILL");
    let (_, home) = service.wait();

    let service = embedded(home);
    let mut client = service.connect();
    let refused = reserved(&mut client);
    assert!(
        since.elapsed() < LONG_HOLD,
        "the machine was too slow to tell"
    );
    assert_eq!(refused["decision"], "deny", "both places are held");
    let living = json!({"reservation": held[0]["reservation"], "hold": "12s"});
    let extended = post(&mut client, "/v1/extend", &living);
    assert_eq!(extended["decision"], "allow", "{extended}");
    let freed = since + LONG_HOLD;
    let again = loop {
        let again = reserved(&mut client);
        if again["decision"] == "allow" {
            break again;
        }
        assert!(Instant::now() < freed + LONG_HOLD, "never freed");
        thread::sleep(Duration::from_millis(100));
    };
    assert!(
        Instant::now() >= freed,
        "not before its hold has passed: {again}"
    );
    // The other holder's place is held on.
    let extended = post(&mut client, "/v1/extend", &living);
    assert_eq!(extended["decision"], "allow", "{extended}");
    assert_eq!(reserved(&mut client)["decision"], "deny");
    let late = json!({"reservation": held[1]["reservation"]});
    let told = post(&mut client, "/v1/extend", &late);
    assert_eq!(told["expired"], true, "{told}");
}
