//! Limits on what is in progress, held by the layers.

use std::num::NonZeroU32;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use palisade::store::{Answer, Call, Interceptor};
use palisade::tower::{ConcurrencyLayer, EdgeLayer, IdentityLayer, InFlight, TookTooLong, Who};
use tower::Layer;

use super::hanging_up::{is_pending, is_quiet};
use super::*;

const SLOTS: &str = r#"
[policy]
defaults = false

[reservations]
max_hold = "60s"

[[limit]]
name = "at-once-per-address"
by = ["ip"]
concurrency = 2
hold = "30s"

[[limit]]
name = "at-once-per-user"
by = ["user"]
concurrency = 1
hold = "30s"

[[limit]]
name = "requests"
by = ["ip"]
rate = "100/min"
"#;

/// An engine on the embedded store, and its clock.
fn in_memory() -> (Gate<Engine>, Arc<VirtualClock>) {
    let clock = Arc::new(VirtualClock::at(engine_support::START));
    (Gate::new(embedded(SLOTS, &clock)), clock)
}

/// A store that lets other tasks in before each call.
struct Patient(Model);

impl Interceptor for Patient {
    fn inner(&self) -> &dyn Store {
        &self.0
    }

    fn before<'a>(&'a self, _: Call<'a>) -> Answer<'a, ()> {
        Answer::later(async {
            tokio::task::yield_now().await;
            Ok(())
        })
    }

    fn is_shared(&self) -> bool {
        true
    }
}

fn of_user(peer: &str, user: &str) -> Request<Body> {
    let mut request = request(peer, "/");
    let who = Who::default().user(user).unwrap();
    request.extensions_mut().insert(who);
    request
}

/// A body that never ends.
struct Endless;

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

#[tokio::test]
async fn b_slot_a_place_is_held_until_the_last_byte_of_the_answer() {
    let (gate, _) = in_memory();
    let service = EdgeLayer::new(&gate).layer(application(&Reached::default()));
    let first = ask(&service, request("192.0.2.1", "/")).await;
    let second = ask(&service, request("192.0.2.1", "/")).await;
    assert_eq!(first.status(), 200);
    let third = ask(&service, request("192.0.2.1", "/")).await;
    assert_eq!(third.status(), 429);
    assert_eq!(header(&third, "retry-after"), "30", "the earliest end");
    let other = ask(&service, request("192.0.2.2", "/")).await;
    assert_eq!(other.status(), 200, "each its own");
    assert_eq!(text(first).await, "hello");
    let fourth = ask(&service, request("192.0.2.1", "/")).await;
    assert_eq!(fourth.status(), 200, "the first was read to its end");
    drop(second);
    let fifth = ask(&service, request("192.0.2.1", "/")).await;
    assert_eq!(fifth.status(), 200, "the second was given up");
    assert_eq!(ask(&service, request("192.0.2.1", "/")).await.status(), 429);
    assert_eq!(header(&fifth, "x-ratelimit-remaining"), "0", "the tightest");
}

#[tokio::test]
async fn b_slot_each_layer_holds_the_places_that_it_asks_for() {
    let (gate, _) = in_memory();
    let within = IdentityLayer::new(&gate).layer(application(&Reached::default()));
    let service = EdgeLayer::new(&gate).layer(within);
    let ann = ask(&service, of_user("192.0.2.1", "ann")).await;
    assert_eq!(ann.status(), 200);
    let again = ask(&service, of_user("192.0.2.2", "ann")).await;
    assert_eq!(again.status(), 429, "one at once, wherever ann is");
    let bob = ask(&service, of_user("192.0.2.1", "bob")).await;
    assert_eq!(bob.status(), 200);
    let carl = ask(&service, of_user("192.0.2.1", "carl")).await;
    assert_eq!(carl.status(), 429, "two at once from one address");
    drop(ann);
    let carl = ask(&service, of_user("192.0.2.1", "carl")).await;
    assert_eq!(carl.status(), 200);
    let ann = ask(&service, of_user("192.0.2.3", "ann")).await;
    assert_eq!(ann.status(), 200);
}

#[tokio::test]
async fn b_slot_a_handler_that_panics_or_is_given_up_frees_its_place() {
    let (gate, _) = in_memory();
    let breaks = tower::service_fn(|request: Request<Body>| async move {
        match request.uri().path() {
            "/panic" => panic!("as told"),
            "/slow" => std::future::pending::<()>().await,
            _ => {}
        }
        Ok::<_, Infallible>(Response::new(Body::from("hello")))
    });
    let service = IdentityLayer::new(&gate).layer(breaks);
    let of = |path: &str| {
        let mut request = of_user("192.0.2.1", "ann");
        *request.uri_mut() = path.parse().unwrap();
        request
    };
    let asked = tokio::spawn(service.clone().oneshot(of("/panic"))).await;
    assert!(asked.is_err_and(|error| error.is_panic()));
    let slow = tokio::spawn(service.clone().oneshot(of("/slow")));
    while ask(&service, of("/")).await.status() == 200 {
        tokio::task::yield_now().await;
    }
    slow.abort();
    assert!(slow.await.is_err());
    assert_eq!(ask(&service, of("/")).await.status(), 200);
}

