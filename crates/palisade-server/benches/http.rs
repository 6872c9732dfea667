//! `POST /v1/check` on the embedded store beside a bare axum JSON echo on the same
//! runtime layout, in one run with one load generator.
//!
//! `cargo bench -p palisade-server --bench http`. Only the ratio means anything:
//! generator and servers share the machine's cores. With `-- echo` only the echo is
//! started, for a profiler.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark prints what it measured and stops at the first error"
)]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use axum::routing::post;
use axum::{Json, Router};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

const ROUNDS: usize = 5;
const WORKERS: usize = 2;

const POLICY: &str = r#"
[policy]
defaults = false
[store]
url = "memory:"
[[route]]
path = "/*"
class = "all"
[[limit]]
name = "per-address"
by = ["ip"]
class = "all"
rate = "1000000/h"
"#;

fn main() {
    let echo = start_echo();
    if std::env::args().any(|argument| argument == "echo") {
        println!("axum JSON echo      http://{echo}");
        loop {
            std::thread::park();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut server, check) = start_palisade(folder.path());
    let (mut bare, mut full) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(load(echo));
        full.push(load(check));
    }
    server.kill().unwrap();
    server.wait().unwrap();
    let (bare, full) = (median(&mut bare), median(&mut full));
    println!("axum JSON echo      {bare:>8.0}/s");
    println!("POST /v1/check      {full:>8.0}/s");
    println!("ratio               {:>8.1} %", 100.0 * full / bare);
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Requests a second, from a generator of its own process.
fn load(target: SocketAddr) -> f64 {
    let output = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .args(["bench", "--json", "--seconds", "4", "--target"])
        .arg(target.to_string())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(report["errors"], 0, "{report}");
    report["per_second"].as_f64().unwrap()
}

fn start_palisade(folder: &std::path::Path) -> (Child, SocketAddr) {
    std::fs::write(folder.join("policy.toml"), POLICY).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .args([
            "serve",
            "--config",
            "policy.toml",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
        ])
        .current_dir(folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines
        .map_while(Result::ok)
        .find(|line| line.contains("decision API"))
        .and_then(|line| {
            line.split_whitespace()
                .find_map(|word| word.trim_start_matches("http://").parse().ok())
        })
        .expect("the address of the decision API");
    (child, address)
}

/// One current-thread runtime and one socket of the same port per worker.
fn start_echo() -> SocketAddr {
    let first = listener("127.0.0.1:0".parse().unwrap());
    let address = first.local_addr().unwrap();
    let rest = (1..WORKERS).map(|_| listener(address));
    for listener in std::iter::once(first).chain(rest) {
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let app = Router::new().route(
                    "/v1/check",
                    post(|Json(body): Json<Value>| async { Json(body) }),
                );
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, app).await.unwrap();
            });
        });
    }
    address
}

fn listener(address: SocketAddr) -> std::net::TcpListener {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket.listen(1024).unwrap();
    socket.into()
}
