//! One line of JSON → one event.

use palisade_core::facts::{GuardFacts, GuardOp, RequestFacts, RequestKind};
use palisade_core::path::EncodedSlash;
use palisade_core::time::Micros;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::challenge::ShownToken;
use super::descriptors::DescriptorCall;
use super::plain;
use super::reservations::{self, NamedFollowUp, NamedReserve, ReservationStep};
use crate::wire::{self, RawGuard, RawRequest, WireError};

/// State of the store from this event on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreState {
    /// The store answers.
    Up,
    /// The store refuses connections.
    Down,
    /// The store accepts connections and never answers.
    Timeout,
}

/// The operation of an event.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A request or a background job.
    Request(Box<RequestFacts>),
    /// A guard command.
    Guard(GuardOp, Box<GuardFacts>),
    /// A call of an Envoy rate-limit service.
    Descriptors(Box<DescriptorCall>),
    /// A reservation.
    Reserve(Box<NamedReserve>),
    /// An extension, a settle or a release of one.
    FollowUp(Box<NamedFollowUp>),
    /// The store changes its state.
    Fault(StoreState),
}

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    /// Instant of the event.
    pub at: Micros,
    /// Operation to run.
    pub operation: Operation,
    /// The token of a passed challenge that the event shows, if it shows one.
    pub challenge: Option<ShownToken>,
    /// Members that the answer must contain; `None` if nothing is expected.
    pub expect: Option<Map<String, Value>>,
}

/// Reason why a line was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaseError {
    /// The line or one of its fields.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The line is no event.
    #[error("the line must be one JSON object")]
    NotAnObject,
    /// `expect` has a member that no answer has.
    #[error("`expect` has a member that no answer has; it may have {}", MEMBERS.join(", "))]
    Members,
    /// A field of the event itself.
    #[error("`{0}` {1}")]
    Field(&'static str, &'static str),
}

/// Reads one line like [`parse_event_of`], under a policy that says nothing about escaped slashes.
///
/// # Errors
/// See [`CaseError`]; the message names the field and never its value.
pub fn parse_event(line: &str) -> Result<Event, CaseError> {
    parse_event_of(line, EncodedSlash::default())
}

/// Reads one line, with escaped slashes in paths read as `slash` says.
///
/// # Errors
/// See [`CaseError`]; the message names the field and never its value.
pub fn parse_event_of(line: &str, slash: EncodedSlash) -> Result<Event, CaseError> {
    match plain::request(line, slash) {
        Some(event) => Ok(event),
        None => parse_any(line, slash),
    }
}

/// Reads any line, member by member. A member that is refused is named.
fn parse_any(line: &str, slash: EncodedSlash) -> Result<Event, CaseError> {
    let parsed = wire::parse(line.as_bytes());
    let mut fields: Map<String, Value> = parsed.map_err(|_| CaseError::NotAnObject)?;
    for remark in ["note", "comment"] {
        fields.remove(remark);
    }
    let at = take_text(&mut fields, "at")?;
    let at =
        Micros::parse_rfc3339(&at).ok_or(CaseError::Field("at", "is not an RFC 3339 timestamp"))?;
    let op = take_text(&mut fields, "op")?;
    let challenge = shown_token(fields.remove("challenge"))?;
    let expect = expectation(fields.remove("expect"))?;
    let operation = operation(&op, fields, slash)?;
    if expect.is_some() && matches!(operation, Operation::Fault(_)) {
        let problem = "does not belong on a `fault`: it has no answer";
        return Err(CaseError::Field("expect", problem));
    }
    Ok(Event {
        at,
        operation,
        challenge,
        expect,
    })
}

fn shown_token(challenge: Option<Value>) -> Result<Option<ShownToken>, CaseError> {
    let read = |value| {
        serde_json::from_value(value)
            .map_err(|_| CaseError::Field("challenge", "must be `solve` or `again`"))
    };
    challenge.map(read).transpose()
}

/// Members of an answer that `expect` may name; `rules` stands for the rules of the answer's
/// reasons.
const MEMBERS: [&str; 29] = [
    "attack",
    "body",
    "challenge",
    "challenge_refused",
    "code",
    "decision",
    "delay_ms",
    "error",
    "expired",
    "headers",
    "late",
    "level",
    "limit_in_force",
    "limits",
    "lockout",
    "mode",
    "not_asked",
    "over",
    "reasons",
    "recorded",
    "remaining",
    "request_id",
    "reservation",
    "retry_after",
    "rule",
    "rules",
    "shadow",
    "status",
    "statuses",
];

fn expectation(expect: Option<Value>) -> Result<Option<Map<String, Value>>, CaseError> {
    let expect = match expect {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(expect)) => expect,
        Some(_) => return Err(CaseError::Field("expect", "must be an object")),
    };
    if expect
        .keys()
        .any(|member| !MEMBERS.contains(&member.as_str()))
    {
        return Err(CaseError::Members);
    }
    if expect.get("rules").is_some_and(|rules| !rules.is_array()) {
        return Err(CaseError::Field(
            "expect.rules",
            "must be a list of rule ids",
        ));
    }
    Ok(Some(expect))
}

fn take_text(fields: &mut Map<String, Value>, name: &'static str) -> Result<String, CaseError> {
    match fields.remove(name) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(CaseError::Field(name, "must be a string")),
        None => Err(CaseError::Field(name, "is required")),
    }
}

