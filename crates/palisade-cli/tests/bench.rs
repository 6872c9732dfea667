//! `palisade bench` on a store that others use leaves nothing behind, whole or
//! interrupted; of a service it says what it can know.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::process::{Child, Command, Stdio};

use palisade::SystemClock;
use palisade::core::time::Clock;

use common::{Options, Server, address_of, palisade};
use redis_server::{RedisServer, eventually};
use serde_json::Value;

fn bench(server: &RedisServer, seconds: u32) -> Child {
    Command::new(env!("CARGO_BIN_EXE_palisade"))
        .args(["bench", "--store", &server.url(), "--keys", "500"])
        .args(["--concurrency", "8", "--seconds", &seconds.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn keys(server: &RedisServer) -> String {
    server.says(&["DBSIZE"]).trim().to_owned()
}

fn ended(child: Child) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
}

#[test]
fn a_run_removes_what_it_counted() {
    let server = RedisServer::start();
    server.says(&["SET", "another's", "1"]);
    ended(bench(&server, 1));
    assert_eq!(keys(&server), ":1");
}

#[test]
fn an_interrupted_run_removes_what_it_counted() {
    let server = RedisServer::start();
    for signal in ["INT", "TERM"] {
        let child = bench(&server, 600);
        eventually("a load", || keys(&server) != ":0");
        let pid = child.id().to_string();
        let mut kill = Command::new("kill");
        let sent = kill.args([&format!("-{signal}"), &pid]).status().unwrap();
        assert!(sent.success());
        ended(child);
        assert_eq!(keys(&server), ":0", "after SIG{signal}");
    }
}

#[test]
fn a_service_is_asked_with_the_caller_token_and_its_limits_are_not_judged() {
    let token = "a-callers-token-of-decent-length";
    let server = Server::with(&Options {
        config: Some("[server]\ncaller_token = \"env:CALLER\"\n"),
        env: &[("CALLER", token)],
        args: &["--store", "memory:"],
    });
    let target = server.listen.to_string();
    let bench = |token: &str| {
        let output = palisade()
            .args(["bench", "--json", "--seconds", "1", "--keys", "10"])
            .args(["--concurrency", "2", "--target", &target])
            .env("PALISADE_CALLER_TOKEN", token)
            .output()
            .unwrap();
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), said)
    };
    let (code, said) = bench(token);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said["errors"], 0, "{said}");
    assert!(said["decisions"].as_u64().unwrap() > 0, "{said}");
    assert_eq!(said["over_admitted"], Value::Null, "{said}");
    let (code, said) = bench("another");
    assert_eq!(
        (code, &said["decisions"]),
        (Some(1), &Value::from(0)),
        "{said}"
    );
}

/// What a limiter of `limit` requests in a second is found to admit beyond them.
fn over_admission(target: &str, limit: u32, more: &[&str]) -> (Option<i32>, Value) {
    let output = palisade()
        .args(["bench", "--over-admission", "--json", "--seconds", "3"])
        .args(["--concurrency", "16", "--window", "1"])
        .args(["--limit", &limit.to_string(), "--target", target])
        .args(more)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let found = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    (output.status.code(), found)
}

const FIFTY: &str = r#"
[policy]
defaults = false

[[limit]]
name = "each"
by = ["ip"]
rate = "50/s"
algorithm = "sliding-log"

[[limit]]
name = "each-call"
domain = "bench"
descriptor = [{ key = "remote_address" }]
rate = "50/s"
algorithm = "sliding-log"
"#;

#[test]
fn a_limiter_that_keeps_its_limit_is_found_to_admit_none_too_many() {
    let server = Server::with(&Options {
        config: Some(FIFTY),
        args: &["--store", "memory:", "--grpc", "127.0.0.1:0"],
        ..Options::default()
    });
    let rls = address_of(&server.banner, "gRPC").unwrap();
    let rls = format!("grpc://{rls}/bench/remote_address=192.0.2.1");
    for target in [&server.listen.to_string(), &rls] {
        let (code, said) = over_admission(target, 50, &[]);
        assert_eq!(
            (code, &said["over_admitted"]),
            (Some(0), &Value::from(0)),
            "{said}"
        );
        assert!(said["cut_off"].as_u64().unwrap() > 0, "{said}");
        let most = said["most_in_a_window"].as_u64().unwrap();
        assert!(most > 25, "not exercised: {said}");
    }
    // A limiter of 50 is not one of 20.
    let (code, said) = over_admission(&server.listen.to_string(), 20, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said["over_admitted"].as_u64().unwrap() > 0, "{said}");
}

/// Counts requests in a second, and looks before it counts: what others do meanwhile is lost.
#[derive(Default)]
struct RacyLimiter(std::sync::Mutex<(u64, u32)>);

impl RacyLimiter {
    async fn admits(&self, second: u64) -> bool {
        let known = *self.0.lock().unwrap();
        let count = if known.0 == second { known.1 } else { 0 };
        tokio::time::sleep(std::time::Duration::from_millis(3)).await;
        *self.0.lock().unwrap() = (second, count + 1);
        count < 20
    }
}

#[test]
fn a_limiter_that_looks_before_it_counts_is_found_to_admit_too_many() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let limiter = std::sync::Arc::new(RacyLimiter::default());
    let answer = move || {
        let limiter = std::sync::Arc::clone(&limiter);
        async move {
            let second = SystemClock::new().now().0 / 1_000_000;
            match limiter.admits(second).await {
                true => axum::http::StatusCode::NO_CONTENT,
                false => axum::http::StatusCode::TOO_MANY_REQUESTS,
            }
        }
    };
    let app = axum::Router::new().route("/limited", axum::routing::get(answer));
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap();
    let target = format!("http://{}/limited", listener.local_addr().unwrap());
    runtime.spawn(async move { axum::serve(listener, app).await });
    let (code, said) = over_admission(&target, 20, &["--fixed-window"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said["over_admitted"].as_u64().unwrap() > 0, "{said}");
    assert_eq!(said["errors"], 0, "{said}");
}
