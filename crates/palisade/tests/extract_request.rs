//! I-CLIENT, I-BOT, I-APIKEY, I-KEY, and how the sources of identity combine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use jsonwebtoken::{EncodingKey, Header, encode};
use palisade::extract::bot::MissingUserAgent;
use palisade::extract::client_id::{FORM_BYTES_MAX, OAuthRoutes};
use palisade::extract::client_ip::TrustedProxies;
use palisade::extract::forward_auth::OriginalHeaders;
use palisade::extract::identity::IdentityHeaders;
use palisade::extract::jwt::{Algorithm, JwtKeys, JwtRules, TokenRefusal, TokenVerifier};
use palisade::extract::path::{EncodedSlash, PathCase};
use palisade::extract::{
    EdgeConfig, EdgeRequest, ExtractError, ExtractedRequest, TokenStatus, arrive, extract,
    extract_forward_auth,
};
use palisade_core::{Id, Micros, PolicySet};
use proptest::prelude::*;
use serde_json::json;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const NOW: Micros = Micros(1_800_000_000_000_000);
const PROXY: &str = "10.0.0.1";
const CLIENT: &str = "203.0.113.5";

fn config() -> EdgeConfig {
    let keys = JwtKeys::from_secret(SECRET, Algorithm::HS256).unwrap();
    EdgeConfig {
        trusted_proxies: TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]),
        jwt: Some(Arc::new(TokenVerifier::new(keys, JwtRules::default()))),
        identity_headers: Some(IdentityHeaders::default()),
        ..EdgeConfig::default()
    }
}

/// One request under test.
struct Case {
    config: EdgeConfig,
    policy: PolicySet,
    peer: &'static str,
    method: Method,
    target: String,
    headers: HeaderMap,
    body: Option<Vec<u8>>,
}

fn get(target: &str) -> Case {
    Case {
        config: config(),
        policy: PolicySet::empty(),
        peer: CLIENT,
        method: Method::GET,
        target: target.to_owned(),
        headers: HeaderMap::new(),
        body: None,
    }
}

fn post(target: &str) -> Case {
    Case {
        method: Method::POST,
        ..get(target)
    }
}

impl Case {
    fn from(mut self, peer: &'static str) -> Self {
        self.peer = peer;
        self
    }

    fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        self.headers.append(HeaderName::from_static(name), value);
        self
    }

    fn form(mut self, body: &str) -> Self {
        self.body = Some(body.as_bytes().to_vec());
        self.header(
            "content-type",
            "application/x-www-form-urlencoded; charset=utf-8",
        )
    }

    fn basic(self, credentials: &str) -> Self {
        let value = format!("basic {}", STANDARD.encode(credentials));
        self.header("authorization", &value)
    }

    fn run_as<F>(&self, surface: F) -> Result<ExtractedRequest, ExtractError>
    where
        F: Fn(&EdgeConfig, EdgeRequest<'_>, Micros) -> Result<ExtractedRequest, ExtractError>,
    {
        let uri: Uri = self.target.parse().unwrap();
        surface(&self.config, self.request(&uri), NOW)
    }

    fn request<'a>(&'a self, uri: &'a Uri) -> EdgeRequest<'a> {
        EdgeRequest {
            policy: &self.policy,
            peer: self.peer.parse().unwrap(),
            method: &self.method,
            uri,
            headers: &self.headers,
            body: self.body.as_deref(),
        }
    }

    fn run(&self) -> Result<ExtractedRequest, ExtractError> {
        self.run_as(extract)
    }

    fn forward_auth(&self) -> Result<ExtractedRequest, ExtractError> {
        self.run_as(extract_forward_auth)
    }

    fn client(&self) -> Option<String> {
        let client = self.run().unwrap().facts.client;
        client.map(|client| client.id.as_str().to_owned())
    }

    fn error(&self) -> (u16, &'static str) {
        let error = self.run().unwrap_err();
        (error.status(), error.field())
    }
}

fn token(sub: &str) -> String {
    let claims = json!({"sub": sub, "org_id": "acme", "scope": "read", "exp": 1_800_000_300});
    let key = EncodingKey::from_secret(SECRET);
    format!(
        "Bearer {}",
        encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap()
    )
}

