//! The dashboard on the admin address: the page at `/`, signing in, and its live data. Changes made
//! on the page go through `/admin/*` as requests of any operator do.

mod assets;
mod board;
pub(crate) mod sessions;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use palisade_core::Clock;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::serve::Stop;
use crate::surfaces::admin::access::{Access, AccessRefusal, Grant};
use crate::surfaces::admin::guesses::Peer;
use crate::surfaces::admin::refusal::Refusal;
use crate::surfaces::exchange::asset::harden;
use crate::surfaces::exchange::body;
pub(crate) use board::Board;
use board::Span;
use sessions::Sessions;
use stream::Stage;

/// Largest body of a sign-in, in bytes.
const SIGN_IN_BYTES_MAX: usize = 16 * 1024;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The shared state of the dashboard.
#[derive(Clone)]
pub(crate) struct Dashboard {
    board: Arc<Board>,
    pub(crate) sessions: Arc<Sessions>,
    stage: Stage,
    is_open: bool,
    /// Time to receive a body.
    read_timeout: Duration,
}

impl Dashboard {
    pub(crate) fn new(
        board: Arc<Board>,
        access: &Arc<Access>,
        clock: &Arc<dyn Clock>,
        stop: Stop,
        is_secure: bool,
        read_timeout: Duration,
    ) -> Self {
        Self {
            board,
            sessions: Arc::new(Sessions::new(
                Arc::clone(clock),
                Arc::clone(access),
                is_secure,
            )),
            stage: Stage::new(stop),
            is_open: access.is_configured(),
            read_timeout,
        }
    }

    /// Routes that need no credential: the page, and signing in.
    pub(crate) fn door(&self) -> Router {
        if !self.is_open {
            return Router::new();
        }
        let mut router = Router::new();
        for asset in assets::ALL {
            let answer =
                move |headers: HeaderMap| async move { asset.answer(&headers).map(Body::new) };
            router = router.route(asset.path, get(answer));
        }
        router
            .route("/dashboard/session", get(session).post(sign_in))
            .layer(from_fn(hardened))
            .with_state(self.clone())
    }

    /// Routes that need a credential.
    pub(crate) fn views(&self) -> Router {
        Router::new()
            .route("/dashboard/sign-out", axum::routing::post(sign_out))
            .route("/dashboard/history", get(history))
            .route("/dashboard/now", get(now))
            .route("/dashboard/events", get(events))
            .with_state(self.clone())
    }

    /// Returns the grant of a request with a session, if the session permits this method.
    pub(crate) fn admit(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Grant, AccessRefusal> {
        self.sessions.admit(method, headers)
    }
}

async fn hardened(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    harden(response.headers_mut(), assets::POLICY);
    response
}

/// The credential that a person typed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignIn {
    token: String,
}

/// The page's view of its session.
#[derive(Serialize)]
struct Session<'a> {
    role: &'static str,
    csrf: &'a str,
}

async fn sign_in(State(dashboard): State<Dashboard>, request: Request) -> Response {
    let (
        Parts {
            headers,
            extensions,
            ..
        },
        body,
    ) = request.into_parts();
    // A page of another site must not sign a browser in.
    let is_own_page = headers
        .get(SEC_FETCH_SITE)
        .is_none_or(|site| site == "same-origin" || site == "none");
    if !is_own_page {
        return Refusal::denied(AccessRefusal::Forged, "").into_response();
    }
    let body = match body::read(body, SIGN_IN_BYTES_MAX, dashboard.read_timeout).await {
        Ok(body) => body,
        Err(problem) => return Refusal::body(&problem).into_response(),
    };
    let Ok(given) = serde_json::from_slice::<SignIn>(&body) else {
        let problem = "must be text, and nothing beside it";
        return Refusal::invalid_field("Invalid sign-in", "token", problem).into_response();
    };
    let token = Zeroizing::new(given.token);
    let peer = Peer::ip_of(&extensions);
    match dashboard.sessions.open(peer, &token) {
        Ok((opened, grant)) => {
            let told = Json(Session {
                role: grant.role.name(),
                csrf: &opened.csrf,
            });
            ([(SET_COOKIE, opened.cookie)], NO_STORE, told).into_response()
        }
        Err(denied) => {
            denied.tell(dashboard.board.observer());
            Refusal::denied(denied, "").into_response()
        }
    }
}

const NO_STORE: [(HeaderName, &str); 1] = [(CACHE_CONTROL, "no-store")];

/// Returns the session to a page that was reloaded: the browser kept the cookie, but the page has
/// lost its CSRF token.
async fn session(State(dashboard): State<Dashboard>, headers: HeaderMap) -> Response {
    match dashboard.sessions.visitor(&headers) {
        Ok(visitor) => {
            let told = Json(Session {
                role: visitor.grant.role.name(),
                csrf: &visitor.csrf,
            });
            (NO_STORE, told).into_response()
        }
        // Not 401: the page asks at every load, and it is no error that nobody is signed in.
        Err(_) => (StatusCode::OK, NO_STORE, Json(NOBODY)).into_response(),
    }
}

const NOBODY: Session<'static> = Session {
    role: "nobody",
    csrf: "",
};

async fn sign_out(State(dashboard): State<Dashboard>, headers: HeaderMap) -> Response {
    dashboard.sessions.close(&headers);
    let cookie = dashboard.sessions.no_cookie();
    (StatusCode::NO_CONTENT, [(SET_COOKIE, cookie)]).into_response()
}

#[derive(Deserialize)]
struct HistoryQuery {
    span: Option<String>,
}

async fn history(
    State(dashboard): State<Dashboard>,
    Query(wanted): Query<HistoryQuery>,
) -> Response {
    let span = match wanted.span.as_deref() {
        None | Some("hour") => Span::Hour,
        Some("day") => Span::Day,
        Some(_) => {
            let problem = "must be `hour` or `day`";
            return Refusal::invalid_field("Invalid history", "span", problem).into_response();
        }
    };
    json(dashboard.board.history(span))
}

async fn now(State(dashboard): State<Dashboard>) -> Response {
    json(dashboard.board.frame())
}

fn json(bytes: bytes::Bytes) -> Response {
    (NO_STORE, [(CONTENT_TYPE, "application/json")], bytes).into_response()
}

async fn events(State(dashboard): State<Dashboard>, headers: HeaderMap) -> Response {
    let sessions = &dashboard.sessions;
    let shown = match sessions.watch(&headers) {
        Ok(watch) => dashboard.stage.show(&dashboard.board, sessions, watch),
        Err(denied) => return Refusal::denied(denied, "").into_response(),
    };
    shown.unwrap_or_else(|| Refusal::too_many().into_response())
}
