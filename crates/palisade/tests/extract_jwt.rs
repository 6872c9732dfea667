//! I-JWT: which tokens are accepted, and as whom.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{DecodingKey, EncodingKey, Header, encode};
use palisade::extract::jwt::{
    Algorithm, Claims, Expiry, JwtKeys, JwtRules, KEYS_MAX, KeyError, TOKEN_BYTES_MAX,
    TokenRefusal, TokenVerifier, parse_algorithm,
};
use palisade::{SystemClock, TimeSource};
use palisade_core::Micros;
use palisade_core::time::{Clock, SECOND};
use proptest::prelude::*;
use serde_json::{Value, json};

const RSA_PRIVATE: &[u8] = include_bytes!("keys/rsa.private.pem");
const RSA_PUBLIC: &[u8] = include_bytes!("keys/rsa.public.pem");
/// The same key in the encoding that only RSA has.
const RSA_PUBLIC_PKCS1: &[u8] = include_bytes!("keys/rsa.pkcs1.public.pem");
const RSA_OTHER: &[u8] = include_bytes!("keys/rsa-other.private.pem");
const RSA_WEAK: &[u8] = include_bytes!("keys/rsa-1024.public.pem");
const EC_PRIVATE: &[u8] = include_bytes!("keys/ec.private.pem");
const EC_PUBLIC: &[u8] = include_bytes!("keys/ec.public.pem");
const ED_PRIVATE: &[u8] = include_bytes!("keys/ed.private.pem");
const ED_PUBLIC: &[u8] = include_bytes!("keys/ed.public.pem");
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// The present in these tests, in Unix seconds.
const NOW: u64 = 1_800_000_000;

fn now() -> Micros {
    Micros(NOW * 1_000_000)
}

fn good_claims() -> Value {
    json!({"sub": "u-1", "org_id": "acme", "jti": "t-1", "scope": "read write", "roles": ["admin"], "exp": NOW + 300})
}

fn rsa_key() -> EncodingKey {
    EncodingKey::from_rsa_pem(RSA_PRIVATE).unwrap()
}

fn signed(algorithm: Algorithm, kid: Option<&str>, key: &EncodingKey, claims: &Value) -> String {
    let mut header = Header::new(algorithm);
    header.kid = kid.map(str::to_owned);
    encode(&header, claims, key).unwrap()
}

fn hmac_signed(claims: &Value) -> String {
    signed(
        Algorithm::HS256,
        None,
        &EncodingKey::from_secret(SECRET),
        claims,
    )
}

fn hmac_verifier(rules: JwtRules) -> TokenVerifier {
    TokenVerifier::new(
        JwtKeys::from_secret(SECRET, Algorithm::HS256).unwrap(),
        rules,
    )
}

fn judge(claims: &Value) -> Result<Claims, TokenRefusal> {
    hmac_verifier(JwtRules::default()).verify(&hmac_signed(claims), now())
}

fn refusal(claims: &Value) -> TokenRefusal {
    judge(claims).unwrap_err()
}

/// `good_claims` with `member` set, or removed by null.
fn with(member: &str, value: Value) -> Value {
    let mut claims = good_claims();
    claims[member] = value;
    claims
}

fn jwk(public_pem: &[u8], algorithm: Algorithm, kid: &str) -> Value {
    let key = match algorithm {
        Algorithm::ES256 => DecodingKey::from_ec_pem(public_pem),
        Algorithm::EdDSA => DecodingKey::from_ed_pem(public_pem),
        _ => DecodingKey::from_rsa_pem(public_pem),
    };
    let jwk = Jwk::from_decoding_key(&key.unwrap(), Some(algorithm)).unwrap();
    let mut jwk = serde_json::to_value(jwk).unwrap();
    jwk["kid"] = json!(kid);
    jwk
}

fn rsa_jwk(kid: &str) -> Value {
    jwk(RSA_PUBLIC, Algorithm::RS256, kid)
}

fn jwks(keys: &[Value], algorithm: Algorithm) -> Result<JwtKeys, KeyError> {
    JwtKeys::from_jwks(json!({ "keys": keys }).to_string().as_bytes(), algorithm)
}

fn rsa_set(kids: &[&str]) -> TokenVerifier {
    let keys: Vec<Value> = kids.iter().map(|kid| rsa_jwk(kid)).collect();
    TokenVerifier::new(jwks(&keys, Algorithm::RS256).unwrap(), JwtRules::default())
}

