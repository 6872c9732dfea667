//! Requests that are decided without waiting are decided in the same way as after a wait.

use std::time::Duration;

use futures_util::FutureExt;
use http::HeaderMap;
use palisade::tower::{Decided, EdgeLayer, Gate, IdentityLayer, Judge, Who};
use palisade::{Limiter, LimiterConfig, Quota};
use tower::limit::ConcurrencyLimit;
use tower::{Layer, ServiceBuilder};

use super::*;

const POLICY: &str = r#"
[policy]
defaults = false
default_class = "api"
[[class]]
name = "api"
[[limit]]
name = "per-address"
by = ["ip"]
rate = "9/min"
[[limit]]
name = "per-user"
by = ["user"]
rate = "3/min"
[[limit]]
name = "bots"
by = ["ip"]
bot = true
rate = "1/min"
"#;

/// An application that answers with the URI of its request, and whether it got a decision.
async fn echo(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let is_told = request.extensions().get::<Decided>().is_some();
    let text = format!("{} {is_told}", request.uri());
    Ok(Response::new(Body::from(text)))
}

/// Status, headers and, if the application gave it, the body.
type Seen = (u16, HeaderMap, Option<String>, bool);

/// The results of `requests` behind both layers.
async fn answers<J: Judge>(gate: Gate<J>, requests: &[Request<Body>]) -> Vec<Seen> {
    let gate = gate
        .trusting(["198.51.100.0/24".parse().unwrap()])
        .marking_responses();
    let service = ServiceBuilder::new()
        .layer(EdgeLayer::new(&gate))
        .layer(IdentityLayer::new(&gate))
        .service(tower::service_fn(echo));
    let mut seen = Vec::new();
    for request in requests {
        let answer = ask(&service, request.clone()).await;
        let (status, mut headers) = (answer.status().as_u16(), answer.headers().clone());
        // The id is new for every request.
        headers.remove("x-request-id");
        let is_told = answer.extensions().get::<Decided>().is_some();
        let has_passed = status == 200 && !headers.contains_key("grpc-status");
        let body = match has_passed {
            true => Some(text(answer).await),
            false => None,
        };
        seen.push((status, headers, body, is_told));
    }
    seen
}

fn with(name: &'static str, value: &str, mut request: Request<Body>) -> Request<Body> {
    let value = value.parse().unwrap();
    request.headers_mut().insert(name, value);
    request
}

/// Requests of every kind: passed, refused, unreadable, and of unknown origin.
fn requests() -> Vec<Request<Body>> {
    let plain = || request("192.0.2.1", "/x?q=1");
    let mut of_ann = plain();
    let ann = Who::default().user("ann").unwrap();
    of_ann.extensions_mut().insert(ann);
    let mut requests = vec![
        plain(),
        request("192.0.2.2", "/%61/../b?q=%61"),
        request("192.0.2.2", "/a//b"),
        with("authorization", "Bearer t", request("192.0.2.2", "/x")),
        with("x-forwarded-for", "203.0.113.9", plain()),
        with(
            "x-forwarded-for",
            "203.0.113.9",
            request("198.51.100.1", "/x"),
        ),
        with("x-forwarded-for", "nobody", request("198.51.100.1", "/x")),
        with("user-agent", "sqlmap/1.7", request("192.0.2.3", "/x")),
        with("x-request-id", "r-1", of_ann.clone()),
        with("content-type", "application/grpc", of_ann.clone()),
        Request::new(Body::default()),
    ];
    requests.push(of_ann);
    requests
}

#[tokio::test]
async fn the_embedded_store_decides_at_once_what_others_decide_after_a_wait() {
    let rig = Rig::new(POLICY);
    let engine = embedded(POLICY, &rig.clock);
    assert!(engine.answers_at_once() && !rig.engine.answers_at_once());
    let requests: Vec<_> = (0..5).flat_map(|_| requests()).collect();
    let at_once = answers(Gate::new(engine), &requests).await;
    let waited = answers(rig.gate(), &requests).await;
    for (position, (at_once, waited)) in at_once.iter().zip(&waited).enumerate() {
        assert_eq!(at_once, waited, "request {position}");
    }
    let statuses: std::collections::BTreeSet<u16> = waited.iter().map(|seen| seen.0).collect();
    assert_eq!(Vec::from_iter(statuses), [200, 400, 429, 503]);
}

#[tokio::test]
async fn i_bot_a_candidates_limit_for_bots_sees_them_where_the_live_policy_has_none() {
    let rig = Rig::new(POLICY);
    let (without, _) = POLICY.split_at(POLICY.find("[[limit]]\nname = \"bots\"").unwrap());
    let engine = embedded(without, &rig.clock);
    engine.set_candidate(Some(&palisade_policy::CandidateBundle {
        policy: engine_support::policy(POLICY, &palisade_policy::Env::default()),
        tenants: None,
        keys_max: 100,
        header: false,
    }));
    let gate = Gate::new(Arc::clone(&engine));
    let service = EdgeLayer::new(&gate).layer(tower::service_fn(echo));
    for _ in 0..2 {
        let bot = with("user-agent", "sqlmap/1.7", request("192.0.2.3", "/x"));
        assert_eq!(ask(&service, bot).await.status(), 200);
    }
    let verdicts = engine.candidate_report().unwrap().verdicts;
    assert_eq!((verdicts.agrees, verdicts.newly_denied), (1, 1));
}

#[tokio::test]
async fn a_check_is_ready_at_once_on_a_store_that_never_has_to_be_waited_for() {
    let rig = Rig::new(POLICY);
    let facts = r#"{"ip":"192.0.2.1","method":"GET","path":"/x"}"#;
    let facts = engine_support::request(facts);
    assert!(!rig.engine.answers_at_once());
    assert_eq!(rig.left("per-address").await, 9, "nothing was charged");
    let engine = embedded(POLICY, &rig.clock);
    assert!(engine.answers_at_once());
    let answer = engine.check(&facts).now_or_never().unwrap();
    assert_eq!(answer.decision.limits[0].remaining, 8);
}

#[tokio::test]
async fn a_refusal_at_once_gives_back_what_the_service_behind_has_reserved() {
    let quota = Quota::sliding(1, Duration::from_secs(60)).unwrap();
    let clock = Arc::new(VirtualClock::at(engine_support::START));
    let limiter = Limiter::with_clock(quota, &LimiterConfig::default(), clock);
    let reached = Reached::default();
    let one_at_a_time = ConcurrencyLimit::new(application(&reached), 1);
    let mut service = EdgeLayer::new(&Gate::limited("one", limiter)).layer(one_at_a_time);
    let mut other = service.clone();
    let passed = service.ready().await.unwrap();
    let passed = passed.call(request("192.0.2.1", "/x")).await.unwrap();
    assert_eq!(passed.status(), 200);
    service.ready().await.unwrap();
    let refused = service.call(request("192.0.2.1", "/x")).await.unwrap();
    assert_eq!(refused.status(), 429);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(other.poll_ready(&mut context).is_ready());
    assert_eq!(reached.count(), 1);
}
