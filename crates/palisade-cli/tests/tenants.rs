//! Tenants' policies from real databases that are changed, stopped and brought back
//! under a running service.
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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Client, Options, PATIENCE, Reply, Server};
use serde_json::Value;
use sources::Database;
use tokio::time::Instant;

const TOKEN: &str = "an-operators-token-of-decent-length";

/// A service whose tenants are in this database.
fn serve(database: &Database, ttl: &str) -> Server {
    serve_patiently(database, ttl, "2s")
}

/// The same, whose calls to the database count as failed after `timeout`.
fn serve_patiently(database: &Database, ttl: &str, timeout: &str) -> Server {
    let config = format!(
        "[admin]\ntoken = \"env:ADMIN_TOKEN\"\n[store]\nurl = \"memory:\"\ntimeout = \"10s\"\n\
         [policy]\nsource = \"{}\"\ncache_ttl = \"{ttl}\"\nnegative_ttl = \"200ms\"\n\
         timeout = \"{timeout}\"\n",
        database.url()
    );
    Server::with(&Options {
        config: Some(&config),
        env: &[("ADMIN_TOKEN", TOKEN)],
        ..Options::default()
    })
}

fn admin(server: &Server, method: &str, path: &str, body: &str) -> Reply {
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str())];
    Client::connect(server.admin).send(method, path, &headers, body.as_bytes())
}

fn facts(org: &str) -> String {
    format!(r#"{{"ip":"203.0.113.5","method":"GET","path":"/things","org":"{org}"}}"#)
}

/// Used and allowed of the organisation's minute, without using any.
fn minute(server: &Server, org: &str) -> (u64, u64) {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let answer = server.post("/v1/peek", &facts(org)).json();
        let limits = answer["limits"].as_array().unwrap();
        let bucket = limits.iter().find(|limit| limit["name"] == "org-burst");
        // Shed load is not judged by this limit.
        if let Some(bucket) = bucket {
            let number = |key: &str| bucket[key].as_u64().unwrap();
            return (number("limit") - number("remaining"), number("limit"));
        }
    }
    panic!("no answer names `org-burst`");
}

fn decision(server: &Server, org: &str) -> Value {
    server.post("/v1/check", &facts(org)).json()["decision"].clone()
}

