//! What an event led to under one policy.

use std::fmt;

use palisade::cases::{Event, Operation};
use serde_json::{Value, json};

/// The answer, as far as it is shown or compared.
#[derive(Clone, PartialEq)]
pub(super) struct Outcome {
    pub(super) decision: String,
    pub(super) rule: Option<String>,
    /// The limit that denied, or that left least.
    pub(super) limit: Option<String>,
    pub(super) class: Option<String>,
    pub(super) mode: String,
    retry_after: Option<u64>,
    /// What a flow of the guard in shadow mode would have answered.
    shadow: Option<String>,
}

impl Outcome {
    pub(super) fn of(answer: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let reasons = answer["reasons"].as_array();
        let denying = reasons.into_iter().flatten().find_map(|reason| {
            let denies = reason["decision"] != "allow";
            text(&reason["limit"]).filter(|_| denies)
        });
        let closest = &answer["limits"][0];
        Self {
            decision: text(&answer["decision"]).unwrap_or_default(),
            rule: text(&answer["rule"]),
            limit: denying,
            class: text(&closest["class"]),
            mode: text(&answer["mode"]).unwrap_or_default(),
            retry_after: answer["retry_after"].as_u64(),
            shadow: shadow_of(&answer["shadow"]),
        }
    }

    pub(super) fn is_allowed(&self) -> bool {
        self.decision == "allow"
    }

    /// What stood in the way: a limit by its name, else the rule.
    pub(super) fn cause(&self) -> String {
        let rule = self.rule.as_deref().unwrap_or("no rule");
        match &self.limit {
            Some(limit) => format!("{rule} {limit}"),
            None => rule.to_owned(),
        }
    }

    pub(super) fn as_json(&self) -> Value {
        let mut shown = json!({"decision": self.decision, "rule": self.rule,
            "limit": self.limit, "class": self.class, "mode": self.mode,
            "retry_after": self.retry_after});
        if let Some(shadow) = &self.shadow {
            shown["shadow"] = json!(shadow);
        }
        shown
    }
}

/// The decision and rule that shadow mode hid.
fn shadow_of(shadow: &Value) -> Option<String> {
    let decision = shadow["decision"].as_str()?;
    let rule = shadow["rule"].as_str().map(|rule| format!(" {rule}"));
    Some(format!("{decision}{}", rule.unwrap_or_default()))
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.decision)?;
        for word in [&self.rule, &self.limit].into_iter().flatten() {
            write!(f, " {word}")?;
        }
        if let Some(seconds) = self.retry_after {
            write!(f, " {seconds}s")?;
        }
        if self.mode != "normal" {
            write!(f, " ({})", self.mode)?;
        }
        if let Some(shadow) = &self.shadow {
            write!(f, " (shadow: {shadow})")?;
        }
        Ok(())
    }
}

/// What was asked: method and path, or the operation of the guard.
pub(super) fn asked(event: &Event) -> String {
    match &event.operation {
        Operation::Request(facts) => format!("{} {}", facts.method, facts.path),
        Operation::Guard(op, _) => op.name().to_owned(),
        Operation::Descriptors(call) => format!("rls {}", call.domain()),
        Operation::Fault(_) => "fault".to_owned(),
    }
}

/// Whose event it is: a name to tell subjects apart, never shown.
pub(super) fn subject(event: &Event) -> String {
    match &event.operation {
        Operation::Request(facts) => {
            let org = facts.org.as_ref().map_or("", palisade_core::Id::as_str);
            format!("{} {org}", facts.ip)
        }
        Operation::Guard(_, facts) => {
            let account = facts.account.as_ref();
            account.map_or_else(
                || facts.ip.to_string(),
                |id| format!("account {}", id.as_str()),
            )
        }
        // Which entry names somebody is not known.
        Operation::Descriptors(_) | Operation::Fault(_) => String::new(),
    }
}
