//! What a store keeps, copied while its server works, put back, and moved from store to
//! store: by the commands an operator runs, on real servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "../../palisade-store/tests/common/postgres_server.rs"]
mod postgres_server;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use common::{Client, Options, Server, palisade, signal, text};
use postgres_server::PostgresServer;
use redis_server::RedisServer;
use serde_json::{Value, json};

const SECRET: &str = "0123456789abcdef0123456789abcdef0123456789abcdef";
const ENV: [(&str, &str); 2] = [
    ("PALISADE_KEY", SECRET),
    ("ADMIN", "an-operators-token-of-decent-length"),
];
const QUOTA: u64 = 1_000_000;
/// Whose logins are blocked, and who is on the allowlist.
const BLOCKED: &str = r#"{"ip":"203.0.113.9","account":"ann","device":{"client_id":"device-1"}}"#;
const ALLOWED: &str = "203.0.113.77";

fn key_hash() -> String {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(b"k-1");
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn policy(store: &str) -> String {
    format!(
        "[store]\nurl = \"{store}\"\ntimeout = \"5s\"\n[admin]\ntoken = \"env:ADMIN\"\n\
         [[api_key]]\nhash = \"{}\"\ntier = \"big\"\n[[tier]]\nname = \"big\"\nquota = {QUOTA}\n\
         [[route]]\npath = \"/partner/*\"\nclass = \"partner\"\napi_key = true\n\
         [[class]]\nname = \"partner\"\n\
         [[limit]]\nname = \"partners\"\nby = [\"api_key\"]\nclass = \"partner\"\nrate = \"1000000/s\"\nalgorithm = \"token-bucket\"\n",
        key_hash()
    )
}

/// A directory with a policy file for a store.
fn home(store: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("palisade.toml"), policy(store)).unwrap();
    home
}

fn serve(home: tempfile::TempDir, store: &str) -> Server {
    Server::at(
        home,
        &Options {
            config: Some(&policy(store)),
            env: &ENV,
            ..Options::default()
        },
    )
}

/// Runs a command in a directory.
fn run(home: &Path, args: &[&str]) -> Output {
    let mut command = palisade();
    command.current_dir(home).args(args).envs(ENV);
    command.output().unwrap()
}

