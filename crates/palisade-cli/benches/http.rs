//! `POST /v1/check` on the embedded store beside a bare axum JSON echo on the same
//! runtime layout, in one run with one load generator.
//!
//! `cargo bench -p palisade-cli --bench http`. Only the ratio means anything:
//! generator and servers share the machine's cores. With `-- echo` only the echo is
//! started, for a profiler.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark prints what it measured and stops at the first error"
)]

mod common;

use std::net::SocketAddr;
use std::process::Command;

use axum::routing::post;
use axum::{Json, Router};
use common::{Service, median};
use serde_json::Value;

const ROUNDS: usize = 5;
/// The argument that has this process be the echo.
const ECHO: &str = "echo";

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
    if std::env::args().any(|argument| argument == ECHO) {
        serve_echo();
    }
    let echo = Service::beside(&[ECHO]);
    let folder = tempfile::tempdir().unwrap();
    let server = Service::palisade(folder.path(), POLICY, &[], "decision API");
    let (mut bare, mut full) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(load(echo.address));
        full.push(load(server.address));
    }
    let (bare, full) = (median(&mut bare), median(&mut full));
    println!("axum JSON echo      {bare:>8.0}/s");
    println!("POST /v1/check      {full:>8.0}/s");
    println!("ratio               {:>8.1} %", 100.0 * full / bare);
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

fn serve_echo() -> ! {
    common::serve(|listener| async {
        let app = Router::new().route(
            "/v1/check",
            post(|Json(body): Json<Value>| async { Json(body) }),
        );
        axum::serve(listener, app).await.unwrap();
    })
}
