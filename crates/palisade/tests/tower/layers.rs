//! Layers before and after authentication: what is counted, shown and believed.

use std::time::Duration;

use palisade::cases::StoreState;
use palisade::tower::{Decided, EdgeLayer, IdentityLayer, LoginLayer, Who};
use palisade::{Limiter, LimiterConfig, Quota, SystemClock};
use tower::limit::ConcurrencyLimit;
use tower::{Layer, ServiceBuilder};

use super::login::{login, read};
use super::*;

const POLICY: &str = r#"
[policy]
defaults = false
default_class = "api"
[[class]]
name = "api"
[[class]]
name = "admin"
kind = "admin"
[[route]]
path = "/admin/*"
class = "admin"
[[limit]]
name = "per-address"
by = ["ip"]
rate = "10/min"
[[limit]]
name = "per-user"
by = ["user"]
rate = "4/min"
"#;

pub(super) fn of_ann(path: &str) -> Request<Body> {
    let mut request = request("192.0.2.1", path);
    let who = Who::default().user("ann").unwrap();
    request.extensions_mut().insert(who);
    request
}

#[tokio::test]
async fn l_layers_edge_and_identity_charge_each_bucket_once() {
    let rig = Rig::new(POLICY);
    let reached = Reached::default();
    let service = ServiceBuilder::new()
        .layer(EdgeLayer::new(&rig.gate()))
        .layer(IdentityLayer::new(&rig.gate()))
        .service(application(&reached));
    for passed in 1..=3 {
        assert_eq!(ask(&service, of_ann("/x")).await.status(), 200);
        assert_eq!(rig.left("per-address").await, 10 - passed);
        assert_eq!(rig.left("per-user").await, 4 - passed);
    }
    assert_eq!(reached.count(), 3);
}

#[tokio::test]
async fn l_layers_identity_alone_leaves_nothing_out() {
    let rig = Rig::new(POLICY);
    let reached = Reached::default();
    let service = IdentityLayer::new(&rig.gate()).layer(application(&reached));
    assert_eq!(ask(&service, of_ann("/x")).await.status(), 200);
    assert_eq!(rig.left("per-address").await, 9);
    assert_eq!(rig.left("per-user").await, 3);
}

#[tokio::test]
async fn l_layers_an_edge_alone_counts_no_user() {
    let rig = Rig::new(POLICY);
    let reached = Reached::default();
    let service = EdgeLayer::new(&rig.gate()).layer(application(&reached));
    assert_eq!(ask(&service, of_ann("/x")).await.status(), 200);
    assert_eq!(rig.left("per-address").await, 9);
    assert_eq!(rig.left("per-user").await, 4);
}

#[tokio::test]
async fn l_constraint_the_tighter_of_two_layers_speaks_and_a_refusal_before_all() {
    let rig = Rig::new(POLICY);
    let reached = Reached::default();
    let gate = rig.gate().marking_responses();
    let service = ServiceBuilder::new()
        .layer(EdgeLayer::new(&gate))
        .layer(IdentityLayer::new(&gate))
        .service(application(&reached));
    let allowed = ask(&service, of_ann("/x")).await;
    assert_eq!(header(&allowed, "x-ratelimit-limit"), "4");
    assert_eq!(header(&allowed, "x-ratelimit-remaining"), "3");
    assert!(header(&allowed, "ratelimit").starts_with("\"per-user\";r=3"));
    let decided = allowed.extensions().get::<Decided>().unwrap();
    assert_eq!(&*decided.decision().limits[0].name, "per-user");

    // Another user of the same address: now the address's limit is the tighter one.
    for _ in 0..7 {
        ask(&service, request("192.0.2.1", "/x")).await;
    }
    let mut bob = request("192.0.2.1", "/x");
    bob.extensions_mut()
        .insert(Who::default().user("bob").unwrap());
    let allowed = ask(&service, bob).await;
    assert_eq!(header(&allowed, "x-ratelimit-limit"), "10");
    assert_eq!(header(&allowed, "x-ratelimit-remaining"), "1");

    let eleventh = ask(&service, request("192.0.2.1", "/x")).await;
    assert_eq!(eleventh.status(), 200);
    let refused = ask(&service, of_ann("/x")).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(header(&refused, "x-ratelimit-remaining"), "0");
    assert_ne!(header(&refused, "retry-after"), "absent");
    let decided = refused.extensions().get::<Decided>().unwrap();
    assert!(!decided.decision().is_allowed());
    let body = text(refused).await;
    assert!(body.contains("rate_limit_exceeded"), "{body}");
    assert!(!body.contains("192.0.2.1"), "{body}");
    assert_eq!(reached.count(), 10);
}

