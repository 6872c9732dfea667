//! Batches with `"op": "reserve"`, `extend`, `settle`, `release` or `otp.send` among their members.

use palisade::engine::{Hold, ReservationError};
use palisade::wire::{
    self, ExtendedAnswer, FollowUp, RawFollowUp, RawGuard, RawRequest, ReserveCall, ReservedAnswer,
    SettledAnswer,
};
use palisade_core::facts::{GuardFacts, GuardOp};
use palisade_core::{Id, RequestFacts};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::reservations::{Step, fits, refused};
use super::{Decide, bounded};
use crate::surfaces::exchange::ids::{RequestId, identify};
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::exchange::{Reply, reply};

/// Whether a body may have such members. Plain checks are read in one pass without this module.
pub(super) fn has_any(bytes: &[u8]) -> bool {
    let words: [&[u8]; 3] = [b"\"reserve\"", b"\"reservation\"", b"\"otp.send\""];
    words
        .iter()
        .any(|word| bytes.windows(word.len()).any(|found| found == *word))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MixedBatch {
    checks: Vec<Map<String, Value>>,
}

#[derive(Serialize)]
struct MixedAnswers<'a> {
    answers: Vec<Value>,
    request_id: &'a str,
}

/// A parsed member of a batch.
enum Member {
    Check(Box<RequestFacts>),
    Reserve(Box<RequestFacts>, Hold),
    FollowUp(Step, Box<FollowUp>),
    Send(Box<GuardFacts>),
}

/// Answers a batch one member after the other. Nothing is charged unless every member can be read.
pub(super) async fn batch(
    decide: &Decide,
    bytes: &[u8],
    (correlation, id): (Option<Id>, &RequestId),
) -> Result<Reply, Problem> {
    let batch: MixedBatch = wire::parse(bytes)?;
    bounded(decide, batch.checks.len())?;
    let mut members = Vec::with_capacity(batch.checks.len());
    for (index, fields) in batch.checks.into_iter().enumerate() {
        let read = member(decide, fields, &correlation);
        members.push(read.map_err(|problem| problem.within(&format!("checks[{index}]")))?);
    }
    let mut answers = Vec::with_capacity(members.len());
    for (member, own) in members {
        answers.push(answer(decide, member, &own).await);
    }
    Ok(reply::json(&MixedAnswers {
        answers,
        request_id: id.as_str(),
    }))
}

fn member(
    decide: &Decide,
    mut fields: Map<String, Value>,
    correlation: &Option<Id>,
) -> Result<(Member, RequestId), Problem> {
    let mut own = RequestId::generate();
    let op = fields.get("op").and_then(Value::as_str).unwrap_or_default();
    let step = match op {
        "extend" => Some(Step::Extend),
        "settle" => Some(Step::Settle),
        "release" => Some(Step::Release),
        _ => None,
    };
    let is_reserve = op == "reserve";
    let is_send = op == GuardOp::OtpSend.name();
    if is_reserve || is_send || step.is_some() {
        // The types of these members have no `op`. That of a check has one, for jobs.
        fields.remove("op");
    }
    if let Some(step) = step {
        let raw: RawFollowUp = wire::parse(Value::Object(fields).to_string().as_bytes())?;
        if let Some(given) = &raw.request_id {
            own = RequestId::given(&Id::new("request_id", given)?);
        }
        let asked = raw.into_follow_up()?;
        fits(step, &asked)?;
        return Ok((Member::FollowUp(step, Box::new(asked)), own));
    }
    if is_send {
        let text = Value::Object(fields).to_string();
        let raw: RawGuard<'_> = wire::parse(text.as_bytes())?;
        let mut facts = raw.into_facts()?;
        facts.validate(GuardOp::OtpSend)?;
        facts.correlation_id = facts.correlation_id.or_else(|| correlation.clone());
        match &facts.request_id {
            Some(given) => own = RequestId::given(given),
            None => facts.request_id = own.id(),
        }
        return Ok((Member::Send(Box::new(facts)), own));
    }
    let (mut facts, hold) = if is_reserve {
        let ReserveCall { facts, mut hold } = ReserveCall::of(fields, decide.encoded_slash())?;
        // Without an id from the caller, equal members are separate reservations.
        hold.once = facts.request_id.is_some();
        (facts, Some(hold))
    } else {
        let text = Value::Object(fields).to_string();
        let raw: RawRequest<'_> = wire::parse(text.as_bytes())?;
        (raw.into_facts_of(decide.encoded_slash())?, None)
    };
    decide.knows_units(&facts)?;
    facts.correlation_id = facts.correlation_id.or_else(|| correlation.clone());
    identify(&mut facts, &mut own);
    let facts = Box::new(facts);
    let member = match hold {
        Some(hold) => Member::Reserve(facts, hold),
        None => Member::Check(facts),
    };
    Ok((member, own))
}

/// Returns the answer of a member, or the problem of a reservation that only its execution shows.
async fn answer(decide: &Decide, member: Member, id: &RequestId) -> Value {
    let engine = &decide.enforcer.engine;
    match member {
        Member::Check(facts) => {
            let answer = engine.check(&facts).await;
            json(&reply::rendered(&answer, id))
        }
        Member::Reserve(facts, hold) => match engine.reserve(&facts, hold).await {
            Ok(reserved) => json(&ReservedAnswer::new(&reserved, id.as_str())),
            Err(error) => problem(error.into(), id),
        },
        Member::FollowUp(step, asked) => follow_up(decide, step, &asked, id).await,
        Member::Send(facts) => match engine.guard(GuardOp::OtpSend, &facts).await {
            Ok(answer) => json(&reply::rendered(&answer, id)),
            Err(error) => problem(error.into(), id),
        },
    }
}

async fn follow_up(decide: &Decide, step: Step, asked: &FollowUp, id: &RequestId) -> Value {
    let engine = &decide.enforcer.engine;
    let token = &asked.reservation;
    if step == Step::Extend {
        let extended = engine.extend(token, asked.costs.as_ref(), asked.hold);
        return match extended.await {
            Ok(extended) => json(&ExtendedAnswer::new(&extended, id.as_str())),
            Err(error) => problem(error, id),
        };
    }
    let settled = match &asked.costs {
        Some(used) => engine.settle(token, used).await,
        None => engine.release(token).await,
    };
    match settled {
        Ok(settled) => json(&SettledAnswer::new(&settled, id.as_str())),
        Err(error) => problem(error, id),
    }
}

fn json(answer: &impl Serialize) -> Value {
    serde_json::to_value(answer).unwrap_or_default()
}

fn problem(error: ReservationError, id: &RequestId) -> Value {
    refused(error).as_data(id)
}
