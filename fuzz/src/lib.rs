//! What each fuzz target does with its input: plain functions, so that the
//! stable test run can replay the corpora without a fuzzer.
//!
//! Every function panics if the code under test panics or breaks the property
//! that the function's name stands for.

pub mod go_rules;
pub mod names;

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use jsonwebtoken::EncodingKey;
use palisade::extract::client_ip::{CHAIN_BYTES_MAX, ChainHeader, TrustedProxies, client_ip};
use palisade::extract::identity::IdentityHeaders;
use palisade::extract::jwt::{Algorithm, Expiry, JwtKeys, JwtRules, TokenVerifier};
use palisade::extract::login::{Unreadable, username};
use palisade::extract::path::{EncodedSlash, normalise, split_target};
use palisade::extract::{EdgeConfig, EdgeRequest, extract, extract_forward_auth};
use palisade::wire::{RawGuard, RawRequest, WireError, parse};
use palisade_core::facts::RequestKind;
use palisade_core::key::{Domain, Keyring, SegmentKind};
use palisade_core::path::NormalPath;
use palisade_core::policy::{Route, Routes};
use palisade_core::{Digest, Micros, PolicySet};
use palisade_policy::UsernameSource;

/// A target with its name, which is also its corpus' folder.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 13] = [
    ("xff", xff),
    ("forwarded", forwarded),
    ("jwt", jwt),
    ("path", path),
    ("request", request),
    ("http_bodies", http_bodies),
    ("login_form", login_form),
    ("form_names", names::form_names),
    ("query_names", names::query_names),
    ("multipart_names", names::multipart_names),
    ("json_names", names::json_names),
    ("key_encoding", key_encoding),
    ("resp", resp),
];

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const PROXY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const NOW: Micros = Micros(1_800_000_000_000_000);

static TRUSTED: LazyLock<TrustedProxies> = LazyLock::new(|| {
    TrustedProxies::new(
        ["10.0.0.0/8", "fd00::/8"]
            .iter()
            .flat_map(|net| net.parse())
            .collect(),
    )
});

static VERIFIER: LazyLock<Option<Arc<TokenVerifier>>> = LazyLock::new(|| {
    let rules = JwtRules {
        expiry: Expiry::Optional,
        ..JwtRules::default()
    };
    let keys = JwtKeys::from_secret(SECRET, Algorithm::HS256).ok()?;
    Some(Arc::new(TokenVerifier::new(keys, rules)))
});

static EDGE: LazyLock<EdgeConfig> = LazyLock::new(|| EdgeConfig {
    trusted_proxies: TRUSTED.clone(),
    jwt: VERIFIER.clone(),
    identity_headers: Some(IdentityHeaders::default()),
    ..EdgeConfig::default()
});

/// The lines of `data` as values of one header, in order.
fn lines(name: &HeaderName, data: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let values = data
        .split(|byte| *byte == b'\n')
        .map(HeaderValue::from_bytes);
    for value in values.flatten() {
        headers.append(name, value);
    }
    headers
}

/// A chain's client does not depend on what stands to the left of it.
fn chain(name: &HeaderName, only: ChainHeader, data: &[u8]) {
    let find = |data: &[u8]| client_ip(&lines(name, data), PROXY, &TRUSTED, only, CHAIN_BYTES_MAX);
    let Ok(client) = find(data) else {
        return;
    };
    if TRUSTED.contains(client) || data.len() > CHAIN_BYTES_MAX - 20 {
        return;
    }
    for spoof in [&b"1.1.1.1,"[..], b"for=1.1.1.1,", b"\"\\,", b"junk\n"] {
        assert_eq!(find(&[spoof, data].concat()), Ok(client));
    }
}

/// `X-Forwarded-For`.
pub fn xff(data: &[u8]) {
    let name = HeaderName::from_static("x-forwarded-for");
    chain(&name, ChainHeader::XForwardedForOnly, data);
}

/// `Forwarded`.
pub fn forwarded(data: &[u8]) {
    chain(&http::header::FORWARDED, ChainHeader::ForwardedOnly, data);
}

