//! Logins behind the guard.

use palisade::core::facts::DeviceFacts;
use palisade::core::{FieldError, Id};
use palisade::tower::{Attempt, Decided, LoginLayer, Outcome, by_status};
use tokio::sync::Notify;
use tower::Layer;

use super::*;

/// A login with the password as its body and the name in a header.
pub(super) fn login(password: &str) -> Request<Body> {
    let mut request = request("192.0.2.1", "/login").map(|_| Body::from(password.to_owned()));
    request
        .headers_mut()
        .insert("x-login", "ann".parse().unwrap());
    request
}

pub(super) async fn read(
    request: Request<Body>,
) -> Result<(Request<Body>, Option<Attempt>), FieldError> {
    let Some(name) = request.headers().get("x-login") else {
        return Ok((request, None));
    };
    let device = DeviceFacts {
        client_id: Some(Id::new("client_id", "a device")?),
        ..DeviceFacts::default()
    };
    let name = String::from_utf8_lossy(name.as_bytes());
    let attempt = Attempt::by(&name)?.device(device);
    Ok((request, Some(attempt)))
}

/// An application that verifies passwords.
pub(super) fn verifies(reached: &Reached) -> impl Application + use<> {
    let reached = reached.clone();
    tower::service_fn(move |request: Request<Body>| {
        reached.0.fetch_add(1, Ordering::SeqCst);
        async move {
            let password = request.into_body().collect().await?.to_bytes();
            let mut response = Response::new(Body::default());
            if password != "right" {
                *response.status_mut() = http::StatusCode::UNAUTHORIZED;
            }
            Ok(response)
        }
    })
}

/// An application to which every password is wrong, and which answers when it is told to.
pub(super) fn verifies_slowly(reached: &Reached, let_go: &Arc<Notify>) -> impl Application + use<> {
    let (reached, let_go) = (reached.clone(), Arc::clone(let_go));
    tower::service_fn(move |_| {
        let (reached, let_go) = (reached.clone(), Arc::clone(&let_go));
        async move {
            reached.0.fetch_add(1, Ordering::SeqCst);
            let_go.notified().await;
            let mut response = Response::new(Body::default());
            *response.status_mut() = http::StatusCode::UNAUTHORIZED;
            Ok(response)
        }
    })
}

#[tokio::test(start_paused = true)]
async fn guesses_are_reported_and_the_blocked_ones_never_reach_the_application() {
    let rig = Rig::new("");
    let reached = Reached::default();
    let service = LoginLayer::new(&rig.gate(), read).layer(verifies(&reached));
    assert_eq!(ask(&service, login("wrong")).await.status(), 401);
    assert_eq!(ask(&service, login("wrong")).await.status(), 401);
    let blocked = ask(&service, login("right")).await;
    assert_eq!(blocked.status(), 429);
    assert_eq!(header(&blocked, "retry-after"), "15");
    assert_eq!(
        reached.count(),
        2,
        "a guess that is blocked verifies nothing"
    );
    assert!(blocked.extensions().get::<Decided>().is_some());
    rig.clock.advance(15_000_001);
    assert_eq!(ask(&service, login("right")).await.status(), 200);
}

/// A wrong password for this name.
fn guess(name: &str) -> Request<Body> {
    let mut request = login("wrong");
    let name = http::HeaderValue::from_bytes(name.as_bytes()).unwrap();
    request.headers_mut().insert("x-login", name);
    request
}

#[tokio::test(start_paused = true)]
async fn spellings_of_one_name_are_one_account() {
    let rig = Rig::new("");
    let reached = Reached::default();
    let service = LoginLayer::new(&rig.gate(), read).layer(verifies(&reached));
    for spelt in ["ann", " ANN "] {
        assert_eq!(ask(&service, guess(spelt)).await.status(), 401);
    }
    for spelt in ["ann", "Ann", "\u{ff41}nn"] {
        assert_eq!(ask(&service, guess(spelt)).await.status(), 429, "{spelt}");
    }
}

#[tokio::test]
async fn a_login_that_does_not_say_who_tries_never_reaches_the_application() {
    let rig = Rig::new("");
    let reached = Reached::default();
    let service = LoginLayer::new(&rig.gate(), read).layer(verifies(&reached));
    let too_long = "x".repeat(600);
    for unusable in ["", "  ", &too_long] {
        let refused = ask(&service, guess(unusable)).await;
        assert_eq!(refused.status(), 400, "{unusable}");
        let body = text(refused).await;
        assert!(body.contains("`username`"), "{body}");
    }
    assert_eq!(reached.count(), 0);
}

