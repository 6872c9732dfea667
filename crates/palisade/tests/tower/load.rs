//! Requests in progress, bounded by the measured latency (AD-LOAD).

use palisade::tower::LoadLayer;
use tower::Layer;

use super::*;

const TWO: &str = "[adaptive]\nprotect = \"upstream\"\nmin = 2\nmax = 2\n\
    [[class]]\nname = \"bulk\"\npriority = 0\n\
    [[class]]\nname = \"read\"\npriority = 9\n\
    [[route]]\npath = \"/bulk\"\nclass = \"bulk\"\n\
    [[route]]\npath = \"/health\"\nexempt = true\n";

/// An application whose answers wait for a permit of the test.
fn waiting(permits: &Arc<tokio::sync::Semaphore>) -> impl Application + use<> {
    let permits = Arc::clone(permits);
    tower::service_fn(move |_| {
        let permits = Arc::clone(&permits);
        async move {
            permits.acquire().await.unwrap().forget();
            Ok(Response::new(Body::from("hello")))
        }
    })
}

#[tokio::test]
async fn ad_load_a_request_holds_its_place_until_the_head_of_its_answer() {
    let rig = Rig::new(TWO);
    let permits = Arc::new(tokio::sync::Semaphore::new(0));
    let service = LoadLayer::new(&rig.gate()).layer(waiting(&permits));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let service = service.clone();
        tasks.spawn(async move { ask(&service, request("192.0.2.1", "/x")).await });
    }
    tokio::task::yield_now().await;
    let shed = ask(&service, request("192.0.2.2", "/x")).await;
    assert_eq!(shed.status(), 503);
    let wait: u64 = header(&shed, "retry-after").parse().unwrap();
    assert!((1..=5).contains(&wait), "{wait}");
    assert!(text(shed).await.contains("service_unavailable"));
    permits.add_permits(2);
    // Their bodies are still there: only the heads were waited for.
    let answers = tasks.join_all().await;
    assert!(answers.iter().all(|answer| answer.status() == 200));
    permits.add_permits(1);
    assert_eq!(
        ask(&service, request("192.0.2.2", "/x")).await.status(),
        200
    );
    drop(answers);
}

#[tokio::test]
async fn ad_load_a_request_that_is_given_up_gives_its_place_back() {
    let rig = Rig::new(TWO);
    let permits = Arc::new(tokio::sync::Semaphore::new(0));
    let service = LoadLayer::new(&rig.gate()).layer(waiting(&permits));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let service = service.clone();
        tasks.spawn(async move { ask(&service, request("192.0.2.1", "/x")).await });
    }
    tokio::task::yield_now().await;
    assert_eq!(
        ask(&service, request("192.0.2.2", "/x")).await.status(),
        503
    );
    tasks.shutdown().await;
    permits.add_permits(1);
    assert_eq!(
        ask(&service, request("192.0.2.2", "/x")).await.status(),
        200
    );
}

#[tokio::test]
async fn ad_load_bulk_is_shed_first_and_health_last() {
    let rig = Rig::new(TWO);
    let permits = Arc::new(tokio::sync::Semaphore::new(0));
    let service = LoadLayer::new(&rig.gate()).layer(waiting(&permits));
    let held = service.clone();
    let one = tokio::spawn(async move { ask(&held, request("192.0.2.1", "/bulk")).await });
    tokio::task::yield_now().await;
    // Of two places bulk may take one.
    assert_eq!(
        ask(&service, request("192.0.2.2", "/bulk")).await.status(),
        503
    );
    permits.add_permits(2);
    let health = ask(&service, request("192.0.2.2", "/health")).await;
    assert_eq!(health.status(), 200);
    assert_eq!(one.await.unwrap().status(), 200);
}

#[tokio::test]
async fn ad_load_without_the_key_nothing_is_shed() {
    let rig = Rig::new("");
    let reached = Reached::default();
    let service = LoadLayer::new(&rig.gate()).layer(application(&reached));
    for _ in 0..100 {
        assert_eq!(
            ask(&service, request("192.0.2.1", "/x")).await.status(),
            200
        );
    }
    assert_eq!(reached.count(), 100);
    assert_eq!(rig.engine.figures().load, None);
}