/// Three limits in any order, with a layer without headers in between: the headers are those of the
/// tightest limit. The layers do not use the extensions of the answer to agree on it.
#[tokio::test]
async fn l_constraint_the_tightest_of_many_layers_speaks_whoever_stands_between() {
    for [outer, middle, inner] in [
        [3, 5, 7],
        [3, 7, 5],
        [5, 3, 7],
        [5, 7, 3],
        [7, 3, 5],
        [7, 5, 3],
    ] {
        for marks in [false, true] {
            let layer = |limit: u64| {
                let quota = Quota::sliding(limit, Duration::from_secs(60)).unwrap();
                let gate = Gate::limited(&format!("of-{limit}"), Limiter::new(quota));
                EdgeLayer::new(&if marks {
                    gate.marking_responses()
                } else {
                    gate
                })
            };
            let rig = Rig::new("");
            let service = ServiceBuilder::new()
                .layer(layer(outer))
                .layer(LoginLayer::new(&rig.gate(), read))
                .layer(layer(middle))
                .layer(layer(inner))
                .service(application(&Reached::default()));
            for left in (0..3).rev() {
                let answer = ask(&service, login("right")).await;
                assert_eq!(header(&answer, "x-ratelimit-limit"), "3");
                assert_eq!(header(&answer, "x-ratelimit-remaining"), left.to_string());
            }
            let refused = ask(&service, login("right")).await;
            assert_eq!(refused.status(), 429);
            assert_eq!(header(&refused, "x-ratelimit-limit"), "3");
            assert!(refused.extensions().get::<Decided>().is_some());
        }
    }
}

#[tokio::test]
async fn what_was_decided_is_told_to_the_application() {
    let rig = Rig::new(POLICY);
    let service = tower::service_fn(|request: Request<Body>| async move {
        let decided = request.extensions().get::<Decided>().unwrap();
        let left = decided.decision().limits[0].remaining;
        Ok::<_, Infallible>(Response::new(Body::from(left.to_string())))
    });
    let service = EdgeLayer::new(&rig.gate()).layer(service);
    assert_eq!(text(ask(&service, of_ann("/x")).await).await, "9");
}

#[tokio::test]
async fn i_xff_a_spoofed_chain_does_nothing_unless_a_trusted_proxy_wrote_it() {
    let rig = Rig::new(POLICY);
    let reached = Reached::default();
    let plain = EdgeLayer::new(&rig.gate()).layer(application(&reached));
    let mut passed = 0;
    for number in 0..30 {
        let mut spoofed = request("192.0.2.1", "/x");
        let headers = spoofed.headers_mut();
        headers.insert(
            "x-forwarded-for",
            format!("198.51.100.{number}").parse().unwrap(),
        );
        headers.insert("x-real-ip", format!("198.51.100.{number}").parse().unwrap());
        headers.insert(
            "forwarded",
            format!("for=198.51.100.{number}").parse().unwrap(),
        );
        passed += usize::from(ask(&plain, spoofed).await.status() == 200);
    }
    assert_eq!(passed, 10);

    let trusting = rig.gate().trusting(["192.0.2.0/24".parse().unwrap()]);
    let behind_proxy = EdgeLayer::new(&trusting).layer(application(&reached));
    for number in 0..30 {
        let mut forwarded = request("192.0.2.7", "/x");
        let chain = format!("203.0.113.9, 198.51.100.{number}");
        let headers = forwarded.headers_mut();
        headers.insert("x-forwarded-for", chain.parse().unwrap());
        assert_eq!(
            ask(&behind_proxy, forwarded).await.status(),
            200,
            "{number}"
        );
    }
    let mut malformed = request("192.0.2.7", "/x");
    let headers = malformed.headers_mut();
    headers.insert("x-forwarded-for", "no-address".parse().unwrap());
    let refused = ask(&behind_proxy, malformed).await;
    assert_eq!(refused.status(), 400);
    let body = text(refused).await;
    assert!(
        body.contains("X-Forwarded-For") && !body.contains("no-address"),
        "{body}"
    );
}

