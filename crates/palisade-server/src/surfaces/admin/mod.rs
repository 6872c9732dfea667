//! The admin address: metrics, health and administration.

pub(crate) mod access;
mod allowlist;
mod attack;
mod blocks;
mod cache;
mod candidate;
mod clients;
#[cfg(test)]
mod document;
mod explain;
pub(crate) mod guesses;
mod health;
mod input;
mod keys;
mod lookup;
mod quota;
pub(crate) mod refusal;
mod reservations;
mod reset;

#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use hyper::body::Incoming;
use palisade::Engine;
use palisade::deadline::{TimeIsUp, within};
use palisade::engine::Operator;
use palisade::observe::Audit;
use palisade_core::Micros;
use palisade_policy::Env;
use tower::ServiceExt;

use crate::config::{self, Secret};
use crate::failure::Failure;
use crate::serve::{Client, Handler, On, Stop, Surface, SurfaceAddress};
use crate::surfaces::dashboard::Dashboard;
use crate::surfaces::exchange::ids::RequestId;
#[cfg(test)]
use crate::surfaces::exchange::problem::Document as ProblemDocument;
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::{Metrics, SurfaceParts};

use access::{Access, AccessRefusal, Grant, Role, bearer};
use guesses::{GuessLimit, Peer};
use refusal::{Refusal, StoreTrouble};

/// Largest body of an admin request, in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// The flag that chooses the address.
const FLAG: &str = "admin";

/// The admin address.
pub(super) fn surface(given: &SurfaceParts<'_>) -> Result<Box<dyn Surface>, Failure> {
    let admin = Admin {
        operations: operations(given)?,
        metrics: Arc::clone(&given.metrics),
    };
    let served = Arc::new(AdminHandler {
        router: admin.router(given.stop.clone()),
        answer_timeout: given.config.server.request_timeout,
    });
    let place = SurfaceAddress {
        name: "admin",
        flag: FLAG,
        scheme: "http",
        address: given.config.server.admin.into(),
    };
    let surface = On::new(place, given.bounds(), move || Arc::clone(&served));
    Ok(Box::new(surface.within(
        given.tls.callers.clone(),
        &given.enforcer.observer,
    )))
}

/// Builds the state on which operators and the dashboard work.
fn operations(given: &SurfaceParts<'_>) -> Result<Operations, Failure> {
    let engine = Arc::clone(&given.enforcer.engine);
    let access = Arc::new(access(given)?);
    let read_timeout = given.config.server.header_timeout;
    let dashboard = Dashboard::new(
        Arc::clone(&given.board),
        &access,
        engine.clock(),
        given.stop.clone(),
        given.tls.callers.is_some(),
        read_timeout,
    );
    Ok(Operations {
        engine,
        access,
        dashboard: Some(dashboard),
        audit: Some(Arc::clone(&given.audit)),
        read_timeout,
    })
}

/// Builds the access of operators, viewers and scrapers from the configuration.
fn access(given: &SurfaceParts<'_>) -> Result<Access, Failure> {
    let admin = &given.config.admin;
    let token = token(admin, given.env)?;
    let viewers = viewer_token(admin, given.env)?;
    let edge = admin.jwt.then(|| Arc::clone(&given.enforcer.edge));
    let guesses = GuessLimit::new(given.enforcer.engine.clock()).map_err(|error| {
        let hint = "this is a defect: its figures are fixed";
        Failure::unavailable(format!("guesses cannot be limited: {error}"), hint)
    })?;
    Ok(Access::new(guesses)
        .with_operators(token.as_ref(), &admin.role)
        .with_viewers(viewers.as_ref(), &admin.viewer_role)
        .with_signed_tokens(edge)
        .with_scrapers(given.caller.clone()))
}

/// The static token, if there is one.
pub(crate) fn token(admin: &config::Admin, env: &Env) -> Result<Option<Secret>, Failure> {
    let token = admin.token.as_ref();
    token
        .map(|reference| reference.read_token("admin.token", env))
        .transpose()
}

/// The static token of viewers, if there is one.
pub(crate) fn viewer_token(admin: &config::Admin, env: &Env) -> Result<Option<Secret>, Failure> {
    let token = admin.viewer_token.as_ref();
    token
        .map(|reference| reference.read_token("admin.viewer_token", env))
        .transpose()
}

