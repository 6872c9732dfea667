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

use common::{Options, Server, palisade};
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