fn operation(
    op: &str,
    fields: Map<String, Value>,
    slash: EncodedSlash,
) -> Result<Operation, CaseError> {
    if op == "reserve" {
        let asked = reservations::reserve(fields, slash)?;
        return Ok(Operation::Reserve(Box::new(asked)));
    }
    if let Some(step) = ReservationStep::from_name(op) {
        let asked = reservations::follow_up(step, fields)?;
        return Ok(Operation::FollowUp(Box::new(asked)));
    }
    let text = Value::Object(fields).to_string();
    let request = |kind| -> Result<Operation, CaseError> {
        let mut raw: RawRequest<'_> = wire::parse(text.as_bytes())?;
        raw.op = Some(kind);
        let facts = raw.into_facts_of(slash).map_err(WireError::from)?;
        Ok(Operation::Request(Box::new(facts)))
    };
    match op {
        "request" => request(RequestKind::Http),
        "job.enqueue" => request(RequestKind::Job),
        "rls" => {
            let call: DescriptorCall = wire::parse(text.as_bytes())?;
            call.facts().map_err(WireError::from)?;
            Ok(Operation::Descriptors(Box::new(call)))
        }
        "fault" => Ok(Operation::Fault(fault(&text)?)),
        name => {
            let op = GuardOp::from_name(name).ok_or(CaseError::Field(
                "op",
                "is not known; write `request`, `job.enqueue`, `reserve`, `extend`, `settle`, \
                 `release`, `rls`, `fault`, `api.hit`, `otp.send`, or `login.` or `otp.` with `check`, `failure` or `success`",
            ))?;
            let raw: RawGuard<'_> = wire::parse(text.as_bytes())?;
            let facts = raw.into_facts().map_err(WireError::from)?;
            Ok(Operation::Guard(op, Box::new(facts)))
        }
    }
}

fn fault(text: &str) -> Result<StoreState, CaseError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Fault {
        store: StoreState,
    }
    let fault: Fault = wire::parse(text.as_bytes())?;
    Ok(fault.store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_line_is_read_as_any_other() {
        let lines = [
            r#"{"at":"2026-01-01T00:00:00.25Z","op":"request","ip":"::1","method":"get","path":"/a%41","org":"o","cost":3}"#,
            r#"{"at":"2026-01-01T00:00:00Z","op":"job.enqueue","org":"o","token":"t"}"#,
            r#"{"at":"2026-01-01T00:00:00Z","op":"request","ip":"192.0.2.1","method":"GET","path":"/x","client":{"id":"spa"},"layers":"edge"}"#,
        ];
        for line in lines {
            let quick = plain::request(line, EncodedSlash::default()).unwrap();
            let slow = parse_any(line, EncodedSlash::default()).unwrap();
            assert_eq!(quick.at, slow.at);
            match (&quick.operation, &slow.operation) {
                (Operation::Request(quick), Operation::Request(slow)) => {
                    assert_eq!(quick, slow, "{line}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn i_path_an_escaped_slash_is_read_as_the_policy_says() {
        let line = r#"{"at":"2026-01-01T00:00:00Z","op":"request","ip":"::1","method":"GET","path":"/a%2Fb"}"#;
        assert!(parse_event(line).is_err());
        let event = parse_event_of(line, EncodedSlash::Separator).unwrap();
        match event.operation {
            Operation::Request(facts) => assert_eq!(&*facts.path, "/a/b"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_bad_line_names_its_field() {
        let cases = [
            (r#"{"op":"request"}"#, "`at` is required"),
            (
                r#"{"at":"canary","op":"request"}"#,
                "`at` is not an RFC 3339 timestamp",
            ),
            (
                r#"{"at":"2026-01-01T00:00:00Z","op":"canary"}"#,
                "`op` is not known; write `request`, `job.enqueue`, `reserve`, `extend`, `settle`, `release`, `rls`, `fault`, `api.hit`, `otp.send`, or `login.` or `otp.` with `check`, `failure` or `success`",
            ),
            (
                r#"{"at":"2026-01-01T00:00:00Z","op":"login.check","ip":"canary"}"#,
                "`ip` is not an IP address",
            ),
            (
                r#"{"at":"2026-01-01T00:00:00Z","op":"fault","store":"canary"}"#,
                "`store` is not one of the allowed values: write one of `up`, `down`, `timeout`",
            ),
            (
                r#"{"at":"2026-01-01T00:00:00Z","op":"rls","domain":"edge","descriptors":[]}"#,
                "`descriptors` must not be empty",
            ),
            ("canary", "the line must be one JSON object"),
            ("[1]", "the line must be one JSON object"),
            (
                r#"{"at":"2026-01-01T00:00:00Z","op":"fault","store":"up","expect":{}}"#,
                "`expect` does not belong on a `fault`: it has no answer",
            ),
            (
                r#"{"at":"2026-01-01T00:00:00Z","op":"api.hit","ip":"::1","expect":{"rules":"x"}}"#,
                "`expect.rules` must be a list of rule ids",
            ),
            (
                r#"{"at":"2026-01-01T00:00:00Z","op":"api.hit","ip":"::1","expect":{"decsion":null}}"#,
                "`expect` has a member that no answer has; it may have \
                 attack, body, challenge, challenge_refused, code, decision, delay_ms, \
                 error, expired, headers, late, level, limit_in_force, limits, lockout, \
                 mode, not_asked, over, reasons, recorded, remaining, request_id, \
                 reservation, retry_after, rule, rules, shadow, status, statuses",
            ),
        ];
        for (line, message) in cases {
            assert_eq!(parse_event(line).unwrap_err().to_string(), message);
        }
    }
}