#[tokio::test]
async fn i_path_the_application_gets_the_path_that_was_judged() {
    let rig = Rig::new(POLICY);
    let service = tower::service_fn(|request: Request<Body>| async move {
        Ok::<_, Infallible>(Response::new(Body::from(request.uri().to_string())))
    });
    let service = EdgeLayer::new(&rig.gate()).layer(service);
    let spelt = ask(&service, request("192.0.2.1", "/%61/../b?q=%61")).await;
    assert_eq!(text(spelt).await, "/b?q=%61");
    let refused = ask(&service, request("192.0.2.1", "/a//b")).await;
    assert_eq!(refused.status(), 400);
    assert_eq!(
        rig.left("per-address").await,
        8,
        "what is refused counts, too"
    );
}

#[tokio::test]
async fn without_a_peer_nobody_is_served() {
    let rig = Rig::new(POLICY);
    let reached = Reached::default();
    let service = EdgeLayer::new(&rig.gate()).layer(application(&reached));
    let refused = ask(&service, Request::new(Body::default())).await;
    assert_eq!(refused.status(), 503);
    assert_eq!(reached.count(), 0);
}

#[tokio::test]
async fn f_fallback_without_the_store_each_class_has_the_mode_that_the_policy_says() {
    let rig = Rig::new(POLICY);
    let reached = Reached::default();
    let service = IdentityLayer::new(&rig.gate()).layer(application(&reached));
    rig.store.set(StoreState::Down);
    let ordinary = ask(&service, of_ann("/x")).await;
    assert_eq!(ordinary.status(), 200);
    assert_eq!(header(&ordinary, "x-ratelimit-status"), "degraded");
    let closed = ask(&service, of_ann("/admin/x")).await;
    assert_eq!(closed.status(), 503);
    assert_eq!(reached.count(), 1);
    let mut passed = 1;
    for _ in 0..20 {
        passed += usize::from(ask(&service, of_ann("/x")).await.status() == 200);
    }
    assert_eq!(passed, 4, "never more than the limits of the policy");
}

/// Sends 1,500 requests at once, of which five are admitted.
async fn flood<S, A>(service: S) -> usize
where
    S: Service<Request<Body>, Response = Response<A>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    A: Send + 'static,
{
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..1_500 {
        let service = service.clone();
        tasks.spawn(async move { service.oneshot(request("192.0.2.1", "/x")).await });
    }
    let mut passed = 0;
    while let Some(answer) = tasks.join_next().await {
        passed += usize::from(answer.unwrap().unwrap().status() == 200);
    }
    passed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn l_atomic_fifteen_hundred_at_once_at_five_a_second_admit_five() {
    let clock = Arc::new(VirtualClock::at(engine_support::START));
    let quota = Quota::sliding(5, Duration::from_secs(1)).unwrap();
    let limiter = Limiter::with_clock(quota, &LimiterConfig::default(), Arc::clone(&clock));
    let reached = Reached::default();
    let gate = Gate::limited("five", limiter);
    let by_limiter = EdgeLayer::new(&gate).layer(application(&reached));
    assert_eq!(flood(by_limiter.clone()).await, 5);
    assert_eq!(reached.count(), 5);
    clock.advance(1_000_000);
    assert_eq!(flood(by_limiter).await, 5);

    let gate = Gate::new(embedded(&POLICY.replace("10/min", "5/s"), &clock));
    assert_eq!(
        flood(EdgeLayer::new(&gate).layer(application(&reached))).await,
        5
    );
}

#[tokio::test]
async fn a_limiter_without_a_policy_counts_addresses_and_then_users() {
    let quota = Quota::sliding(2, Duration::from_secs(60)).unwrap();
    let limiter = || Limiter::<SystemClock>::new(quota);
    let reached = Reached::default();
    let service = ServiceBuilder::new()
        .layer(EdgeLayer::new(&Gate::limited("per-address", limiter())))
        .layer(IdentityLayer::new(&Gate::limited("per-user", limiter())))
        .service(application(&reached));
    let allowed = ask(&service, of_ann("/x")).await;
    assert_eq!(header(&allowed, "x-ratelimit-limit"), "2");
    assert_eq!(header(&allowed, "x-ratelimit-remaining"), "1");
    assert_eq!(
        header(&allowed, "ratelimit-policy"),
        "\"per-user\";q=2;w=60"
    );
    assert_eq!(ask(&service, of_ann("/x")).await.status(), 200);
    let refused = ask(&service, of_ann("/x")).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(header(&refused, "x-ratelimit-remaining"), "0");
    let mut elsewhere = request("192.0.2.2", "/x");
    elsewhere
        .extensions_mut()
        .insert(Who::default().user("ann").unwrap());
    assert_eq!(
        ask(&service, elsewhere).await.status(),
        429,
        "ann, wherever from"
    );
    assert_eq!(
        ask(&service, request("192.0.2.2", "/x")).await.status(),
        200
    );
}

/// The inner service takes one request at a time.
#[tokio::test]
async fn readiness_is_that_of_the_service_behind_and_a_refusal_gives_it_back() {
    let rig = Rig::new(&POLICY.replace("10/min", "1/min"));
    let reached = Reached::default();
    let one_at_a_time = ConcurrencyLimit::new(application(&reached), 1);
    let mut service = EdgeLayer::new(&rig.gate()).layer(one_at_a_time);
    let mut other = service.clone();
    assert_eq!(
        service
            .ready()
            .await
            .unwrap()
            .call(request("192.0.2.1", "/x"))
            .await
            .unwrap()
            .status(),
        200
    );
    service.ready().await.unwrap();
    let mut waiting = tokio_test_task(&mut other);
    assert!(!waiting(), "the only place is reserved");
    let refused = service.call(request("192.0.2.1", "/x")).await.unwrap();
    assert_eq!(refused.status(), 429);
    drop(service);
    assert!(waiting(), "the refused request gave it back");
}

/// Whether a service is ready, at each call.
fn tokio_test_task<S: Service<Request<Body>>>(service: &mut S) -> impl FnMut() -> bool + '_ {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    move || service.poll_ready(&mut context).is_ready()
}

