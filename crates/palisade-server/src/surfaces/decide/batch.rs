//! `/v1/batch`: many checks in one call, answered in their order.

use http::Request;
use hyper::body::Incoming;
use palisade::engine::RequestAnswer;
use palisade::wire::{self, Answer, RawRequest};
use palisade_core::RequestFacts;
use serde::{Deserialize, Serialize};

mod reservations;

use super::Decide;
use crate::surfaces::exchange::ids::{RequestId, correlation_id, identify};
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::exchange::{Reply, reply};

/// Factor by which a batch may be larger than a single body.
const BODY_FACTOR: usize = 16;

/// Several checks in one request.
#[derive(Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Batch<'a> {
    #[serde(borrow)]
    #[cfg_attr(test, schema(value_type = Vec<super::document::RequestFacts>, min_items = 1, max_items = 1000))]
    checks: Vec<RawRequest<'a>>,
}

/// The answers, in the order of the checks.
#[derive(Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(super) struct Answers<'a> {
    answers: Vec<Answer<'a>>,
    request_id: &'a str,
}

/// Answers a batch of checks. Nothing is charged unless every check can be read.
pub(super) async fn batch(
    decide: &Decide,
    request: Request<Incoming>,
    id: &RequestId,
) -> Result<Reply, Problem> {
    let (parts, body) = request.into_parts();
    // The checks have ids of their own. The batch's id connects its answer with their events.
    let correlation = correlation_id(&parts.headers).or_else(|| id.id());
    let bytes_max = decide.bounds.body_bytes_max * BODY_FACTOR;
    let bytes = decide.read_up_to(bytes_max, body).await?;
    if reservations::has_any(&bytes) {
        return Box::pin(reservations::batch(decide, &bytes, (correlation, id))).await;
    }
    let batch: Batch<'_> = wire::parse(&bytes)?;
    bounded(decide, batch.checks.len())?;
    let slash = decide.encoded_slash();
    let mut checks = Vec::with_capacity(batch.checks.len());
    for (index, raw) in batch.checks.into_iter().enumerate() {
        let mut facts = raw
            .into_facts_of(slash)
            .map_err(|error| Problem::from(error).within(&format!("checks[{index}]")))?;
        decide
            .knows_units(&facts)
            .map_err(|problem| problem.within(&format!("checks[{index}]")))?;
        facts.correlation_id = facts.correlation_id.or_else(|| correlation.clone());
        let mut own = RequestId::generate();
        identify(&mut facts, &mut own);
        checks.push((facts, own));
    }
    let answered = answer(decide, checks).await;
    Ok(reply::json(&Answers {
        answers: answered
            .iter()
            .map(|(answer, id)| reply::rendered(answer, id))
            .collect(),
        request_id: id.as_str(),
    }))
}

/// Refuses batches that are empty or too long.
fn bounded(decide: &Decide, count: usize) -> Result<(), Problem> {
    let most = decide.bounds.batch_max;
    if (1..=most).contains(&count) {
        return Ok(());
    }
    let problem = format!("must have 1 to {most} members");
    Err(Problem::field("checks", &problem))
}

/// Answers the checks one after the other, so that checks of one client are charged in their order.
async fn answer(
    decide: &Decide,
    checks: Vec<(RequestFacts, RequestId)>,
) -> Vec<(RequestAnswer, RequestId)> {
    let mut answered = Vec::with_capacity(checks.len());
    for (facts, id) in checks {
        answered.push((decide.enforcer.engine.check(&facts).await, id));
    }
    answered
}