/// An application's answer to a wrong name, a wrong method or nonsense does not make the guess
/// free.
#[test]
fn an_answer_that_is_no_success_is_a_failure_unless_nothing_was_verified() {
    let outcome = |status: u16| {
        let response = Response::builder().status(status).body(()).unwrap();
        by_status(&response.into_parts().0)
    };
    for status in [200, 204, 302, 303] {
        assert_eq!(outcome(status), Outcome::Success, "{status}");
    }
    for status in [400, 401, 403, 404, 410, 422, 423] {
        assert_eq!(outcome(status), Outcome::Failure, "{status}");
    }
    assert_eq!(outcome(429), Outcome::Neither);
    for status in [500, 503] {
        assert_eq!(outcome(status), Outcome::Unknown, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn g_unknown_s11_guesses_that_the_application_fails_over_are_scored() {
    let rig = Rig::new("");
    let reached = Reached::default();
    let counted = reached.clone();
    let fails = tower::service_fn(move |_: Request<Body>| {
        let number = counted.0.fetch_add(1, Ordering::SeqCst);
        async move {
            if number == 1 {
                return Err("no answer".into());
            }
            let mut response = Response::new(Body::default());
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            Ok::<_, tower::BoxError>(response)
        }
    });
    let service = LoginLayer::new(&rig.gate(), read).layer(fails);
    let mut statuses = Vec::new();
    for _ in 0..6 {
        let answered = service.clone().oneshot(login("wrong")).await;
        statuses.push(answered.map_or(0, |response| response.status().as_u16()));
    }
    assert_eq!(statuses, [500, 0, 500, 500, 429, 429]);
    assert_eq!(reached.count(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_backoff_the_delay_of_a_failure_is_waited_for_without_a_thread() {
    let rig = Rig::new("");
    let reached = Reached::default();
    let service = LoginLayer::new(&rig.gate(), read).layer(verifies(&reached));
    let began = palisade::store::deadline::now();
    ask(&service, login("wrong")).await;
    assert_eq!(began.elapsed().as_millis(), 250);
    ask(&service, login("wrong")).await;
    assert_eq!(began.elapsed().as_millis(), 750);
}

#[tokio::test]
async fn g_pending_guesses_at_once_gain_nothing() {
    let rig = Rig::new("");
    let reached = Reached::default();
    let hold = Arc::new(Notify::new());
    let service = LoginLayer::new(&rig.gate(), read).layer(verifies_slowly(&reached, &hold));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        tasks.spawn(service.clone().oneshot(login("wrong")));
    }
    let mut blocked = 0;
    while blocked < 18
        && let Some(answer) = tasks.join_next().await
    {
        assert_eq!(answer.unwrap().unwrap().status(), 429);
        blocked += 1;
    }
    assert_eq!(reached.count(), 2, "two guesses were verified");
    hold.notify_waiters();
    while let Some(answer) = tasks.join_next().await {
        assert_eq!(answer.unwrap().unwrap().status(), 401);
    }
}

#[tokio::test(start_paused = true)]
async fn an_application_that_answers_with_302_either_way_says_the_outcome_otherwise() {
    let rig = Rig::new("");
    let application = tower::service_fn(|request: Request<Body>| async move {
        let password = request.into_body().collect().await?.to_bytes();
        let to = if password == "right" {
            "/home"
        } else {
            "/login"
        };
        let response = Response::builder().status(302).header("location", to);
        Ok::<_, Infallible>(response.body(Body::default()).unwrap())
    });
    let layer =
        LoginLayer::new(&rig.gate(), read).outcome(|parts| match parts.headers.get("location") {
            Some(to) if to == "/login" => Outcome::Failure,
            _ => Outcome::Success,
        });
    let service = layer.layer(application);
    for _ in 0..2 {
        assert_eq!(ask(&service, login("wrong")).await.status(), 302);
    }
    assert_eq!(ask(&service, login("wrong")).await.status(), 429);
}

#[tokio::test]
async fn a_request_that_tries_nothing_passes() {
    let rig = Rig::new("");
    let reached = Reached::default();
    let service = LoginLayer::new(&rig.gate(), read).layer(application(&reached));
    for _ in 0..20 {
        assert_eq!(
            ask(&service, request("192.0.2.1", "/login")).await.status(),
            200
        );
    }
}

#[tokio::test]
async fn f_closed_without_the_store_no_password_is_verified() {
    let rig = Rig::new("");
    let reached = Reached::default();
    let service = LoginLayer::new(&rig.gate(), read).layer(verifies(&reached));
    rig.store.set(palisade::cases::StoreState::Down);
    assert_eq!(ask(&service, login("right")).await.status(), 503);
    assert_eq!(reached.count(), 0);
}
