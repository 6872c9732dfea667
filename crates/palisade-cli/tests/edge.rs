//! Identity and cost at the edge of a started service: I-PATH, I-COST, I-JWT, I-APIKEY,
//! I-CLIENT, through the proxy and forward-auth.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "common/upstream.rs"]
mod upstream;

use std::sync::atomic::Ordering;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use common::{Client, Options, Reply, Server};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use upstream::Upstream;

const KEY: &str = "0123456789abcdef0123456789abcdef";
/// The test's address is then the client's, not a trusted proxy's.
const CONFIG: &str = "[server]\ntrusted_proxies = []\n\
    [jwt]\nalgorithm = \"HS256\"\nkey = \"env:SIGNING\"\nexpiry = \"optional\"\n\
    [[route]]\npath = \"/health\"\nclass = \"read\"\n\
    [[route]]\npath = \"/v1/a:b\"\nclass = \"auth\"\n";

fn proxy(app: &Upstream) -> Server {
    Server::with(&Options {
        config: Some(CONFIG),
        args: &["--upstream", &app.url(), "--proxy", "127.0.0.1:0"],
        env: &[("SIGNING", KEY)],
    })
}

fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Reply {
    Client::connect(server.proxy.unwrap()).send("GET", path, headers, b"")
}

fn bearer(user: &str) -> String {
    bearer_of(KEY, &json!({"sub": user}))
}

fn bearer_of(key: &str, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&json!({"alg": "HS256"})), part(claims));
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
    format!("Bearer {text}.{signature}")
}

#[test]
fn i_path_the_application_is_given_what_was_judged_and_no_disguise() {
    let app = Upstream::start();
    let server = proxy(&app);
    for (sent, given) in [
        ("/x/../auth/token", "/auth/token"),
        ("/auth/%74oken?a=%2F//..", "/auth/token?a=%2F//.."),
        ("/docs/", "/docs/"),
        ("/v1/a%3ab", "/v1/a:b"),
        ("/a;jsessionid=1/b", "/a;jsessionid=1/b"),
    ] {
        let reply = get(&server, sent, &[]);
        assert_eq!(reply.status, 200, "{sent}");
        assert_eq!(reply.json()["line"], format!("GET {given} HTTP/1.1"));
    }
    let limit = |path: &str| {
        let reply = get(&server, path, &[]);
        reply.header("x-ratelimit-limit").map(str::to_owned)
    };
    assert_eq!(limit("/x/../auth/token").as_deref(), Some("10"));
    let before = app.requests.load(Ordering::SeqCst);
    for path in [
        "//x/auth/token",
        "/auth/x//../../token",
        "//health/auth/token",
        "/auth%2Ftoken",
        "/auth\\token",
        "/a%00",
        "/100%",
        "/AUTH/TOKEN",
    ] {
        let reply = get(&server, path, &[]);
        assert_eq!(reply.status, 400, "{path}");
        assert_eq!(reply.json()["field"], "path");
    }
    assert_eq!(app.requests.load(Ordering::SeqCst), before);
}

#[test]
fn i_path_forward_auth_refuses_what_the_application_may_read_otherwise() {
    let server = Server::start();
    let ask = |uri: &str| {
        let headers = [
            ("X-Forwarded-Uri", uri),
            ("X-Forwarded-For", "203.0.113.80"),
        ];
        Client::connect(server.listen)
            .send("GET", "/forward-auth", &headers, b"")
            .status
    };
    assert_eq!(ask("/auth/token/"), 200);
    assert_eq!(ask("/files/a%20b"), 200);
    for disguise in [
        "/x/../auth/token",
        "/auth/%74oken",
        "//auth/token",
        "/Auth/Token",
    ] {
        assert_eq!(ask(disguise), 400, "{disguise}");
    }
}