fn text(id: &Option<Id>) -> Option<&str> {
    id.as_ref().map(Id::as_str)
}

#[test]
fn i_jwt_a_verified_token_says_who_asks() {
    let found = get("/me")
        .header("authorization", &token("u-1"))
        .run()
        .unwrap();
    assert_eq!(found.token, TokenStatus::Verified);
    assert_eq!(text(&found.facts.user), Some("u-1"));
    assert_eq!(text(&found.facts.org), Some("acme"));
    assert_eq!(found.facts.scopes.unwrap()[0].as_str(), "read");
    assert!(found.facts.token.is_some());
}

#[test]
fn i_jwt_an_unverifiable_token_is_flagged_and_unauthenticated() {
    for (value, refusal) in [
        ("Bearer nonsense", TokenRefusal::Malformed),
        ("bearer", TokenRefusal::Malformed),
        (&format!("{}x", token("u-1")), TokenRefusal::Signature),
        (
            &token("u-1").replace("Bearer ", "BEARER  x"),
            TokenRefusal::Malformed,
        ),
    ] {
        let found = get("/me").header("authorization", value).run().unwrap();
        assert_eq!(found.token, TokenStatus::Unverified(refusal), "{value}");
        assert!(
            found.facts.user.is_none() && found.facts.org.is_none() && found.facts.token.is_none()
        );
        assert!(found.facts.guess && found.facts.class.is_none(), "{value}");
    }
    assert_eq!(get("/me").run().unwrap().token, TokenStatus::Absent);
    let mut without_keys = get("/me").header("authorization", "Bearer opaque");
    without_keys.config.jwt = None;
    assert_eq!(without_keys.run().unwrap().token, TokenStatus::Absent);
}

#[test]
fn i_jwt_two_authorization_lines_are_refused() {
    let twice = get("/me")
        .header("authorization", &token("u-1"))
        .header("authorization", &token("u-2"));
    assert_eq!(twice.error(), (400, "Authorization"));
}

#[test]
fn i_jwt_identity_headers_count_only_from_a_trusted_proxy() {
    let stated = |peer| {
        get("/me")
            .from(peer)
            .header("x-palisade-user", "u-9")
            .header("x-palisade-org", "acme")
            .header("x-palisade-token", "t-9")
            .header("x-palisade-scopes", "read, write")
    };
    let found = stated(PROXY).run().unwrap();
    assert_eq!(text(&found.facts.user), Some("u-9"));
    assert_eq!(text(&found.facts.org), Some("acme"));
    assert_eq!(text(&found.facts.token), Some("t-9"));
    assert_eq!(found.facts.scopes.unwrap().len(), 2);

    let found = stated(CLIENT).run().unwrap();
    assert!(found.facts.user.is_none() && found.facts.org.is_none());
    assert!(found.facts.token.is_none() && found.facts.scopes.is_none());

    let mut off = stated(PROXY);
    off.config.identity_headers = EdgeConfig::default().identity_headers;
    assert!(
        off.run().unwrap().facts.user.is_none(),
        "off unless configured"
    );
}

#[test]
fn i_jwt_a_bearer_token_decides_alone() {
    let headers = || get("/me").from(PROXY).header("x-palisade-user", "root");
    let verified = headers()
        .header("authorization", &token("u-1"))
        .run()
        .unwrap();
    assert_eq!(text(&verified.facts.user), Some("u-1"));
    let refused = headers()
        .header("authorization", "Bearer junk")
        .run()
        .unwrap();
    assert!(refused.facts.user.is_none());
}

#[test]
fn i_client_comes_from_the_query_on_authorize() {
    assert_eq!(
        get("/auth/authorize?client_id=my%20app&x=1")
            .client()
            .as_deref(),
        Some("my app")
    );
    assert_eq!(
        get("/auth/%61uthorize/?client_id=spa").client().as_deref(),
        Some("spa")
    );
    assert_eq!(
        post("/auth/authorize")
            .form("client_id=spa")
            .client()
            .as_deref(),
        Some("spa")
    );
    assert_eq!(get("/other?client_id=spa").client(), None);
    assert_eq!(get("/auth/token?client_id=spa").client(), None);
    assert_eq!(
        get("/auth/authorize?client_id=a&client_id=b").error(),
        (400, "client_id")
    );
}

