//! The id that a client sees leads to the log line, the audit event and, in a binary with
//! `otlp`, the span of its request, on every surface (I-ID).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking and says why"
)]

#[cfg(feature = "otlp")]
#[path = "common/collector.rs"]
mod collector;
mod common;
#[path = "common/upstream.rs"]
mod upstream;

use std::fs::File;
use std::net::SocketAddr;
use std::process::Stdio;

use common::{Client, Reply, Server, eventually, palisade};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use serde_json::{Value, json};
use upstream::Upstream;

/// One request an hour for each address, and logins by a form. Nothing else.
const POLICY: &str = r#"
[policy]
defaults = false

[store]
url = "memory:"

[log]
level = "info"
format = "json"

[audit]
file = "audit.jsonl"

[admin]
token = "env:ADMIN_TOKEN"

[[route]]
path = "/*"
class = "any"

[lockout]
challenge = "advise"

[[route]]
path = "/login"
method = "POST"
class = "login"
outcome = "status"
username = "form:email"
failure_status = [200]
success_status = [204]

[[limit]]
name = "one"
by = ["ip"]
class = "any"
rate = "1/h"

[[limit]]
name = "logins"
by = []
class = "login"
rate = "100_000/s"
algorithm = "token-bucket"

[[limit]]
name = "per-key"
domain = "edge"
descriptor = [{ key = "key" }]
rate = "1/h"
"#;

const TRUSTS_NOBODY: &str = "[server]\ntrusted_proxies = []\n";
const ADMIN_TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A service whose log, audit and spans are read.
struct Watched {
    server: Server,
    #[cfg(feature = "otlp")]
    spans: collector::Collector,
    _application: Upstream,
}

impl Watched {
    fn start(more: &str) -> Self {
        Self::with(more, &[])
    }

    fn with(more: &str, env: &[(&str, &str)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let application = Upstream::start();
        std::fs::write(home.path().join("p.toml"), format!("{more}{POLICY}")).unwrap();
        let log = File::create(home.path().join("log.jsonl")).unwrap();
        let mut command = palisade();
        command
            .current_dir(home.path())
            .args(["serve", "--config", "p.toml", "--upstream"])
            .arg(application.url())
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--proxy", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
            .env_remove("PALISADE_LOG__LEVEL")
            .env("ADMIN_TOKEN", ADMIN_TOKEN)
            .envs(env.iter().copied())
            .stdout(Stdio::piped())
            .stderr(log);
        #[cfg(feature = "otlp")]
        let spans = collector::Collector::start();
        #[cfg(feature = "otlp")]
        command
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &spans.url)
            .env("OTEL_BSP_SCHEDULE_DELAY", "50");
        Self {
            server: Server::run(command, home),
            #[cfg(feature = "otlp")]
            spans,
            _application: application,
        }
    }

    fn lines(&self, file: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.server.home.path().join(file)).unwrap();
        let whole = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        whole.collect()
    }

    /// Waits until log, audit and spans have told of a refusal under this id.
    #[track_caller]
    fn tells_of(&self, id: &str) {
        let in_log = || {
            self.lines("log.jsonl")
                .iter()
                .any(|line| line["request_id"] == id)
        };
        eventually(&format!("the log line of {id}"), in_log);
        eventually(&format!("the audit event of {id}"), || {
            self.lines("audit.jsonl")
                .iter()
                .any(|event| is_of(event, id))
        });
        #[cfg(feature = "otlp")]
        self.has_spans(id, 2);
    }

    /// Waits for the request's span and for its decision's.
    #[cfg(feature = "otlp")]
    fn has_spans(&self, id: &str, expected: usize) {
        let mut found = 0;
        while found < expected {
            let (_, batch) = self.spans.batches.recv_timeout(common::PATIENCE).unwrap();
            let id = id.as_bytes();
            found += batch.windows(id.len()).filter(|part| *part == id).count();
        }
    }

    fn mentions(&self, text: &str) -> bool {
        ["log.jsonl", "audit.jsonl"].iter().any(|file| {
            let all = std::fs::read_to_string(self.server.home.path().join(file));
            all.unwrap().contains(text)
        })
    }
}

fn is_of(event: &Value, id: &str) -> bool {
    let others = event["request_ids"].as_array();
    event["request_id"] == id || others.is_some_and(|ids| ids.iter().any(|one| one == id))
}

/// The one id of an answer: in its body and its header.
#[track_caller]
fn id_of(reply: &Reply) -> String {
    let id = reply.header("x-request-id").unwrap().to_owned();
    assert_eq!(reply.json()["request_id"], id.as_str(), "{}", reply.text());
    id
}

fn send(address: SocketAddr, request: (&str, &str), headers: &[(&str, &str)], body: &str) -> Reply {
    Client::connect(address).send(request.0, request.1, headers, body.as_bytes())
}

