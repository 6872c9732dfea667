//! Requests in progress, bounded by the application's measured latency (AD-LOAD).

use std::io::Write;
use std::net::Shutdown;

use super::common::eventually;
use super::slots::{DirectedUpstream, HEAD, asks, status};
use super::*;

/// One request in progress.
const ONE: &str = r#"
[server]
trusted_proxies = []

[policy]
defaults = false

[adaptive]
protect = "upstream"
min = 1
max = 1

[[limit]]
name = "requests"
by = ["ip"]
rate = "100_000/min"
"#;

#[test]
fn ad_load_a_request_holds_its_place_until_the_head_of_the_answer() {
    let app = DirectedUpstream::start();
    let server = proxy(ONE, &app.url);
    let mut first = asks(&server);
    let mut answers = app.next();
    let shed = connect(&server).send("GET", "/", &[], b"");
    assert_eq!(shed.status, 503);
    assert_eq!(shed.json()["error"], "service_unavailable");
    let wait: u64 = shed.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&wait), "{wait}");
    answers.write_all(HEAD).unwrap();
    assert_eq!(first.read_head().unwrap().0, 200);
    assert_eq!(status(&server, &app), 200, "only the body goes on");
    let metrics = server.admin_get("/metrics");
    let metrics = metrics.text();
    for line in [
        "rate_limiter_load_limit 1\n",
        "rate_limiter_load_in_progress 0\n",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
}

#[test]
fn ad_load_an_application_that_dies_frees_the_place() {
    let app = DirectedUpstream::start();
    let server = proxy(ONE, &app.url);
    let mut first = asks(&server);
    app.next().shutdown(Shutdown::Both).unwrap();
    assert_eq!(first.read_reply().unwrap().status, 502);
    eventually("it is free", || status(&server, &app) == 200);
}

#[test]
fn ad_load_a_client_that_is_slow_to_send_takes_no_place() {
    let app = DirectedUpstream::start();
    let server = proxy(ONE, &app.url);
    let mut slow = connect(&server);
    slow.write(b"GET /work HTTP/1.1\r\nHost: t\r\n").unwrap();
    assert_eq!(status(&server, &app), 200);
}
