//! Differences under another policy: by limit, by subject, and the first of each kind.

use std::collections::BTreeMap;
use std::fmt::Write;

use palisade::engine::{Cause, Comparison};
use palisade_core::decision::Decision;
use palisade_core::time::Micros;
use serde_json::{Value, json};

use super::super::events::NumberedEvent;
use super::outcome::asked;
use super::subjects::{Subject, Subjects};
use super::summary::SUBJECTS_SHOWN;

/// Most examples of each kind.
const EXAMPLES_MAX: usize = 10;

/// Differences of one kind.
#[derive(Default)]
pub(super) struct ChangedDecisions {
    pub(super) count: u64,
    pub(super) by: BTreeMap<Cause, u64>,
    subjects: Subjects,
    pub(super) first: Vec<Example>,
}

/// One difference, with the number of its line.
pub(super) struct Example {
    pub(super) line: u64,
    pub(super) at: Micros,
    pub(super) asked: String,
    pub(super) cause: String,
}

/// The differences under another policy.
#[derive(Default)]
pub(super) struct ReplayComparison {
    pub(super) newly_denied: ChangedDecisions,
    pub(super) newly_allowed: ChangedDecisions,
    pub(super) otherwise: u64,
}

impl ChangedDecisions {
    fn count(&mut self, numbered: &NumberedEvent, refusing: &Decision) {
        let cause = Cause::of(refusing);
        self.count += 1;
        self.subjects.count(numbered, false);
        if self.first.len() < EXAMPLES_MAX {
            self.first.push(Example {
                line: numbered.line,
                at: numbered.event.at,
                asked: asked(&numbered.event),
                cause: cause.to_string(),
            });
        }
        *self.by.entry(cause).or_default() += 1;
    }

    pub(super) fn subjects(&self) -> (Vec<Subject>, usize) {
        self.subjects.refused_most(SUBJECTS_SHOWN)
    }

    fn text(&self, what: &str) -> String {
        let mut text = format!("  {what}: {}\n", self.count);
        for (cause, count) in &self.by {
            let _ = writeln!(text, "    {cause}: {count}");
        }
        let (subjects, count) = self.subjects();
        if count > 0 {
            let shown: Vec<String> = subjects
                .iter()
                .map(|one| format!("of line {} ({})", one.first_line, one.share.refused))
                .collect();
            let _ = writeln!(text, "    {count} subjects: {}", shown.join(", "));
        }
        for example in &self.first {
            let Example {
                line, asked, cause, ..
            } = example;
            let at = example.at.to_rfc3339();
            let _ = writeln!(text, "    line {line}: {at} {asked} by {cause}");
        }
        text
    }

    fn as_json(&self) -> Value {
        let by: BTreeMap<String, u64> = self.by.iter().map(|(c, n)| (c.to_string(), *n)).collect();
        let first = self.first.iter().map(|one| {
            json!({"line": one.line, "at": one.at.to_rfc3339(), "asked": one.asked, "by": one.cause})
        });
        let (subjects, count) = self.subjects();
        let subjects: Vec<Value> = subjects
            .iter()
            .map(|one| json!({"first_line": one.first_line, "events": one.share.refused}))
            .collect();
        json!({"events": self.count, "by": by, "subjects": count, "top_subjects": subjects,
            "first": first.collect::<Vec<_>>()})
    }
}

impl ReplayComparison {
    /// Counts the difference to `other`; true if there is one.
    pub(super) fn count(
        &mut self,
        numbered: &NumberedEvent,
        given: &Decision,
        other: &Decision,
    ) -> bool {
        match Comparison::of(given, other) {
            Comparison::NewlyDenied => self.newly_denied.count(numbered, other),
            Comparison::NewlyAllowed => self.newly_allowed.count(numbered, given),
            // Both decisions are made on one clock, so how long a refusal lasts is exact.
            Comparison::Otherwise => self.otherwise += 1,
            Comparison::Agrees if given.retry_after != other.retry_after => self.otherwise += 1,
            Comparison::Agrees | Comparison::NotCompared => return false,
        }
        true
    }

    pub(super) const fn differ(&self) -> u64 {
        self.newly_denied.count + self.newly_allowed.count + self.otherwise
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("\nagainst: {} treated differently\n", self.differ());
        text.push_str(&self.newly_denied.text("newly denied"));
        text.push_str(&self.newly_allowed.text("newly allowed"));
        if self.otherwise > 0 {
            let _ = writeln!(
                text,
                "  denied either way, by another rule or for longer: {}",
                self.otherwise
            );
        }
        text
    }

    pub(super) fn as_json(&self) -> Value {
        json!({"differ": self.differ(), "newly_denied": self.newly_denied.as_json(),
            "newly_allowed": self.newly_allowed.as_json(), "otherwise": self.otherwise})
    }
}