#[test]
fn i_id_decision_api_the_answers_id_is_in_log_audit_and_span() {
    let watched = Watched::start("");
    let facts = json!({"ip": "203.0.113.5", "method": "GET", "path": "/x"}).to_string();
    let check = |headers: &[_]| {
        send(
            watched.server.listen,
            ("POST", "/v1/check"),
            headers,
            &facts,
        )
    };
    assert_eq!(check(&[]).json()["decision"], "allow");
    let first = id_of(&check(&[]));
    let again = id_of(&check(&[]));
    assert_ne!(first, again);
    let sent = id_of(&check(&[("X-Request-Id", "from-the-backend")]));
    assert_eq!(sent, "from-the-backend");
    for id in [first, again, sent] {
        watched.tells_of(&id);
    }
}

#[test]
fn i_id_guard_commands_the_answers_id_is_in_log_audit_and_span() {
    let watched = Watched::start("");
    let facts = json!({"ip": "203.0.113.5", "account": "ann",
        "device": {"fingerprint": "d1", "confidence": "medium"}});
    // An end user may have chosen the header's id, which would tell retries apart: it only
    // correlates.
    let fail = || {
        let headers = [("X-Request-Id", "of-the-user")];
        let path = ("POST", "/v1/guard/login/failure");
        send(watched.server.listen, path, &headers, &facts.to_string())
    };
    let replies = [fail(), fail(), fail()];
    assert_eq!(replies[2].json()["decision"], "hard_block");
    let id = id_of(&replies[2]);
    assert_ne!(id, "of-the-user");
    watched.tells_of(&id);
    let events = watched.lines("audit.jsonl");
    let event = events.iter().find(|event| is_of(event, &id)).unwrap();
    assert_eq!(event["correlation_id"], "of-the-user");
}

#[test]
fn i_id_batch_every_check_has_an_id_and_the_batchs_own_correlates_them() {
    let watched = Watched::start("");
    let check = json!({"ip": "203.0.113.6", "method": "GET", "path": "/x"});
    let body = json!({"checks": [check, check, check]}).to_string();
    let reply = send(watched.server.listen, ("POST", "/v1/batch"), &[], &body);
    let batch = id_of(&reply);
    let answers = reply.json()["answers"].as_array().unwrap().clone();
    assert_eq!(answers[1]["decision"], "deny");
    for answer in &answers[1..] {
        watched.tells_of(answer["request_id"].as_str().unwrap());
    }
    let log = watched.lines("log.jsonl");
    let of_batch = log
        .iter()
        .filter(|line| line["correlation_id"] == batch.as_str());
    assert_eq!(of_batch.count(), 2);
}

#[test]
fn i_id_forward_auth_first_and_repeated_denials_are_found_by_their_ids() {
    let watched = Watched::start("");
    let ask = |more: &[(&str, &str)]| {
        let mut headers = vec![
            ("X-Forwarded-For", "203.0.113.7"),
            ("X-Forwarded-Method", "GET"),
            ("X-Forwarded-Uri", "/x"),
        ];
        headers.extend_from_slice(more);
        send(
            watched.server.listen,
            ("GET", "/forward-auth"),
            &headers,
            "",
        )
    };
    assert_eq!(ask(&[]).status, 200);
    let ids = [ask(&[]), ask(&[]), ask(&[("X-Request-Id", "of-nginx")])].map(|reply| {
        assert_eq!(reply.status, 429);
        id_of(&reply)
    });
    assert_eq!(ids[2], "of-nginx");
    for id in ids {
        watched.tells_of(&id);
    }
}

#[test]
fn i_id_proxy_denials_and_guarded_logins_are_found_by_the_id_that_the_application_got() {
    let watched = Watched::start("");
    let proxy = watched.server.proxy.unwrap();
    let ip = [("X-Forwarded-For", "203.0.113.8")];
    let allowed = send(proxy, ("GET", "/x"), &ip, "");
    assert_eq!(allowed.status, 200);
    let id = allowed.header("x-request-id").unwrap();
    assert!(allowed.text().contains(id), "{}", allowed.text());
    for _ in 0..2 {
        let denied = send(proxy, ("GET", "/x"), &ip, "");
        assert_eq!(denied.status, 429);
        watched.tells_of(&id_of(&denied));
    }
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    let login = || {
        send(
            proxy,
            ("POST", "/login"),
            &[ip[0], form],
            "email=ann&password=x",
        )
    };
    let refused = (0..40).map(|_| login()).find(|reply| reply.status == 429);
    watched.tells_of(&id_of(&refused.expect("the guard refuses at last")));
    watched.tells_of(&id_of(&login()));
}

