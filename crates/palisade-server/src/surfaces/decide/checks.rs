//! `/v1/check`, `/v1/peek`, `/v1/refund`.

use http::Request;
use hyper::body::Incoming;
use palisade::engine::RefundOutcome;
use palisade::wire::{self, RawRequest, Refund};
use palisade_core::decision::LimitReading;
use palisade_core::{Id, RequestFacts};
use serde::Serialize;

use super::Decide;
use crate::surfaces::exchange::ids::{RequestId, correlation_id, identify};
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::exchange::{Reply, reply};

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

/// A charge to give back.
#[cfg(test)]
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) struct RefundFacts {
    /// Receipt from the answer of a check.
    #[schema(min_length = 1, max_length = 5464)]
    receipt: String,
    #[schema(min_length = 1, max_length = 512)]
    request_id: Option<String>,
    #[schema(min_length = 1, max_length = 512)]
    correlation_id: Option<String>,
}

/// Result of a refund.
#[derive(Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Refunded))]
pub(super) struct RefundResult<'a> {
    /// False if the receipt was already used, or if no bucket counts the charge any more.
    refunded: bool,
    /// State of the buckets.
    limits: &'a [LimitReading],
    request_id: &'a str,
}

pub(super) async fn refund(
    decide: &Decide,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let (parts, body) = request.into_parts();
    let bytes = decide.read(body).await?;
    let raw: RawRequest<'_> = wire::parse(&bytes)?;
    if let Some(given) = &raw.request_id {
        *id = RequestId::given(&Id::new("request_id", given)?);
    }
    let outcome = match raw.into_refund()? {
        Refund::Receipt(receipt) => {
            let refunded = decide.enforcer.engine.refund(&receipt).await;
            refunded.map_err(|error| Problem::field("receipt", &error.to_string()))?
        }
        Refund::Facts(raw) if decide.refunds_by_facts => {
            let mut facts = raw.into_facts_of(decide.encoded_slash())?;
            facts.correlation_id = facts.correlation_id.or(correlation_id(&parts.headers));
            decide.enforcer.engine.refund_facts(&facts).await
        }
        Refund::Facts(_) => return Err(Problem::field("receipt", NO_RECEIPT)),
    };
    let (refunded, limits) = match outcome {
        RefundOutcome::Done(limits) => (true, limits),
        RefundOutcome::Over(limits) => (false, limits),
        RefundOutcome::Before => (false, Vec::new()),
        RefundOutcome::Unavailable => return Err(Problem::unavailable(UNKNOWN)),
    };
    Ok(reply::json(&RefundResult {
        refunded,
        limits: &limits,
        request_id: id.as_str(),
    }))
}

const NO_RECEIPT: &str = "is required: ask for one with `\"receipt\": true` in the check; \
                          `server.refund_by_facts` accepts the check's facts instead";

const UNKNOWN: &str = "the store did not answer: it is not known whether the charge was given \
                       back; a second try gives back no more than the first";

async fn facts(
    decide: &Decide,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<RequestFacts, Problem> {
    let (parts, body) = request.into_parts();
    let correlation = correlation_id(&parts.headers);
    let bytes = decide.read(body).await?;
    let raw: RawRequest<'_> = wire::parse(&bytes)?;
    let mut facts = raw.into_facts_of(decide.encoded_slash())?;
    facts.correlation_id = facts.correlation_id.or(correlation);
    decide.knows_units(&facts)?;
    identify(&mut facts, id);
    Ok(facts)
}
