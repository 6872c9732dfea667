//! What callers and clients see: status, headers and body of every kind of answer,
//! on every surface that gives it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "surfaces/show.rs"]
mod show;
#[path = "common/upstream.rs"]
mod upstream;

use common::{Client, Options, Server};
use serde_json::{Value, json};
use show::{shown, together};
use upstream::Upstream;

const ALL_FAMILIES: &str = "[server]\nheaders = [\"x-ratelimit\", \"ietf\", \"org\"]\n";

/// A request as each surface is told of it.
#[derive(Clone, Default)]
struct Asked<'a> {
    ip: &'a str,
    method: &'a str,
    path: &'a str,
    /// Facts by their name, and the header that says the same.
    more: &'a [(&'a str, &'a str)],
}

impl Asked<'_> {
    fn facts(&self) -> Value {
        let mut facts = json!({"ip": self.ip, "method": self.method, "path": self.path,
            "user_agent": "test", "request_id": "r-1"});
        for (name, value) in self.more {
            facts[*name] = match *name {
                "scopes" => json!([value]),
                "client" => json!({"id": value, "type": "public"}),
                _ => json!(value),
            };
        }
        facts
    }

    fn headers(&self) -> Vec<(String, String)> {
        let mut headers = vec![
            ("X-Forwarded-For".to_owned(), self.ip.to_owned()),
            ("X-Request-Id".to_owned(), "r-1".to_owned()),
        ];
        for (name, value) in self.more {
            headers.push(match *name {
                "api_key" => ("X-API-Key".to_owned(), (*value).to_owned()),
                "client" => ("Authorization".to_owned(), basic(value)),
                name => (format!("X-Palisade-{name}"), (*value).to_owned()),
            });
        }
        headers
    }
}

fn basic(client: &str) -> String {
    use base64::Engine as _;
    let pair = format!("{client}:secret");
    let encoded = base64::engine::general_purpose::STANDARD.encode(pair);
    format!("Basic {encoded}")
}

/// A service with every surface.
struct Surfaces {
    server: Server,
    _upstream: Upstream,
}

impl Surfaces {
    fn start(config: &str) -> Self {
        Self::with(config, &[], &[])
    }

    fn with(config: &str, args: &[&str], env: &[(&str, &str)]) -> Self {
        let upstream = Upstream::start();
        let url = upstream.url();
        let mut all = vec!["--upstream", url.as_str(), "--proxy", "127.0.0.1:0"];
        all.extend(args);
        let config = format!("{ALL_FAMILIES}[identity]\nheaders = true\n{config}");
        let server = Server::with(&Options {
            config: Some(&config),
            args: &all,
            env,
        });
        Self {
            server,
            _upstream: upstream,
        }
    }

    fn check(&self, asked: &Asked<'_>) -> String {
        let body = asked.facts().to_string();
        shown(&self.server.post("/v1/check", &body))
    }

    fn batch(&self, asked: &Asked<'_>) -> String {
        let body = json!({"checks": [asked.facts()]}).to_string();
        shown(&self.server.post("/v1/batch", &body))
    }

    fn forward_auth(&self, asked: &Asked<'_>) -> String {
        let mut headers = asked.headers();
        headers.push(("X-Forwarded-Method".to_owned(), asked.method.to_owned()));
        headers.push(("X-Forwarded-Uri".to_owned(), asked.path.to_owned()));
        let headers = borrowed(&headers);
        let mut client = Client::connect(self.server.listen);
        shown(&client.send("GET", "/forward-auth", &headers, b""))
    }

    fn proxy(&self, asked: &Asked<'_>) -> String {
        let headers = asked.headers();
        let headers = borrowed(&headers);
        let mut client = Client::connect(self.server.proxy.unwrap());
        let mut reply = client.send(asked.method, asked.path, &headers, b"");
        if reply.header("x-app").is_some() {
            reply.body = b"{\"from\":\"the application\"}".to_vec();
        }
        shown(&reply)
    }

    /// Every surface's answer to the `n`th request of an address of its own.
    fn each(&self, n: usize, path: &str, more: &[(&str, &str)]) -> String {
        let ask = |host: u8, surface: &dyn Fn(&Asked<'_>) -> String| {
            let ip = format!("203.0.113.{host}");
            let method = if path.starts_with("/me") {
                "GET"
            } else {
                "POST"
            };
            let asked = Asked {
                ip: &ip,
                method,
                path,
                more,
            };
            (0..n).fold(String::new(), |_, _| surface(&asked))
        };
        together(&[
            ("POST /v1/check", ask(1, &|asked| self.check(asked))),
            ("POST /v1/batch", ask(2, &|asked| self.batch(asked))),
            ("/forward-auth", ask(3, &|asked| self.forward_auth(asked))),
            ("proxy", ask(4, &|asked| self.proxy(asked))),
        ])
    }

