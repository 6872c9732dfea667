//! What a replay adds up to.

use std::collections::BTreeMap;
use std::fmt::Write;

use palisade_core::Micros;
use serde_json::{Value, json};

use super::verdict;

/// What the second policy said about an event.
pub(super) struct Comparison {
    pub(super) value: Option<Value>,
}

/// Counts by decision and rule; both sets are small and fixed.
#[derive(Default)]
pub(super) struct Summary {
    events: u64,
    pub(super) skipped: u64,
    pub(super) differing: u64,
    decisions: BTreeMap<String, u64>,
    rules: BTreeMap<String, u64>,
    changes: BTreeMap<String, u64>,
    first_at: Option<Micros>,
    last_at: Option<Micros>,
}

impl Summary {
    pub(super) const fn last_at(&self) -> Option<Micros> {
        self.last_at
    }

    pub(super) fn saw(&mut self, at: Micros) {
        self.first_at.get_or_insert(at);
        self.last_at = Some(at);
    }

    /// Counts an event; the line to print about it, if there is one.
    pub(super) fn add(
        &mut self,
        number: u64,
        answer: Option<Value>,
        other: Option<Comparison>,
    ) -> Option<String> {
        let answer = verdict(&answer?);
        self.events += 1;
        count(&mut self.decisions, &answer["decision"]);
        if !answer["rule"].is_null() {
            count(&mut self.rules, &answer["rule"]);
        }
        let Some(other) = other else {
            let mut line = answer;
            line["line"] = json!(number);
            return Some(line.to_string());
        };
        let other = verdict(&other.value.unwrap_or_default());
        if other["decision"] == answer["decision"] && other["status"] == answer["status"] {
            return None;
        }
        self.differing += 1;
        let change = format!(
            "{} → {}",
            word(&answer["decision"]),
            word(&other["decision"])
        );
        *self.changes.entry(change).or_default() += 1;
        Some(json!({ "line": number, "now": answer, "then": other }).to_string())
    }

    pub(super) fn as_text(&self) -> String {
        let mut text = format!("{} events", self.events);
        if let (Some(first), Some(last)) = (self.first_at, self.last_at) {
            let _ = write!(text, ", {} to {}", first.to_rfc3339(), last.to_rfc3339());
        }
        let mut list = |title: &str, counts: &BTreeMap<String, u64>| {
            for (name, count) in counts {
                let _ = write!(text, "\n  {title}{name}: {count}");
            }
        };
        list("", &self.decisions);
        list("by ", &self.rules);
        list("would change ", &self.changes);
        if self.skipped > 0 {
            let _ = write!(text, "\n  lines that are no requests: {}", self.skipped);
        }
        text
    }

    pub(super) fn as_json(&self) -> Value {
        json!({
            "events": self.events,
            "skipped": self.skipped,
            "decisions": self.decisions,
            "rules": self.rules,
            "differing": self.differing,
            "changes": self.changes,
        })
    }
}

fn count(counts: &mut BTreeMap<String, u64>, value: &Value) {
    *counts.entry(word(value).to_owned()).or_default() += 1;
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("none")
}