#[tokio::test]
async fn a_grpc_client_is_refused_with_a_status_of_grpc() {
    let rig = Rig::new(&POLICY.replace("10/min", "1/min"));
    let reached = Reached::default();
    let service = EdgeLayer::new(&rig.gate()).layer(application(&reached));
    let grpc = || {
        let mut request = request("192.0.2.1", "/service/Method");
        let kind = "application/grpc+proto".parse().unwrap();
        request.headers_mut().insert("content-type", kind);
        request
    };
    assert_eq!(ask(&service, grpc()).await.status(), 200);
    let refused = ask(&service, grpc()).await;
    assert_eq!(refused.status(), 200);
    assert_eq!(header(&refused, "grpc-status"), "8");
    assert_eq!(header(&refused, "content-type"), "application/grpc");
    assert_ne!(header(&refused, "retry-after"), "absent");
    assert_eq!(reached.count(), 1);
    assert_eq!(text(refused).await, "");
}

/// The candidate header of an answer through the layers before and after authentication.
async fn candidate_of(
    next: &str,
    asked: usize,
) -> (Vec<String>, palisade::engine::CandidateReport) {
    let rig = Rig::new(POLICY);
    rig.engine
        .set_candidate(Some(&palisade_policy::CandidateBundle {
            policy: engine_support::policy(next, &palisade_policy::Env::default()),
            tenants: None,
            keys_max: 1000,
            header: true,
        }));
    let service = ServiceBuilder::new()
        .layer(EdgeLayer::new(&rig.gate()))
        .layer(IdentityLayer::new(&rig.gate()))
        .service(application(&Reached::default()));
    let mut told = Vec::new();
    for _ in 0..asked {
        let response = ask(&service, of_ann("/x")).await;
        let said = header(&response, "x-ratelimit-candidate");
        told.push(format!("{} {said}", response.status().as_u16()));
    }
    (told, rig.engine.candidate_report().unwrap())
}

#[tokio::test]
async fn l_candidate_decides_beside_both_layers_and_lets_all_through() {
    let by_user = "newly-denied;rule=\"T-ORG\";limit=\"per-user\"";
    let (told, report) = candidate_of(&POLICY.replace("4/min", "1/min"), 5).await;
    let differs = format!("200 {by_user}");
    assert_eq!(told[..4], ["200 absent", &differs, &differs, &differs]);
    assert_eq!(told[4], "429 absent", "refused by both");
    // Each request is decided once before authentication and once after it.
    assert_eq!(
        (report.verdicts.newly_denied, report.verdicts.agrees),
        (3, 7)
    );

    // A difference before authentication is shown even if the inner layer has less left.
    let by_address = "newly-denied;rule=\"L-IP\";limit=\"per-address\"";
    let (told, report) = candidate_of(&POLICY.replace("10/min", "1/min"), 3).await;
    let differs = format!("200 {by_address}");
    assert_eq!(told, ["200 absent", &differs, &differs]);
    assert_eq!(report.verdicts.newly_denied, 2);
}
