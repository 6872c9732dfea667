//! Layers of one judge and of several, in every order: each bucket is charged once, and none is
//! left out.

use std::time::Duration;

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use palisade::core::FieldError;
use palisade::extract::EdgeConfig;
use palisade::extract::identity::IdentityHeaders;
use palisade::extract::jwt::{JwtKeys, JwtRules, TokenVerifier};
use palisade::tower::{Attempt, EdgeLayer, IdentityLayer, Judge, LoginLayer, Who};
use palisade::{Limiter, LimiterConfig, Quota};
use serde_json::json;
use tower::{Layer, ServiceBuilder};

use super::*;

const POLICY: &str = r#"
[policy]
defaults = false
default_class = "api"
[[class]]
name = "api"
[[class]]
name = "auth"
kind = "auth"
[[route]]
path = "/login"
class = "auth"
[[limit]]
name = "per-address"
by = ["ip"]
class = ["api"]
rate = "100/min"
[[limit]]
name = "guesses"
by = ["ip"]
class = ["auth"]
rate = "5/min"
[[limit]]
name = "per-user"
by = ["user"]
rate = "100/min"
"#;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// A gate that verifies tokens itself.
fn verifying<J: Judge>(gate: Gate<J>) -> Gate<J> {
    let keys = JwtKeys::from_secret(SECRET, Algorithm::HS256).unwrap();
    let verifier = TokenVerifier::new(keys, JwtRules::default());
    gate.reading(EdgeConfig {
        jwt: Some(Arc::new(verifier)),
        ..EdgeConfig::default()
    })
}

/// A token of `user` that was signed with `secret`.
fn token(user: &str, secret: &[u8]) -> String {
    let expires = engine_support::START.0 / 1_000_000 + 3_600;
    let claims = json!({"sub": user, "jti": format!("of-{user}"), "exp": expires});
    let key = EncodingKey::from_secret(secret);
    encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap()
}

fn bearing(token: &str, path: &str) -> Request<Body> {
    let mut request = request("192.0.2.1", path);
    let value = format!("Bearer {token}").parse().unwrap();
    request.headers_mut().insert("authorization", value);
    request
}

/// How many of a hundred guessed tokens reach the application behind both layers.
async fn guesses_that_pass<J: Judge>(gate: Gate<J>, path: &str) -> usize {
    let reached = Reached::default();
    let gate = verifying(gate);
    let service = ServiceBuilder::new()
        .layer(EdgeLayer::new(&gate))
        .layer(IdentityLayer::new(&gate))
        .service(application(&reached));
    for number in 0..100_u32 {
        let guessed = token("ann", format!("{number:032}").as_bytes());
        let answer = ask(&service, bearing(&guessed, path)).await;
        let status = answer.status().as_u16();
        assert!(matches!(status, 200 | 429), "{status}");
    }
    let passed = reached.count();
    // The holder of a good token, at another address, is not affected.
    let mut elsewhere = bearing(&token("ann", SECRET), "/x");
    let address: SocketAddr = "198.51.100.7:4711".parse().unwrap();
    elsewhere.extensions_mut().insert(address);
    assert_eq!(ask(&service, elsewhere).await.status(), 200);
    passed
}

#[tokio::test]
async fn i_jwt_guessed_tokens_behind_both_layers_meet_the_figure_of_the_auth_class() {
    let rig = Rig::new(POLICY);
    assert_eq!(guesses_that_pass(rig.gate(), "/x").await, 5);

    let engine = embedded(POLICY, &rig.clock);
    assert_eq!(guesses_that_pass(Gate::new(engine), "/x").await, 5);
}

/// The edge has charged the auth class already, so the guess is not charged a second time.
#[tokio::test]
async fn i_jwt_a_guess_at_a_route_of_the_auth_class_counts_once() {
    let rig = Rig::new(POLICY);
    assert_eq!(guesses_that_pass(rig.gate(), "/login").await, 5);
}

#[tokio::test]
async fn i_jwt_good_tokens_are_no_guesses_behind_both_layers() {
    let rig = Rig::new(POLICY);
    let gate = verifying(rig.gate());
    let service = ServiceBuilder::new()
        .layer(EdgeLayer::new(&gate))
        .layer(IdentityLayer::new(&gate))
        .service(application(&Reached::default()));
    for number in 0..20 {
        let good = token(&format!("user-{number}"), SECRET);
        assert_eq!(ask(&service, bearing(&good, "/x")).await.status(), 200);
    }
    assert_eq!(rig.left("per-address").await, 80, "once each");
}

fn of_ann() -> Request<Body> {
    let mut request = request("192.0.2.1", "/x");
    let who = Who::default().user("ann").unwrap();
    request.extensions_mut().insert(who);
    request
}

fn one_limit(limit: u64) -> Gate<impl Judge> {
    let clock = Arc::new(VirtualClock::at(engine_support::START));
    let quota = Quota::sliding(limit, Duration::from_secs(60)).unwrap();
    let limiter = Limiter::with_clock(quota, &LimiterConfig::default(), clock);
    Gate::limited("one", limiter)
}