#[test]
fn i_jwt_claims_become_identity() {
    let claims = judge(&good_claims()).unwrap();
    let text = |id: &palisade_core::Id| id.as_str().to_owned();
    assert_eq!(claims.user.as_ref().map(text).as_deref(), Some("u-1"));
    assert_eq!(claims.org.as_ref().map(text).as_deref(), Some("acme"));
    assert_eq!(claims.token.as_str(), "t-1");
    assert_eq!(
        claims.scopes.iter().map(text).collect::<Vec<_>>(),
        ["read", "write"]
    );
    assert_eq!(claims.roles.iter().map(text).collect::<Vec<_>>(), ["admin"]);
    assert!(!format!("{claims:?}").contains("u-1"));
}

#[test]
fn i_jwt_scopes_and_roles_come_in_two_shapes() {
    let mut claims = good_claims();
    claims["scope"] = Value::Null;
    claims["scp"] = json!(["a", "b"]);
    claims["roles"] = Value::Null;
    claims["role"] = json!("operator");
    let claims = judge(&claims).unwrap();
    assert_eq!(claims.scopes.len(), 2);
    assert_eq!(claims.roles[0].as_str(), "operator");
    assert!(
        judge(&with("scope", Value::Null))
            .unwrap()
            .scopes
            .is_empty()
    );
}

#[test]
fn i_jwt_the_organisation_claim_is_configurable_and_may_be_a_number() {
    let rules = JwtRules {
        org_claim: "https://example.com/tenant".into(),
        ..JwtRules::default()
    };
    let token = hmac_signed(&with("https://example.com/tenant", json!(42)));
    let claims = hmac_verifier(rules).verify(&token, now()).unwrap();
    assert_eq!(claims.org.unwrap().as_str(), "42");
}

#[test]
fn i_jwt_none_is_refused_signed_or_not() {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    for name in ["none", "None", "NONE", ""] {
        let message = format!(
            "{}.{}",
            part(&json!({"alg": name, "typ": "JWT"})),
            part(&good_claims())
        );
        for signature in ["", "AAAA"] {
            let token = format!("{message}.{signature}");
            assert_eq!(
                hmac_verifier(JwtRules::default())
                    .verify(&token, now())
                    .unwrap_err(),
                TokenRefusal::Algorithm
            );
            assert_eq!(
                rsa_set(&["k1"]).verify(&token, now()).unwrap_err(),
                TokenRefusal::Algorithm
            );
        }
    }
    assert_eq!(parse_algorithm("none").unwrap_err(), KeyError::Algorithm);
}

#[test]
fn i_jwt_a_public_key_is_no_hmac_secret() {
    let forged = signed(
        Algorithm::HS256,
        Some("k1"),
        &EncodingKey::from_secret(RSA_PUBLIC),
        &good_claims(),
    );
    let fixed = JwtKeys::from_pem(RSA_PUBLIC, Algorithm::RS256).unwrap();
    let fixed = TokenVerifier::new(fixed, JwtRules::default());
    assert_eq!(
        fixed.verify(&forged, now()).unwrap_err(),
        TokenRefusal::Algorithm
    );
    assert_eq!(
        rsa_set(&["k1"]).verify(&forged, now()).unwrap_err(),
        TokenRefusal::Algorithm
    );
    assert!(matches!(
        JwtKeys::from_secret(RSA_PUBLIC, Algorithm::HS256),
        Err(KeyError::Secret(_))
    ));
}

#[test]
fn i_jwt_the_algorithm_is_pinned_within_its_family_too() {
    for algorithm in [Algorithm::RS512, Algorithm::PS256] {
        let token = signed(algorithm, Some("k1"), &rsa_key(), &good_claims());
        assert_eq!(
            rsa_set(&["k1"]).verify(&token, now()).unwrap_err(),
            TokenRefusal::Algorithm
        );
    }
}

