//! Limits on concurrent requests.

use std::num::NonZeroU32;

use palisade::tower::{ConcurrencyLayer, Gate, InFlight};
use palisade::{Limiter, Quota};
use tower::Layer;

use super::*;

fn two() -> Arc<InFlight> {
    Arc::new(InFlight::each(NonZeroU32::new(2).unwrap()))
}

fn gate() -> Gate<palisade::tower::OneLimit> {
    let quota = Quota::per(1_000_000, std::time::Duration::from_secs(1)).unwrap();
    Gate::limited("plenty", Limiter::new(quota))
}

#[tokio::test]
async fn l_concurrent_a_place_is_held_until_the_last_byte_of_the_answer() {
    let (reached, slots) = (Reached::default(), two());
    let layer = ConcurrencyLayer::per_address(&gate(), Arc::clone(&slots));
    let service = layer.layer(application(&reached));
    let first = ask(&service, request("192.0.2.1", "/")).await;
    let second = ask(&service, request("192.0.2.1", "/")).await;
    assert_eq!(
        (first.status(), second.status()),
        (http::StatusCode::OK, http::StatusCode::OK)
    );
    let third = ask(&service, request("192.0.2.1", "/")).await;
    assert_eq!(third.status(), 429);
    assert_eq!(header(&third, "retry-after"), "1");
    assert_eq!(
        ask(&service, request("192.0.2.2", "/")).await.status(),
        200,
        "each its own"
    );
    assert_eq!(text(first).await, "hello");
    assert_eq!(slots.len(), 1);
    assert_eq!(ask(&service, request("192.0.2.1", "/")).await.status(), 200);
    drop(second);
    assert!(
        slots.is_empty(),
        "a body that is given up gives its place back"
    );
}

#[tokio::test]
async fn l_concurrent_a_request_that_is_given_up_gives_its_place_back() {
    let slots = two();
    let never = tower::service_fn(|_: Request<Body>| {
        std::future::pending::<Result<Response<Body>, Infallible>>()
    });
    let layer = ConcurrencyLayer::by(&gate(), Arc::clone(&slots), |_| Some(b"all".to_vec()));
    let service = layer.layer(never);
    let mut tasks = tokio::task::JoinSet::new();
    for peer in ["192.0.2.1", "192.0.2.2"] {
        let service = service.clone();
        tasks.spawn(async move { ask(&service, request(peer, "/")).await.status() });
    }
    while slots.len() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(&service, request("192.0.2.3", "/")).await.status(), 429);
    tasks.shutdown().await;
    assert!(slots.is_empty());
}

#[tokio::test]
async fn l_concurrent_all_keys_together_are_bounded() {
    let four = NonZeroU32::new(4).unwrap();
    let slots = Arc::new(InFlight::bounded(NonZeroU32::MIN, four));
    let reached = Reached::default();
    let layer = ConcurrencyLayer::per_address(&gate(), Arc::clone(&slots));
    let service = layer.layer(application(&reached));
    let mut held = Vec::new();
    for number in 0..9 {
        held.push(ask(&service, request(&format!("192.0.2.{number}"), "/")).await);
    }
    let passed = held.iter().filter(|response| response.status() == 200);
    assert_eq!(passed.count(), 4);
}
