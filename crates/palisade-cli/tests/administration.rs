//! Administration against the real binary: credentials, allowlist, metrics, audit.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;

use common::{Client, Options, Reply, Server, sign_in};

const TOKEN: &str = "an-operators-token-of-decent-length";

fn administered() -> Server {
    Server::with(&Options {
        config: Some("[admin]\ntoken = \"env:ADMIN_TOKEN\"\n"),
        env: &[("ADMIN_TOKEN", TOKEN)],
        ..Options::default()
    })
}

fn ask(server: &Server, method: &str, path: &str, body: &str) -> Reply {
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str())];
    Client::connect(server.admin).send(method, path, &headers, body.as_bytes())
}

#[test]
fn administration_is_closed_without_a_credential_and_open_with_one() {
    let closed = Server::start();
    for path in ["/", "/openapi.json", "/admin/blocks", "/nowhere"] {
        assert_eq!(ask(&closed, "GET", path, "").status, 401, "{path}");
    }
    for path in [
        "/metrics",
        "/health/live",
        "/health/ready",
        "/health/dependencies",
    ] {
        assert_eq!(closed.admin_get(path).status, 200, "{path}");
    }
    let open = administered();
    assert_eq!(open.admin_get("/openapi.json").status, 401);
    assert_eq!(ask(&open, "GET", "/openapi.json", "").status, 200);
}

#[test]
fn administration_of_the_allowlist_binds_and_leaves_no_address_anywhere() {
    let server = administered();
    let facts = sign_in("203.0.113.77");
    let decide = || server.post("/v1/check", &facts).json()["decision"].clone();
    while decide() == "allow" {}
    let entry = r#"{"type":"ip","identifier":"203.0.113.77","reason":"monitoring"}"#;
    let path = "/admin/rate-limit/allowlist";
    assert_eq!(ask(&server, "POST", path, entry).status, 200);
    assert_eq!(decide(), "allow");

    let metrics = server.admin_get("/metrics");
    for line in [
        "rate_limiter_allowlist_bypasses_total 1\n",
        "rate_limit_exceeded_total{scope=\"ip\",endpoint_class=\"auth\"} 1\n",
    ] {
        assert!(metrics.text().contains(line), "{line}{}", metrics.text());
    }
    assert!(!metrics.text().contains("203.0.113.77"));

    server.terminate();
    let (code, home) = server.wait();
    assert_eq!(code, Some(0));
    let audit = home.path().join("palisade-data/audit.jsonl");
    let audit = std::fs::read_to_string(audit).unwrap();
    for event in [
        "\"rate_limit_exceeded\"",
        "\"rate_limit_allowlist_added\"",
        "\"rate_limit_allowlist_bypassed\"",
    ] {
        assert_eq!(audit.matches(event).count(), 1, "{event}: {audit}");
    }
    assert!(!audit.contains("203.0.113.77"));
}