#[test]
fn i_client_comes_from_the_form_or_the_basic_header_on_token_routes() {
    for route in ["/auth/token", "/auth/revoke", "/auth/introspect"] {
        assert_eq!(
            post(route).form("a=b&client_id=spa").client().as_deref(),
            Some("spa")
        );
        assert_eq!(
            post(route).basic("my%20app:s3cret").client().as_deref(),
            Some("my app")
        );
    }
    assert_eq!(post("/auth/token").client(), None);
    assert_eq!(post("/auth/token").basic(":secret").client(), None);
    let unpadded = STANDARD.encode("spa:x").replace('=', "");
    let unpadded = post("/auth/token").header("authorization", &format!("Basic {unpadded}"));
    assert_eq!(unpadded.client().as_deref(), Some("spa"));
}

#[test]
fn i_client_routes_are_configurable_in_any_spelling() {
    let routes = OAuthRoutes::new(
        &["/oauth/authorize/"],
        &["/oauth/./%74oken"],
        EncodedSlash::Separator,
    );
    let configured = |mut case: Case| {
        case.config.oauth_routes = routes.clone().unwrap();
        case.client()
    };
    assert_eq!(
        configured(post("/oauth/token").basic("spa:x")).as_deref(),
        Some("spa")
    );
    assert_eq!(
        configured(get("/oauth/authorize?client_id=spa")).as_deref(),
        Some("spa")
    );
    assert_eq!(configured(post("/auth/token").basic("spa:x")), None);
    assert!(OAuthRoutes::new(&["/a%00"], &[], EncodedSlash::Separator).is_err());
}

#[test]
fn i_client_named_twice_must_be_the_same() {
    let both = |form| post("/auth/token").basic("spa:x").form(form);
    assert_eq!(both("client_id=spa").client().as_deref(), Some("spa"));
    assert_eq!(both("client_id=other").error(), (400, "client_id"));
    assert_eq!(
        post("/auth/authorize?client_id=a")
            .form("client_id=b")
            .error(),
        (400, "client_id")
    );
}

#[test]
fn i_client_bodies_are_bounded_and_forms_and_json_are_read() {
    let long = format!("client_id=spa&x={}", "y".repeat(FORM_BYTES_MAX));
    assert_eq!(post("/auth/token").form(&long).error(), (413, "body"));
    assert!(post("/other").form(&long).run().is_ok());
    let body = |kind: Option<&str>, body: &str| {
        let mut case = post("/auth/token");
        case.body = Some(body.as_bytes().to_vec());
        match kind {
            Some(kind) => case.header("content-type", kind),
            None => case,
        }
    };
    let json = r#"{"grant_type":"x","client_id":"spa"}"#;
    for kind in [
        Some("application/json"),
        Some("Application/JSON; charset=utf-8"),
        Some("application/vnd.oauth+json"),
        Some("text/plain"),
        None,
    ] {
        assert_eq!(
            body(kind, json).client().as_deref(),
            Some("spa"),
            "{kind:?}"
        );
    }
    for kind in [Some("text/plain"), None] {
        let form = body(kind, "client_id=spa").client();
        assert_eq!(form.as_deref(), Some("spa"), "it may be a form: {kind:?}");
    }
    let wrong = body(Some("application/json"), "client_id=spa");
    assert_eq!(wrong.error(), (400, "client_id"), "it is no JSON");
    assert_eq!(body(Some("application/json"), "").client(), None);
    let twice = body(
        Some("application/json"),
        r#"{"client_id":"a","client_id":"b"}"#,
    );
    assert_eq!(twice.error(), (400, "client_id"));
    let other = body(Some("application/json"), json).basic("other:x");
    assert_eq!(other.error(), (400, "client_id"));
}