/// Tokens, signed payloads, and key files; the first byte chooses.
pub fn jwt(data: &[u8]) {
    let (Some((kind, rest)), Some(verifier)) = (data.split_first(), &*VERIFIER) else {
        return;
    };
    match kind % 4 {
        0 => {
            let _ = verifier.verify(&String::from_utf8_lossy(rest), NOW);
        }
        1 => {
            let _ = verifier.verify(&signed(br#"{"alg":"HS256"}"#, rest), NOW);
        }
        2 => {
            let _ = verifier.verify(&signed(rest, br#"{"sub":"u"}"#), NOW);
        }
        _ => {
            for algorithm in [
                Algorithm::HS256,
                Algorithm::RS256,
                Algorithm::ES256,
                Algorithm::EdDSA,
            ] {
                let _ = JwtKeys::from_jwks(rest, algorithm);
                let _ = JwtKeys::from_pem(rest, algorithm);
            }
        }
    }
}

fn signed(header: &[u8], payload: &[u8]) -> String {
    let message = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(header),
        URL_SAFE_NO_PAD.encode(payload)
    );
    let key = EncodingKey::from_secret(SECRET);
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256);
    format!("{message}.{}", signature.unwrap_or_default())
}

/// Normalising a path twice is normalising it once, a pattern that is made of it finds it,
/// and a Go server that is given it serves the route that was judged.
pub fn path(data: &[u8]) {
    let (path, _) = split_target(data);
    for slash in [
        EncodedSlash::Refused,
        EncodedSlash::Separator,
        EncodedSlash::Literal,
    ] {
        let Ok(once) = normalise(path, slash) else {
            continue;
        };
        for text in [once.judged(), once.forwarded()] {
            let twice = normalise(text.as_bytes(), slash).map(|twice| twice.judged().to_owned());
            assert_eq!(twice.as_deref(), Ok(once.judged()));
            assert!(text.starts_with('/') && !text.contains("//"));
            assert!(
                text.split('/')
                    .all(|segment| segment != "." && segment != "..")
            );
        }
        let again = normalise(once.forwarded().as_bytes(), slash);
        assert_eq!(
            again.as_ref().map(NormalPath::forwarded),
            Ok(once.forwarded())
        );
        finds_itself(once.judged());
    }
    if let Ok(judged) = normalise(path, EncodedSlash::Refused) {
        is_served_as_judged(path, &judged);
    }
}

/// Routes that a path can be disguised for, or as.
static DISGUISED: LazyLock<Routes> = LazyLock::new(|| {
    let class = |pattern: &str| {
        let mut route = Route::new(pattern).unwrap_or_else(|_| panic!("a pattern"));
        route.class = Some(pattern.into());
        route
    };
    let patterns = [
        "/*",
        "/auth/token",
        "/admin/*",
        "/~staff/*",
        "/caf\u{e9}/*",
        "/api*",
    ];
    Routes::new(patterns.map(class).to_vec())
});

/// What the proxy passes on, and what a proxy that asks us passes on as it came, is served
/// by a Go server as the route that it was judged by; or it is refused.
fn is_served_as_judged(path: &[u8], normal: &NormalPath<'_>) {
    let judged = DISGUISED.find("POST", None, normal.judged());
    for (given, readings) in [
        (normal.forwarded().as_bytes(), normal.forwarded_reading()),
        (path, normal.readings()),
    ] {
        let is_admitted = DISGUISED.agree("POST", None, normal.judged(), readings);
        let Some(read) = go_rules::go(given).filter(|_| is_admitted) else {
            continue;
        };
        let bare = read.strip_suffix('/').filter(|bare| !bare.is_empty());
        let served = DISGUISED.find("POST", None, bare.unwrap_or(&read));
        assert_eq!(served, judged, "read as {read}");
    }
}

/// `*` ends a pattern, so a path with one is none.
fn finds_itself(judged: &str) {
    if judged.contains('*') {
        return;
    }
    let Ok(mut route) = Route::new(judged) else {
        panic!("a path that a request has is a pattern");
    };
    route.class = Some("own".into());
    let routes = Routes::new(vec![route]);
    assert!(routes.find("GET", None, judged).class.is_some());
}

/// A whole request: a target, `name:value` lines, an empty line, a body.
pub fn request(data: &[u8]) {
    let mut lines = data.splitn(64, |byte| *byte == b'\n');
    let target = lines.next().unwrap_or_default();
    let uri = Uri::try_from(target).unwrap_or_default();
    let mut headers = HeaderMap::new();
    let mut body = None;
    for line in lines.by_ref() {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            body = Some(line);
            break;
        };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(&line[colon + 1..]);
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let policy = PolicySet::empty();
    let request = EdgeRequest {
        policy: &policy,
        peer: PROXY,
        method: &Method::POST,
        uri: &uri,
        headers: &headers,
        body,
    };
    let found = [
        extract(&EDGE, request, NOW),
        extract_forward_auth(&EDGE, request, NOW),
    ];
    for facts in found.into_iter().flatten().map(|found| found.facts) {
        assert_eq!(facts.ip, facts.ip.to_canonical());
        assert_eq!(*facts.method, facts.method.to_ascii_uppercase());
    }
}

/// Bodies of the decision API: canonical facts, or an error of bounded size
/// (a value in it would be as long as its sender likes).
pub fn http_bodies(data: &[u8]) {
    for kind in [RequestKind::Http, RequestKind::Job] {
        let facts = parse::<RawRequest<'_>>(data).and_then(|mut raw| {
            raw.op = raw.op.or(Some(kind));
            Ok(raw.into_facts()?)
        });
        bounded(&facts.map(|facts| assert_eq!(facts.ip, facts.ip.to_canonical())));
    }
    let facts = parse::<RawGuard<'_>>(data).and_then(|raw| Ok(raw.into_facts()?));
    bounded(&facts.map(|facts| assert_eq!(facts.ip, facts.ip.to_canonical())));
}

