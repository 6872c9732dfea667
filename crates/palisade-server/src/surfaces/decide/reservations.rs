//! `/v1/reserve`, `/v1/extend`, `/v1/settle`, `/v1/release`.

use http::{Request, StatusCode};
use hyper::body::Incoming;
use palisade::engine::ReservationError;
use palisade::wire::{
    self, ExtendedAnswer, FollowUp, RawFollowUp, ReserveCall, ReservedAnswer, SettledAnswer,
};
use palisade_core::Id;

use super::Decide;
use crate::surfaces::exchange::ids::{RequestId, correlation_id, identify};
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::exchange::{Reply, reply};

/// A call on a reservation that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Extend,
    Settle,
    Release,
}

#[cfg(test)]
impl Step {
    pub(super) const ALL: [(&str, Self); 3] = [
        ("/v1/extend", Self::Extend),
        ("/v1/settle", Self::Settle),
        ("/v1/release", Self::Release),
    ];
}

pub(super) async fn reserve(
    decide: &Decide,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let (parts, body) = request.into_parts();
    let bytes = decide.read(body).await?;
    let ReserveCall {
        mut facts,
        mut hold,
    } = ReserveCall::parse(&bytes, decide.encoded_slash())?;
    // An id in a header may be that of an end user's request, which may reserve more than once.
    hold.once = facts.request_id.is_some();
    facts.correlation_id = facts.correlation_id.or(correlation_id(&parts.headers));
    identify(&mut facts, id);
    let reserved = decide.enforcer.engine.reserve(&facts, hold).await?;
    Ok(reply::json(&ReservedAnswer::new(&reserved, id.as_str())))
}

pub(super) async fn follow_up(
    decide: &Decide,
    step: Step,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let bytes = decide.read(request.into_body()).await?;
    let raw: RawFollowUp = wire::parse(&bytes)?;
    if let Some(given) = &raw.request_id {
        *id = RequestId::given(&Id::new("request_id", given)?);
    }
    let asked = raw.into_follow_up()?;
    fits(step, &asked)?;
    match step {
        Step::Extend => extend(decide, &asked, id).await,
        Step::Settle | Step::Release => settle(decide, &asked, id).await,
    }
}

/// Refuses members that belong to another step.
pub(super) fn fits(step: Step, asked: &FollowUp) -> Result<(), Problem> {
    match step {
        Step::Settle | Step::Release if asked.hold.is_some() => {
            Err(Problem::field("hold", "is for `extend`"))
        }
        Step::Settle if asked.costs.is_none() => {
            Err(Problem::field("costs", "is required: what was used"))
        }
        Step::Release if asked.costs.is_some() => {
            let problem = "is for `settle`: a release says that nothing was used";
            Err(Problem::field("costs", problem))
        }
        _ => Ok(()),
    }
}

async fn extend(decide: &Decide, asked: &FollowUp, id: &RequestId) -> Result<Reply, Problem> {
    let engine = &decide.enforcer.engine;
    let extended = engine.extend(&asked.reservation, asked.costs.as_ref(), asked.hold);
    let extended = extended.await.map_err(refused)?;
    let answer = ExtendedAnswer::new(&extended, id.as_str());
    let answer = answer.ok_or_else(|| Problem::unavailable(UNKNOWN))?;
    Ok(reply::json(&answer))
}

const UNKNOWN: &str = "the store did not answer: the reservation may not be extended; try again";

async fn settle(decide: &Decide, asked: &FollowUp, id: &RequestId) -> Result<Reply, Problem> {
    let engine = &decide.enforcer.engine;
    let settlement = match &asked.costs {
        None => engine.release(&asked.reservation).await,
        Some(used) => engine.settle(&asked.reservation, used).await,
    };
    let settlement = settlement.map_err(refused)?;
    let mut reply = reply::json(&SettledAnswer::new(&settlement, id.as_str()));
    if !settlement.recorded && reply.status() == StatusCode::OK {
        *reply.status_mut() = StatusCode::ACCEPTED;
    }
    Ok(reply)
}

pub(super) fn refused(error: ReservationError) -> Problem {
    match error {
        ReservationError::Foreign => Problem::field(
            "reservation",
            "is not a reservation that was issued here, or was changed",
        ),
        ReservationError::Field(error) => error.into(),
    }
}
