//! The administration as an operator uses it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::ArcSwap;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::BodyExt;
use palisade::extract::EdgeConfig;
use palisade::extract::jwt::{JwtKeys, JwtRules, TokenVerifier, parse_algorithm};
use palisade::observe::audit::Sink;
use palisade::observe::{Audit, AuditSettings, DenialLog, Fanout, Metrics};
use palisade::store::memory::{MemoryConfig, MemoryStore};
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_core::facts::RequestFacts;
use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::policy::{
    ApiKey, Dimension, LimitDef, Overage, PolicyParts, PolicySet, Route, hash_api_key,
};
use palisade_core::time::{MINUTE, SECOND};
use palisade_core::{Clock, Id, Keyring, Micros};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::Sha256;
use tower::ServiceExt;

mod attack;
mod keys;
mod reservations;

use super::{Access, GuessLimit, Operations, Peer, document, router};
use crate::surfaces::Edge;

const TOKEN: &str = "the-static-token";
const SIGNING_KEY: &[u8] = b"a signing key of at least thirty-two bytes";
const CANARIES: [&str; 3] = ["canary", "203.0.113.77", "2001:db8:7:7"];

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Sink for Lines {
    fn write(&mut self, lines: &[u8]) -> std::io::Result<()> {
        self.0.lock().extend_from_slice(lines);
        Ok(())
    }
}

struct Desk {
    operations: Operations,
    clock: Arc<VirtualClock>,
    asked: AtomicU32,
    audit: Arc<Audit>,
    lines: Lines,
}

fn policy() -> PolicySet {
    let spec = |n: u32| {
        let n = NonZeroU32::new(n).unwrap();
        BucketSpec::new(Algorithm::SlidingLog, n, Window::Span(MINUTE), None).unwrap()
    };
    let mut route = Route::new("/*").unwrap();
    route.class = Some("read".into());
    PolicySet::new(
        1,
        PolicyParts {
            enabled: true,
            settings: Default::default(),
            routes: vec![route],
            classes: vec![],
            limits: vec![
                LimitDef::new("ip", vec![Dimension::Ip], spec(2)),
                LimitDef::new("org", vec![Dimension::Org], spec(2)),
            ],
            clients: Default::default(),
            api_keys: [(
                hash_api_key("key").into(),
                ApiKey {
                    tier: "free".into(),
                    scopes: None,
                    usage_of: None,
                },
            )]
            .into(),
            tiers: vec![
                ("free".into(), NonZeroU64::new(1), Overage::Blocked),
                ("starter".into(), NonZeroU64::new(1), Overage::Priced(0.5)),
            ],
            bot_patterns: vec![],
        },
    )
    .unwrap()
}

fn desk(configure: impl FnOnce(Access) -> Access) -> Desk {
    let start = Micros::parse_rfc3339("2026-01-01T00:00:00Z").unwrap();
    let virtual_clock = Arc::new(VirtualClock::at(start));
    let clock: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&virtual_clock);
    let access = configure(Access::new(GuessLimit::new(&clock).unwrap()));
    let keyring = || Keyring::new(b"a secret of thirty-two bytes, yes", None).unwrap();
    let shared = Arc::new(keyring());
    let lines = Lines::default();
    let settings = AuditSettings::default();
    let audit = Audit::start(
        Arc::clone(&shared),
        Arc::clone(&clock),
        lines.clone(),
        settings,
    );
    let audit = Arc::new(audit.unwrap());
    let metrics = Arc::new(Metrics::new(Arc::clone(&shared), 1));
    let log = DenialLog::new(Arc::clone(&shared), NonZeroU32::MIN);
    let observer = Fanout::new(shared, metrics, log, Some(Arc::clone(&audit)));
    let store = Arc::new(MemoryStore::new(
        Arc::clone(&clock),
        &MemoryConfig::default(),
    ));
    let engine = Engine::new(EngineConfig {
        observer: Arc::new(observer),
        ..EngineConfig::new(store, policy(), keyring(), clock)
    });
    Desk {
        operations: Operations {
            engine: Arc::new(engine),
            access: Arc::new(access),
            dashboard: None,
            audit: Some(Arc::clone(&audit)),
            read_timeout: std::time::Duration::from_secs(5),
        },
        clock: virtual_clock,
        asked: AtomicU32::new(0),
        audit,
        lines,
    }
}

