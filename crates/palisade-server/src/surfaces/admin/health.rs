//! `/health/*`: for supervisors and for people.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use palisade::engine::HealthReport;
use serde::Serialize;

use super::ProbeState;
#[cfg(test)]
use crate::surfaces::exchange::problem::Document as Problem;

/// State of the process.
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

/// Liveness: the process answers
#[cfg_attr(test, utoipa::path(
    get,
    path = "/health/live",
    tag = "health",
    security(()),
    responses((status = 200, body = Status, description = "Current state"))
))]
pub(super) async fn live() -> Json<Status> {
    let status = Condition::Live;
    Json(Status { status })
}

/// Readiness: the process should get traffic
///
/// Ready means that the process is not stopping, that the store has answered or limits are decided
/// without it, and that the store has not been unavailable for too long.
#[cfg_attr(test, utoipa::path(
    get,
    path = "/health/ready",
    tag = "health",
    security(()),
    responses(
        (status = 200, body = Status, description = "Current state"),
        (status = 503, body = Status, description = "Not ready")
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

/// Health of the store and of the policy source
#[cfg_attr(test, utoipa::path(
    get,
    path = "/health/dependencies",
    tag = "health",
    security(("caller" = []), ("bearer" = []), ()),
    responses(
        (status = 200, body = HealthReport, description = "Current state"),
        (
            status = 401,
            body = Problem,
            content_type = "application/problem+json",
            description = "Neither the caller token nor a credential of an operator was presented"
        )
    )
))]
pub(super) async fn dependencies(State(served): State<ProbeState>) -> Json<HealthReport> {
    Json(served.admin.operations.engine.health())
}
