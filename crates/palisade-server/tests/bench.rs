//! `palisade bench` on a store that others use leaves nothing behind, whole or
//! interrupted.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::process::{Child, Command, Stdio};

use redis_server::{RedisServer, eventually};

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