fn open_desk() -> Desk {
    desk(|access| access.with_operators(Some(&TOKEN.into()), "admin"))
}

fn edge_of(key: &[u8]) -> EdgeConfig {
    let keys = JwtKeys::from_secret(key, parse_algorithm("HS256").unwrap()).unwrap();
    EdgeConfig {
        jwt: Some(Arc::new(TokenVerifier::new(keys, JwtRules::default()))),
        ..EdgeConfig::default()
    }
}

fn jwt_desk() -> Desk {
    jwt_desk_of(&Arc::new(ArcSwap::from_pointee(edge_of(SIGNING_KEY))))
}

fn jwt_desk_of(edge: &Edge) -> Desk {
    desk(|access| {
        let access = access.with_operators(None, "admin");
        access.with_signed_tokens(Some(Arc::clone(edge)))
    })
}

fn signed(claims: &Value) -> String {
    signed_with(SIGNING_KEY, "HS256", claims)
}

fn signed_with(key: &[u8], algorithm: &str, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&json!({"alg": algorithm})), part(claims));
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
    format!("{text}.{signature}")
}

impl Desk {
    /// Sends a request from an address of its own, so that no guess counts for another request.
    async fn ask(
        &self,
        credential: Option<&str>,
        method: &str,
        path: &str,
        body: &str,
    ) -> (StatusCode, Value) {
        let peer = Ipv4Addr::from(self.asked.fetch_add(1, Ordering::Relaxed));
        self.ask_from(peer, credential, method, path, body).await
    }

    async fn ask_from(
        &self,
        peer: Ipv4Addr,
        credential: Option<&str>,
        method: &str,
        path: &str,
        body: &str,
    ) -> (StatusCode, Value) {
        let peer = Peer(SocketAddr::from((peer, 4711)));
        let request = Request::builder().method(method).uri(path);
        let mut request = request.extension(peer);
        if let Some(credential) = credential {
            request = request.header("authorization", format!("Bearer {credential}"));
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let response = router(self.operations.clone())
            .oneshot(request)
            .await
            .unwrap();
        let status = response.status();
        assert!(response.headers().contains_key("x-request-id"), "{path}");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (
            status,
            serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        )
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let (status, answer) = self.ask(Some(TOKEN), method, path, &body).await;
        (status.as_u16(), answer)
    }

    fn events(&self) -> Vec<Value> {
        assert!(self.audit.flush(std::time::Duration::from_secs(10)));
        let text = String::from_utf8(self.lines.0.lock().clone()).unwrap();
        for canary in CANARIES {
            assert!(!text.contains(canary), "{canary} in {text}");
        }
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    async fn allowed(&self, facts: &RequestFacts, n: usize) -> usize {
        let mut count = 0;
        for _ in 0..n {
            let answer = self.operations.engine.check(facts).await;
            count += usize::from(answer.decision.is_allowed());
        }
        count
    }
}

fn request() -> RequestFacts {
    RequestFacts::new("203.0.113.77".parse().unwrap(), "GET", "/")
}

const ALLOWLIST: &str = "/admin/rate-limit/allowlist";

/// Every operation of the document: method and path with its parameters filled in.
fn operations() -> Vec<(String, String)> {
    let document = serde_json::to_value(document::administration()).unwrap();
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let path = path
                .replace("{key}", &hash_api_key("key"))
                .replace("{tenant}", "acme");
            all.push((method.to_uppercase(), path));
        }
    }
    all
}

