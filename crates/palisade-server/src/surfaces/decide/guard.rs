//! `/v1/guard/…`: logins, one-time codes, heavy endpoints, session devices.

use http::{Method, Request};
use hyper::body::Incoming;
use palisade::extract::request_id::sent_id;
use palisade::store::StoreError;
use palisade::wire::{self, RawGuard};
use palisade_core::Id;
use palisade_core::facts::GuardOp;
use serde::{Deserialize, Serialize};

use super::Decide;
use crate::surfaces::exchange::ids::{RequestId, correlation_id};
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::exchange::{Reply, reply};

/// Returns the command at a path below `/v1/guard/`.
pub(super) fn operation(path: &str) -> Option<GuardOp> {
    Some(match path {
        "login/check" => GuardOp::LoginCheck,
        "login/failure" => GuardOp::LoginFailure,
        "login/success" => GuardOp::LoginSuccess,
        "login/unknown" => GuardOp::LoginUnknown,
        "otp/check" => GuardOp::OtpCheck,
        "otp/failure" => GuardOp::OtpFailure,
        "otp/success" => GuardOp::OtpSuccess,
        "otp/unknown" => GuardOp::OtpUnknown,
        "otp/send" => GuardOp::OtpSend,
        "api/hit" => GuardOp::ApiHit,
        _ => return None,
    })
}

/// Runs a guard command.
///
/// Only an id among the facts makes a retry harmless (G-ONCE). An id in a header may be the end
/// user's, who could then have every failure after the first ignored. Without an id among the facts
/// the command gets one of its own, which the answer returns: the host passes it on with the
/// outcome (G-PENDING).
pub(super) async fn command(
    decide: &Decide,
    op: GuardOp,
    request: Request<Incoming>,
    id: &mut RequestId,
) -> Result<Reply, Problem> {
    let (parts, body) = request.into_parts();
    let bytes = decide.read(body).await?;
    let raw: RawGuard<'_> = wire::parse(&bytes)?;
    let mut facts = raw.into_facts()?;
    if facts.correlation_id.is_none() {
        // An id in the header is still recorded with the events.
        facts.correlation_id = correlation_id(&parts.headers).or_else(|| sent_id(&parts.headers));
    }
    match &facts.request_id {
        Some(given) => *id = RequestId::given(given),
        None => {
            *id = RequestId::generate();
            facts.request_id = id.id();
        }
    }
    let answer = decide.enforcer.engine.guard(op, &facts).await?;
    Ok(reply::as_data(&answer, id))
}

/// Account whose session devices are to be revoked.
#[derive(Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = OldSession))]
#[serde(deny_unknown_fields)]
pub(super) struct RawSession {
    #[cfg_attr(test, schema(min_length = 1, max_length = 512))]
    account: String,
    /// Session id to revoke; all of the account's if absent.
    #[cfg_attr(test, schema(min_length = 1, max_length = 512))]
    session_id: Option<String>,
}

/// Account that gets a session device.
// The body is parsed as `RawSession`; issuing a session uses only this field.
#[cfg(test)]
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its schema is asked for")]
pub(super) struct NewSession {
    #[schema(min_length = 1, max_length = 512)]
    account: String,
}

/// A session device that was issued.
#[derive(Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Issued))]
pub(super) struct IssuedSession<'a> {
    #[cfg_attr(test, schema(min_length = 32))]
    session_id: &'a str,
    request_id: &'a str,
}

/// Session devices that were revoked.
#[derive(Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Revoked))]
pub(super) struct RevokedSessions<'a> {
    revoked: usize,
    request_id: &'a str,
}

/// Issues a session device, or revokes one or all of an account.
pub(super) async fn sessions(
    decide: &Decide,
    request: Request<Incoming>,
    id: &RequestId,
) -> Result<Reply, Problem> {
    let method = request.method().clone();
    let bytes = decide.read(request.into_body()).await?;
    let raw: RawSession = wire::parse(&bytes)?;
    let account = Id::new("account", &raw.account)?;
    let session = match &raw.session_id {
        Some(text) => Some(Id::new("session_id", text)?),
        None => None,
    };
    if method == Method::DELETE {
        return revoke(decide, &account, session.as_ref(), id).await;
    }
    if session.is_some() {
        return Err(Problem::field(
            "session_id",
            "is chosen here: leave it out to be given one",
        ));
    }
    let issued = decide.enforcer.engine.issue_session(&account).await;
    Ok(reply::json(&IssuedSession {
        session_id: &issued.map_err(|error| unavailable(&error, id))?,
        request_id: id.as_str(),
    }))
}

async fn revoke(
    decide: &Decide,
    account: &Id,
    session: Option<&Id>,
    id: &RequestId,
) -> Result<Reply, Problem> {
    let revoked = decide
        .enforcer
        .engine
        .revoke_sessions(account, session)
        .await;
    Ok(reply::json(&RevokedSessions {
        revoked: revoked.map_err(|error| unavailable(&error, id))?,
        request_id: id.as_str(),
    }))
}

fn unavailable(error: &StoreError, id: &RequestId) -> Problem {
    tracing::warn!(
        kind = error.kind().name(),
        request_id = id.as_str(),
        "a session could not be changed"
    );
    Problem::unavailable("the store did not answer and the session may not be changed; try again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_guard_command_has_a_path() {
        for op in GuardOp::ALL {
            assert_eq!(operation(&op.name().replace('.', "/")), Some(op));
        }
        assert_eq!(operation("login"), None);
        assert_eq!(operation("login/check/"), None);
    }
}
