//! No identifier and no credential is found in what a service stores, logs, audits,
//! measures or answers: canaries go in everywhere, and nothing of them comes out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "leaks/keyed.rs"]
mod keyed;
#[path = "../../palisade-store/tests/common/postgres_server.rs"]
mod postgres_server;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;
#[path = "leaks/scan.rs"]
mod scan;
#[path = "leaks/traffic.rs"]
mod traffic;
#[path = "common/upstream.rs"]
mod upstream;

use std::process::Command;

use postgres_server::PostgresServer;
use redis_server::{RedisCluster, RedisServer};
use scan::{Canary, Scanner, forms};
use traffic::{Canaries, Watched, directory};

/// Every write goes to a file at once, as it was sent.
const KEEP_ALL: [&str; 6] = [
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--dbfilename",
    "dump.rdb",
];

#[test]
fn privacy_the_scan_finds_every_canary_in_every_form() {
    let canaries = Canaries::new();
    let scanner = canaries.scanner();
    let names = [
        "account",
        "user name",
        "IPv6 address",
        "API key",
        "store password",
    ];
    for name in names {
        let secret = canaries.text(name);
        for (form, leaked) in forms(secret.as_bytes()) {
            let mut place = b"{\"key\":\"0123456789abcdef".to_vec();
            place.extend(leaked);
            place.extend_from_slice(b"\",\"more\":1}");
            let found = scanner.find(&place);
            assert!(found.is_some(), "{name} as {form}");
            assert_eq!(found.unwrap().canary, name, "as {form}");
        }
    }
    let v4 = canaries.text("IPv4 address");
    for leaked in [
        format!("ip={v4}"),
        "ip=cb0071bd".to_owned(),
        "?ip=203%2E0%2E113%2E189".to_owned(),
    ] {
        assert!(scanner.find(leaked.as_bytes()).is_some(), "{leaked}");
    }
    assert!(scanner.find(&[0, 203, 0, 113, 189, 0]).is_some());
}

#[test]
fn privacy_the_scan_finds_parts_and_lets_anonymised_networks_pass() {
    let canaries = Canaries::new();
    let scanner = canaries.scanner();
    let account = canaries.text("account");
    assert!(scanner.find(&account.as_bytes()[5..20]).is_some());
    assert!(scanner.find(&account.as_bytes()[5..10]).is_none());
    for allowed in [
        "203.0.113.0/24",
        "2001:db8:7a3c::/48",
        "0123456789abcdef0123456789abcdef",
    ] {
        assert_eq!(scanner.find(allowed.as_bytes()), None, "{allowed}");
    }
    for refused in ["2001:db8:7a3c:91e5::/64", "b6d2:4f18:c37e:5a1d"] {
        assert!(scanner.find(refused.as_bytes()).is_some(), "{refused}");
    }
    let other = Scanner::new(&[Canary::made("nobody")]);
    assert_eq!(other.find(account.as_bytes()), None);
}

#[test]
fn privacy_nothing_leaks_with_the_embedded_store() {
    let mut service = Watched::start("embedded:palisade-data");
    service.everything();
    let said = service.said();
    said.was_a_full_run();
    said.holds_nothing(&[]);
}

#[test]
fn privacy_nothing_leaks_with_redis() {
    let password = Canaries::new().text("store password").to_owned();
    let mut args = KEEP_ALL.to_vec();
    args.extend(["--requirepass", &password]);
    let mut server = RedisServer::start_with(&args);
    let url = format!("redis://:{password}@127.0.0.1:{}", server.port);
    let mut service = Watched::start(&url);
    service.everything();
    let stored = directory(&server.dir().join("appendonlydir"));
    server.kill();
    service.without_a_store();
    let said = service.said();
    said.was_a_full_run();
    said.holds_nothing(&[("Redis", stored)]);
}

#[test]
fn privacy_nothing_leaks_with_a_redis_cluster() {
    let cluster = RedisCluster::start_with(&KEEP_ALL);
    let mut service = Watched::start(&cluster.url());
    service.everything();
    let stored = cluster
        .nodes
        .iter()
        .flat_map(|node| directory(node.dir()))
        .collect();
    let said = service.said();
    said.was_a_full_run();
    said.holds_nothing(&[("Redis Cluster", stored)]);
}

/// The audit is written in the background: both resets, among its last events, are waited for.
async fn audited(server: &PostgresServer) {
    const LAST: &str = "SELECT count(*) FROM palisade.audit WHERE event = 'rate_limit_reset'";
    let written = async {
        while server.sql("leaks", LAST).await != ["2"] {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(common::PATIENCE, written)
        .await
        .expect("the audit reaches its table");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn privacy_nothing_leaks_with_postgres() {
    let port = format!("port={}", redis_server::free_port());
    let mut server =
        PostgresServer::start(&["listen_addresses=127.0.0.1", &port, "log_statement=all"]).await;
    server.sql("postgres", "CREATE DATABASE leaks").await;
    let password = Canaries::new().text("store password").to_owned();
    let port = &port["port=".len()..];
    let url = format!("postgres://palisade:{password}@127.0.0.1:{port}/leaks");
    let migrated = common::palisade()
        .args(["migrate", "--store", &url])
        .output()
        .unwrap();
    assert!(migrated.status.success());
    let mut service = Watched::start_with(&url, &[("PALISADE_AUDIT__POSTGRES", &url)]);
    service.everything();
    audited(&server).await;
    let dumped = Command::new(postgres_server::binary("pg_dump"))
        .args(["-h", "127.0.0.1", "-p", port, "-U", "palisade", "leaks"])
        .output()
        .unwrap();
    assert!(dumped.status.success());
    server.kill();
    service.without_a_store();
    let log = directory(&server.folder().join("data/pg_wal"));
    let statements = server.log();
    let said = service.said();
    said.was_a_full_run();
    assert!(statements.contains("parameters"), "statements are logged");
    said.holds_nothing(&[
        ("dump", dumped.stdout),
        ("migration", migrated.stdout),
        ("write-ahead log", log),
        ("statements", statements.into_bytes()),
    ]);
}