/// Routes on an address.
struct AdminHandler {
    router: Router,
    /// Time until an answer begins. Only the event stream goes on after that.
    answer_timeout: Duration,
}

impl Handler for AdminHandler {
    type Body = Body;

    async fn answer(&self, client: &Client, mut request: hyper::Request<Incoming>) -> Response {
        request.extensions_mut().insert(Peer(client.address));
        // Put on the request, so that an answer in time and a late one carry the same id.
        let id = RequestId::of(request.headers());
        id.mark(request.headers_mut());
        let answering = pin!(self.router.clone().oneshot(request.map(Body::new)));
        match within(self.answer_timeout, answering).await {
            Ok(Ok(answer)) => answer,
            Err(TimeIsUp) => {
                let mut answer = Refusal::late().into_response();
                id.mark(answer.headers_mut());
                answer
            }
        }
    }
}

/// Paths that are posted to and still change nothing. They are posts because the names of subjects
/// must not appear in a URL.
const LOOKING: [&str; 3] = ["/admin/explain", "/admin/lookup", "/dashboard/sign-out"];

/// The state of the admin address.
#[derive(Clone)]
struct Admin {
    operations: Operations,
    metrics: Metrics,
}

impl Admin {
    fn router(self, stop: Stop) -> Router {
        let operations = self.operations.clone();
        let watched = watched().route_layer(from_fn_with_state(self.clone(), admit_scraper));
        probes()
            .merge(watched)
            .with_state(ProbeState { admin: self, stop })
            .merge(router(operations))
    }
}

/// Routes for supervisors.
fn probes() -> Router<ProbeState> {
    Router::new()
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
}

/// Routes for scrapers.
fn watched() -> Router<ProbeState> {
    Router::new()
        .route("/health/dependencies", get(health::dependencies))
        .route("/metrics", get(metrics))
}

/// State of the handlers of metrics and health.
#[derive(Clone)]
struct ProbeState {
    admin: Admin,
    stop: Stop,
}

/// State of the handlers of administration.
#[derive(Clone)]
pub(crate) struct Operations {
    engine: Arc<Engine>,
    access: Arc<Access>,
    /// The dashboard, for operators with a browser.
    dashboard: Option<Dashboard>,
    /// The audit whose newest events are shown.
    audit: Option<Arc<Audit>>,
    /// Time to receive a body.
    read_timeout: Duration,
}

/// The operator of an admitted request, and the request's id.
#[derive(Clone)]
struct Caller {
    operator: Operator,
    request_id: Arc<str>,
}

impl Operations {
    /// Wall-clock time, for times in requests and for the validity of tokens.
    fn now(&self) -> Micros {
        self.engine.clock().wall()
    }

    /// Returns the grant of a request: by the credential that it presents, otherwise by its
    /// session.
    fn admit(&self, request: &Request) -> Result<Grant, AccessRefusal> {
        let (method, headers) = (request.method(), request.headers());
        let grant = match (bearer(headers), &self.dashboard) {
            (Some(presented), _) => {
                let peer = Peer::ip_of(request.extensions());
                self.access.admit(peer, presented, self.now())?
            }
            (None, Some(dashboard)) => dashboard.admit(method, headers)?,
            (None, None) => return Err(AccessRefusal::Unauthenticated),
        };
        let only_looks = method == Method::GET || LOOKING.contains(&request.uri().path());
        if grant.role == Role::Viewer && !only_looks {
            return Err(AccessRefusal::ReadOnly);
        }
        Ok(grant)
    }

    fn administer(&self, caller: &Caller) -> palisade::engine::Admin<'_> {
        let id = Some(&*caller.request_id);
        self.engine.administer(caller.operator.clone(), id)
    }
}

/// The body of `/openapi.json`. A test of `document` generates it from the code, so that the
/// service itself does not contain the generator.
const DOCUMENT: &str = include_str!("openapi.json");

