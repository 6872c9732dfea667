//! `/v1/check`, `/v1/peek`, `/v1/refund`.

use http::Request;
use hyper::body::Incoming;
use palisade::engine::RefundOutcome;
use palisade::wire::{self, RawRequest};
use palisade_core::RequestFacts;
use palisade_core::decision::LimitReading;
use serde::Serialize;
use utoipa::ToSchema;

use super::Decide;
use crate::surfaces::exchange::ids::{RequestId, correlation_id, identify};
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::exchange::{Reply, body, reply};

pub(super) async fn check(
    decide: &Decide,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let facts = facts(decide, request, id).await?;
    Ok(reply::as_data(
        &decide.enforcer.engine.check(&facts).await,
        id,
    ))
}

pub(super) async fn peek(
    decide: &Decide,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let facts = facts(decide, request, id).await?;
    Ok(reply::as_data(
        &decide.enforcer.engine.peek(&facts).await,
        id,
    ))
}

/// What was given back.
#[derive(Serialize, ToSchema)]
pub(super) struct Refunded<'a> {
    refunded: bool,
    limits: &'a [LimitReading],
    request_id: &'a str,
}

pub(super) async fn refund(
    decide: &Decide,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let facts = facts(decide, request, id).await?;
    match decide.enforcer.engine.refund(&facts).await {
        RefundOutcome::Done(limits) => Ok(reply::json(&Refunded {
            refunded: true,
            limits: &limits,
            request_id: id.as_str(),
        })),
        RefundOutcome::Unavailable => Err(Problem::unavailable(
            "the store did not answer and nothing was given back; try again",
        )),
    }
}

async fn facts(
    decide: &Decide,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<RequestFacts, Problem> {
    let (parts, body) = request.into_parts();
    let correlation = correlation_id(&parts.headers);
    let bytes = body::read(
        body,
        decide.bounds.body_bytes_max,
        decide.bounds.read_timeout,
    )
    .await?;
    let raw: RawRequest<'_> = wire::parse(&bytes)?;
    let mut facts = raw.into_facts_of(decide.encoded_slash())?;
    facts.correlation_id = facts.correlation_id.or(correlation);
    identify(&mut facts, id);
    Ok(facts)
}