#[tokio::test]
async fn l_layers_an_edge_of_another_judge_leaves_out_nothing_of_this_one() {
    let rig = Rig::new(POLICY);
    let service = ServiceBuilder::new()
        .layer(EdgeLayer::new(&one_limit(1_000)))
        .layer(IdentityLayer::new(&rig.gate()))
        .service(application(&Reached::default()));
    assert_eq!(ask(&service, of_ann()).await.status(), 200);
    assert_eq!(rig.left("per-address").await, 99);
    assert_eq!(rig.left("per-user").await, 99);
}

#[tokio::test]
async fn l_layers_a_judge_is_remembered_behind_another_one_and_a_login() {
    let rig = Rig::new(POLICY);
    let login = LoginLayer::new(&rig.gate(), |request: Request<Body>| async move {
        let attempt = Attempt::by("ann")?;
        Ok::<_, FieldError>((request, Some(attempt)))
    });
    let service = ServiceBuilder::new()
        .layer(EdgeLayer::new(&rig.gate()))
        .layer(EdgeLayer::new(&one_limit(1_000)))
        .layer(login)
        .layer(IdentityLayer::new(&rig.gate()))
        .service(application(&Reached::default()));
    assert_eq!(ask(&service, of_ann()).await.status(), 200);
    assert_eq!(rig.left("per-address").await, 99);
    assert_eq!(rig.left("per-user").await, 99);
}

/// Every order of the layers, and each layer twice.
#[tokio::test]
async fn l_layers_in_any_order_and_twice_each_bucket_is_charged_once() {
    let rig = Rig::new(POLICY);
    let edge = || EdgeLayer::new(&rig.gate());
    let identity = || IdentityLayer::new(&rig.gate());
    let application = || application(&Reached::default());
    let mut charged = 0;
    let mut check = async |answer: http::StatusCode| {
        assert_eq!(answer, 200);
        charged += 1;
        assert_eq!(rig.left("per-address").await, 100 - charged);
        assert_eq!(rig.left("per-user").await, 100 - charged);
    };
    let service = identity().layer(edge().layer(application()));
    check(ask(&service, of_ann()).await.status()).await;
    let service = identity().layer(identity().layer(application()));
    check(ask(&service, of_ann()).await.status()).await;
    let service = edge().layer(edge().layer(identity().layer(application())));
    check(ask(&service, of_ann()).await.status()).await;
    let service = edge().layer(identity().layer(edge().layer(identity().layer(application()))));
    check(ask(&service, of_ann()).await.status()).await;
}

#[tokio::test]
async fn l_layers_who_is_authenticated_between_two_layers_is_not_left_out() {
    let rig = Rig::new(POLICY);
    let authenticate = |mut request: Request<Body>| {
        let who = Who::default().user("ann").unwrap();
        request.extensions_mut().insert(who);
        request
    };
    let service = ServiceBuilder::new()
        .layer(IdentityLayer::new(&rig.gate()))
        .map_request(authenticate)
        .layer(IdentityLayer::new(&rig.gate()))
        .service(application(&Reached::default()));
    let answer = ask(&service, request("192.0.2.1", "/x")).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(rig.left("per-address").await, 99);
    assert_eq!(rig.left("per-user").await, 99);
}

#[tokio::test]
async fn l_layers_what_cannot_be_read_behind_the_edge_has_counted_there() {
    let rig = Rig::new(POLICY);
    let gate = rig.gate().reading(EdgeConfig {
        identity_headers: Some(IdentityHeaders::default()),
        ..EdgeConfig::default()
    });
    let gate = gate.trusting(["192.0.2.1/32".parse().unwrap()]);
    let service = ServiceBuilder::new()
        .layer(EdgeLayer::new(&gate))
        .layer(IdentityLayer::new(&gate))
        .service(application(&Reached::default()));
    let mut twice = request("192.0.2.1", "/x");
    let name = IdentityHeaders::default().user;
    twice.headers_mut().append(&name, "ann".parse().unwrap());
    twice.headers_mut().append(&name, "bob".parse().unwrap());
    assert_eq!(ask(&service, twice).await.status(), 400);
    assert_eq!(rig.left("per-address").await, 99);
}

/// A user, a token and an organisation with the same name, which consists of the bytes of the
/// address.
#[tokio::test]
async fn one_limit_keeps_apart_what_is_spelt_alike() {
    let gate = one_limit(1);
    let service = IdentityLayer::new(&gate).layer(application(&Reached::default()));
    let of = |who: Option<Who>| {
        let mut request = request("65.66.67.68", "/x");
        if let Some(who) = who {
            request.extensions_mut().insert(who);
        }
        request
    };
    let who = Who::default;
    for spelt in [
        Some(who().user("ABCD").unwrap()),
        Some(who().token("ABCD").unwrap()),
        Some(who().org("ABCD").unwrap()),
        None,
    ] {
        assert_eq!(
            ask(&service, of(spelt.clone())).await.status(),
            200,
            "{spelt:?}"
        );
        assert_eq!(ask(&service, of(spelt)).await.status(), 429);
    }
    let longest = "x".repeat(palisade::core::facts::ID_BYTES_MAX);
    let longer = format!("{}y", &longest[1..]);
    for user in [longest, longer] {
        let named = who().user(&user).unwrap();
        assert_eq!(ask(&service, of(Some(named))).await.status(), 200);
    }
}
