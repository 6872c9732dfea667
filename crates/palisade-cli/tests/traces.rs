//! Spans reach a collector, and no identifier with them.
#![cfg(feature = "otlp")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "common/collector.rs"]
mod collector;
mod common;
#[path = "leaks/scan.rs"]
mod scan;

use std::net::TcpListener;

use collector::Collector;
use common::{Options, PATIENCE, Server};
use scan::{Canary, Scanner};
use serde_json::json;

#[test]
fn traces_show_rules_and_modes_and_no_identifier() {
    let collector = Collector::start();
    let server = Server::with(&Options {
        env: &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url),
            ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ],
        ..Options::default()
    });
    let canaries = ["account", "user", "organisation", "device", "path", "class"];
    let mut all = canaries.map(Canary::made).to_vec();
    all.push(Canary::v4("address", "203.0.113.189".parse().unwrap()));
    let [account, user, org, device, path, class] = canaries.map(|name| Canary::made(name).text);
    let facts = json!({"ip": "203.0.113.189", "method": "POST", "path": "/auth/token",
        "user": user, "org": org});
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    for _ in 0..11 {
        let headers = [("traceparent", parent.as_str())];
        let body = facts.to_string();
        server
            .connect()
            .send("POST", "/v1/check", &headers, body.as_bytes());
    }
    let other = json!({"ip": "203.0.113.189", "method": "GET", "path": format!("/{path}"),
        "class": class});
    server.post("/v1/check", &other.to_string());
    let login = json!({"ip": "203.0.113.189", "account": account,
        "device": {"fingerprint": device, "confidence": "medium"}});
    for _ in 0..3 {
        server.post("/v1/guard/login/failure", &login.to_string());
    }
    let first = collector.batches.recv_timeout(PATIENCE).unwrap();
    server.terminate();
    assert_eq!(server.wait().0, Some(0));
    let mut bytes = first.1;
    assert_eq!(first.0, "/v1/traces");
    while let Ok((_, more)) = collector.batches.try_recv() {
        bytes.extend(more);
    }
    for word in [
        "palisade.rule",
        "L-IP",
        "G-THRESHOLD",
        "palisade.mode",
        "normal",
        "login.failure",
        "hard_block",
        "ip-auth",
        "request",
        "service.name",
    ] {
        assert!(holds(&bytes, word.as_bytes()), "no {word}");
    }
    let trace = u128::from_str_radix(trace, 16).unwrap().to_be_bytes();
    assert!(holds(&bytes, &trace), "the caller's trace goes on");
    assert_eq!(Scanner::new(&all).find(&bytes), None);
}

#[test]
fn traces_a_collector_that_is_away_holds_nothing_up() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let server = Server::with(&Options {
        env: &[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)],
        ..Options::default()
    });
    let answer = server.post("/v1/check", &common::sign_in("203.0.113.1"));
    assert_eq!(answer.json()["decision"], "allow");
    server.terminate();
    assert_eq!(server.wait().0, Some(0));
}

#[test]
fn traces_refuse_a_collector_that_they_cannot_reach_by_design() {
    let output = common::palisade()
        .args(["serve", "--store", "memory:"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector.example")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{said}");
}

fn holds(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|part| part == text)
}