#[test]
fn i_id_envoy_the_refusals_body_and_header_carry_the_calls_id() {
    let watched = Watched::start("");
    let address = common::address_of(&watched.server.banner, "gRPC").unwrap();
    let ask = async |id: Option<&'static str>| {
        let url = format!("http://{address}");
        let mut client = RateLimitServiceClient::connect(url).await.unwrap();
        let mut request = tonic::Request::new(RateLimitRequest {
            domain: "edge".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![Entry {
                    key: "key".to_owned(),
                    value: "v".to_owned(),
                }],
                ..RateLimitDescriptor::default()
            }],
            hits_addend: 1,
        });
        if let Some(id) = id {
            request
                .metadata_mut()
                .insert("x-request-id", id.parse().unwrap());
        }
        client
            .should_rate_limit(request)
            .await
            .unwrap()
            .into_inner()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let answers = runtime.unwrap().block_on(async {
        let _allowed = ask(None).await;
        [
            ask(None).await,
            ask(None).await,
            ask(Some("of-envoy")).await,
        ]
    });
    for answer in answers {
        let body: Value = serde_json::from_slice(&answer.raw_body).unwrap();
        let mut headers = answer.response_headers_to_add.iter();
        let header = headers.find(|header| header.key == "X-Request-Id").unwrap();
        assert_eq!(body["request_id"], header.value.as_str());
        watched.tells_of(&header.value);
    }
}

#[test]
fn i_id_admin_an_operators_id_is_in_the_audit() {
    let watched = Watched::start("");
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    let body = json!({"type": "ip", "identifier": "192.0.2.9", "reason": "test"}).to_string();
    let path = ("POST", "/admin/rate-limit/allowlist");
    let add = |authorization: &str| {
        let headers = [
            ("Authorization", authorization),
            ("Content-Type", "application/json"),
            ("X-Request-Id", "by-the-operator"),
        ];
        send(watched.server.admin, path, &headers, &body)
    };
    let stranger = add("Bearer wrong");
    assert_eq!(stranger.status, 401);
    assert_ne!(stranger.header("x-request-id"), Some("by-the-operator"));
    let added = add(&bearer);
    assert_eq!(added.header("x-request-id"), Some("by-the-operator"));
    eventually("the audit event", || {
        let events = watched.lines("audit.jsonl");
        events
            .iter()
            .any(|event| event["request_id"] == "by-the-operator")
    });
}

#[test]
fn i_id_a_client_that_is_no_trusted_proxy_does_not_choose_the_id() {
    let watched = Watched::start(TRUSTS_NOBODY);
    let proxy = watched.server.proxy.unwrap();
    let chosen = [("X-Request-Id", "chosen-by-a-stranger")];
    let allowed = send(proxy, ("GET", "/x"), &chosen, "");
    assert_eq!(allowed.status, 200);
    assert!(!allowed.text().contains("chosen-by-a-stranger"));
    let denied = send(proxy, ("GET", "/x"), &chosen, "");
    assert_eq!(denied.status, 429);
    watched.tells_of(&id_of(&denied));
    let headers = [
        ("X-Forwarded-Uri", "/x"),
        ("X-Forwarded-Method", "GET"),
        chosen[0],
    ];
    let asked = send(
        watched.server.listen,
        ("GET", "/forward-auth"),
        &headers,
        "",
    );
    assert_eq!(asked.status, 429, "{}", asked.text());
    watched.tells_of(&id_of(&asked));
    assert!(!watched.mentions("chosen-by-a-stranger"));
}

#[test]
fn i_id_an_invalid_id_of_a_trusted_proxy_is_replaced() {
    let watched = Watched::start("");
    let proxy = watched.server.proxy.unwrap();
    let long = "x".repeat(129);
    for sent in ["a b", "a\tb", "caf\u{e9}", "", &long] {
        let headers = [("X-Forwarded-For", "203.0.113.9"), ("X-Request-Id", sent)];
        let reply = send(proxy, ("GET", "/x"), &headers, "");
        let id = reply.header("x-request-id").unwrap();
        assert_ne!(id, sent);
        assert_eq!(id.len(), 32, "{id}");
    }
    // Two lines: readers behind could take either.
    let twice = [("X-Request-Id", "one"), ("X-Request-Id", "two")];
    let reply = send(proxy, ("GET", "/x"), &twice, "");
    assert_eq!(reply.header("x-request-id").unwrap().len(), 32);
}

#[test]
fn i_id_a_caller_without_the_token_does_not_choose_the_id() {
    let token = "0123456789abcdef0123456789abcdef";
    let config = "[server]\ncaller_token = \"env:CALLER_TOKEN\"\n";
    let watched = Watched::with(config, &[("CALLER_TOKEN", token)]);
    let facts = json!({"ip": "203.0.113.5", "method": "GET", "path": "/x"}).to_string();
    let ask = |authorization: &str| {
        let headers = [("Authorization", authorization), ("X-Request-Id", "mine")];
        send(
            watched.server.listen,
            ("POST", "/v1/check"),
            &headers,
            &facts,
        )
    };
    let refused = ask("Bearer wrong");
    assert_eq!(refused.status, 401);
    assert_ne!(id_of(&refused), "mine");
    assert_eq!(id_of(&ask(&format!("Bearer {token}"))), "mine");
}
