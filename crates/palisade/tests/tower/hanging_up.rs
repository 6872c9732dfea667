//! A client that hangs up before its login is answered.

use std::num::NonZeroU32;
use std::pin::Pin;
use std::task::{Context, Waker};

use palisade::tower::{ConcurrencyLayer, InFlight, LoginLayer};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tower::Layer;

use super::engine_support::shared::Shared;
use super::login::{login, read, verifies, verifies_slowly};
use super::*;

/// Polls once, without being woken for the next step.
pub(super) fn is_pending<F: Future>(asked: &mut Pin<Box<F>>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    asked.as_mut().poll(&mut cx).is_pending()
}

/// Guesses a wrong password, and hangs up as soon as the application has received it.
async fn hang_up<S, A>(service: &S, reached: &Reached)
where
    S: Service<Request<Body>, Response = Response<A>, Error = Infallible> + Clone,
{
    let before = reached.count();
    let mut asked = Box::pin(service.clone().oneshot(login("wrong")));
    while reached.count() == before {
        assert!(is_pending(&mut asked));
        yield_now().await;
    }
}

/// A gate whose store makes every read wait for its turn.
fn on_a_store_that_waits() -> (Gate<Engine>, Arc<VirtualClock>) {
    let clock = Arc::new(VirtualClock::at(engine_support::START));
    let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
    let store = Shared(Arc::new(Model::new(Arc::clone(&time))));
    (Gate::new(engine(Arc::new(store), "", time)), clock)
}

/// Waits until no task is left that no request waits for.
pub(super) async fn is_quiet() {
    while Handle::current().metrics().num_alive_tasks() > 0 {
        yield_now().await;
    }
}

/// Checks that two failures were counted: after the block that they led to, the next failure leads
/// to a longer one.
async fn assert_two_were_counted<S, A>(service: &S, clock: &VirtualClock)
where
    S: Service<Request<Body>, Response = Response<A>, Error = Infallible> + Clone,
{
    clock.advance(15_000_001);
    assert_eq!(ask(service, login("wrong")).await.status(), 401);
    let blocked = ask(service, login("wrong")).await;
    assert_eq!(blocked.status(), 429);
    assert_eq!(header(&blocked, "retry-after"), "60");
}

#[tokio::test(start_paused = true)]
async fn who_hangs_up_while_the_application_verifies_has_guessed() {
    let rig = Rig::new("");
    let (reached, let_go) = (Reached::default(), Arc::new(Notify::new()));
    let service = LoginLayer::new(&rig.gate(), read).layer(verifies_slowly(&reached, &let_go));
    for _ in 0..2 {
        hang_up(&service, &reached).await;
        let_go.notify_one();
        is_quiet().await;
    }
    let service = LoginLayer::new(&rig.gate(), read).layer(verifies(&reached));
    assert_two_were_counted(&service, &rig.clock).await;
}

#[tokio::test(start_paused = true)]
async fn who_hangs_up_while_the_outcome_is_reported_has_guessed() {
    let (gate, clock) = on_a_store_that_waits();
    let reached = Reached::default();
    let service = LoginLayer::new(&gate, read).layer(verifies(&reached));
    for _ in 0..2 {
        hang_up(&service, &reached).await;
        is_quiet().await;
    }
    assert_two_were_counted(&service, &clock).await;
}

#[tokio::test]
async fn who_hangs_up_before_the_application_has_it_has_not_guessed() {
    let (gate, _) = on_a_store_that_waits();
    let reached = Reached::default();
    let service = LoginLayer::new(&gate, read).layer(verifies(&reached));
    let mut asked = Box::pin(service.oneshot(login("wrong")));
    assert!(is_pending(&mut asked));
    drop(asked);
    is_quiet().await;
    assert_eq!(reached.count(), 0);
}

/// A slot that is taken within the layer is held for as long as the application works.
#[tokio::test(start_paused = true)]
async fn l_concurrent_a_login_that_nobody_waits_for_still_takes_its_place() {
    let rig = Rig::new("");
    let (reached, let_go) = (Reached::default(), Arc::new(Notify::new()));
    let one = Arc::new(InFlight::each(NonZeroU32::MIN));
    let places = ConcurrencyLayer::per_address(&rig.gate(), Arc::clone(&one));
    let within = places.layer(verifies_slowly(&reached, &let_go));
    let service = LoginLayer::new(&rig.gate(), read).layer(within);
    hang_up(&service, &reached).await;
    assert_eq!(one.len(), 1);
    let_go.notify_one();
    is_quiet().await;
    assert!(one.is_empty());
}

#[tokio::test]
async fn an_application_that_panics_is_not_asked_again() {
    let rig = Rig::new("");
    let reached = Reached::default();
    let seen = reached.clone();
    let panics = tower::service_fn(move |_: Request<Body>| {
        seen.0.fetch_add(1, Ordering::SeqCst);
        async { panic!("as told") as Result<Response<Body>, Infallible> }
    });
    let service = LoginLayer::new(&rig.gate(), read).layer(panics);
    let asked = tokio::spawn(service.oneshot(login("wrong"))).await;
    assert!(asked.is_err_and(|error| error.is_panic()));
    is_quiet().await;
    assert_eq!(reached.count(), 1);
}