    fn guard(&self, command: &str, facts: &Value) -> String {
        let path = format!("/v1/guard/{command}");
        shown(&self.server.post(&path, &facts.to_string()))
    }
}

fn borrowed(headers: &[(String, String)]) -> Vec<(&str, &str)> {
    headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}

#[test]
fn headers_an_allowed_answer_carries_every_family_on_every_surface() {
    let surfaces = Surfaces::start("");
    insta::assert_snapshot!(surfaces.each(1, "/things", &[]));
}

#[test]
fn headers_only_the_chosen_families_are_sent() {
    let server = Server::configured("[server]\nheaders = [\"org\"]\n");
    let facts = json!({"ip": "203.0.113.1", "method": "GET", "path": "/"});
    let answer = server.post("/v1/check", &facts.to_string()).json();
    let names: Vec<&String> = answer["headers"].as_object().unwrap().keys().collect();
    let expected = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"];
    assert_eq!(names, expected);
}

#[test]
fn headers_a_limit_that_refuses_says_so_on_every_surface() {
    let tight = "[[limit]]\nname = \"tight\"\nby = [\"ip\"]\nclass = \"write\"\nrate = \"1/min\"\n";
    let surfaces = Surfaces::start(tight);
    insta::assert_snapshot!(surfaces.each(2, "/things", &[]));
}

#[test]
fn headers_a_users_limit_and_a_clients_limit_have_bodies_of_their_own() {
    let env = [
        ("PALISADE_LIMIT__USER_DATA_EXPORT__RATE", "4/h"),
        ("PALISADE_LIMIT__CLIENT_PUBLIC__RATE", "4/min"),
    ];
    let surfaces = Surfaces::with("", &[], &env);
    // One user and one client: each surface takes one, so that four is reached.
    surfaces.each(1, "/me/data-export", &[("user", "ann")]);
    let user = surfaces.each(1, "/me/data-export", &[("user", "ann")]);
    surfaces.each(1, "/auth/token", &[("client", "spa")]);
    let client = surfaces.each(1, "/auth/token", &[("client", "spa")]);
    insta::assert_snapshot!(format!("{user}\n{client}"));
}

#[test]
fn headers_a_missing_scope_is_a_403_on_every_surface() {
    let scoped = "[[route]]\npath = \"/reports/*\"\nclass = \"write\"\nscope = \"reports:write\"\n";
    let surfaces = Surfaces::start(scoped);
    let reader = [("user", "ann"), ("scopes", "reports:read")];
    insta::assert_snapshot!(surfaces.each(1, "/reports/1", &reader));
}

#[test]
fn headers_api_keys_have_their_own_refusals_and_quota_headers() {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(b"k-1");
    let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let keys = format!(
        "[[api_key]]\nhash = \"{hash}\"\ntier = \"tiny\"\nscopes = [\"partner\"]\n\
         [[tier]]\nname = \"tiny\"\nquota = 5\n\
         [[route]]\npath = \"/partner/*\"\nclass = \"write\"\napi_key = true\n\
         [[route]]\npath = \"/secret/*\"\nclass = \"write\"\nscope = \"secret\"\n"
    );
    let surfaces = Surfaces::start(&keys);
    let key = [("api_key", "k-1")];
    let missing = surfaces.each(1, "/partner/1", &[]);
    let unknown = surfaces.each(1, "/partner/1", &[("api_key", "k-2")]);
    let unscoped = surfaces.each(1, "/secret/1", &key);
    let allowed = surfaces.each(1, "/partner/1", &key);
    surfaces.each(1, "/partner/1", &key);
    let exceeded = surfaces.each(1, "/partner/1", &key);
    insta::assert_snapshot!("api_key_missing", missing);
    insta::assert_snapshot!("api_key_unknown", unknown);
    insta::assert_snapshot!("api_key_without_the_scope", unscoped);
    insta::assert_snapshot!("api_key_allowed", allowed);
    insta::assert_snapshot!("api_key_quota_exceeded", exceeded);
}