#[test]
fn i_path_a_check_reads_escaped_slashes_as_the_policy_says() {
    let check = |config: &str| {
        let server = Server::configured(config);
        let body = json!({"ip": "203.0.113.81", "method": "GET", "path": "/projects/a%2Fb"});
        Client::connect(server.listen).send("POST", "/v1/check", &[], body.to_string().as_bytes())
    };
    assert_eq!(check("").status, 400);
    let literal = "[identity]\nencoded_slash = \"literal\"\n\
        [[route]]\npath = \"/projects/a%2fb\"\nclass = \"admin\"\n";
    assert_eq!(check(literal).json()["limits"][0]["class"], "admin");
}

#[test]
fn i_apikey_an_applications_own_header_reaches_it() {
    let app = Upstream::start();
    let server = proxy(&app);
    let reply = get(&server, "/things", &[("X-API-Key", "the-applications-own")]);
    assert_eq!(reply.status, 200);
    assert_eq!(reply.json()["headers"]["x-api-key"], "the-applications-own");
}

#[test]
fn i_client_is_found_in_json() {
    let app = Upstream::start();
    let server = proxy(&app);
    let kind = [("Content-Type", "application/json")];
    let mut client = Client::connect(server.proxy.unwrap());
    let reply = client.send("POST", "/auth/token", &kind, br#"{"client_id":"spa"}"#);
    assert_eq!(reply.status, 200);
    assert_eq!(reply.json()["body"], r#"{"client_id":"spa"}"#);
    let policies = reply.header("ratelimit-policy").unwrap();
    assert!(policies.contains("client-public"), "{policies}");
}

#[test]
fn i_client_a_body_that_hides_its_client_is_refused_and_charged_to_its_address() {
    let app = Upstream::start();
    let server = proxy(&app);
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    let post = |headers: &[(&str, &str)], body: &[u8]| {
        let mut client = Client::connect(server.proxy.unwrap());
        client.send("POST", "/auth/token", headers, body)
    };
    let mut statuses = Vec::new();
    for _ in 0..110 {
        statuses.push(post(&[form, ("Content-Encoding", "gzip")], b"\x1f\x8b").status);
    }
    assert_eq!(statuses[..100], [415; 100]);
    assert_eq!(statuses[100..], [429; 10]);
    assert_eq!(app.requests.load(Ordering::SeqCst), 0);
}

#[test]
fn i_jwt_a_guess_counts_besides_its_class_and_spends_no_signature_when_used_up() {
    let app = Upstream::start();
    let server = proxy(&app);
    let known = bearer("known");
    let with = |token: &str| get(&server, "/things", &[("Authorization", token)]);
    assert_eq!(with(&known).status, 200);
    for guess in 0..10 {
        let reply = with(&format!("Bearer guess.{guess}.x"));
        assert_eq!(reply.status, 200);
        let policies = reply.header("ratelimit-policy").unwrap();
        assert!(policies.contains("ip-auth") && policies.contains("ip-read"));
    }
    assert_eq!(with("Bearer guess.10.x").status, 429);
    assert_eq!(with(&bearer("new")).status, 429, "no signature is verified");
    assert_eq!(with(&known).status, 200, "it was found good before");
    assert_eq!(get(&server, "/things", &[]).status, 200);
}

#[test]
fn i_cost_a_body_is_not_waited_for_when_the_address_has_used_up_its_limit() {
    let app = Upstream::start();
    let server = proxy(&app);
    let mut client = Client::connect(server.proxy.unwrap());
    for _ in 0..10 {
        assert_eq!(client.send("POST", "/auth/token", &[], b"a=b").status, 200);
    }
    let mut client = Client::connect(server.proxy.unwrap());
    let head =
        "POST /auth/token HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nContent-Length: 65536\r\n\r\n";
    client.write(head.as_bytes()).unwrap();
    assert_eq!(client.read_reply().unwrap().status, 429);
    assert_eq!(app.requests.load(Ordering::SeqCst), 10);
}

#[test]
fn i_cost_what_is_refused_unread_is_charged_to_its_address() {
    let app = Upstream::start();
    let server = proxy(&app);
    let mut client = Client::connect(server.proxy.unwrap());
    let mut statuses = Vec::new();
    for _ in 0..110 {
        statuses.push(client.send("GET", "//", &[], b"").status);
    }
    assert_eq!(statuses[..100], [400; 100]);
    assert_eq!(statuses[100..], [429; 10]);

    let forwarded = Server::start();
    let long = format!("203.0.113.9{}", ", 127.0.0.1".repeat(60));
    let mut client = Client::connect(forwarded.listen);
    let headers = [
        ("X-Forwarded-Uri", "/things"),
        ("X-Forwarded-For", long.as_str()),
    ];
    let mut ask = || client.send("GET", "/forward-auth", &headers, b"").status;
    let statuses: Vec<u16> = (0..110).map(|_| ask()).collect();
    assert_eq!(statuses[..100], [400; 100]);
    assert_eq!(statuses[100..], [429; 10]);
}

/// Two requests of a user a minute, from whatever address.
const RELOADED: &str = "[policy]\ndefaults = false\n\
    [jwt]\nalgorithm = \"HS256\"\nkey = \"file:key\"\nleeway = \"0s\"\n\
    [admin]\njwt = true\n\
    [[route]]\npath = \"/*\"\nclass = \"read\"\n\
    [[limit]]\nname = \"users\"\nby = [\"user\"]\nclass = \"read\"\nrate = \"2/min\"\n\
    [[limit]]\nname = \"addresses\"\nby = [\"ip\"]\nclass = \"read\"\nrate = \"1000/min\"\n";
const NEXT_KEY: &str = "fedcba9876543210fedcba9876543210";

/// A service with `key` beside its policy file, behind which nothing is.
fn reloaded() -> Server {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("key"), KEY).unwrap();
    let options = Options {
        config: Some(RELOADED),
        ..Options::default()
    };
    Server::at(home, &options)
}

fn administers(server: &Server, key: &str) -> bool {
    let claims = json!({"sub": "ann", "roles": ["admin"], "exp": 4_000_000_000_u64});
    let bearer = bearer_of(key, &claims);
    let headers = [("authorization", bearer.as_str())];
    let reply = Client::connect(server.admin).send("GET", "/admin/blocks", &headers, b"");
    reply.status == 200
}

#[test]
fn s12_a_changed_key_alone_is_reread_and_the_old_one_is_good_no_longer() {
    let server = reloaded();
    let limit_of = |key: &str| {
        let bearer = bearer_of(key, &json!({"sub": "ann", "exp": 4_000_000_000_u64}));
        let headers = [
            ("X-Forwarded-Uri", "/x"),
            ("X-Forwarded-For", "203.0.113.80"),
            ("Authorization", bearer.as_str()),
        ];
        let reply = Client::connect(server.listen).send("GET", "/forward-auth", &headers, b"");
        reply.header("x-ratelimit-limit").map(str::to_owned)
    };
    assert_eq!(limit_of(KEY).as_deref(), Some("2"), "she is known");
    assert!(administers(&server, KEY));
    std::fs::write(server.home.path().join("key"), NEXT_KEY).unwrap();
    common::signal(server.pid(), "HUP");
    common::eventually("the new key is in force", || administers(&server, NEXT_KEY));
    assert!(!administers(&server, KEY));
    assert_eq!(limit_of(NEXT_KEY).as_deref(), Some("2"));
    assert_eq!(limit_of(KEY).as_deref(), Some("1000"), "an unknown token");
}

#[test]
fn s12_trusted_proxies_are_reloaded() {
    let server = reloaded();
    let uses = |address: &str| {
        let headers = [("X-Forwarded-Uri", "/x"), ("X-Forwarded-For", address)];
        let reply = Client::connect(server.listen).send("GET", "/forward-auth", &headers, b"");
        (
            reply.status,
            reply.header("x-ratelimit-remaining").map(str::to_owned),
        )
    };
    assert_eq!(uses("203.0.113.80"), (200, Some("999".to_owned())));
    let narrowed = format!("[server]\ntrusted_proxies = [\"192.0.2.0/24\"]\n{RELOADED}");
    std::fs::write(server.home.path().join("palisade.toml"), narrowed).unwrap();
    common::signal(server.pid(), "HUP");
    common::eventually("its headers are not believed", || {
        uses("203.0.113.81").1.as_deref() != Some("999")
    });
}