fn ok(home: &Path, args: &[&str]) -> Value {
    let output = run(home, &[args, &["--json"]].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(home: &Path, args: &[&str], code: i32) -> String {
    let output = run(home, args);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {told}");
    told
}

fn admin(server: &Server, method: &str, path: &str, body: &str) -> Value {
    let headers = [(
        "authorization",
        "Bearer an-operators-token-of-decent-length",
    )];
    let mut client = Client::connect(server.admin);
    let reply = client.send(method, path, &headers, body.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn used(server: &Server) -> u64 {
    let path = format!("/admin/rate-limit/quota/{}", key_hash());
    admin(server, "GET", &path, "")["quota_used"]
        .as_u64()
        .unwrap()
}

/// One use of the quota, from an address of its own: those have limits too.
fn use_quota(client: &mut Client) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let [.., a, b, c] = NUMBER.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let facts = json!({"ip": format!("10.{a}.{b}.{c}"), "method": "GET", "path": "/partner/1",
        "api_key": "k-1"});
    let answer = client.send("POST", "/v1/check", &[], facts.to_string().as_bytes());
    let answer = answer.json();
    assert_eq!(answer["decision"], "allow", "{answer}");
}

/// Guesses until the account is blocked hard; how long for.
fn block(server: &Server) -> u64 {
    loop {
        let answer = server.post("/v1/guard/login/failure", BLOCKED).json();
        if answer["decision"] == "hard_block" {
            return answer["retry_after"].as_u64().unwrap();
        }
    }
}

fn check(server: &Server) -> Value {
    server.post("/v1/guard/login/check", BLOCKED).json()
}

fn allow(server: &Server) {
    let entry = json!({"type": "ip", "identifier": ALLOWED, "reason": "monitoring",
        "expires_at": "2099-01-01T00:00:00Z"});
    let path = "/admin/rate-limit/allowlist";
    admin(server, "POST", path, &entry.to_string());
}

/// An address on the allowlist is never refused, whatever it asks.
fn is_allowed(server: &Server) -> bool {
    let facts = common::sign_in(ALLOWED);
    (0..15).all(|_| server.post("/v1/check", &facts).json()["decision"] == "allow")
}

/// Everything that was moved is in force on this server.
fn everything_is_there(server: &Server, quota: u64, retry_after: u64, on: &str) {
    assert_eq!(used(server), quota, "{on}");
    let answer = check(server);
    assert_eq!(answer["decision"], "hard_block", "{on}: {answer}");
    let left = answer["retry_after"].as_u64().unwrap();
    assert!(left <= retry_after, "{on}: the block grew to {left}");
    assert!(left + 300 > retry_after, "{on}: of {retry_after} s {left}");
    assert!(is_allowed(server), "{on}");
}

fn stopped(server: Server) -> tempfile::TempDir {
    server.terminate();
    let (code, home) = server.wait();
    assert_eq!(code, Some(0));
    home
}

/// Ends the load when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// When the server says that its store was last copied.
fn last_backup(server: &Server) -> u64 {
    let metrics = server.admin_get("/metrics");
    let name = "rate_limiter_last_backup_seconds ";
    let mut values = metrics
        .text()
        .lines()
        .filter_map(|line| line.strip_prefix(name));
    values.next().unwrap().parse().unwrap()
}

#[expect(clippy::disallowed_methods, reason = "two processes share this time")]
fn now_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}

#[test]
fn l_durable_a_backup_taken_under_load_brings_a_killed_server_back() {
    let server = serve(home("embedded:./data"), "embedded:./data");
    let blocked_for = block(&server);
    allow(&server);
    let (counted, end) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut at_least = 0;
    std::thread::scope(|scope| {
        // Also if something fails below: the threads would go on for ever.
        let _ends = Ends(&end);
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = server.connect();
                while !end.load(Ordering::Relaxed) {
                    use_quota(&mut client);
                    counted.fetch_add(1, Ordering::Relaxed);
                    // Below the thousand a second of an instance.
                    std::thread::sleep(std::time::Duration::from_millis(3));
                }
            });
        }
        assert_eq!(last_backup(&server), 0, "it never was");
        for round in 0..5 {
            let before = counted.load(Ordering::Relaxed) + 50;
            while counted.load(Ordering::Relaxed) < before {
                std::thread::yield_now();
            }
            // What was acknowledged longer than 100 ms ago is on disk.
            at_least = counted.load(Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(400));
            let copy = format!("backup-{round}");
            let told = ok(
                server.home.path(),
                &["backup", &copy, "--config", "palisade.toml"],
            );
            assert_eq!(told["damaged_frames"], 0, "{told}");
            let age = now_seconds().abs_diff(last_backup(&server));
            assert!(age < 60, "{age} s ago, by the server");
        }
    });
    let at_most = counted.load(Ordering::Relaxed);
    signal(server.pid(), "KILL");
    let (_, home) = server.wait();

    let config = ["--config", "palisade.toml"];
    let args = [&["restore", "backup-4"][..], &config].concat();
    let told = refused(home.path(), &args, 2);
    assert!(
        told.contains("not empty") && told.contains("--replace"),
        "{told}"
    );
    let told = ok(home.path(), &[&args[..], &["--replace"]].concat());
    assert!(told["moved_to"].as_str().unwrap().contains("before-"));

    let server = serve(home, "embedded:./data");
    let found = used(&server);
    assert!(
        (at_least..=at_most).contains(&found),
        "{found} of {at_least} to {at_most}"
    );
    everything_is_there(&server, found, blocked_for, "restored");
    let told = refused(server.home.path(), &[&args[..], &["--replace"]].concat(), 3);
    assert!(told.contains("in use by another process"), "{told}");
}

#[test]
fn a_backup_brings_its_secret_unless_it_is_kept_elsewhere_and_is_refused_when_it_was_changed() {
    let env = [("ADMIN", "an-operators-token-of-decent-length")];
    let options = Options {
        env: &env,
        ..Options::default()
    };
    let server = Server::with(&options);
    let blocked_for = block(&server);
    let home = stopped(server);
    let run = |args: &[&str]| {
        let mut command = palisade();
        command.current_dir(home.path()).args(args);
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), told)
    };
    assert_eq!(run(&["backup", "whole"]).0, Some(0));
    assert_eq!(run(&["backup", "bare", "--without-secret"]).0, Some(0));
    let (code, told) = run(&["backup", "whole"]);
    assert_eq!(code, Some(2), "{told}");

    // Elsewhere, with nothing but the copy: the secret comes with it.
    let other = "embedded:./other";
    assert_eq!(run(&["restore", "whole", "--store", other]).0, Some(0));
    let (code, told) = run(&["restore", "bare", "--store", "embedded:./third"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("there is no secret"), "{told}");
    let state = home.path().join("whole/state");
    let mut bytes = fs::read(&state).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&state, bytes).unwrap();
    let (code, told) = run(&["restore", "whole", "--store", "embedded:./third"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("not a complete backup"), "{told}");
    assert!(!home.path().join("third").exists());

    let server = Server::at(
        home,
        &Options {
            args: &["--store", other],
            ..options
        },
    );
    let answer = check(&server);
    assert_eq!(answer["decision"], "hard_block", "{answer}");
    assert!(answer["retry_after"].as_u64().unwrap() <= blocked_for);
}