#[tokio::test]
async fn admin_without_a_credential_configured_everything_is_refused() {
    let desk = desk(|access| access);
    let mut paths = operations();
    paths.push(("GET".to_owned(), "/openapi.json".to_owned()));
    paths.push(("GET".to_owned(), "/nowhere".to_owned()));
    for (method, path) in paths {
        for credential in [None, Some(""), Some(TOKEN)] {
            let (status, body) = desk.ask(credential, &method, &path, "{}").await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{method} {path}");
            let expected =
                json!({"error": "unauthorized", "message": "Admin authentication required"});
            assert_eq!(body, expected);
        }
    }
}

#[tokio::test]
async fn admin_a_wrong_token_is_refused_and_the_right_one_is_not() {
    let desk = open_desk();
    for wrong in [
        "the-static-toke",
        "the-static-token2",
        "The-static-token",
        "",
    ] {
        let (status, _) = desk.ask(Some(wrong), "GET", ALLOWLIST, "").await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{wrong}");
    }
    let (status, _) = desk.ask(Some(TOKEN), "GET", ALLOWLIST, "").await;
    assert_eq!(status, StatusCode::OK);
}

const GUESSER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const STRONG: &str = "a-token-of-at-least-thirty-two-bytes";

impl Desk {
    async fn status(&self, peer: Ipv4Addr, credential: &str) -> u16 {
        let (status, _) = self
            .ask_from(peer, Some(credential), "GET", ALLOWLIST, "")
            .await;
        status.as_u16()
    }

    /// Makes guesses until they are refused unread, and returns how many were read.
    async fn guess(&self) -> usize {
        let mut read = 0;
        for number in 0..5_000 {
            match self
                .status(GUESSER, &format!("guess-number-{number}"))
                .await
            {
                401 => read += 1,
                429 => {}
                other => panic!("{other}"),
            }
        }
        read
    }
}

#[tokio::test]
async fn s9_wrong_bearers_meet_a_limit_that_frees_itself_within_a_minute() {
    let desk = open_desk();
    assert_eq!(desk.guess().await, 10);
    assert_eq!(desk.status(GUESSER, TOKEN).await, 429, "a short token");
    let elsewhere = Ipv4Addr::new(198, 51, 100, 8);
    assert_eq!(desk.status(elsewhere, TOKEN).await, 200);
    desk.clock.advance(30 * SECOND);
    desk.guess().await;
    desk.clock.advance(31 * SECOND);
    assert_eq!(
        desk.status(GUESSER, TOKEN).await,
        200,
        "what is turned away unread counts nothing"
    );
}

#[tokio::test]
async fn s9_guesses_never_lock_out_a_token_that_cannot_be_guessed() {
    let desk = desk(|access| {
        let access = access.with_operators(Some(&STRONG.into()), "admin");
        access.with_viewers(Some(&"another-token-of-thirty-two-bytes".into()), "viewer")
    });
    assert_eq!(desk.guess().await, 10);
    assert_eq!(desk.status(GUESSER, STRONG).await, 200);
    let viewer = "another-token-of-thirty-two-bytes";
    assert_eq!(desk.status(GUESSER, viewer).await, 200);
}

#[tokio::test]
async fn s9_guesses_lock_out_no_verified_token_and_an_expired_one_is_no_guess() {
    let desk = jwt_desk();
    let token =
        |user: &str, exp: u64| signed(&json!({"sub": user, "roles": ["admin"], "exp": exp}));
    let (known, new) = (token("ann", 4_000_000_000), token("bob", 4_000_000_000));
    for _ in 0..50 {
        assert_eq!(desk.status(GUESSER, &token("ann", 1)).await, 401);
    }
    assert_eq!(desk.status(GUESSER, &known).await, 200);
    assert_eq!(desk.guess().await, 10);
    assert_eq!(desk.status(GUESSER, &known).await, 200);
    assert_eq!(desk.status(GUESSER, &new).await, 429, "its signature costs");
    desk.clock.advance(61 * SECOND);
    assert_eq!(desk.status(GUESSER, &new).await, 200);
}

