//! `/health/*`: for supervisors and for people.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use palisade::engine::HealthReport;
use serde::Serialize;

use super::ProbeState;
#[cfg(test)]
use crate::surfaces::exchange::problem::Document as Problem;

/// How the process does.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(super) struct Status {
    status: Condition,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
enum Condition {
    Live,
    Ready,
    Stopping,
    Degraded,
}

/// The process answers
#[cfg_attr(test, utoipa::path(
    get,
    path = "/health/live",
    tag = "health",
    security(()),
    responses((status = 200, body = Status, description = "Now"))
))]
pub(super) async fn live() -> Json<Status> {
    let status = Condition::Live;
    Json(Status { status })
}

/// It should get traffic
///
/// It is not ending; the store has answered, or limits are decided without it; and the store
/// has not been away for too long.
#[cfg_attr(test, utoipa::path(
    get,
    path = "/health/ready",
    tag = "health",
    security(()),
    responses(
        (status = 200, body = Status, description = "Now"),
        (status = 503, body = Status, description = "It should not")
    )
))]
pub(super) async fn ready(State(served): State<ProbeState>) -> (StatusCode, Json<Status>) {
    let (code, status) = if served.stop.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, Condition::Stopping)
    } else if served.admin.operations.engine.health().ready {
        (StatusCode::OK, Condition::Ready)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Condition::Degraded)
    };
    (code, Json(Status { status }))
}

/// What it depends on, and how that does
#[cfg_attr(test, utoipa::path(
    get,
    path = "/health/dependencies",
    tag = "health",
    security(("caller" = []), ("bearer" = []), ()),
    responses(
        (status = 200, body = HealthReport, description = "Now"),
        (
            status = 401,
            body = Problem,
            content_type = "application/problem+json",
            description = "Neither the caller token nor a credential of an operator"
        )
    )
))]
pub(super) async fn dependencies(State(served): State<ProbeState>) -> Json<HealthReport> {
    Json(served.admin.operations.engine.health())
}