#[test]
fn a_backup_goes_into_no_directory_that_others_may_enter_and_a_restore_warns_of_one() {
    let home = stopped(Server::start());
    let run = |args: &[&str]| {
        let output = palisade().current_dir(home.path()).args(args).output();
        let output = output.unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), told)
    };
    let make = |name: &str, mode: u32| {
        let path = home.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    for (name, mode) in [("world", 0o755), ("group", 0o750), ("enter", 0o701)] {
        let path = make(name, mode);
        let (code, told) = run(&["backup", name]);
        assert_eq!(code, Some(2), "{name}: {told}");
        assert!(
            told.contains("others may enter `") && told.contains("chmod 700"),
            "{told}"
        );
        assert!(fs::read_dir(path).unwrap().next().is_none(), "{name}");
    }
    make("own", 0o700);
    assert_eq!(run(&["backup", "own"]), (Some(0), String::new()));

    make("open", 0o755);
    let (code, told) = run(&["restore", "own", "--store", "embedded:./open"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains("others may enter the data directory"),
        "{told}"
    );
    let (code, told) = run(&["restore", "own", "--store", "embedded:./fresh"]);
    assert_eq!((code, told.as_str()), (Some(0), ""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_moves_from_the_embedded_store_to_redis_to_postgres_and_back() {
    let redis = RedisServer::start();
    let postgres = PostgresServer::start(&[]).await;
    let database = postgres.url().await;
    tokio::task::spawn_blocking(move || moves(&redis.url(), &database))
        .await
        .unwrap();
}

fn moves(redis: &str, postgres: &str) {
    let server = serve(home("embedded:./data"), "embedded:./data");
    let blocked_for = block(&server);
    allow(&server);
    let mut client = server.connect();
    (0..37).for_each(|_| use_quota(&mut client));
    everything_is_there(&server, 37, blocked_for, "embedded");
    // Its journal is written within 100 ms; the server goes on meanwhile.
    std::thread::sleep(std::time::Duration::from_millis(400));
    let files = tempfile::tempdir().unwrap();
    let file = |name: &str| files.path().join(name).display().to_string();
    let told = ok(
        server.home.path(),
        &["export", &file("1"), "--config", "palisade.toml"],
    );
    assert_eq!(told["exported"]["quotas"], 1, "{told}");
    assert!(told["exported"]["records"].as_u64().unwrap() >= 2, "{told}");
    assert_eq!(told["exported"]["entries"], 1, "{told}");
    drop(server);

    ok(files.path(), &["migrate", "--store", postgres]);
    let stores = [redis, postgres, "embedded:./last"];
    for (number, store) in (1..).zip(stores) {
        let home = home(store);
        let (from, to) = (file(&number.to_string()), file(&(number + 1).to_string()));
        let with = |args: &[&'static str], file: &str| -> Value {
            let config = ["--config", "palisade.toml"];
            let mut all: Vec<&str> = args.to_vec();
            all.push(file);
            all.extend(config);
            ok(home.path(), &all)
        };
        let told = with(&["import-state"], &from);
        assert_eq!(told["imported"]["written"], told["file"], "{store}: {told}");
        let again = with(&["import-state"], &from);
        assert_eq!(again["imported"]["kept"], told["file"], "{store}: {again}");
        let written = with(&["export"], &to);
        assert_eq!(written["exported"], told["file"], "{store}");
        assert_eq!(ends(&from), ends(&to), "{store}: ends are kept");
        let server = serve(home, store);
        everything_is_there(&server, 37, blocked_for, store);
    }

    refusals(files.path(), &file("2"));
}

/// When each record and entry of a file ends, by its id.
fn ends(file: &str) -> Vec<(String, Value)> {
    let text = fs::read_to_string(file).unwrap();
    let mut ends: Vec<(String, Value)> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter_map(|line| {
            let item = line.get("record").or_else(|| line.get("entry"))?.clone();
            Some((item["id"].to_string(), item["expires_at"].clone()))
        })
        .collect();
    ends.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(ends.len() >= 3);
    ends
}

fn refusals(home: &Path, file: &str) {
    let mut command = palisade();
    command
        .args(["import-state", file, "--store", "embedded:./x"])
        .current_dir(home)
        .env("PALISADE_KEY", "another secret, which is long enough");
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("under another secret"), "{told}");
    assert!(!told.contains("long enough"), "a secret is shown");

    let whole = fs::read_to_string(file).unwrap();
    let cut = home.join("cut");
    fs::write(&cut, &whole[..whole.len() - 20]).unwrap();
    let args = ["import-state", text(&cut), "--store", "embedded:./x"];
    let told = refused(home, &args, 2);
    assert!(told.contains("damaged or not whole"), "{told}");
    assert!(!home.join("x").exists(), "nothing was changed");

    // Digests only: nothing in the file names anybody.
    for name in ["203.0.113", "ann", "device-1", "k-1", SECRET] {
        assert!(!whole.contains(&format!("\"{name}")), "{name}");
    }
    let told = refused(home, &["export", file, "--store", "embedded:./data"], 3);
    assert!(told.contains("data directory"), "{told}");
}