#[tokio::test]
async fn s12_a_token_of_a_replaced_key_administers_no_longer() {
    let edge: Edge = Arc::new(ArcSwap::from_pointee(edge_of(SIGNING_KEY)));
    let desk = jwt_desk_of(&edge);
    let claims = json!({"sub": "ann", "roles": ["admin"], "exp": 4_000_000_000_u64});
    let old = signed(&claims);
    assert_eq!(desk.status(GUESSER, &old).await, 200);
    let next = b"another key of at least thirty-two bytes";
    edge.store(Arc::new(edge_of(next)));
    assert_eq!(desk.status(GUESSER, &old).await, 401);
    let new = signed_with(next, "HS256", &claims);
    assert_eq!(desk.status(GUESSER, &new).await, 200);
    edge.store(Arc::new(EdgeConfig::default()));
    assert_eq!(desk.status(GUESSER, &new).await, 401, "no key is left");
}

#[tokio::test]
async fn admin_a_verified_token_needs_the_role() {
    let desk = jwt_desk();
    let exp = 4_000_000_000_u64;
    let good = signed(&json!({"sub": "canary-operator", "roles": ["admin"], "exp": exp}));
    let (status, _) = desk.ask(Some(&good), "GET", ALLOWLIST, "").await;
    assert_eq!(status, StatusCode::OK);

    let without = signed(&json!({"sub": "canary-operator", "roles": ["reader"], "exp": exp}));
    let (status, body) = desk.ask(Some(&without), "GET", ALLOWLIST, "").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(
        body,
        json!({
            "error": "forbidden",
            "message": "Insufficient permissions to manage rate limit allowlist"
        })
    );

    let expired = signed(&json!({"sub": "x", "roles": ["admin"], "exp": 1}));
    let mut forged = good.clone();
    forged.pop();
    for bad in [expired, forged] {
        let (status, _) = desk.ask(Some(&bad), "GET", ALLOWLIST, "").await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
    }
    let entry = json!({"type": "ip", "identifier": "203.0.113.77", "reason": "r"});
    desk.ask(Some(&good), "POST", ALLOWLIST, &entry.to_string())
        .await;
    assert_eq!(desk.events()[0]["actor"].as_str().unwrap().len(), 32);
}

