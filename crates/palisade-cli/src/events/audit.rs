//! Reads our own audit log: refusals, with digests for identifiers. Allowed requests are not in it,
//! and all addresses of a network are one.

use std::borrow::Cow;

use palisade::cases::{CaseError, Event, Operation};
use palisade::wire::{RawClient, RawGuard, RawRequest, WireError};
use palisade_core::Micros;
use palisade_core::facts::GuardOp;
use serde::Deserialize;

use super::LineError;

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    event: Cow<'a, str>,
    #[serde(borrow)]
    at: Cow<'a, str>,
    #[serde(borrow)]
    class: Option<Cow<'a, str>>,
    #[serde(borrow)]
    op: Option<Cow<'a, str>>,
    #[serde(borrow)]
    org_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    actor: Option<Cow<'a, str>>,
    #[serde(borrow)]
    token: Option<Cow<'a, str>>,
    #[serde(borrow)]
    client: Option<Cow<'a, str>>,
    #[serde(borrow)]
    ip_prefix: Option<Cow<'a, str>>,
}

/// Kinds of audit events about a single request.
const OF_REQUESTS: [&str; 5] = [
    "rate_limit_exceeded",
    "user_rate_limit_exceeded",
    "client_rate_limit_exceeded",
    "quota_exceeded",
    "rate_limit_allowlist_bypassed",
];

/// Address of an event without a network.
const NOWHERE: &str = "0.0.0.0";

/// Returns the event of a line; `None` if it reports no decision.
pub(super) fn event(line: &str) -> Result<Option<Event>, LineError> {
    let line: Line<'_> =
        serde_json::from_str(line).map_err(|_| LineError::Line("is no line of an audit log"))?;
    let at = Micros::parse_rfc3339(&line.at);
    let at = at.ok_or(CaseError::Field("at", "is not an RFC 3339 timestamp"))?;
    let operation = match line.op.as_deref().and_then(GuardOp::from_name) {
        Some(op) => Some(line.command(op)?),
        None if OF_REQUESTS.contains(&&*line.event) => Some(line.request()?),
        None => None,
    };
    Ok(operation.map(|operation| Event {
        at,
        operation,
        challenge: None,
        expect: None,
    }))
}

impl Line<'_> {
    fn ip(&self) -> Cow<'_, str> {
        let network = self.ip_prefix.as_deref().unwrap_or(NOWHERE);
        network.split('/').next().unwrap_or(NOWHERE).into()
    }

    fn request(&self) -> Result<Operation, CaseError> {
        let borrowed = |text: &'_ Option<Cow<'_, str>>| {
            text.as_deref().map(|text| Cow::Owned(text.to_owned()))
        };
        let raw = RawRequest {
            ip: Some(self.ip()),
            method: Some("GET".into()),
            path: Some("/".into()),
            class: borrowed(&self.class),
            org: borrowed(&self.org_id),
            user: borrowed(&self.actor),
            token: borrowed(&self.token),
            client: borrowed(&self.client).map(|id| RawClient { id, kind: None }),
            ..RawRequest::default()
        };
        let facts = raw.into_facts().map_err(WireError::from)?;
        Ok(Operation::Request(Box::new(facts)))
    }

    fn command(&self, op: GuardOp) -> Result<Operation, CaseError> {
        let raw = RawGuard {
            ip: Some(self.ip()),
            account: self.actor.as_deref().map(Cow::Borrowed),
            ..RawGuard::default()
        };
        let facts = raw.into_facts().map_err(WireError::from)?;
        Ok(Operation::Guard(op, Box::new(facts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_become_requests_and_commands_and_the_rest_is_left_out() {
        let request = r#"{"event":"rate_limit_exceeded","severity":"warning","at":"2026-01-01T00:00:00.000Z","org_id":"aa","actor":"bb","ip_prefix":"203.0.113.0/24","class":"read","bucket":"ip-read"}"#;
        match event(request).unwrap().unwrap().operation {
            Operation::Request(facts) => {
                assert_eq!(facts.ip.to_string(), "203.0.113.0");
                assert_eq!(facts.class.unwrap().as_str(), "read");
                assert_eq!(facts.user.unwrap().as_str(), "bb");
            }
            other => panic!("{other:?}"),
        }
        let login = r#"{"event":"guard.block","severity":"warning","at":"2026-01-01T00:00:00.000Z","actor":"cc","op":"login.failure","ip_prefix":"203.0.113.0/24"}"#;
        match event(login).unwrap().unwrap().operation {
            Operation::Guard(op, facts) => {
                assert_eq!(op, GuardOp::LoginFailure);
                assert_eq!(facts.account.unwrap().as_str(), "cc");
            }
            other => panic!("{other:?}"),
        }
        let other =
            r#"{"event":"breaker_opened","severity":"warning","at":"2026-01-01T00:00:00.000Z"}"#;
        assert!(event(other).unwrap().is_none());
        assert!(event("{}").is_err());
    }
}