#[tokio::test]
async fn b_slot_a_store_that_waits_frees_a_place_in_the_background() {
    let rig = Rig::new(SLOTS);
    let service = IdentityLayer::new(&rig.gate()).layer(application(&Reached::default()));
    let ann = ask(&service, of_user("192.0.2.1", "ann")).await;
    assert_eq!(ann.status(), 200);
    let again = ask(&service, of_user("192.0.2.1", "ann")).await;
    assert_eq!(again.status(), 429);
    drop(ann);
    rig.engine.guards_settled().await;
    // Denials are remembered for a moment.
    rig.clock.advance(100_000);
    let again = ask(&service, of_user("192.0.2.1", "ann")).await;
    assert_eq!(again.status(), 200);
    assert_eq!(rig.left("requests").await, 98);
}

#[tokio::test(start_paused = true)]
async fn b_slot_a_request_that_is_given_up_while_it_is_decided_leaves_nothing_behind() {
    let clock = Arc::new(VirtualClock::at(engine_support::START));
    let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
    let store = Patient(Model::new(Arc::clone(&time)));
    let engine = engine(Arc::new(store), SLOTS, time);
    let gate = Gate::new(Arc::clone(&engine));
    let reached = Reached::default();
    let service = IdentityLayer::new(&gate).layer(application(&reached));
    let mut steps = 0;
    while reached.count() == 0 {
        let mut asked = Box::pin(service.clone().oneshot(of_user("192.0.2.1", "ann")));
        for _ in 0..steps {
            if !is_pending(&mut asked) {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(asked);
        is_quiet().await;
        // Denials are remembered for a moment.
        clock.advance(100_000);
        steps += 1;
    }
    assert!(steps > 2, "it waits for the store");
    let again = ask(&service, of_user("192.0.2.1", "ann")).await;
    assert_eq!(again.status(), 200);
    assert_eq!(header(&again, "x-ratelimit-remaining"), "0");
    drop(again);
    is_quiet().await;
    // One that reached the application, and this one.
    let facts = r#"{"ip":"192.0.2.1","method":"GET","path":"/x"}"#;
    let facts = engine_support::request(facts);
    let left = engine_support::render(&engine.peek(&facts).await);
    assert_eq!(engine_support::remaining(&left, "requests"), 98);
}

#[tokio::test(start_paused = true)]
async fn b_slot_a_place_is_extended_while_its_answer_goes_on() {
    let (gate, clock) = in_memory();
    let endless = tower::service_fn(async |_: Request<Body>| Ok(Response::new(Endless)));
    let service = IdentityLayer::new(&gate).layer(endless);
    let first = ask(&service, of_user("192.0.2.1", "ann")).await;
    for _ in 0..5 {
        clock.advance(10_000_000);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let other = ask(&service, of_user("192.0.2.2", "ann")).await;
        assert_eq!(other.status(), 429);
    }
    drop(first);
    let other = ask(&service, of_user("192.0.2.2", "ann")).await;
    assert_eq!(other.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn b_slot_a_stream_ends_when_it_outlives_max_hold() {
    let (gate, clock) = in_memory();
    let endless = tower::service_fn(async |request: Request<Body>| {
        if request.uri().path() == "/slow" {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(Endless))
    });
    let service = EdgeLayer::new(&gate).layer(endless);
    let passes = async || {
        for _ in 0..60 {
            clock.advance(1_000_000);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let stream = ask(&service, request("192.0.2.1", "/")).await;
    let (read, ()) = tokio::join!(stream.into_body().collect(), passes());
    let error = read.unwrap_err();
    assert!(error.is::<TookTooLong>(), "{error}");
    let slow = ask(&service, request("192.0.2.1", "/slow"));
    let (late, ()) = tokio::join!(slow, passes());
    assert_eq!(late.status(), 503);
}

#[tokio::test]
async fn b_slot_what_is_held_outside_stays_held_inside_another_layer() {
    let (gate, _) = in_memory();
    let one = Arc::new(InFlight::each(NonZeroU32::MIN));
    let places = ConcurrencyLayer::per_address(&gate, Arc::clone(&one));
    let within = places.layer(application(&Reached::default()));
    let service = EdgeLayer::new(&gate).layer(within);
    let first = ask(&service, request("192.0.2.1", "/")).await;
    let second = ask(&service, request("192.0.2.1", "/")).await;
    assert_eq!(
        (first.status().as_u16(), second.status().as_u16()),
        (200, 429)
    );
    drop(second);
    drop(first);
    assert!(one.is_empty());
    let both = [
        ask(&service, request("192.0.2.1", "/")).await,
        ask(&service, request("192.0.2.1", "/")).await,
    ];
    assert_eq!(both[1].status(), 429, "by the layer inside");
}