#[test]
fn headers_a_lockout_and_a_guard_block_are_answered_as_data() {
    let surfaces = Surfaces::start("");
    let login = |account: &str, known: bool| {
        json!({"ip": "203.0.113.9", "account": account, "request_id": null,
            "device": {"fingerprint": account, "confidence": "medium", "known": known}})
    };
    let attempt = login("ann", false);
    let first = surfaces.guard("login/failure", &attempt);
    let soft = surfaces.guard("login/failure", &attempt);
    let hard = surfaces.guard("login/failure", &attempt);
    let success = surfaces.guard("login/success", &login("bob", true));
    // Of many accounts, so that the guard has nothing against any of them.
    let locked = (0..10).fold(String::new(), |_, n| {
        let mut named = login(&format!("cid{n}"), true);
        named["username"] = json!("cid@example.com");
        surfaces.guard("login/failure", &named)
    });
    insta::assert_snapshot!(together(&[
        ("the first failure", first),
        ("a soft block", soft),
        ("a hard block", hard),
        ("a success", success),
        ("a lockout", locked),
    ]));
}

#[test]
fn headers_a_class_without_a_limit_is_refused_on_every_surface() {
    let bare = "[policy]\ndefaults = false\n\
                [[route]]\npath = \"/*\"\nclass = \"forgotten\"\n\
                [[limit]]\nname = \"other\"\nby = [\"ip\"]\nclass = \"other\"\nrate = \"1/s\"\n\
                [[route]]\npath = \"/other\"\nclass = \"other\"\n";
    let surfaces = Surfaces::start(bare);
    insta::assert_snapshot!(surfaces.each(1, "/things", &[]));
}

#[test]
fn headers_shed_load_is_a_503_on_every_surface() {
    let throttle = "[[limit]]\nname = \"global-instance\"\nby = []\nrate = \"1/h\"\nthrottle = true\n\
                    algorithm = \"token-bucket\"\nburst = 1\naccuracy = \"local\"\n";
    let surfaces = Surfaces::start(throttle);
    surfaces.each(1, "/things", &[]);
    insta::assert_snapshot!(surfaces.each(1, "/things", &[]));
}

#[test]
fn headers_an_outage_shows_on_every_surface() {
    let args = ["--store", "redis://127.0.0.1:1"];
    let secret = "a secret that every node shares, 32 bytes";
    let fallback = "[secrets]\nkey = \"env:KEY\"\n[fallback]\nanonymous_per_minute = 1\n";
    let surfaces = Surfaces::with(fallback, &args, &[("KEY", secret)]);
    let allowed = surfaces.each(1, "/things", &[]);
    let refused = surfaces.each(1, "/things", &[]);
    let closed = surfaces.each(1, "/admin/things", &[]);
    let attempt = json!({"ip": "203.0.113.9", "account": "ann"});
    let login = surfaces.guard("login/check", &attempt);
    insta::assert_snapshot!("outage_within_the_fallback", allowed);
    insta::assert_snapshot!("outage_beyond_the_fallback", refused);
    insta::assert_snapshot!("outage_of_a_closed_class", closed);
    insta::assert_snapshot!("outage_of_a_login", login);
}

#[test]
fn headers_the_kill_switch_shows() {
    let surfaces = Surfaces::with("", &[], &[("RATE_LIMIT_ENABLED", "false")]);
    insta::assert_snapshot!(surfaces.each(1, "/things", &[]));
}

#[test]
fn headers_a_cost_that_never_fits_is_an_error() {
    let surfaces = Surfaces::start("");
    let mut facts = json!({"ip": "203.0.113.1", "method": "POST", "path": "/auth/token"});
    facts["cost"] = json!(1_000_000);
    let reply = surfaces.server.post("/v1/check", &facts.to_string());
    insta::assert_snapshot!(shown(&reply));
}

#[test]
fn headers_what_cannot_be_read_is_a_problem_on_every_surface() {
    let surfaces = Surfaces::start("");
    let bad = Asked {
        ip: "not an address",
        method: "GET",
        path: "/",
        ..Asked::default()
    };
    insta::assert_snapshot!(together(&[
        ("POST /v1/check", surfaces.check(&bad)),
        ("POST /v1/batch", surfaces.batch(&bad)),
        ("/forward-auth", surfaces.forward_auth(&bad)),
        ("proxy", surfaces.proxy(&bad)),
        (
            "guard",
            surfaces.guard("login/check", &json!({"ip": "203.0.113.1"}))
        ),
    ]));
}

#[test]
fn postgres_over_tls_has_its_cryptography_in_every_command() {
    let migrated = common::palisade()
        .args(["migrate", "--store"])
        .arg("postgres://nobody@127.0.0.1:1/none?sslmode=require")
        .output()
        .unwrap();
    assert!(!migrated.status.success());
    let said = String::from_utf8(migrated.stderr).unwrap();
    assert!(!said.contains("cryptography"), "{said}");
}
