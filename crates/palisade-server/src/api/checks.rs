//! `/v1/check`, `/v1/peek`, `/v1/refund`.

use http::Request;
use hyper::body::Incoming;
use palisade::engine::RefundOutcome;
use palisade::wire::{self, RawRequest};
use palisade_core::RequestFacts;
use palisade_core::decision::LimitReading;
use palisade_core::facts::RequestKind;
use serde::Serialize;

use super::ids::{RequestId, correlation_id};
use super::problem::Problem;
use super::{Api, Reply, body, reply};

pub(super) async fn check(
    api: &Api,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let facts = facts(api, request, id).await?;
    Ok(reply::as_data(&api.surface.engine.check(&facts).await, id))
}

pub(super) async fn peek(
    api: &Api,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let facts = facts(api, request, id).await?;
    Ok(reply::as_data(&api.surface.engine.peek(&facts).await, id))
}

#[derive(Serialize)]
struct Refunded<'a> {
    refunded: bool,
    limits: &'a [LimitReading],
    request_id: &'a str,
}

pub(super) async fn refund(
    api: &Api,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let facts = facts(api, request, id).await?;
    match api.surface.engine.refund(&facts).await {
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
    api: &Api,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<RequestFacts, Problem> {
    let (parts, body) = request.into_parts();
    let correlation = correlation_id(&parts.headers);
    let bytes = body::read(body, api.bounds.body_bytes_max, api.bounds.read_timeout).await?;
    let raw: RawRequest<'_> = wire::parse(&bytes)?;
    let mut facts = raw.into_facts(RequestKind::Http)?;
    facts.correlation_id = facts.correlation_id.or(correlation);
    identify(&mut facts, id);
    Ok(facts)
}

/// The caller's id goes into the answer; without one the answer's goes into the
/// facts, so that logs and audits can be joined with it.
pub(crate) fn identify(facts: &mut RequestFacts, id: &mut RequestId) {
    match &facts.request_id {
        Some(given) => *id = RequestId::given(given),
        None => facts.request_id = id.id(),
    }
}
