//! The audit in a Postgres table that is taken away and comes back.
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

mod common;
mod sources;

use std::time::Duration;

use common::{PATIENCE, Server, sign_in};
use sources::Database;
use sources::postgres_server::PostgresServer;
use tokio::time::Instant;

/// Waits at most this long for an answer while the audit's database is away.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// The second sign-in of an address is refused.
const POLICY: &str = "[store]\nurl = \"memory:\"\n[[limit]]\nname = \"ip-auth\"\nby = [\"ip\"]\nclass = \"auth\"\nrate = \"1/min\"\n";

async fn database() -> PostgresServer {
    match Database::postgres().await {
        Database::Postgres(server) => server,
        #[cfg(feature = "mongodb")]
        Database::Mongo(_) => panic!("not asked for"),
    }
}

fn audited(database: &PostgresServer, buffer: u32) -> Server {
    let url = sources::postgres_url(database);
    Server::configured(&format!(
        "{POLICY}[audit]\npostgres = \"{url}\"\nbuffer_max = {buffer}\n"
    ))
}

async fn count(database: &PostgresServer, event: &str) -> usize {
    let sql = format!("SELECT count(*) FROM palisade.audit WHERE event = '{event}'");
    let rows = database.sql(&database.last_database(), &sql).await;
    rows[0].parse().unwrap()
}

async fn until_count(database: &PostgresServer, event: &str, expected: usize) {
    let begun = Instant::now();
    loop {
        let found = count(database, event).await;
        if found == expected {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{found} of {expected} {event}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Refused sign-ins of as many addresses as `denials` names.
fn deny(server: &Server, network: u8, denials: usize) {
    let mut connection = server.connect();
    for host in 0..denials {
        let facts = sign_in(&format!("198.51.{network}.{host}"));
        let mut denied = false;
        while !denied {
            let asked = Instant::now();
            let reply = connection.send("POST", "/v1/check", &[], facts.as_bytes());
            assert!(asked.elapsed() < ANSWERED_WITHIN, "{:?}", asked.elapsed());
            denied = reply.json()["decision"] == "deny";
        }
    }
}

/// Guard blocks on so many accounts.
fn block(server: &Server, accounts: usize) {
    for account in 0..accounts {
        let facts = format!(
            r#"{{"ip":"192.0.2.{account}","account":"a{account}","device":{{"fingerprint":"d{account}","confidence":"medium"}}}}"#
        );
        for _ in 0..2 {
            server.post("/v1/guard/login/failure", &facts);
        }
    }
}

fn dropped(server: &Server, kind: &str) -> u64 {
    let metrics = server.admin_get("/metrics");
    let name = format!("rate_limiter_audit_dropped_total{{kind=\"{kind}\"}}");
    let line = metrics.text().lines().find(|line| line.starts_with(&name));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_audit_loss_nothing_is_lost_or_doubled_by_an_outage_of_the_table() {
    let mut database = database().await;
    let server = audited(&database, 10_000);
    deny(&server, 1, 5);
    until_count(&database, "rate_limit_exceeded", 5).await;

    database.kill();
    deny(&server, 2, 20);
    block(&server, 3);
    database.restart().await;
    until_count(&database, "rate_limit_exceeded", 25).await;
    until_count(&database, "guard.block", 3).await;

    // Standing still, the fate of what is under way is unknown.
    database.pause();
    deny(&server, 3, 20);
    tokio::time::sleep(Duration::from_secs(3)).await;
    database.resume();
    until_count(&database, "rate_limit_exceeded", 45).await;
    deny(&server, 4, 1);
    until_count(&database, "rate_limit_exceeded", 46).await;

    assert_eq!(
        (dropped(&server, "ordinary"), dropped(&server, "security")),
        (0, 0)
    );
    let sql = "SELECT detail::text FROM palisade.audit WHERE at > now() - interval '1 hour'";
    let lines = database.sql(&database.last_database(), sql).await;
    assert!(lines.len() >= 49);
    for raw in ["198.51.1.1", "192.0.2.1\"", "\"a1\"", "\"d1\""] {
        assert!(lines.iter().all(|line| !line.contains(raw)), "{raw}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_audit_loss_drops_are_counted_and_security_events_outlast_the_others() {
    let mut database = database().await;
    let server = audited(&database, 100);
    database.kill();
    deny(&server, 1, 1);
    deny(&server, 2, 250);
    block(&server, 20);
    assert_eq!(dropped(&server, "security"), 0);
    let lost = dropped(&server, "ordinary");
    assert!((100..=251).contains(&lost), "{lost}");
    database.restart().await;
    until_count(&database, "guard.block", 20).await;
    until_count(
        &database,
        "rate_limit_exceeded",
        251 - usize::try_from(lost).unwrap(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_audit_loss_a_file_beside_the_table_is_not_held_up_and_the_end_is_bounded() {
    let mut database = database().await;
    let url = sources::postgres_url(&database);
    let server = Server::configured(&format!(
        "{POLICY}[audit]\npostgres = \"{url}\"\nfile = \"audit.jsonl\"\n"
    ));
    database.kill();
    deny(&server, 1, 3);
    let path = server.home.path().join("audit.jsonl");
    let begun = Instant::now();
    let lines = || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.matches("rate_limit_exceeded").count()
    };
    while lines() < 3 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    server.terminate();
    let (code, _home) = server.wait();
    assert_eq!(code, Some(0));
}