#[test]
fn i_jwt_an_rsa_key_may_be_a_file_of_its_own_kind() {
    let token = signed(Algorithm::RS256, None, &rsa_key(), &good_claims());
    let keys = JwtKeys::from_pem(RSA_PUBLIC_PKCS1, Algorithm::RS256).unwrap();
    let verifier = TokenVerifier::new(keys, JwtRules::default());
    assert!(verifier.verify(&token, now()).is_ok());
    let unfit = KeyError::Pem("does not fit the configured algorithm");
    for algorithm in [Algorithm::ES256, Algorithm::EdDSA] {
        assert_eq!(
            JwtKeys::from_pem(RSA_PUBLIC_PKCS1, algorithm).unwrap_err(),
            unfit
        );
    }
}

#[test]
fn i_jwt_every_kind_of_key_verifies_its_own_tokens_only() {
    let kinds = [
        (Algorithm::RS256, rsa_key(), RSA_PUBLIC),
        (Algorithm::PS384, rsa_key(), RSA_PUBLIC),
        (
            Algorithm::ES256,
            EncodingKey::from_ec_pem(EC_PRIVATE).unwrap(),
            EC_PUBLIC,
        ),
        (
            Algorithm::EdDSA,
            EncodingKey::from_ed_pem(ED_PRIVATE).unwrap(),
            ED_PUBLIC,
        ),
    ];
    for (algorithm, private, public) in kinds {
        let token = signed(algorithm, Some("k1"), &private, &good_claims());
        let from_pem = JwtKeys::from_pem(public, algorithm).unwrap();
        let from_key = JwtKeys::from_key(public, algorithm).unwrap();
        let from_set = jwks(&[jwk(public, algorithm, "k1")], algorithm).unwrap();
        for keys in [from_pem, from_key, from_set] {
            let verifier = TokenVerifier::new(keys, JwtRules::default());
            assert!(verifier.verify(&token, now()).is_ok(), "{algorithm:?}");
            let end = token.rfind('.').unwrap() + 1;
            let other = if &token[end..=end] == "A" { "B" } else { "A" };
            let tampered = format!("{}{other}{}", &token[..end], &token[end + 1..]);
            assert_eq!(
                verifier.verify(&tampered, now()).unwrap_err(),
                TokenRefusal::Signature,
                "{algorithm:?}"
            );
        }
    }
}

#[test]
fn i_jwt_a_key_set_with_sign_bytes_verifies_too() {
    let mut key = rsa_jwk("k1");
    for member in ["n", "e"] {
        let bytes = URL_SAFE_NO_PAD.decode(key[member].as_str().unwrap());
        let signed = [vec![0], bytes.unwrap()].concat();
        key[member] = json!(URL_SAFE_NO_PAD.encode(signed));
    }
    let keys = jwks(&[key], Algorithm::RS256).unwrap();
    let token = signed(Algorithm::RS256, Some("k1"), &rsa_key(), &good_claims());
    let verifier = TokenVerifier::new(keys, JwtRules::default());
    assert!(verifier.verify(&token, now()).is_ok());
}

#[test]
fn i_jwt_another_key_or_another_payload_fails_the_signature() {
    let other = EncodingKey::from_rsa_pem(RSA_OTHER).unwrap();
    let token = signed(Algorithm::RS256, Some("k1"), &other, &good_claims());
    assert_eq!(
        rsa_set(&["k1"]).verify(&token, now()).unwrap_err(),
        TokenRefusal::Signature
    );

    let token = hmac_signed(&good_claims());
    let payload = URL_SAFE_NO_PAD.encode(with("sub", json!("root")).to_string());
    let parts: Vec<&str> = token.split('.').collect();
    let forged = format!("{}.{payload}.{}", parts[0], parts[2]);
    assert_eq!(
        hmac_verifier(JwtRules::default())
            .verify(&forged, now())
            .unwrap_err(),
        TokenRefusal::Signature
    );
}

#[test]
fn i_jwt_the_kid_chooses_the_key() {
    let token = |kid| signed(Algorithm::RS256, kid, &rsa_key(), &good_claims());
    let set = rsa_set(&["k1", "k2"]);
    assert!(set.verify(&token(Some("k2")), now()).is_ok());
    assert_eq!(
        set.verify(&token(Some("k3")), now()).unwrap_err(),
        TokenRefusal::UnknownKey
    );
    assert_eq!(
        set.verify(&token(None), now()).unwrap_err(),
        TokenRefusal::UnknownKey
    );
    assert!(rsa_set(&["k1"]).verify(&token(None), now()).is_ok());
    assert_eq!(
        rsa_set(&["k1"])
            .verify(&token(Some("k3")), now())
            .unwrap_err(),
        TokenRefusal::UnknownKey
    );
}