/// Routes for operators.
fn administration() -> Router<Operations> {
    let allowlist = post(allowlist::add)
        .delete(allowlist::remove)
        .get(allowlist::list);
    let clients = post(clients::add)
        .delete(clients::remove)
        .get(clients::list);
    Router::new()
        .route("/admin/rate-limit/allowlist", allowlist)
        .route("/admin/rate-limit/reset", post(reset::reset))
        .route("/admin/rate-limit/quotas", get(quota::list))
        .route("/admin/rate-limit/quota/{key}", get(quota::get))
        .route("/admin/rate-limit/quota/{key}/reset", post(quota::reset))
        .route("/admin/rate-limit/quota/{key}/tier", put(quota::tier))
        .route("/admin/rate-limit/keys", post(keys::create).get(keys::list))
        .route("/admin/rate-limit/keys/{key}/rotate", post(keys::rotate))
        .route("/admin/rate-limit/keys/{key}/revoke", post(keys::revoke))
        .route("/admin/rate-limit/clients", clients)
        .route("/admin/cache/invalidate", post(cache::invalidate))
        .route("/debug/cache/{tenant}", get(cache::show))
        .route("/admin/blocks", get(blocks::list).delete(blocks::lift))
        .route("/admin/explain", post(explain::explain))
        .route("/admin/reservations", get(reservations::list))
        .route(
            "/admin/reservations/{id}/release",
            post(reservations::release),
        )
        .route("/admin/attack", get(attack::show).put(attack::set))
        .route("/admin/candidate", get(candidate::show))
        .route("/admin/lookup", post(lookup::look_up))
}

/// Routes that need an operator, including paths that do not exist.
pub(crate) fn router(operations: Operations) -> Router {
    let dashboard = operations.dashboard.clone();
    let (door, views) = dashboard.map_or_else(Default::default, |dashboard| {
        (dashboard.door(), dashboard.views())
    });
    administration()
        .with_state(operations.clone())
        .merge(views)
        .route(
            "/openapi.json",
            get(async || ([(CONTENT_TYPE, "application/json")], DOCUMENT)),
        )
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn_with_state(operations, admit_operator))
        .merge(door)
}

/// Admits operators, and marks answers with the request's id.
async fn admit_operator(
    State(operations): State<Operations>,
    mut request: Request,
    next: Next,
) -> Response {
    let admitted = operations.admit(&request);
    let id = RequestId::sent_by(admitted.is_ok(), request.headers());
    let mut response = match admitted {
        Ok(grant) => {
            request.extensions_mut().insert(Caller {
                operator: grant.operator,
                request_id: id.as_str().into(),
            });
            next.run(request).await
        }
        Err(denied) => {
            denied.tell(operations.engine.observer());
            Refusal::denied(denied, request.uri().path()).into_response()
        }
    };
    if let Some(StoreTrouble(kind)) = response.extensions().get() {
        tracing::warn!(
            kind,
            request_id = id.as_str(),
            "an operator's request failed"
        );
    }
    id.mark(response.headers_mut());
    response
}

/// Admits scrapers. Where a caller token is configured scrapers must present it, or else a
/// credential that may read everything. Liveness and readiness probes reveal nothing worth hiding
/// and need no credential.
async fn admit_scraper(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let (operations, headers) = (&admin.operations, request.headers());
    let peer = Peer::ip_of(request.extensions());
    let admitted = operations
        .access
        .admit_scraper(peer, headers, operations.now());
    let Err(denied) = admitted else {
        return next.run(request).await;
    };
    denied.tell(operations.engine.observer());
    match denied {
        AccessRefusal::TooManyGuesses => Refusal::too_many().into_response(),
        _ => problem(&Problem::unauthorized()),
    }
}

/// Metrics in the OpenMetrics text format
#[cfg_attr(test, utoipa::path(
    get,
    path = "/metrics",
    tag = "health",
    security(("caller" = []), ("bearer" = []), ()),
    responses(
        (
            status = 200,
            body = String,
            content_type = "application/openmetrics-text",
            description = "Current metrics"
        ),
        (
            status = 401,
            body = ProblemDocument,
            content_type = "application/problem+json",
            description = "Neither the caller token nor a credential of an operator was presented"
        )
    )
))]
async fn metrics(State(served): State<ProbeState>) -> Response {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, TEXT)], (served.admin.metrics)()).into_response()
}

async fn not_found() -> Refusal {
    Refusal::not_found("There is nothing at this path")
}

async fn not_allowed() -> Refusal {
    Refusal::method_not_allowed()
}

fn problem(problem: &Problem) -> Response {
    let id = RequestId::generate();
    let mut reply = problem.respond(&id);
    id.mark(reply.headers_mut());
    reply.map(Body::new)
}
