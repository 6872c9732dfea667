//! Requests that are refused before a decision: problem documents that name the
//! field and never a value.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;

use std::time::Duration;

use common::{Client, Options, Server, sign_in};

/// Every value that must not come back carries this word.
const CANARY: &str = "canary";

struct Case {
    name: &'static str,
    method: &'static str,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
    status: u16,
    kind: &'static str,
    field: Option<&'static str>,
}

const OK_BODY: &str = r#"{"ip":"203.0.113.1","method":"GET","path":"/"}"#;

const fn bad(
    name: &'static str,
    body: &'static str,
    kind: &'static str,
    field: Option<&'static str>,
) -> Case {
    Case {
        name,
        method: "POST",
        path: "/v1/check",
        headers: &[],
        body,
        status: 400,
        kind,
        field,
    }
}

const CASES: &[Case] = &[
    bad("no JSON", r#"{"ip":"canary"#, "invalid-json", None),
    bad(
        "trailing text",
        r#"{"ip":"203.0.113.1","method":"GET","path":"/"} canary"#,
        "invalid-json",
        None,
    ),
    bad("empty", "", "invalid-field", Some("body")),
    bad("an array", r#"["canary"]"#, "invalid-field", Some("body")),
    bad("a string", r#""canary""#, "invalid-field", Some("body")),
    bad(
        "no ip",
        r#"{"method":"GET","path":"/"}"#,
        "invalid-field",
        Some("ip"),
    ),
    bad(
        "bad ip",
        r#"{"ip":"canary","method":"GET","path":"/"}"#,
        "invalid-field",
        Some("ip"),
    ),
    bad(
        "ip of another type",
        r#"{"ip":["canary"],"method":"GET","path":"/"}"#,
        "invalid-field",
        Some("ip"),
    ),
    bad(
        "no method",
        r#"{"ip":"203.0.113.1","path":"/"}"#,
        "invalid-field",
        Some("method"),
    ),
    bad(
        "bad method",
        r#"{"ip":"203.0.113.1","method":"CAN ARY canary","path":"/"}"#,
        "invalid-field",
        Some("method"),
    ),
    bad(
        "no path",
        r#"{"ip":"203.0.113.1","method":"GET"}"#,
        "invalid-field",
        Some("path"),
    ),
    bad(
        "relative path",
        r#"{"ip":"203.0.113.1","method":"GET","path":"canary"}"#,
        "invalid-field",
        Some("path"),
    ),
    bad(
        "unknown field",
        r#"{"ip":"203.0.113.1","method":"GET","path":"/","canaries":1}"#,
        "invalid-field",
        Some("canaries"),
    ),
    bad(
        "zero cost",
        r#"{"ip":"203.0.113.1","method":"GET","path":"/","cost":0}"#,
        "invalid-field",
        Some("cost"),
    ),
    bad(
        "negative cost",
        r#"{"ip":"203.0.113.1","method":"GET","path":"/","cost":-1}"#,
        "invalid-field",
        Some("cost"),
    ),
    bad(
        "control character",
        "{\"ip\":\"203.0.113.1\",\"method\":\"GET\",\"path\":\"/\",\"user\":\"canary\\u0000\"}",
        "invalid-field",
        Some("user"),
    ),
    bad(
        "empty user",
        r#"{"ip":"203.0.113.1","method":"GET","path":"/","user":""}"#,
        "invalid-field",
        Some("user"),
    ),
    bad(
        "client without id",
        r#"{"ip":"203.0.113.1","method":"GET","path":"/","client":{"type":"public"}}"#,
        "invalid-field",
        Some("client.id"),
    ),
    bad(
        "bad client type",
        r#"{"ip":"203.0.113.1","method":"GET","path":"/","client":{"id":"x","type":"canary"}}"#,
        "invalid-field",
        Some("client.type"),
    ),
    Case {
        name: "unknown path",
        path: "/v1/canary",
        status: 404,
        kind: "not-found",
        ..bad("", OK_BODY, "", None)
    },
    Case {
        name: "unknown guard command",
        path: "/v1/guard/login/canary",
        status: 404,
        kind: "not-found",
        ..bad("", OK_BODY, "", None)
    },
    Case {
        name: "wrong method",
        method: "GET",
        status: 405,
        kind: "method-not-allowed",
        ..bad("", "", "", None)
    },
    Case {
        name: "wrong method for sessions",
        method: "PUT",
        path: "/v1/guard/sessions",
        status: 405,
        kind: "method-not-allowed",
        ..bad("", "", "", None)
    },
    Case {
        name: "a web page",
        headers: &[("Origin", "https://canary.example")],
        status: 403,
        kind: "forbidden",
        ..bad("", OK_BODY, "", None)
    },
    Case {
        name: "forward-auth without a target",
        path: "/forward-auth",
        method: "GET",
        kind: "invalid-field",
        field: Some("X-Forwarded-Uri"),
        ..bad("", "", "", None)
    },
    Case {
        name: "forward-auth with a broken chain",
        path: "/forward-auth",
        method: "GET",
        headers: &[("X-Forwarded-Uri", "/"), ("X-Forwarded-For", "canary")],
        kind: "invalid-field",
        field: Some("X-Forwarded-For"),
        ..bad("", "", "", None)
    },
];

#[test]
fn every_kind_of_bad_input_gets_a_problem_document_without_its_value() {
    let server = Server::start();
    for case in CASES {
        let reply =
            server
                .connect()
                .send(case.method, case.path, case.headers, case.body.as_bytes());
        assert_eq!(reply.status, case.status, "{}: {}", case.name, reply.text());
        assert_eq!(
            reply.header("content-type"),
            Some("application/problem+json"),
            "{}",
            case.name
        );
        let problem = reply.json();
        assert_eq!(
            problem["type"],
            format!("urn:palisade:problem:{}", case.kind),
            "{}",
            case.name
        );
        assert_eq!(problem["status"], case.status, "{}", case.name);
        assert_eq!(problem["field"].as_str(), case.field, "{}", case.name);
        assert!(problem["title"].is_string() && problem["detail"].is_string());
        assert_eq!(problem["request_id"].as_str(), reply.header("x-request-id"));
        let said = reply.text().replace("canaries", "");
        assert!(!said.contains(CANARY), "{}: {said}", case.name);
    }
}

#[test]
fn a_405_says_what_is_allowed() {
    let server = Server::start();
    let allow = |method: &str, path: &str| {
        let reply = server.connect().send(method, path, &[], b"");
        assert_eq!(reply.status, 405);
        reply.header("allow").unwrap().to_owned()
    };
    assert_eq!(allow("GET", "/v1/check"), "POST");
    assert_eq!(allow("PUT", "/v1/guard/sessions"), "POST, DELETE");
    assert_eq!(allow("DELETE", "/forward-auth"), "GET, POST");
}

#[test]
fn a_body_over_64_kib_is_refused_with_413_however_it_is_sent() {
    let server = Server::start();
    let large = " ".repeat(64 * 1024) + &sign_in("203.0.113.1");
    let announced = server.post("/v1/check", &large);
    assert_eq!(announced.status, 413);
    assert_eq!(
        announced.json()["type"],
        "urn:palisade:problem:body-too-large"
    );

    let mut client = server.connect();
    client
        .write(b"POST /v1/check HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n")
        .unwrap();
    for part in large.as_bytes().chunks(8192) {
        client
            .write(format!("{:x}\r\n", part.len()).as_bytes())
            .unwrap();
        client.write(part).unwrap();
        client.write(b"\r\n").unwrap();
    }
    client.write(b"0\r\n\r\n").unwrap();
    assert_eq!(client.read_reply().unwrap().status, 413);

    let fits = " ".repeat(60 * 1024) + &sign_in("203.0.113.1");
    assert_eq!(server.post("/v1/check", &fits).status, 200);
}

#[test]
fn a_body_that_does_not_arrive_is_given_up() {
    let server = Server::configured("[server]\nheader_timeout = \"300ms\"\n");
    let mut client = server.connect();
    client
        .write(b"POST /v1/check HTTP/1.1\r\nHost: t\r\nContent-Length: 50\r\n\r\n{")
        .unwrap();
    let reply = client.read_reply().unwrap();
    assert_eq!(reply.status, 408);
    assert_eq!(reply.json()["type"], "urn:palisade:problem:timeout");
}

/// The head of a request whose body has 1,000 bytes, and the first of them.
fn slow_body(path: &str, headers: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: t\r\n{headers}Content-Length: 1000\r\n\r\n{{")
        .into_bytes()
}

fn administered(config: &str) -> Server {
    Server::with(&common::Options {
        config: Some(&format!("{config}[admin]\ntoken = \"env:ADMIN_TOKEN\"\n")),
        env: &[("ADMIN_TOKEN", "an-operators-token-of-decent-length")],
        ..common::Options::default()
    })
}

#[test]
fn s1_bodies_that_do_not_arrive_cannot_hold_the_admin_listener() {
    let server = administered("[server]\nheader_timeout = \"300ms\"\nconnections_max = 40\n");
    let held: Vec<Client> = (0..60)
        .map(|_| {
            let mut client = Client::connect(server.admin);
            client.write(&slow_body("/dashboard/session", "")).unwrap();
            client
        })
        .collect();
    let mut probe = Client::connect(server.admin);
    let live = probe.send("GET", "/health/live", &[], b"");
    assert_eq!(live.status, 200);
    drop(held);
}

#[test]
fn s1_a_body_that_does_not_arrive_is_given_up_on_the_admin_listener() {
    let server = administered("[server]\nheader_timeout = \"300ms\"\n");
    let operator = "Authorization: Bearer an-operators-token-of-decent-length\r\n";
    for (path, headers, status) in [
        ("/dashboard/session", "", 408),
        ("/admin/explain", operator, 408),
        ("/admin/explain", "", 401),
        ("/metrics", "", 405),
    ] {
        let mut client = Client::connect(server.admin);
        client.write(&slow_body(path, headers)).unwrap();
        let reply = client.read_reply().unwrap();
        assert_eq!(reply.status, status, "{path}");
        if status == 408 {
            assert_eq!(reply.json()["error"], "request_timeout", "{path}");
        }
    }
}

#[test]
fn headers_that_trickle_are_cut_off_and_idle_connections_are_not_at_once() {
    let server =
        Server::configured("[server]\nheader_timeout = \"200ms\"\nidle_timeout = \"30s\"\n");
    let mut idle = server.connect();
    let mut asks = || {
        idle.send("POST", "/v1/check", &[], OK_BODY.as_bytes())
            .status
    };
    assert_eq!(asks(), 200);
    let mut slow = server.connect();
    slow.write(b"POST /v1/check HTTP/1.1\r\n").unwrap();
    let ended = slow.read_reply();
    assert!(ended.is_err(), "no answer, the connection is closed");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(asks(), 200);
}

/// A gRPC call with a credential, to its end; the header that says how it ended.
fn call_grpc(address: std::net::SocketAddr, token: &str) -> String {
    let url =
        format!("http://{address}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    let output = std::process::Command::new("curl")
        .args([
            "-sS",
            "--max-time",
            "30",
            "--http2-prior-knowledge",
            "-D",
            "-",
        ])
        .args(["-H", "content-type: application/grpc", "-H", "te: trailers"])
        .args(["-H", &format!("authorization: Bearer {token}")])
        .args(["--data-binary", "", &url])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn refused_callers_and_operators_are_counted_by_listener() {
    let config = "[server]\ncaller_token = \"env:CALLER\"\n\
                  [admin]\ntoken = \"env:ADMIN\"\nviewer_token = \"env:VIEWER\"\n";
    let server = Server::with(&Options {
        args: &["--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0"],
        config: Some(config),
        env: &[
            ("CALLER", "correct-horse-battery-staple-of-length"),
            ("ADMIN", "an-operators-token-of-decent-length"),
            ("VIEWER", "a-viewers-token-of-decent-length"),
        ],
    });
    let ask = |address, method: &str, path: &str, token: &str, body: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str())];
        let mut client = Client::connect(address);
        client.send(method, path, &headers, body.as_bytes())
    };
    let (listen, admin) = (server.listen, server.admin);
    assert_eq!(
        ask(listen, "POST", "/v1/check", "wrong", OK_BODY).status,
        401
    );
    assert_eq!(ask(listen, "POST", "/v1/check", "", OK_BODY).status, 401);
    let good = ask(
        listen,
        "POST",
        "/v1/check",
        "correct-horse-battery-staple-of-length",
        OK_BODY,
    );
    assert_eq!(good.status, 200, "which is not counted");

    let grpc = common::address_of(&server.banner, "gRPC").unwrap();
    let told = call_grpc(grpc, "wrong");
    assert!(told.contains("grpc-status: 16"), "{told}");

    let resp = common::address_of(&server.banner, "RESP").unwrap();
    let mut client = Client::connect(resp);
    client
        .write(b"PING\r\nAUTH wrong\r\nAUTH correct-horse-battery-staple-of-length\r\nPING\r\nQUIT\r\n")
        .unwrap();
    let mut told = String::new();
    std::io::Read::read_to_string(&mut client.stream, &mut told).unwrap();
    assert!(told.ends_with("+OK\r\n+PONG\r\n+OK\r\n"), "{told}");

    assert_eq!(ask(admin, "GET", "/metrics", "wrong", "").status, 401);
    assert_eq!(ask(admin, "GET", "/admin/blocks", "wrong", "").status, 401);
    let signed_in = ask(
        admin,
        "POST",
        "/dashboard/session",
        "",
        r#"{"token":"wrong"}"#,
    );
    assert_eq!(signed_in.status, 401);
    let reset = ask(
        admin,
        "POST",
        "/admin/reset",
        "a-viewers-token-of-decent-length",
        "{}",
    );
    assert_eq!(reset.status, 403);

    let metrics = ask(
        admin,
        "GET",
        "/metrics",
        "correct-horse-battery-staple-of-length",
        "",
    );
    let counted = |listener: &str, lacks: &str| {
        let labels = format!("{{listener=\"{listener}\",lacks=\"{lacks}\"}} ");
        let name = "rate_limiter_refused_callers_total".to_owned() + &labels;
        let line = metrics
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    assert_eq!(counted("listen", "token"), "2");
    assert_eq!(counted("grpc", "token"), "1");
    assert_eq!(counted("resp", "token"), "2");
    assert_eq!(counted("admin", "token"), "3");
    assert_eq!(counted("admin", "role"), "1");
    assert_eq!(counted("admin", "certificate"), "0");
}

#[test]
fn a_configured_caller_token_is_asked_for() {
    let server = Server::with(&Options {
        config: Some("[server]\ncaller_token = \"env:CALLER\"\n"),
        env: &[("CALLER", "correct-horse-battery-staple-of-length")],
        ..Options::default()
    });
    let ask = |path: &str, headers: &[(&str, &str)]| {
        let mut client = Client::connect(server.listen);
        client
            .send("POST", path, headers, OK_BODY.as_bytes())
            .status
    };
    assert_eq!(ask("/v1/check", &[]), 401);
    assert_eq!(ask("/v1/check", &[("Authorization", "Bearer wrong")]), 401);
    assert_eq!(
        ask(
            "/v1/check",
            &[(
                "Authorization",
                "Bearer correct-horse-battery-staple-of-lengt"
            )]
        ),
        401
    );
    assert_eq!(
        ask(
            "/v1/check",
            &[(
                "Authorization",
                "Bearer correct-horse-battery-staple-of-length"
            )]
        ),
        200
    );
    assert_eq!(
        ask(
            "/v1/check",
            &[(
                "X-Palisade-Caller",
                "correct-horse-battery-staple-of-length"
            )]
        ),
        200
    );
    // There the bearer token is the end user's.
    let original = ("X-Forwarded-Uri", "/");
    let bearer = (
        "Authorization",
        "Bearer correct-horse-battery-staple-of-length",
    );
    assert_eq!(ask("/forward-auth", &[original, bearer]), 401);
    let caller = (
        "X-Palisade-Caller",
        "correct-horse-battery-staple-of-length",
    );
    assert_eq!(ask("/forward-auth", &[original, caller]), 200);
    let metrics = |headers: &[(&str, &str)]| {
        Client::connect(server.admin)
            .send("GET", "/metrics", headers, b"")
            .status
    };
    assert_eq!((metrics(&[]), metrics(&[caller])), (401, 200));
}

#[test]
fn s9_one_limit_of_guesses_for_every_way_into_the_admin_listener() {
    let (caller, short) = ("a-callers-token-of-decent-length", "a-short-token-of-ann");
    let server = Server::with(&Options {
        config: Some(
            "[server]\ncaller_token = \"env:CALLER\"\n\
             [admin]\ntoken = \"env:ADMIN\"\nviewer_token = \"env:VIEWER\"\n",
        ),
        env: &[
            ("CALLER", caller),
            ("ADMIN", "an-operators-token-of-decent-length"),
            ("VIEWER", short),
        ],
        ..Options::default()
    });
    let mut client = Client::connect(server.admin);
    let mut ask = |(method, path, header, body): (&str, &str, (&str, &str), &str)| {
        client.send(method, path, &[header], body.as_bytes()).status
    };
    let none = ("accept", "*/*");
    let wrong = ("authorization", "Bearer wrong");
    let ways = [
        ("GET", "/admin/blocks", wrong, ""),
        ("GET", "/metrics", wrong, ""),
        ("GET", "/metrics", ("x-palisade-caller", "wrong"), ""),
        ("POST", "/dashboard/session", none, r#"{"token":"wrong"}"#),
    ];
    for number in 0..10 {
        assert_eq!(ask(ways[number % ways.len()]), 401, "{number}");
    }
    for (number, way) in ways.into_iter().enumerate() {
        assert_eq!(ask(way), 429, "{number}");
    }
    let viewer = format!("Bearer {short}");
    let viewer = ("authorization", viewer.as_str());
    let guessable = ask(("GET", "/admin/blocks", viewer, ""));
    assert_eq!(guessable, 429);
    let strong = "Bearer an-operators-token-of-decent-length";
    let beyond_guessing = ask(("GET", "/admin/blocks", ("authorization", strong), ""));
    assert_eq!(beyond_guessing, 200);
    let scraper = ("x-palisade-caller", caller);
    assert_eq!(ask(("GET", "/metrics", scraper, "")), 200);
    let without_guess = ask(("GET", "/admin/blocks", none, ""));
    assert_eq!(without_guess, 401);
    assert_eq!(ask(("GET", "/health/live", none, "")), 200);
}
