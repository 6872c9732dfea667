//! The dashboard of the real binary: over HTTP, and in a real Chromium.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "common/node.rs"]
mod node;

#[path = "dashboard/browser.rs"]
mod browser;
#[path = "dashboard/challenge.rs"]
mod challenge;
#[path = "dashboard/http.rs"]
mod http;
#[allow(dead_code, reason = "each test file uses a part of it")]
#[path = "login_proxy/scripted.rs"]
mod scripted;

use std::collections::BTreeSet;

use common::{Client, Options, Reply, Server};
use serde_json::{Value, json};

const TOKEN: &str = "an-operators-token-of-decent-length";
const VIEWER: &str = "a-viewers-token-of-decent-length";
/// What may appear nowhere.
const CANARIES: [&str; 3] = ["canary", "203.0.113.77", TOKEN];

const POLICY: &str = r#"
[admin]
token = "env:ADMIN_TOKEN"
viewer_token = "env:VIEWER_TOKEN"

[[route]]
path = "/reports/*"
class = "reports"

[[limit]]
name = "reports-per-user"
by = ["user"]
class = "reports"
rate = "3/min"

[[limit]]
name = "tokens-per-org"
by = ["org"]
rate = "10_000/h"
algorithm = "fixed-window"
unit = "tokens"

[[api_key]]
hash = "KEY_HASH"
tier = "free"
"#;

const API_KEY: &str = "canary-api-key";

const CREDENTIALS: [(&str, &str); 2] = [("ADMIN_TOKEN", TOKEN), ("VIEWER_TOKEN", VIEWER)];

fn key_hash() -> String {
    palisade_core::policy::hash_api_key(API_KEY)
}

fn policy() -> String {
    POLICY.replace("KEY_HASH", &key_hash())
}

fn start() -> Server {
    start_with(&policy())
}

fn start_with(policy: &str) -> Server {
    Server::with(&Options {
        config: Some(policy),
        env: &CREDENTIALS,
        ..Options::default()
    })
}

/// A browser without a window: a cookie and the page's token.
struct Page<'s> {
    server: &'s Server,
    cookie: String,
    csrf: String,
}

impl<'s> Page<'s> {
    fn sign_in(server: &'s Server, token: &str) -> Self {
        let reply = post_token(server, token);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let cookie = reply.header("set-cookie").unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        let csrf = reply.json()["csrf"].as_str().unwrap().to_owned();
        Self {
            server,
            cookie,
            csrf,
        }
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Reply {
        let headers = [
            ("cookie", self.cookie.as_str()),
            ("x-csrf-token", self.csrf.as_str()),
        ];
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let reply =
            Client::connect(self.server.admin).send(method, path, &headers, body.as_bytes());
        let shown = String::from_utf8_lossy(&reply.body).into_owned();
        for canary in CANARIES {
            assert!(!shown.contains(canary), "{path} shows {canary}: {shown}");
        }
        reply
    }

    fn get(&self, path: &str) -> Value {
        let reply = self.ask("GET", path, &Value::Null);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        reply.json()
    }

    /// Every running block, read in pages of about so many; and how many pages it took.
    fn blocks(&self, limit: usize) -> (BTreeSet<String>, usize) {
        let (mut seen, mut pages) = (BTreeSet::new(), 0);
        let mut after = String::new();
        loop {
            let listing = self.get(&format!("/admin/blocks?limit={limit}{after}"));
            for block in listing["blocks"].as_array().unwrap() {
                assert!(!block["words"].as_str().unwrap().is_empty());
                let name = format!("{}{}{}", block["record"], block["id"], block["key"]);
                assert!(seen.insert(name), "twice: {block}");
            }
            pages += 1;
            match listing["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return (seen, pages),
            }
        }
    }

    fn look_up(&self, subject: &Value) -> Value {
        let reply = self.ask("POST", "/admin/lookup", subject);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }
}

fn post_token(server: &Server, token: &str) -> Reply {
    let body = json!({ "token": token }).to_string();
    let path = "/dashboard/session";
    Client::connect(server.admin).send("POST", path, &[], body.as_bytes())
}

/// One failed login of the account.
fn fail(server: &Server, account: &str) -> Value {
    let body = json!({"ip": "203.0.113.77", "account": account, "device": {"client_id": "d1"}});
    let reply = server.post("/v1/guard/login/failure", &body.to_string());
    reply.json()
}

/// Whether a login of the account may go on.
fn may_log_in(server: &Server, account: &str) -> bool {
    let body = json!({"ip": "203.0.113.77", "account": account, "device": {"client_id": "d1"}});
    let reply = server.post("/v1/guard/login/check", &body.to_string());
    reply.json()["decision"] == "allow"
}
