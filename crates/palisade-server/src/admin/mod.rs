//! The admin address: metrics and health; administration beside them.

mod health;

use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use palisade::Engine;

use crate::api::ids::RequestId;
use crate::api::problem::Problem;
use crate::api::{CallerToken, Place};
use crate::serve::Stop;
use crate::store::AnyStore;

/// Largest body of an admin request, in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Renders what `/metrics` shows.
pub(crate) type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

/// What the admin address serves.
#[derive(Clone)]
pub(crate) struct Admin {
    engine: Arc<Engine<AnyStore>>,
    caller: Option<Arc<CallerToken>>,
    metrics: Metrics,
}

impl Admin {
    pub(crate) fn new(
        engine: Arc<Engine<AnyStore>>,
        caller: Option<Arc<CallerToken>>,
        metrics: Metrics,
    ) -> Self {
        Self {
            engine,
            caller,
            metrics,
        }
    }

    /// Serves until the process ends.
    pub(crate) async fn serve(self, listener: TcpListener, stop: Stop) {
        let app = self.router(stop.clone());
        let served = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => {
                let mut stop = stop;
                axum::serve(listener, app)
                    .with_graceful_shutdown(async move { stop.closing().await })
                    .await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::error!(%error, "the admin address is not served");
        }
    }

    fn router(self, stop: Stop) -> Router {
        let guarded = Router::new()
            .route("/health/dependencies", get(health::dependencies))
            .route("/metrics", get(metrics))
            .route_layer(from_fn_with_state(self.clone(), admit));
        Router::new()
            .route("/health/live", get(health::live))
            .route("/health/ready", get(health::ready))
            .merge(guarded)
            .fallback(not_found)
            .method_not_allowed_fallback(not_allowed)
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(Served { admin: self, stop })
    }
}

/// What handlers see.
#[derive(Clone)]
struct Served {
    admin: Admin,
    stop: Stop,
}

/// Off loopback there is a caller token, and it is asked for here too. Probes of
/// liveness and readiness say nothing worth hiding and need none.
async fn admit(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let admitted = admin
        .caller
        .as_ref()
        .is_none_or(|token| token.admits(request.headers(), Place::HeaderOrBearer));
    if admitted {
        next.run(request).await
    } else {
        problem(&Problem::unauthorized(), request.headers())
    }
}

async fn metrics(State(served): State<Served>) -> Response {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, TEXT)], (served.admin.metrics)()).into_response()
}

async fn not_found(headers: HeaderMap) -> Response {
    problem(&Problem::not_found(), &headers)
}

async fn not_allowed(headers: HeaderMap) -> Response {
    problem(&Problem::method_not_allowed("GET"), &headers)
}

fn problem(problem: &Problem, headers: &HeaderMap) -> Response {
    let id = RequestId::of(headers);
    let mut reply = problem.respond(&id);
    id.mark(reply.headers_mut());
    reply.map(Body::new)
}