fn bounded(result: &Result<(), WireError>) {
    if let Err(error) = result {
        assert!(error.to_string().len() <= 160);
    }
}

/// A login: a line with its media type, then its body. Who tries is one name, in one spelling,
/// or a short refusal.
pub fn login_form(data: &[u8]) {
    let mut lines = data.splitn(2, |byte| *byte == b'\n');
    let kind = HeaderValue::from_bytes(lines.next().unwrap_or_default());
    let body = lines.next().unwrap_or_default();
    let Ok(kind) = kind else {
        return;
    };
    let headers = HeaderMap::from_iter([(http::header::CONTENT_TYPE, kind)]);
    let source = UsernameSource::Form("email".to_owned());
    match username(&source, None, &headers, body) {
        Ok(name) => {
            let name = name.as_ref().map_or("", |name| name.as_str());
            assert_eq!(name, name.trim().to_lowercase());
            assert!(!name.is_empty());
        }
        Err(Unreadable::Field(error)) => assert!(error.to_string().len() <= 160),
        Err(Unreadable::Media(_)) => {}
    }
}

/// Different lists of parts never share a key.
pub fn key_encoding(data: &[u8]) {
    let Ok(ring) = Keyring::new(SECRET, None) else {
        return;
    };
    let lists: Vec<Vec<&[u8]>> = data
        .splitn(2, |byte| *byte == b'\n')
        .map(|list| list.split(|byte| *byte == b',').collect())
        .collect();
    let [one, other] = &lists[..] else {
        return;
    };
    let same = one == other;
    let segment = |parts| ring.segment(SegmentKind::User, parts).digest;
    let hmac = |parts| ring.hmac(Domain::Account, parts).current;
    assert_eq!(same, segment(one) == segment(other));
    assert_eq!(same, hmac(one) == hmac(other));
    let digest = segment(one);
    assert_eq!(Digest::from_hex(&digest.hex()), Some(digest));
    assert_eq!(Digest::from_bytes(digest.to_bytes()), digest);
}

/// A request is read the same however it arrives, and what is wrong is said in few words.
pub fn resp(data: &[u8]) {
    let mut rest = data;
    for _ in 0..64 {
        match palisade::resp::read(rest) {
            Ok(Some(request)) => {
                let (whole, later) = rest.split_at(request.bytes);
                assert!(!whole.is_empty());
                assert_eq!(
                    palisade::resp::read(whole).as_ref(),
                    Ok(&Some(request.clone()))
                );
                let unfinished = &whole[..whole.len() - 1];
                assert_eq!(palisade::resp::read(unfinished), Ok(None));
                if let Err(refused) = palisade::resp::Command::of(&request.args) {
                    assert!(refused.to_string().len() < 128);
                }
                rest = later;
            }
            Ok(None) => return,
            Err(malformed) => {
                assert!(malformed.to_string().len() < 128);
                return;
            }
        }
    }
}