#[test]
fn i_jwt_expiry_and_start_follow_the_given_time_with_leeway() {
    let cases = [
        ("exp", json!(NOW - 59), Ok(())),
        ("exp", json!(NOW - 60), Err(TokenRefusal::Expired)),
        ("exp", json!(NOW as f64 - 59.5), Ok(())),
        ("exp", json!(-5), Err(TokenRefusal::Expired)),
        ("exp", Value::Null, Err(TokenRefusal::Expired)),
        ("exp", json!("soon"), Err(TokenRefusal::Claim)),
        ("exp", json!(u64::MAX), Ok(())),
        ("exp", json!(1e300), Ok(())),
        ("nbf", json!(NOW + 60), Ok(())),
        ("nbf", json!(NOW + 61), Err(TokenRefusal::NotYetValid)),
        ("nbf", json!([1]), Err(TokenRefusal::Claim)),
    ];
    for (claim, value, expected) in cases {
        assert_eq!(
            judge(&with(claim, value.clone())).map(|_| ()),
            expected,
            "{claim} {value}"
        );
    }
    let rules = JwtRules {
        leeway: Duration::ZERO,
        expiry: Expiry::Optional,
        ..JwtRules::default()
    };
    let verifier = hmac_verifier(rules);
    assert!(
        verifier
            .verify(&hmac_signed(&with("exp", Value::Null)), now())
            .is_ok()
    );
    assert!(
        verifier
            .verify(&hmac_signed(&with("exp", json!(NOW))), now())
            .is_err()
    );
}

/// A machine that was suspended: its monotonic clock stood still.
struct Slept(std::sync::atomic::AtomicU64);

impl TimeSource for Slept {
    fn monotonic_us(&self) -> u64 {
        // Each reading is a second later.
        self.0.fetch_add(SECOND, Ordering::Relaxed)
    }

    fn wall(&self) -> Micros {
        match self.0.load(Ordering::Relaxed) {
            ..=SECOND => Micros((NOW - 3600) * SECOND),
            _ => now(),
        }
    }
}

#[test]
fn f_clock_a_token_that_ended_while_the_machine_slept_is_refused() {
    let clock = SystemClock::of(Slept(0.into()));
    let token = hmac_signed(&with("exp", json!(NOW - 600)));
    let verifier = hmac_verifier(JwtRules::default());
    assert!(
        verifier
            .verify(&token, Micros((NOW - 3600) * SECOND))
            .is_ok()
    );
    let judged = verifier.verify(&token, clock.wall());
    assert_eq!(judged.unwrap_err(), TokenRefusal::Expired);
}

#[test]
fn i_jwt_issuer_and_audience_are_checked_when_configured() {
    let rules = JwtRules {
        issuer: Some("https://id.example".into()),
        audiences: vec!["api".into(), "web".into()],
        ..JwtRules::default()
    };
    let verifier = hmac_verifier(rules);
    let judged = |iss: Value, aud: Value| {
        let mut claims = good_claims();
        claims["iss"] = iss;
        claims["aud"] = aud;
        verifier.verify(&hmac_signed(&claims), now()).map(|_| ())
    };
    let issuer = json!("https://id.example");
    assert_eq!(judged(issuer.clone(), json!("api")), Ok(()));
    assert_eq!(judged(issuer.clone(), json!(["x", "web"])), Ok(()));
    assert_eq!(
        judged(issuer.clone(), json!("other")),
        Err(TokenRefusal::Audience)
    );
    assert_eq!(
        judged(issuer.clone(), json!([])),
        Err(TokenRefusal::Audience)
    );
    assert_eq!(judged(issuer, Value::Null), Err(TokenRefusal::Audience));
    assert_eq!(
        judged(json!("https://evil.example"), json!("api")),
        Err(TokenRefusal::Issuer)
    );
    assert_eq!(
        judged(json!(["https://id.example"]), json!("api")),
        Err(TokenRefusal::Issuer)
    );
    assert_eq!(judged(Value::Null, json!("api")), Err(TokenRefusal::Issuer));
}

