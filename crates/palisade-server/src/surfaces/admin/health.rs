//! `/health/*`: for supervisors and for people.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use palisade::engine::HealthReport;
use serde_json::{Value, json};

use super::Served;

/// The process answers.
pub(super) async fn live() -> Json<Value> {
    Json(json!({ "status": "live" }))
}

/// The service should get traffic: it is not ending, and the store has not been
/// away for too long.
pub(super) async fn ready(State(served): State<Served>) -> (StatusCode, Json<Value>) {
    let (status, word) = if served.stop.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping")
    } else if served.admin.operations.engine.health().ready {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "degraded")
    };
    (status, Json(json!({ "status": word })))
}

/// What the service depends on, and how it does.
pub(super) async fn dependencies(State(served): State<Served>) -> Json<HealthReport> {
    Json(served.admin.operations.engine.health())
}