#[test]
fn i_client_a_body_that_only_some_servers_read_is_refused() {
    let sent = |body: &[u8], headers: &[(&'static str, &str)]| {
        let mut case = post("/auth/token");
        case.body = Some(body.to_vec());
        headers
            .iter()
            .fold(case, |case, (name, value)| case.header(name, value))
    };
    let form = ("content-type", "application/x-www-form-urlencoded");
    let json = ("content-type", "application/json");
    let coding = "content-encoding";
    let gzip = b"\x1f\x8b\x08 not looked into";
    for (body, headers) in [
        (&gzip[..], &[form, (coding, "gzip")][..]),
        (gzip, &[json, (coding, "identity"), (coding, "br")]),
        (b"client_id=spa", &[form, json]),
        (b"{}", &[json, form]),
        (
            b"{}",
            &[("content-type", "application/json; charset=utf-16")],
        ),
        (
            b"--x\r\n",
            &[("content-type", "Multipart/Form-Data; boundary=x")],
        ),
    ] {
        assert_eq!(sent(body, headers).error(), (415, "body"), "{headers:?}");
    }
    let marked = "\u{feff}{\"client_id\":\"spa\"}".as_bytes();
    for (body, headers) in [
        (marked, &[json][..]),
        (marked, &[]),
        (b"\xEF\xBB\xBFclient_id=spa", &[form]),
        (b"{\"client_id\":\"spa\"", &[json]),
        (b"{\"client_id\":\"spa\",}", &[]),
        (b"{\"Client_Id\":\"spa\"}", &[json]),
        (b"CLIENT_ID=spa", &[form]),
        (b"client.id=spa", &[form]),
        (b"client_id[]=spa", &[]),
    ] {
        assert_eq!(
            sent(body, headers).error(),
            (400, "client_id"),
            "{}",
            String::from_utf8_lossy(body)
        );
    }
    let plain = sent(b"client_id=spa", &[form, (coding, "identity")]);
    assert_eq!(plain.client().as_deref(), Some("spa"));
    let elsewhere = sent(gzip, &[form, json, (coding, "gzip")]);
    let elsewhere = Case {
        target: "/upload".to_owned(),
        ..elsewhere
    };
    assert_eq!(elsewhere.client(), None);
    assert_eq!(
        get("/auth/authorize?Client_Id=spa").error(),
        (400, "client_id")
    );
}

#[test]
fn i_path_a_path_that_leads_elsewhere_in_other_letters_is_refused() {
    let defaults = |case: Case| Case {
        policy: policy_of(""),
        ..case
    };
    for target in ["/AUTH/TOKEN", "/auth/%54oken", "/Admin/users", "/MFA"] {
        let refused = defaults(post(target));
        assert_eq!(refused.error(), (400, "path"), "{target}");
        let mut significant = defaults(post(target));
        significant.config.path_case = PathCase::Significant;
        assert!(significant.run().is_ok(), "{target}");
        let asked = get("/")
            .from(PROXY)
            .header("x-forwarded-uri", target)
            .header("x-forwarded-method", "POST");
        let refused = defaults(asked).forward_auth().unwrap_err();
        assert_eq!((refused.status(), refused.field()), (400, "path"));
    }
    for target in ["/auth/token", "/admin/Users", "/Things/1", "/caf%c3%a9"] {
        assert!(defaults(post(target)).run().is_ok(), "{target}");
    }
    // Paths on which clients name themselves count as routes, even without a route in the policy.
    assert_eq!(post("/Auth/Token").error(), (400, "path"));
}

#[test]
fn i_client_bodies_are_asked_for_where_a_client_may_be_named() {
    let reads = |case: Case| {
        let uri: Uri = case.target.parse().unwrap();
        let arrived = arrive(&case.config, case.request(&uri), NOW).unwrap();
        arrived.reads_body
    };
    assert!(reads(post("/auth/./token?x")));
    assert!(!reads(get("/auth/token")));
    assert!(!reads(post("/upload")));
}

#[test]
fn i_client_malformed_basic_credentials_are_refused() {
    for value in ["Basic", "Basic !!!", "Basic c3Bh", "Basic /w=="] {
        let case = post("/auth/token").header("authorization", value);
        assert_eq!(case.error(), (400, "Authorization"), "{value}");
        assert!(get("/other").header("authorization", value).run().is_ok());
    }
    assert_eq!(
        post("/auth/token").basic("a%0Ab:x").error(),
        (400, "client_id")
    );
}

/// A policy of `text` only, without the defaults.
fn policy(text: &str) -> PolicySet {
    policy_of(&format!("[policy]\ndefaults = false\n{text}"))
}

fn policy_of(text: &str) -> PolicySet {
    let loaded = palisade_policy::load_text(
        std::path::Path::new("test.toml"),
        text,
        &palisade_policy::Env::default(),
        &palisade_policy::Overrides::default(),
    );
    (*loaded.unwrap().policy).clone()
}

const ROUTED: &str = "[[route]]\npath = \"/paid/*\"\nclass = \"paid\"\napi_key = true\n\
    [[route]]\npath = \"/health\"\nclass = \"health\"\n\
    [[limit]]\nname = \"l\"\nby = [\"ip\"]\nrate = \"5/min\"\n";

fn keyed(target: &str) -> Case {
    let key = format!(
        "[[api_key]]\nhash = \"{}\"\ntier = \"free\"\n[[tier]]\nname = \"free\"\nquota = 10\n{ROUTED}",
        "0".repeat(64)
    );
    Case {
        policy: policy(&key),
        ..get(target)
    }
}

#[test]
fn i_apikey_comes_from_its_header_once() {
    let found = keyed("/").header("x-api-key", "k-1").run().unwrap();
    assert_eq!(text(&found.facts.api_key), Some("k-1"));
    assert!(keyed("/").run().unwrap().facts.api_key.is_none());
    let blank = keyed("/").header("x-api-key", " ").run().unwrap();
    assert!(blank.facts.api_key.is_none());
    let twice = keyed("/").header("x-api-key", "a").header("x-api-key", "b");
    assert_eq!(twice.error(), (400, "X-API-Key"));
    let long = keyed("/").header("x-api-key", &"k".repeat(600));
    assert_eq!(long.error(), (400, "X-API-Key"));
    let mut renamed = keyed("/").header("x-key", "k-1").header("x-api-key", "k-2");
    renamed.config.api_key_header = HeaderName::from_static("x-key");
    assert_eq!(text(&renamed.run().unwrap().facts.api_key), Some("k-1"));
}

#[test]
fn i_apikey_an_applications_own_header_is_no_concern_of_ours() {
    let without_keys = |target: &str| Case {
        policy: policy(ROUTED),
        ..get(target).header("x-api-key", &"k".repeat(600))
    };
    let found = without_keys("/mine").run().unwrap();
    assert!(found.facts.api_key.is_none());
    assert_eq!(without_keys("/paid/x").error(), (400, "X-API-Key"));
}

#[test]
fn i_path_what_an_application_reads_otherwise_is_refused() {
    let routed = |case: Case| Case {
        policy: policy(ROUTED),
        ..case
    };
    // The proxy forwards the normalised path, in which escapes and dots have a single meaning.
    let passed_on = routed(get("/x/../%68ealth")).run().unwrap();
    assert_eq!(&*passed_on.facts.path, "/health");
    assert_eq!(passed_on.forward_path.as_deref(), Some("/health"));
    assert_eq!(routed(get("/health")).run().unwrap().forward_path, None);
    let slash = routed(get("/docs/")).run().unwrap();
    assert_eq!(slash.forward_path.as_deref(), Some("/docs/"));
    assert_eq!(routed(get("/health;x")).error(), (400, "path"));
    assert!(routed(get("/docs;x")).run().is_ok());
    // In forward-auth the proxy forwards the path as the client wrote it.
    let asked = |target: &str| routed(asks("original", None, target)).forward_auth();
    assert!(asked("/health").is_ok() && asked("/a/../b").is_ok());
    for target in ["/x/../health", "/%68ealth", "//health", "/paid/../x"] {
        let refused = asked(target).unwrap_err();
        assert_eq!(
            (refused.status(), refused.field()),
            (400, "path"),
            "{target}"
        );
    }
}

#[test]
fn i_cost_a_request_says_beforehand_whether_it_costs_more_than_a_look() {
    let costs = |case: &Case| {
        let uri: Uri = case.target.parse().unwrap();
        let arrived = arrive(&case.config, case.request(&uri), NOW);
        arrived.unwrap().is_costly()
    };
    assert!(!costs(&get("/me")));
    assert!(costs(&post("/auth/token")));
    assert!(costs(&get("/me").header("authorization", "Bearer junk")));
    let good = get("/me").header("authorization", &token("u-1"));
    assert!(costs(&good), "nobody has verified it yet");
    assert_eq!(good.run().unwrap().token, TokenStatus::Verified);
    assert!(!costs(&good), "it was found good before");
    assert_eq!(good.run().unwrap().token, TokenStatus::Verified);
    let uri: Uri = good.target.parse().unwrap();
    let later = Micros(NOW.0 + 3_600_000_000);
    let expired = extract(&good.config, good.request(&uri), later).unwrap();
    assert_eq!(
        expired.token,
        TokenStatus::Unverified(TokenRefusal::Expired)
    );
}

#[test]
fn i_bot_scanners_and_missing_user_agents_are_marked() {
    let bot = |agent: &str| {
        get("/")
            .header("user-agent", agent)
            .run()
            .unwrap()
            .facts
            .bot
    };
    assert!(bot("SQLMap/1.0"));
    assert!(bot(" "));
    assert!(!bot("Mozilla/5.0 Firefox/140.0"));
    let mut without = get("/");
    assert!(without.run().unwrap().facts.bot);
    without.config.missing_user_agent = MissingUserAgent::SaysNothing;
    assert!(!without.run().unwrap().facts.bot);
}

#[test]
fn i_key_user_agents_are_cut_not_refused() {
    let found = get("/")
        .header("user-agent", &"é".repeat(2000))
        .run()
        .unwrap();
    let agent = found.facts.user_agent.unwrap();
    assert_eq!(agent.len(), palisade_core::facts::HEADER_BYTES_MAX);
}

#[test]
fn i_key_methods_are_capital_tokens_within_bounds() {
    let mut case = get("/");
    case.method = Method::from_bytes(b"get").unwrap();
    assert_eq!(&*case.run().unwrap().facts.method, "GET");
    case.method = Method::from_bytes(&[b'X'; 33]).unwrap();
    assert_eq!(case.error(), (400, "method"));
}

#[test]
fn i_key_paths_are_normalised_and_lose_their_query() {
    let path = |target: &str| get(target).run().unwrap().facts.path;
    assert_eq!(&*path("/auth/./%74oken/?x=/../y"), "/auth/token");
    assert_eq!(get("/a%00").error(), (400, "path"));
    assert_eq!(
        get(&format!("/{}", "x".repeat(9000))).error(),
        (400, "path")
    );
}

#[test]
fn i_id_request_ids_are_taken_from_a_trusted_proxy_if_usable() {
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let found = get("/")
        .from(PROXY)
        .header("x-request-id", "r-1")
        .header("traceparent", trace)
        .run()
        .unwrap();
    assert_eq!(text(&found.facts.request_id), Some("r-1"));
    assert_eq!(
        text(&found.facts.correlation_id),
        Some("4bf92f3577b34da6a3ce929d0e0e4736")
    );
    let found = get("/")
        .from(PROXY)
        .header("x-correlation-id", "c-1")
        .header("traceparent", trace)
        .run()
        .unwrap();
    assert_eq!(text(&found.facts.correlation_id), Some("c-1"));
    let found = get("/")
        .from(PROXY)
        .header("x-request-id", "a b")
        .header("traceparent", "junk")
        .run()
        .unwrap();
    assert!(found.facts.request_id.is_none() && found.facts.correlation_id.is_none());
    let found = get("/").header("x-request-id", "r-1").run().unwrap();
    assert!(found.facts.request_id.is_none(), "of an end user");
}

fn asks(family: &str, method: Option<&str>, target: &str) -> Case {
    let (method_name, target_name) = match family {
        "forwarded" => ("x-forwarded-method", "x-forwarded-uri"),
        _ => ("x-original-method", "x-original-uri"),
    };
    let case = get("/forward-auth")
        .from(PROXY)
        .header("x-forwarded-for", CLIENT)
        .header(target_name, target);
    match method {
        Some(method) => case.header(method_name, method),
        None => case,
    }
}

#[test]
fn i_xff_forward_auth_describes_the_original_request() {
    for family in ["forwarded", "original"] {
        let found = asks(family, Some("post"), "/auth/./token?x=1")
            .forward_auth()
            .unwrap();
        assert_eq!(found.facts.ip.to_string(), CLIENT);
        assert_eq!(
            (&*found.facts.method, &*found.facts.path),
            ("POST", "/auth/token")
        );
    }
    let found = asks("original", None, "https://h/a")
        .forward_auth()
        .unwrap();
    assert_eq!((&*found.facts.method, &*found.facts.path), ("GET", "/a"));
    let found = asks("forwarded", None, "/auth/authorize?client_id=spa")
        .forward_auth()
        .unwrap();
    assert_eq!(found.facts.client.unwrap().id.as_str(), "spa");
}

#[test]
fn i_xff_forward_auth_needs_a_trusted_proxy_that_says_what_it_asks() {
    let error = asks("forwarded", None, "/a")
        .from("198.51.100.7")
        .forward_auth()
        .unwrap_err();
    assert_eq!((error.status(), error.is_audited()), (403, true));
    let error = get("/forward-auth").from(PROXY).forward_auth().unwrap_err();
    assert_eq!((error.status(), error.field()), (400, "X-Forwarded-Uri"));
    let error = asks("forwarded", Some("G T"), "/a")
        .forward_auth()
        .unwrap_err();
    assert_eq!(error.field(), "method");
}

#[test]
fn i_xff_forward_auth_takes_no_clients_word_for_the_other_family() {
    let spoofed =
        || asks("original", Some("POST"), "/auth/token").header("x-forwarded-uri", "/health");
    assert_eq!(spoofed().forward_auth().unwrap_err().status(), 400);
    let method_only = asks("original", None, "/auth/token").header("x-forwarded-method", "PUT");
    assert_eq!(&*method_only.forward_auth().unwrap().facts.method, "GET");
    let same_path = asks("original", None, "/auth/token")
        .header("x-forwarded-uri", "/auth/token")
        .header("x-forwarded-method", "GET");
    assert_eq!(same_path.forward_auth().unwrap_err().status(), 400);
    let mut pinned = spoofed();
    pinned.config.original_headers = OriginalHeaders::XOriginal;
    assert_eq!(&*pinned.forward_auth().unwrap().facts.path, "/auth/token");
    let agreed = asks("original", Some("POST"), "/a")
        .header("x-forwarded-uri", "/a")
        .header("x-forwarded-method", "POST");
    assert_eq!(&*agreed.forward_auth().unwrap().facts.path, "/a");
}

#[test]
fn i_key_nothing_extracted_reaches_debug_output() {
    let found = get("/canary")
        .header("authorization", &token("canary"))
        .header("x-api-key", "canary")
        .header("user-agent", "canary")
        .header("x-request-id", "canary")
        .run()
        .unwrap();
    assert!(!format!("{found:?}").contains("canary"));
    assert!(!format!("{found:?}").contains("203.0"));
}

proptest! {
    #[test]
    fn i_key_no_headers_or_body_panic(
        lines in proptest::collection::vec((0_usize..14, any::<Vec<u8>>()), 0..8),
        body in any::<Vec<u8>>(),
    ) {
        const NAMES: [&str; 14] = [
            "authorization", "x-forwarded-for", "forwarded", "x-api-key", "user-agent", "content-type", "x-request-id",
            "traceparent", "x-palisade-user", "x-palisade-scopes", "x-forwarded-uri", "x-original-uri",
            "x-forwarded-method", "x-correlation-id",
        ];
        let mut case = post("/auth/token").from(PROXY);
        for (name, value) in lines {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                case.headers.append(HeaderName::from_static(NAMES[name]), value);
            }
        }
        case.body = Some(body);
        let _ = case.run();
        let _ = case.forward_auth();
    }
}
