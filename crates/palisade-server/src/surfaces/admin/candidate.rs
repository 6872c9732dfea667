//! Comparison of the candidate policy with the live one: `/admin/candidate`.

use axum::Json;
use axum::extract::State;
use palisade::engine::CandidateReport;

use super::Operations;
use super::refusal::Refusal;

/// Compares the decisions of the candidate policy with those of the live one, by limit, and shows
/// the first that differ. Subjects are shown as digests.
#[cfg_attr(test, utoipa::path(
    get,
    path = "/admin/candidate",
    responses((status = 200, body = CandidateReport), (status = 404, body = Refusal))
))]
pub(super) async fn show(
    State(operations): State<Operations>,
) -> Result<Json<CandidateReport>, Refusal> {
    let report = operations.engine.candidate_report();
    let report = report.ok_or(Refusal::not_found("There is no candidate policy"))?;
    Ok(Json(report))
}
