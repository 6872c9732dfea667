//! `/v1/challenge` and `/v1/challenge/verify`.

use http::Request;
use hyper::body::Incoming;
use palisade::engine::{ChallengeOutcome, IssueOutcome};
use palisade::wire::{self, IssuedAnswer, RawChallenge, VerifiedAnswer};
use palisade_core::challenge::PassKind;
use palisade_core::time::Micros;

use super::Decide;
use crate::surfaces::exchange::ids::{RequestId, correlation_id};
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::exchange::{Reply, reply};

/// Issues a challenge for a client.
pub(super) async fn issue(
    decide: &Decide,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let (parts, body) = request.into_parts();
    let bytes = decide.read(body).await?;
    let raw: RawChallenge<'_> = wire::parse(&bytes)?;
    let mut facts = raw.into_facts()?;
    facts.correlation_id = facts.correlation_id.or(correlation_id(&parts.headers));
    if let Some(given) = &facts.request_id {
        *id = RequestId::given(given);
    }
    match decide.enforcer.engine.issue_challenge(&facts) {
        IssueOutcome::Issued(issued) => Ok(reply::json(&IssuedAnswer::new(&issued, id.as_str()))),
        IssueOutcome::Limited { retry_after } => Err(Problem::too_many_challenges(retry_after)),
    }
}

/// Verifies a solution and answers with a token.
pub(super) async fn verify(
    decide: &Decide,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let (parts, body) = request.into_parts();
    let bytes = decide.read(body).await?;
    let raw: RawChallenge<'_> = wire::parse(&bytes)?;
    let (mut facts, solution) = raw.into_solution()?;
    facts.correlation_id = facts.correlation_id.or(correlation_id(&parts.headers));
    if let Some(given) = &facts.request_id {
        *id = RequestId::given(given);
    }
    let engine = &decide.enforcer.engine;
    let outcome = engine.verify_challenge(&facts, &solution, PassKind::Token);
    let nothing = VerifiedAnswer {
        passed: false,
        challenge_token: None,
        expires_at: None,
        reason: None,
        challenge: None,
        request_id: id.as_str(),
    };
    Ok(match outcome.await {
        ChallengeOutcome::Passed { pass, expires } => reply::json(&VerifiedAnswer {
            passed: true,
            challenge_token: Some(&pass),
            expires_at: Some(Micros::to_rfc3339(expires)),
            ..nothing
        }),
        ChallengeOutcome::Refused { reason, instead } => reply::json(&VerifiedAnswer {
            reason: Some(reason),
            challenge: instead.as_ref().map(|issued| &issued.offer),
            ..nothing
        }),
        ChallengeOutcome::Limited { retry_after } => {
            return Err(Problem::too_many_challenges(retry_after));
        }
    })
}
