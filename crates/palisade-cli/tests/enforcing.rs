//! Forward-auth: statuses and headers applied.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;

use common::{Client, Reply, Server};

fn forward(server: &Server, headers: &[(&str, &str)]) -> Reply {
    Client::connect(server.listen).send("GET", "/forward-auth", headers, b"")
}

#[test]
fn forward_auth_answers_200_then_429_with_headers_and_body() {
    let server = Server::start();
    let original = [
        ("X-Forwarded-Method", "POST"),
        ("X-Forwarded-Uri", "/auth/token?x=1"),
        ("X-Forwarded-For", "203.0.113.9"),
        ("X-Request-Id", "edge-1"),
    ];
    for _ in 0..10 {
        let reply = forward(&server, &original);
        assert_eq!(reply.status, 200);
        assert!(reply.body.is_empty());
        assert_eq!(reply.header("x-ratelimit-limit"), Some("10"));
    }
    let refused = forward(&server, &original);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), Some("60"));
    assert_eq!(refused.header("x-request-id"), Some("edge-1"));
    assert_eq!(refused.header("content-type"), Some("application/json"));
    assert!(refused.header("ratelimit").unwrap().contains("r=0"));
    let body = refused.json();
    assert_eq!(body["error"], "rate_limit_exceeded");
    assert_eq!(body["request_id"], "edge-1");
    assert!(!refused.text().contains("203.0.113.9"));
}

#[test]
fn i_xff_the_rightmost_untrusted_address_counts() {
    let server = Server::start();
    let sign_in = |chain: &str| {
        forward(
            &server,
            &[
                ("X-Forwarded-Method", "POST"),
                ("X-Forwarded-Uri", "/auth/token"),
                ("X-Forwarded-For", chain),
            ],
        )
        .status
    };
    for forged in 0..10 {
        assert_eq!(
            sign_in(&format!("192.0.2.{forged}, 203.0.113.50, 127.0.0.1")),
            200
        );
    }
    assert_eq!(sign_in("192.0.2.99, 203.0.113.50"), 429);
    assert_eq!(sign_in("203.0.113.50, 203.0.113.51"), 200);
}

#[test]
fn t_scope_a_token_without_the_scope_gets_403() {
    let server = Server::configured(
        "[[route]]\npath = \"/reports/*\"\nmethod = \"POST\"\nclass = \"write\"\nscope = \"reports:write\"\n\
         [identity]\nheaders = true\n",
    );
    let post = |scopes: &str| {
        forward(
            &server,
            &[
                ("X-Forwarded-Method", "POST"),
                ("X-Forwarded-Uri", "/reports/1"),
                ("X-Forwarded-For", "203.0.113.52"),
                ("X-Palisade-User", "u-1"),
                ("X-Palisade-Org", "o-1"),
                ("X-Palisade-Scopes", scopes),
            ],
        )
    };
    let refused = post("reports:read");
    assert_eq!(
        (refused.status, refused.json()["error"].clone()),
        (403, "forbidden".into())
    );
    assert_eq!(post("reports:write").status, 200);
}

#[test]
fn l_global_an_overloaded_service_answers_503() {
    let server = Server::configured(
        "[[limit]]\nname = \"global-instance\"\nby = []\nrate = \"1/h\"\nthrottle = true\n\
         algorithm = \"token-bucket\"\nburst = 1\naccuracy = \"local\"\n",
    );
    let get = || {
        forward(
            &server,
            &[
                ("X-Forwarded-Uri", "/"),
                ("X-Forwarded-For", "203.0.113.53"),
            ],
        )
    };
    assert_eq!(get().status, 200);
    let shed = get();
    assert_eq!(shed.status, 503);
    assert!(shed.header("retry-after").is_some());
    assert_eq!(shed.json()["error"], "service_unavailable");
}

#[test]
fn a_client_that_is_no_trusted_proxy_may_not_state_facts() {
    let server = Server::configured("[server]\ntrusted_proxies = [\"192.0.2.0/24\"]\n");
    let reply = forward(&server, &[("X-Forwarded-Uri", "/")]);
    assert_eq!(reply.status, 403);
    assert_eq!(reply.json()["field"], "peer");
}
