//! What an event led to under one policy.

use std::fmt;
use std::sync::Arc;

use palisade::cases::{Event, Operation};
use palisade::engine::Cause;
use palisade_core::decision::{Decision, Mode, Outcome as Answer};
use palisade_core::rule::Rule;
use serde_json::{Value, json};

/// The answer, as far as it is shown.
pub(super) struct Outcome<'a>(pub(super) &'a Decision);

impl Outcome<'_> {
    fn cause(&self) -> Cause {
        Cause::of(self.0)
    }

    /// The decision and rule that shadow mode hid.
    fn shadow(&self) -> Option<String> {
        let shadow = self.0.shadow.as_deref()?;
        let rule = shadow.rule.map(|rule| format!(" {}", rule.id()));
        Some(format!(
            "{}{}",
            shadow.decision.name(),
            rule.unwrap_or_default()
        ))
    }

    pub(super) fn as_json(&self) -> Value {
        let decision = self.0;
        let mut shown = json!({"decision": decision.outcome.name(),
            "rule": decision.rule.map(Rule::id), "limit": self.cause().limit,
            "class": class_of(decision), "mode": decision.mode.name(),
            "retry_after": decision.retry_after});
        if let Some(shadow) = self.shadow() {
            shown["shadow"] = json!(shadow);
        }
        shown
    }
}

/// The class of a request; `None` for the guard.
pub(super) fn class_of(decision: &Decision) -> Option<&Arc<str>> {
    let closest = decision.limits.first().map(|reading| &reading.class);
    closest.or(decision.class.as_ref())
}

impl fmt::Display for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decision = self.0;
        f.write_str(decision.outcome.name())?;
        if decision.outcome != Answer::Allow {
            write!(f, " {}", self.cause())?;
        }
        if let Some(seconds) = decision.retry_after {
            write!(f, " {seconds}s")?;
        }
        if decision.mode != Mode::Normal {
            write!(f, " ({})", decision.mode.name())?;
        }
        match self.shadow() {
            Some(shadow) => write!(f, " (shadow: {shadow})"),
            None => Ok(()),
        }
    }
}

/// What was asked: method and path, or the operation of the guard.
pub(super) fn asked(event: &Event) -> String {
    match &event.operation {
        Operation::Request(facts) => format!("{} {}", facts.method, facts.path),
        Operation::Guard(op, _) => op.name().to_owned(),
        Operation::Descriptors(call) => format!("rls {}", call.domain()),
        Operation::Reserve(asked) => {
            format!("reserve {} {}", asked.facts.method, asked.facts.path)
        }
        Operation::FollowUp(asked) => asked.step.name().to_owned(),
        Operation::Fault(_) => "fault".to_owned(),
    }
}