#[tokio::test]
async fn admin_tokens_that_prove_nothing_are_refused() {
    let desk = jwt_desk();
    let exp = 4_000_000_000_u64;
    let good = json!({"sub": "canary-operator", "roles": ["admin"], "exp": exp});
    let unsigned = signed_with(SIGNING_KEY, "none", &good);
    let without_signature = format!("{}.", unsigned.rsplit_once('.').unwrap().0);
    let late = json!({"sub": "x", "roles": ["admin"], "exp": exp, "nbf": exp - 1});
    let endless = json!({"sub": "x", "roles": ["admin"]});
    let refused = [
        unsigned,
        without_signature,
        signed_with(SIGNING_KEY, "NONE", &good),
        signed_with(SIGNING_KEY, "HS512", &good),
        signed_with(b"another key of at least thirty-two bytes", "HS256", &good),
        signed(&late),
        signed(&endless),
        signed(&json!({"sub": "x", "roles": ["admin"], "exp": 1})),
        "canary".to_owned(),
        "..".to_owned(),
    ];
    for (number, token) in refused.iter().enumerate() {
        for (method, path) in operations() {
            let (status, body) = desk.ask(Some(token), &method, &path, "{}").await;
            assert_eq!(
                status,
                StatusCode::UNAUTHORIZED,
                "{number}: {method} {path}"
            );
            assert!(!body.to_string().contains("canary"));
        }
    }
    for roles in [json!([]), json!("reader"), json!(["Admin"]), json!(null)] {
        let token = signed(&json!({"sub": "x", "roles": roles, "exp": exp}));
        for (method, path) in operations() {
            let (status, _) = desk.ask(Some(&token), &method, &path, "{}").await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{roles}: {method} {path}");
        }
    }
    // The token is worthless where none is configured.
    let (status, _) = desk.ask(Some(TOKEN), "GET", ALLOWLIST, "").await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn allowlist_entry_is_echoed_listed_by_digest_and_removed() {
    let desk = open_desk();
    let entry = json!({
        "type": "ip",
        "identifier": "203.0.113.77",
        "reason": "Internal monitoring service",
        "expires_at": "2026-12-31T23:59:59Z"
    });
    let (status, body) = desk.send("POST", ALLOWLIST, &entry).await;
    assert_eq!(status, 200);
    assert_eq!(
        body,
        json!({
            "allowlisted": true,
            "identifier": "203.0.113.77",
            "expires_at": "2026-12-31T23:59:59.000Z"
        })
    );
    assert_eq!(desk.allowed(&request(), 5).await, 5);

    let (_, listing) = desk.send("GET", ALLOWLIST, &Value::Null).await;
    assert_eq!(listing["entries"][0]["type"], "ip");
    assert_eq!(listing["entries"][0]["network"], "203.0.113.0/24");
    assert!(!listing.to_string().contains("203.0.113.77"));

    let named = json!({"type": "ip", "identifier": "203.0.113.77"});
    assert_eq!(desk.send("DELETE", ALLOWLIST, &named).await.0, 200);
    assert_eq!(desk.allowed(&request(), 5).await, 2);
    let (status, body) = desk.send("DELETE", ALLOWLIST, &named).await;
    assert_eq!(status, 404);
    let expected = json!({
        "error": "not_found",
        "message": "Identifier not found in allowlist"
    });
    assert_eq!(body, expected);

    let names: Vec<_> = desk.events().iter().map(|e| e["event"].clone()).collect();
    assert_eq!(names[0], "rate_limit_allowlist_added");
    assert_eq!(names[1], "rate_limit_allowlist_bypassed");
    assert_eq!(names[6], "rate_limit_allowlist_removed");
}

#[tokio::test]
async fn allowlist_errors_name_every_field_and_echo_no_value() {
    let desk = open_desk();
    let entry = json!({"type": "canary", "identifier": 7, "expires_at": "canary"});
    let (status, body) = desk.send("POST", ALLOWLIST, &entry).await;
    assert_eq!(status, 400);
    assert_eq!(
        body,
        json!({
            "error": "invalid_request",
            "message": "Invalid allowlist entry",
            "details": {
                "type": "must be 'ip', 'cidr' or 'user_id'",
                "identifier": "must be text",
                "reason": "is required",
                "expires_at": "must be a time such as 2027-01-31T12:00:00Z"
            }
        })
    );
    let cases = [
        json!({"type": "ip", "identifier": "canary", "reason": "r"}),
        json!({"type": "ip", "identifier": "203.0.113.77/24", "reason": "r"}),
        json!({"type": "cidr", "identifier": "203.0.113.77/99", "reason": "r"}),
        json!({"type": "user_id", "identifier": "canary\u{7}", "reason": "r"}),
        json!({"type": "user_id", "identifier": "canary", "reason": "r", "expires_at": "2020-01-01T00:00:00Z"}),
        json!({"canary": 1}),
        json!(["canary"]),
    ];
    for entry in cases {
        let (status, body) = desk.send("POST", ALLOWLIST, &entry).await;
        assert_eq!(status, 400, "{entry}");
        for canary in CANARIES {
            assert!(!body.to_string().contains(canary), "{body}");
        }
    }
    let (status, body) = desk.ask(Some(TOKEN), "POST", ALLOWLIST, "{canary").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(!body.to_string().contains("canary"));
}

#[tokio::test]
async fn admin_bodies_are_bounded() {
    let desk = open_desk();
    let large = format!(r#"{{"reason":"{}"}}"#, "x".repeat(super::BODY_BYTES_MAX));
    let (status, body) = desk.ask(Some(TOKEN), "POST", ALLOWLIST, &large).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(body["error"], "invalid_request");
}

#[tokio::test]
async fn q_quota_is_read_reset_and_moved_to_another_tier() {
    let desk = open_desk();
    let mut facts = request();
    facts.api_key = Some(Id::new("api_key", "key").unwrap());
    assert_eq!(desk.allowed(&facts, 2).await, 1);
    let quota = format!("/admin/rate-limit/quota/{}", hash_api_key("key"));
    let (status, usage) = desk.send("GET", &quota, &Value::Null).await;
    assert_eq!((status, &usage["quota_used"]), (200, &json!(1)));

    let reset = format!("{quota}/reset");
    let (status, body) = desk.send("POST", &reset, &json!({})).await;
    assert_eq!(
        (status, &body["details"]["reason"]),
        (400, &json!("is required"))
    );
    let (status, usage) = desk
        .send("POST", &reset, &json!({"reason": "credit"}))
        .await;
    assert_eq!((status, &usage["quota_used"]), (200, &json!(0)));

    let tier = format!("{quota}/tier");
    let (status, body) = desk.send("PUT", &tier, &json!({"tier": "canary"})).await;
    assert_eq!(status, 400);
    assert_eq!(body["details"]["tier"], "is not a tier of this policy");
    let (status, usage) = desk.send("PUT", &tier, &json!({"tier": "starter"})).await;
    assert_eq!((status, &usage["tier"]), (200, &json!("starter")));
    let (_, page) = desk
        .send("GET", "/admin/rate-limit/quotas?limit=5", &Value::Null)
        .await;
    assert_eq!(page["quotas"].as_array().unwrap().len(), 1);
    assert_eq!(page["next"], Value::Null);
    let names: Vec<_> = desk.events().iter().map(|e| e["event"].clone()).collect();
    assert_eq!(
        names,
        ["quota_exceeded", "rate_limit_reset", "quota_tier_changed"]
    );
}

#[tokio::test]
async fn q_quota_raw_key_is_not_taken_in_a_path() {
    let desk = open_desk();
    for key in ["key", "canary-key", &hash_api_key("key").to_uppercase()] {
        let path = format!("/admin/rate-limit/quota/{key}");
        let (status, body) = desk.send("GET", &path, &Value::Null).await;
        assert_eq!(status, 400);
        assert!(!body.to_string().contains("canary"));
    }
    let path = format!("/admin/rate-limit/quota/{}", hash_api_key("unknown"));
    assert_eq!(desk.send("GET", &path, &Value::Null).await.0, 404);
}

#[tokio::test]
async fn reset_of_several_subjects_says_what_was_done() {
    let desk = open_desk();
    let mut facts = request();
    facts.org = Some(Id::new("org", "canary-org").unwrap());
    assert_eq!(desk.allowed(&facts, 3).await, 2);
    let body = json!({
        "reason": "support case",
        "subjects": [{"ip": "203.0.113.77"}, {"org": "canary-org"}]
    });
    let (status, done) = desk.send("POST", "/admin/rate-limit/reset", &body).await;
    assert_eq!(status, 200, "{done}");
    assert_eq!(
        done,
        json!({
            "reset": true,
            "buckets": [
                {"subject": 0, "limit": "ip", "done": true},
                {"subject": 1, "limit": "org", "done": true}
            ]
        })
    );
    assert_eq!(desk.allowed(&facts, 3).await, 2);
    for wrong in [
        json!({"reason": "r", "subjects": []}),
        json!({"reason": "r", "subjects": [{"user": "canary"}]}),
        json!({"reason": "r", "subjects": [{"ip": "canary"}]}),
        json!({"subjects": [{"ip": "203.0.113.77"}]}),
    ] {
        let (status, body) = desk.send("POST", "/admin/rate-limit/reset", &wrong).await;
        assert_eq!(status, 400, "{wrong}");
        assert!(!body.to_string().contains("canary"), "{body}");
    }
    desk.events();
}

#[tokio::test]
async fn cache_of_a_tenant_without_a_policy_is_empty() {
    let desk = open_desk();
    let (status, _) = desk.send("GET", "/debug/cache/canary", &Value::Null).await;
    assert_eq!(status, 404);
    let invalidate = "/admin/cache/invalidate";
    let (status, body) = desk
        .send("POST", invalidate, &json!({"tenant_id": "canary"}))
        .await;
    assert_eq!((status, body), (200, json!({"invalidated": false})));
    assert_eq!(desk.events()[0]["event"], "policy_cache_invalidated");
}

#[tokio::test]
async fn a_named_account_is_unblocked_and_its_score_forgotten() {
    use palisade_core::facts::{GuardFacts, GuardOp};
    let desk = open_desk();
    let engine = &desk.operations.engine;
    let mut facts = GuardFacts::new("203.0.113.77".parse().unwrap());
    facts.account = Some(Id::new("account", "canary-account").unwrap());
    facts.device.fingerprint = Some(Id::new("fingerprint", "canary-device").unwrap());
    let fail = || async { engine.guard(GuardOp::LoginFailure, &facts).await.unwrap() };
    for _ in 0..4 {
        fail().await;
    }
    let subject = json!({"guard": {"ip": "203.0.113.77", "account": "canary-account"}});
    let (_, explained) = desk.send("POST", "/admin/explain", &subject).await;
    assert_eq!(explained["decision"], "hard_block");
    let help = explained["findings"][0]["help"].as_str().unwrap();
    assert!(
        help.starts_with("palisade blocks lift account-login "),
        "{help}"
    );
    let nameless = json!({"account": "canary-account"});
    assert_eq!(desk.send("DELETE", "/admin/blocks", &nameless).await.0, 400);
    let kept = json!({"account": "canary-account", "reason": "support case"});
    let (status, lifted) = desk.send("DELETE", "/admin/blocks", &kept).await;
    assert_eq!((status, &lifted["score_forgotten"]), (200, &json!(false)));
    assert_eq!(fail().await.decision.outcome.name(), "hard_block");
    let forgotten = json!({"account": "canary-account", "score": true, "reason": "support case"});
    assert_eq!(
        desk.send("DELETE", "/admin/blocks", &forgotten).await.0,
        200
    );
    assert_eq!(fail().await.decision.outcome.name(), "allow");
    let unknown = json!({"account": "nobody", "reason": "support case"});
    assert_eq!(desk.send("DELETE", "/admin/blocks", &unknown).await.0, 404);
    let nobody = json!({"reason": "support case"});
    assert_eq!(desk.send("DELETE", "/admin/blocks", &nobody).await.0, 400);
    let events = desk.events();
    let mut lifts = events.iter().filter(|e| e["event"] == "guard.block_lifted");
    assert_eq!(lifts.next().unwrap()["reason"], "support case");
    assert_eq!(
        lifts.next().unwrap()["reason"],
        "score forgotten: support case"
    );
    assert!(events.iter().all(|e| !e.to_string().contains("canary")));
}

#[tokio::test]
async fn blocks_are_listed_by_digest_and_lifted() {
    use palisade_core::facts::{GuardFacts, GuardOp};
    let desk = open_desk();
    let engine = &desk.operations.engine;
    let mut facts = GuardFacts::new("203.0.113.77".parse().unwrap());
    facts.account = Some(Id::new("account", "canary-account").unwrap());
    for _ in 0..6 {
        let _ = engine.guard(GuardOp::LoginFailure, &facts).await.unwrap();
    }
    let (status, listing) = desk.send("GET", "/admin/blocks", &Value::Null).await;
    assert_eq!(status, 200);
    let blocks = listing["blocks"].as_array().unwrap();
    assert!(!blocks.is_empty());
    for canary in CANARIES {
        assert!(!listing.to_string().contains(canary));
    }
    for block in blocks {
        let target = json!({"record": block["record"], "id": block["id"], "reason": "tested"});
        desk.send("DELETE", "/admin/blocks", &target).await;
    }
    let (_, listing) = desk.send("GET", "/admin/blocks", &Value::Null).await;
    assert_eq!(listing["blocks"], json!([]));
    let gone = json!({"record": blocks[0]["record"], "id": blocks[0]["id"], "reason": "x"});
    assert_eq!(desk.send("DELETE", "/admin/blocks", &gone).await.0, 404);
    let wrong = json!({"record": "canary", "id": "canary"});
    let (status, body) = desk.send("DELETE", "/admin/blocks", &wrong).await;
    assert_eq!(status, 400);
    assert!(!body.to_string().contains("canary"));
    let events = desk.events();
    assert!(events.iter().any(|e| e["event"] == "guard.block"));
    assert!(events.iter().any(|e| e["event"] == "guard.block_lifted"));
}

#[tokio::test]
async fn explain_says_why_in_words_with_rule_ids() {
    use palisade_core::facts::{GuardFacts, GuardOp};
    let desk = open_desk();
    assert_eq!(desk.allowed(&request(), 3).await, 2);
    let mut facts = GuardFacts::new("203.0.113.77".parse().unwrap());
    facts.account = Some(Id::new("account", "canary-account").unwrap());
    for _ in 0..30 {
        let engine = &desk.operations.engine;
        let _ = engine.guard(GuardOp::LoginFailure, &facts).await.unwrap();
    }
    let subject = json!({
        "request": {"ip": "203.0.113.77", "method": "GET", "path": "/"},
        "guard": {"ip": "203.0.113.77", "account": "canary-account"}
    });
    let (status, body) = desk.send("POST", "/admin/explain", &subject).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["decision"], "hard_block");
    let words = body.to_string();
    assert!(words.contains("too many requests from this address: `ip` is used up"));
    assert!(words.contains("\"rule\":\"G-"), "{words}");
    for canary in CANARIES {
        assert!(!words.contains(canary), "{words}");
    }
    for wrong in [
        json!({}),
        json!({"request": {"ip": "canary"}}),
        json!({"guard": {"canary": 1}}),
    ] {
        let (status, body) = desk.send("POST", "/admin/explain", &wrong).await;
        assert_eq!(status, 400, "{wrong}");
        assert!(!body.to_string().contains("canary"), "{body}");
    }
}

#[tokio::test]
async fn openapi_describes_every_route_and_every_route_is_served() {
    let desk = open_desk();
    let (status, document) = desk.send("GET", "/openapi.json", &Value::Null).await;
    assert_eq!(status, 200);
    let paths: BTreeSet<&str> = document["paths"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let contract = [
        "/admin/blocks",
        "/admin/cache/invalidate",
        "/admin/explain",
        "/admin/rate-limit/allowlist",
        "/admin/rate-limit/quota/{key}",
        "/admin/rate-limit/quota/{key}/reset",
        "/admin/rate-limit/quota/{key}/tier",
        "/admin/rate-limit/quotas",
        "/admin/rate-limit/reset",
        "/debug/cache/{tenant}",
    ];
    for path in contract {
        assert!(paths.contains(path), "{path}");
    }
    for (method, path) in operations() {
        let (status, body) = desk.ask(Some(TOKEN), &method, &path, "{}").await;
        let unserved = body["message"] == "There is nothing at this path";
        assert!(!unserved && status != 405, "{method} {path}: {status}");
    }
    let (status, _) = desk.send("GET", "/nowhere", &Value::Null).await;
    assert_eq!(status, 404);
    let (status, _) = desk.send("PATCH", ALLOWLIST, &Value::Null).await;
    assert_eq!(status, 405);
}