#[test]
fn i_jwt_unusable_claims_are_refused() {
    for (claim, value) in [
        ("sub", json!("")),
        ("sub", json!("a\u{0}b")),
        ("sub", json!("x".repeat(600))),
        ("sub", json!({"a": 1})),
        ("org_id", json!(1.5)),
        ("jti", json!([])),
        ("scope", json!(7)),
        ("scope", json!(vec!["s"; 300])),
        ("roles", json!([1])),
    ] {
        assert_eq!(refusal(&with(claim, value)), TokenRefusal::Claim, "{claim}");
    }
    assert!(judge(&with("sub", Value::Null)).unwrap().user.is_none());
}

/// The token with `n − s` instead of `s` in its signature, where `n` is the order of P-256. Anybody
/// can compute it, and it verifies, too.
fn with_the_other_signature(token: &str) -> String {
    const ORDER: [u8; 32] = [
        0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0xff, 0xbc, 0xe6, 0xfa, 0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63,
        0x25, 0x51,
    ];
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let mut signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    let mut borrow = false;
    for (byte, order) in signature[32..].iter_mut().zip(ORDER).rev() {
        let (less, first) = order.overflowing_sub(*byte);
        let (less, second) = less.overflowing_sub(u8::from(borrow));
        (*byte, borrow) = (less, first || second);
    }
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[test]
fn i_jwt_without_jti_the_token_is_known_by_what_was_signed() {
    let token = |sub: &str| judge(&json!({"sub": sub, "exp": NOW + 300})).unwrap().token;
    assert!(token("a").as_str().starts_with("sha256:"));
    assert_eq!(token("a"), token("a"));
    assert_ne!(token("a"), token("b"));

    let key = EncodingKey::from_ec_pem(EC_PRIVATE).unwrap();
    let claims = json!({"sub": "a", "exp": NOW + 300});
    let keys = JwtKeys::from_pem(EC_PUBLIC, Algorithm::ES256).unwrap();
    let verifier = TokenVerifier::new(keys, JwtRules::default());
    let first = signed(Algorithm::ES256, None, &key, &claims);
    let second = with_the_other_signature(&first);
    assert_ne!(first, second, "ECDSA has two signatures for one signing");
    assert_eq!(
        verifier.verify(&first, now()).unwrap().token,
        verifier.verify(&second, now()).unwrap().token
    );
}

#[test]
fn i_jwt_tokens_are_bounded_and_extensions_refused() {
    let verifier = hmac_verifier(JwtRules::default());
    let long = "a".repeat(TOKEN_BYTES_MAX + 1);
    assert_eq!(
        verifier.verify(&long, now()).unwrap_err(),
        TokenRefusal::TooLong
    );
    let mut header = Header::new(Algorithm::HS256);
    header.crit = Some(vec!["b64".to_owned()]);
    let token = encode(&header, &good_claims(), &EncodingKey::from_secret(SECRET)).unwrap();
    assert_eq!(
        verifier.verify(&token, now()).unwrap_err(),
        TokenRefusal::Critical
    );
    for text in ["", ".", "..", "a.b", "a.b.c", "a.b.c.d", "....", "é.é.é"] {
        assert_eq!(
            verifier.verify(text, now()).unwrap_err(),
            TokenRefusal::Malformed,
            "{text}"
        );
    }
}

#[test]
fn i_jwt_key_sets_pass_over_what_does_not_fit() {
    let mut encryption = rsa_jwk("enc");
    encryption["use"] = json!("enc");
    let mut other_algorithm = rsa_jwk("rs512");
    other_algorithm["alg"] = json!("RS512");
    let unknown = json!({"kty": "AKP", "kid": "future"});
    let ec = jwk(EC_PUBLIC, Algorithm::ES256, "ec");
    let keys = [encryption, other_algorithm, unknown, ec];
    assert_eq!(
        jwks(&keys, Algorithm::RS256).unwrap_err(),
        KeyError::NoKey(Algorithm::RS256)
    );
    assert!(jwks(&keys, Algorithm::ES256).is_ok());
}

#[test]
fn i_jwt_key_set_errors_name_the_problem_and_no_value() {
    let broken = |member: &str, value: Value| {
        let mut key = rsa_jwk("canary");
        key[member] = value;
        jwks(&[key], Algorithm::RS256).unwrap_err().to_string()
    };
    assert_eq!(
        broken("n", json!("!!")),
        "`keys[0].n` is not unpadded base64url"
    );
    assert_eq!(
        broken("n", json!("AQAB")),
        "`keys[0].n` is shorter than 2048 bits"
    );
    assert_eq!(
        broken("e", Value::Null),
        "`keys[0].e` is missing or no string"
    );
    assert_eq!(
        broken("d", json!("AQAB")),
        "`keys[0].d` is private: give public keys only"
    );
    let twice = jwks(&[rsa_jwk("canary"), rsa_jwk("canary")], Algorithm::RS256).unwrap_err();
    assert_eq!(
        twice.to_string(),
        "`keys[1].kid` is missing or the same as another key's"
    );
    let set = |text: &str| JwtKeys::from_jwks(text.as_bytes(), Algorithm::RS256).unwrap_err();
    assert_eq!(
        set("{\n  \"keys\": [canary").to_string(),
        "the JWKS is not valid JSON (line 2, column 12)"
    );
    for text in ["[]", "{}", "{\"keys\": {}}", "{\"keys\": [1]}"] {
        assert_eq!(set(text), KeyError::Shape, "{text}");
    }
    assert_eq!(set("{\"keys\": []}"), KeyError::NoKey(Algorithm::RS256));
    let many: Vec<Value> = (0..=KEYS_MAX).map(|n| rsa_jwk(&n.to_string())).collect();
    assert_eq!(
        jwks(&many, Algorithm::RS256).unwrap_err(),
        KeyError::TooManyKeys
    );
}

#[test]
fn i_jwt_static_keys_are_checked_when_loaded() {
    let pem = |pem: &[u8], algorithm| {
        JwtKeys::from_pem(pem, algorithm)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        pem(RSA_PRIVATE, Algorithm::RS256),
        "the PEM key is private: give the public key only"
    );
    assert_eq!(
        pem(RSA_WEAK, Algorithm::RS256),
        "the PEM key is shorter than 2048 bits"
    );
    assert_eq!(
        pem(EC_PUBLIC, Algorithm::RS256),
        "the PEM key does not fit the configured algorithm"
    );
    assert_eq!(
        pem(EC_PUBLIC, Algorithm::ES384),
        "the PEM key is not on curve P-384"
    );
    assert_eq!(
        pem(b"junk", Algorithm::EdDSA),
        "the PEM key does not fit the configured algorithm"
    );
    assert_eq!(
        pem(RSA_PUBLIC, Algorithm::HS256),
        "the PEM key needs a public-key algorithm, not HMAC"
    );
    let secret = |secret: &[u8], algorithm| {
        JwtKeys::from_secret(secret, algorithm)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    assert!(JwtKeys::from_key(SECRET, Algorithm::HS256).is_ok());
    assert_eq!(
        secret(b"short", Algorithm::HS256),
        "the HMAC secret is shorter than 32 bytes"
    );
    assert_eq!(
        secret(SECRET, Algorithm::RS256),
        "the HMAC secret needs one of HS256, HS384, HS512"
    );
    assert!(
        !format!(
            "{:?}",
            JwtKeys::from_secret(SECRET, Algorithm::HS512).unwrap()
        )
        .contains("48, 49")
    );
}

proptest! {
    #[test]
    fn i_jwt_no_token_panics_or_passes(
        token in prop_oneof![".{0,200}", "[A-Za-z0-9_-]{0,60}\\.[A-Za-z0-9_-]{0,60}\\.[A-Za-z0-9_-]{0,60}"],
        header in any::<Vec<u8>>(), payload in any::<Vec<u8>>(),
    ) {
        let verifier = hmac_verifier(JwtRules::default());
        prop_assert!(verifier.verify(&token, now()).is_err());
        let token = format!("{}.{}.AAAA", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
        prop_assert!(verifier.verify(&token, now()).is_err());
    }

    #[test]
    fn i_jwt_no_key_file_panics(bytes in any::<Vec<u8>>(), text in "\\{\"keys\": ?\\[.{0,80}") {
        for algorithm in [Algorithm::HS256, Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA] {
            let _ = JwtKeys::from_jwks(&bytes, algorithm);
            let _ = JwtKeys::from_jwks(text.as_bytes(), algorithm);
            let _ = JwtKeys::from_pem(&bytes, algorithm);
        }
    }
}