/// Asks until the answer is the expected one, within the tests' patience.
fn until<T: PartialEq + std::fmt::Debug>(expected: &T, ask: impl Fn() -> T) {
    let begun = Instant::now();
    loop {
        let answer = ask();
        if answer == *expected {
            return;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "still {answer:?}, not {expected:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether the source answers, and that the level shows it if not. (A busy machine
/// alone makes level 1.)
fn source(server: &Server) -> Value {
    let report = server.admin_get("/health/dependencies").json();
    let state = report["policy"]["state"].clone();
    assert!(
        state == "up" || report["degradation_level"] == 1,
        "{report}"
    );
    state
}

fn cached(server: &Server, org: &str) -> Value {
    admin(server, "GET", &format!("/debug/cache/{org}"), "").json()
}

fn metric(server: &Server, name: &str) -> u64 {
    let metrics = server.admin_get("/metrics");
    let line = metrics.text().lines().find(|line| line.starts_with(name));
    let value = line.unwrap_or_else(|| panic!("no {name}"));
    value.rsplit(' ').next().unwrap().parse().unwrap()
}

fn invalidate(server: &Server, org: &str) -> Value {
    let body = format!(r#"{{"tenant_id":"{org}"}}"#);
    admin(server, "POST", "/admin/cache/invalidate", &body).json()["invalidated"].clone()
}

/// An override binds from the first request, a change takes effect by age or by the
/// operator's word, and what was used stays used in both directions.
async fn overrides_apply_and_changes_keep_what_was_used(database: Database) {
    database.put("acme", 1, r#"{"org-burst": "3/min"}"#).await;
    let server = serve_patiently(&database, "1h", "1min");
    assert_eq!(minute(&server, "acme"), (0, 3));
    assert_eq!(minute(&server, "plain"), (0, 6000));
    for expected in ["allow", "allow", "allow", "deny"] {
        assert_eq!(decision(&server, "acme"), expected);
    }
    database.put("acme", 2, r#"{"org-burst": "5/min"}"#).await;
    assert_eq!(decision(&server, "acme"), "deny", "nobody told yet");
    assert_eq!(invalidate(&server, "acme"), true);
    until(&(3, 5), || minute(&server, "acme"));
    for expected in ["allow", "allow", "deny"] {
        assert_eq!(decision(&server, "acme"), expected);
    }
    database.put("acme", 3, r#"{"org-burst": "4/min"}"#).await;
    assert_eq!(invalidate(&server, "acme"), true);
    until(&Value::from(3), || {
        cached(&server, "acme")["version"].clone()
    });
    assert_eq!(decision(&server, "acme"), "deny");
    let shown = cached(&server, "acme");
    assert_eq!(shown["state"], "fresh");
    assert_eq!(cached(&server, "plain")["state"], "default");
    assert_eq!(invalidate(&server, "nobody-ever-asked-for"), false);
    assert_eq!(metric(&server, "rate_limiter_policy_cache_size"), 1);
    assert_eq!(
        metric(&server, "rate_limiter_policy_refresh_failures_total"),
        0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t_org_overrides_from_postgres_apply_and_changes_keep_what_was_used() {
    overrides_apply_and_changes_keep_what_was_used(Database::postgres().await).await;
}

#[cfg(feature = "mongodb")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t_org_overrides_from_mongodb_apply_and_changes_keep_what_was_used() {
    overrides_apply_and_changes_keep_what_was_used(Database::mongo().await).await;
}

/// Killed or standing still, the database takes nothing with it; back, it is
/// followed again.
async fn an_outage_changes_nothing_but_the_health(mut database: Database) {
    database.put("acme", 1, r#"{"org-burst": "3/min"}"#).await;
    let server = serve(&database, "300ms");
    assert_eq!(minute(&server, "acme"), (0, 3));
    until(&Value::from("up"), || source(&server));

    database.kill();
    until(&Value::from("down"), || source(&server));
    assert_eq!(minute(&server, "acme"), (0, 3), "the known policy stays");
    assert_eq!(minute(&server, "new"), (0, 6000), "the default stands in");
    until(&Value::from("stale"), || {
        cached(&server, "acme")["state"].clone()
    });
    assert_eq!(cached(&server, "new")["state"], "default");
    assert!(metric(&server, "rate_limiter_policy_refresh_failures_total") > 0);
    assert_eq!(server.admin_get("/health/ready").status, 200);

    database.restart().await;
    database.put("acme", 2, r#"{"org-burst": "7/min"}"#).await;
    database.put("new", 1, r#"{"org-burst": "9/min"}"#).await;
    until(&(0, 7), || minute(&server, "acme"));
    until(&(0, 9), || minute(&server, "new"));
    until(&Value::from("up"), || source(&server));

    database.pause();
    until(&Value::from("down"), || source(&server));
    assert_eq!(
        (minute(&server, "acme"), minute(&server, "new")),
        ((0, 7), (0, 9))
    );
    database.resume();
    until(&Value::from("up"), || source(&server));
    database.put("acme", 3, r#"{"org-burst": "8/min"}"#).await;
    until(&(0, 8), || minute(&server, "acme"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t_org_policies_outlive_an_outage_of_postgres() {
    an_outage_changes_nothing_but_the_health(Database::postgres().await).await;
}

#[cfg(feature = "mongodb")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t_org_policies_outlive_an_outage_of_mongodb() {
    an_outage_changes_nothing_but_the_health(Database::mongo().await).await;
}

/// What `palisade check` ends with, and what it says.
fn checked(home: &std::path::Path, args: &[&str]) -> (Option<i32>, String) {
    let mut command = common::palisade();
    command.current_dir(home).args(["check", "policy.toml"]);
    let output = command.args(args).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), told)
}

/// `check` alone asks nobody; with `--connect` it says whether the source answers.
async fn check_asks_the_source_when_told_to(mut database: Database) {
    let home = tempfile::tempdir().unwrap();
    let address = database.url();
    let policy = format!("[policy]\nsource = \"{address}\"\ntimeout = \"5s\"\n");
    std::fs::write(home.path().join("policy.toml"), policy).unwrap();
    assert_eq!(
        checked(home.path(), &["--connect"]),
        (Some(0), String::new())
    );
    database.kill();
    let (code, told) = checked(home.path(), &["--connect"]);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("see `policy.source`"), "{told}");
    assert!(!told.contains(&address), "{told}");
    assert_eq!(checked(home.path(), &[]), (Some(0), String::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_connect_asks_postgres() {
    check_asks_the_source_when_told_to(Database::postgres().await).await;
}

#[cfg(feature = "mongodb")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_connect_asks_mongodb() {
    check_asks_the_source_when_told_to(Database::mongo().await).await;
}

/// A service starts without its source and finds it later.
async fn a_source_that_is_away_at_the_start_is_found_later(mut database: Database) {
    database.put("acme", 1, r#"{"org-burst": "3/min"}"#).await;
    database.kill();
    let server = serve(&database, "300ms");
    assert_eq!(source(&server), "down");
    assert_eq!(minute(&server, "acme"), (0, 6000));
    database.restart().await;
    until(&(0, 3), || minute(&server, "acme"));
    until(&Value::from("up"), || source(&server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t_org_a_service_starts_without_its_postgres() {
    a_source_that_is_away_at_the_start_is_found_later(Database::postgres().await).await;
}

#[cfg(feature = "mongodb")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t_org_a_service_starts_without_its_mongodb() {
    a_source_that_is_away_at_the_start_is_found_later(Database::mongo().await).await;
}

/// A document that is wrong in one place is refused whole.
async fn a_wrong_document_leaves_the_old_policy(database: Database) {
    database.put("acme", 1, r#"{"org-burst": "3/min"}"#).await;
    let server = serve(&database, "300ms");
    assert_eq!(minute(&server, "acme"), (0, 3));
    let wrong = r#"{"org-day": "5/day", "org-burst": "a lot"}"#;
    database.put("acme", 2, wrong).await;
    until(&true, || {
        minute(&server, "acme");
        cached(&server, "acme")["refused"].is_string()
    });
    let shown = cached(&server, "acme");
    assert!(
        shown["refused"]
            .as_str()
            .unwrap()
            .contains("`limits.org-burst.rate`")
    );
    assert_eq!(shown["version"], 1);
    assert_eq!(minute(&server, "acme"), (0, 3));
    assert!(metric(&server, "rate_limiter_policy_refresh_failures_total") > 0);
    until(&Value::from("up"), || source(&server));
    database.put("acme", 3, r#"{"org-burst": "4/min"}"#).await;
    until(&(0, 4), || minute(&server, "acme"));
    assert!(cached(&server, "acme")["refused"].is_null());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t_org_a_wrong_document_in_postgres_leaves_the_old_policy() {
    a_wrong_document_leaves_the_old_policy(Database::postgres().await).await;
}

#[cfg(feature = "mongodb")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t_org_a_wrong_document_in_mongodb_leaves_the_old_policy() {
    a_wrong_document_leaves_the_old_policy(Database::mongo().await).await;
}

/// Ends the clients when it is dropped, also by a failed test.
#[derive(Default)]
struct Done(Arc<AtomicBool>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the clients of one connection saw.
struct Traffic {
    answers: usize,
    slowest: Duration,
}

fn traffic(server: &Server, client: usize, done: &AtomicBool) -> Traffic {
    let mut connection = server.connect();
    let (mut answers, mut slowest) = (0, Duration::ZERO);
    while !done.load(Ordering::Relaxed) {
        let (tenant, net, host) = ((client + answers) % 20, answers / 250 % 250, answers % 250);
        let facts = format!(
            r#"{{"ip":"10.{client}.{net}.{host}","method":"GET","path":"/things","org":"tenant-{tenant}"}}"#
        );
        let asked = Instant::now();
        let reply = connection.send("POST", "/v1/check", &[], facts.as_bytes());
        slowest = slowest.max(asked.elapsed());
        assert_eq!(reply.status, 200);
        let answer = reply.json();
        assert_eq!(answer["mode"], "normal", "{answer}");
        assert!(answer["decision"] == "allow" || answer["decision"] == "deny");
        answers += 1;
    }
    Traffic { answers, slowest }
}

/// The longest that a request may take on a machine that does other things too.
const SLOWEST: Duration = Duration::from_secs(2);
const RELOADS: u64 = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t_org_reloads_of_file_and_tenants_block_and_drop_no_request() {
    let database = Database::postgres().await;
    let server = Arc::new(serve_patiently(&database, "100ms", "1min"));
    let path = server.home.path().join("palisade.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    let revision = || {
        let report = server.admin_get("/health/dependencies").json();
        report["policy"]["revision"].as_u64().unwrap()
    };
    let done = Done::default();
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let (server, done) = (Arc::clone(&server), Arc::clone(&done.0));
            std::thread::spawn(move || traffic(&server, client, &done))
        })
        .collect();
    for reload in 1..=RELOADS {
        let rate = 1_000 + reload;
        let changed = format!(
            "{config}[[limit]]\nname = \"org-burst\"\nby = [\"org\"]\nrate = \"{rate}/min\"\n"
        );
        // Renamed into place, so that no half of it is ever read.
        let draft = path.with_extension("new");
        std::fs::write(&draft, changed).unwrap();
        std::fs::rename(&draft, &path).unwrap();
        let limits = format!(r#"{{"org-burst": "{}/min"}}"#, 100_000 + reload);
        for tenant in 0..20 {
            let version = u32::try_from(reload).unwrap();
            let tenant = format!("tenant-{tenant}");
            database.put(&tenant, version, &limits).await;
        }
        admin(&server, "POST", "/admin/cache/invalidate", "{}");
        until(&(reload + 1), revision);
    }
    until(&(100_000 + RELOADS), || minute(&server, "tenant-3").1);
    drop(done);
    let seen: Vec<Traffic> = clients
        .into_iter()
        .map(|client| client.join().unwrap())
        .collect();
    let answers: usize = seen.iter().map(|one| one.answers).sum();
    let slowest = seen.iter().map(|one| one.slowest).max().unwrap();
    println!("{answers} answers during {RELOADS} reloads, the slowest took {slowest:?}");
    assert!(answers > 3_000, "{answers}");
    assert!(slowest < SLOWEST, "{slowest:?}");
    assert_eq!(
        metric(&server, "rate_limiter_policy_refresh_failures_total"),
        0
    );
}

#[test]
fn a_refused_file_counts_and_a_lost_one_shows() {
    let server = Server::configured("[store]\nurl = \"memory:\"\n");
    let path = server.home.path().join("palisade.toml");
    std::fs::write(&path, "[store]\nurl = \"nowhere\"\n").unwrap();
    let failures = || metric(&server, "rate_limiter_policy_refresh_failures_total");
    until(&1, failures);
    until(&Value::from("up"), || source(&server));
    std::fs::remove_file(&path).unwrap();
    until(&Value::from("down"), || source(&server));
    assert_eq!(minute(&server, "acme"), (0, 6000));
    std::fs::write(&path, "[store]\nurl = \"memory:\"\n").unwrap();
    until(&Value::from("up"), || source(&server));
}

#[test]
fn a_source_that_cannot_be_used_is_refused_at_the_start_without_its_address() {
    let cases = [
        #[cfg(feature = "mongodb")]
        ("mongodb+srv://u:hunter2@db/palisade", "mongodb+srv"),
        #[cfg(feature = "mongodb")]
        ("mongodb://u:hunter2@db", "names no database"),
        #[cfg(feature = "mongodb")]
        ("mongodb://u:hunter2@db:port/palisade", "cannot be parsed"),
        #[cfg(not(feature = "mongodb"))]
        ("mongodb://u:hunter2@db/palisade", "built without"),
        (
            "postgres://u:hunter2@db:port/palisade",
            "cannot be used as an address",
        ),
    ];
    for (url, expected) in cases {
        let output = common::palisade()
            .args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:"])
            .env("PALISADE_POLICY__SOURCE", url)
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains(expected), "{printed}");
        assert!(!printed.contains("hunter2"), "{printed}");
    }
}

/// The first block of a language in the page about tenants that holds `mark`.
fn example(language: &str, mark: &str) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/tenants.md")).unwrap();
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    let block = blocks.filter_map(|rest| rest.split("```").next());
    let mut found = block.filter(|block| block.contains(mark));
    found
        .next()
        .unwrap_or_else(|| panic!("no {language} with {mark}"))
        .to_owned()
}

/// As the page says: the fourth request of a minute is refused.
fn plays(database: &Database, source: &str) {
    let config = example("toml", source);
    let server = Server::with(&Options {
        config: Some(&config),
        env: &[
            ("PALISADE_POLICY__SOURCE", &database.url()),
            ("PALISADE_STORE__URL", "memory:"),
        ],
        ..Options::default()
    });
    let facts = example("json", "\"org\"");
    for _ in 0..3 {
        let answer = server.post("/v1/check", &facts).json();
        assert_eq!(answer["decision"], "allow", "{answer}");
    }
    let script = example("sh", "/v1/check").replace("localhost:8080", &server.listen.to_string());
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-c", &script]).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["decision"], "deny", "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_about_tenants_does_what_it_says_with_postgres() {
    let database = Database::postgres().await;
    database.sql(&example("sql", "INSERT")).await;
    plays(&database, "postgres://");
}

#[cfg(feature = "mongodb")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_about_tenants_does_what_it_says_with_mongodb() {
    let database = Database::mongo().await;
    let document: Value = serde_json::from_str(&example("json", "tenant_id")).unwrap();
    let limits = document["limits"].to_string();
    database.put("acme", 1, &limits).await;
    plays(&database, "mongodb://");
}

#[test]
fn t_org_overrides_from_the_file_apply_and_follow_it() {
    let base = "[store]\nurl = \"memory:\"\n";
    let server = Server::configured(&format!("{base}{}", example("toml", "[[tenant]]")));
    assert_eq!(minute(&server, "acme"), (0, 12_000));
    assert_eq!(minute(&server, "plain"), (0, 6_000));
    assert_eq!(decision(&server, "acme"), "allow");
    let changed =
        format!("{base}[[tenant]]\nid = \"acme\"\nlimits = {{ org-burst = \"2/min\" }}\n");
    std::fs::write(server.home.path().join("palisade.toml"), changed).unwrap();
    until(&(1, 2), || minute(&server, "acme"));
    assert_eq!(decision(&server, "acme"), "allow");
    assert_eq!(decision(&server, "acme"), "deny");
    assert_eq!(metric(&server, "rate_limiter_policy_cache_size"), 1);
}
