//! What a replay led to: by decision, cause, class, subject and time.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use palisade_core::time::{MINUTE, Micros};
use serde_json::{Value, json};

use super::super::table::Table;
use super::outcome::Outcome;

/// Most subjects that are told apart.
const SUBJECTS_MAX: usize = 100_000;
/// Most subjects that are shown.
const SUBJECTS_SHOWN: usize = 10;
/// Most rows over time.
const ROWS_MAX: u64 = 24;

/// How many events, and how many of them were not allowed.
#[derive(Clone, Copy, Default)]
struct Share {
    events: u64,
    refused: u64,
}

impl Share {
    fn count(&mut self, outcome: &Outcome) {
        self.events += 1;
        self.refused += u64::from(!outcome.is_allowed());
    }
}

/// A subject, named by the line it first came in: the file says who it is.
#[derive(Clone, Copy)]
struct Subject {
    first_line: usize,
    share: Share,
}

#[derive(Default)]
pub(super) struct Summary {
    events: u64,
    decisions: BTreeMap<String, u64>,
    modes: BTreeMap<String, u64>,
    /// What stood in the way of those that were not allowed.
    causes: BTreeMap<String, u64>,
    classes: BTreeMap<String, Share>,
    subjects: HashMap<String, Subject>,
    minutes: BTreeMap<u64, Share>,
    pub(super) compared: Option<Compared>,
    /// Lines of an access log that are no requests.
    pub(super) skipped: u64,
}

/// What another policy would change.
#[derive(Default)]
pub(super) struct Compared {
    newly_denied: BTreeMap<String, u64>,
    newly_allowed: BTreeMap<String, u64>,
    otherwise: u64,
}

impl Compared {
    /// Counts how `other` differs; true if it does.
    pub(super) fn count(&mut self, given: &Outcome, other: &Outcome) -> bool {
        match (given.is_allowed(), other.is_allowed()) {
            (true, false) => *self.newly_denied.entry(other.cause()).or_default() += 1,
            (false, true) => *self.newly_allowed.entry(given.cause()).or_default() += 1,
            _ if given != other => self.otherwise += 1,
            _ => return false,
        }
        true
    }

    fn total(counts: &BTreeMap<String, u64>) -> u64 {
        counts.values().sum()
    }

    fn differ(&self) -> u64 {
        Self::total(&self.newly_denied) + Self::total(&self.newly_allowed) + self.otherwise
    }

    fn text(&self) -> String {
        let mut text = format!("\nagainst: {} treated differently\n", self.differ());
        for (what, counts) in [
            ("newly denied", &self.newly_denied),
            ("newly allowed", &self.newly_allowed),
        ] {
            let _ = writeln!(text, "  {what}: {}", Self::total(counts));
            for (cause, count) in counts {
                let _ = writeln!(text, "    {cause}: {count}");
            }
        }
        if self.otherwise > 0 {
            let _ = writeln!(
                text,
                "  denied either way, by another rule or for longer: {}",
                self.otherwise
            );
        }
        text
    }

    fn as_json(&self) -> Value {
        json!({"differ": self.differ(), "newly_denied": self.newly_denied,
            "newly_allowed": self.newly_allowed, "otherwise": self.otherwise})
    }
}

impl Summary {
    /// Counts an event.
    pub(super) fn count(&mut self, line: usize, at: Micros, subject: String, outcome: &Outcome) {
        self.events += 1;
        *self.decisions.entry(outcome.decision.clone()).or_default() += 1;
        *self.modes.entry(outcome.mode.clone()).or_default() += 1;
        if !outcome.is_allowed() {
            *self.causes.entry(outcome.cause()).or_default() += 1;
        }
        let class = outcome.class.clone().unwrap_or_else(|| "guard".to_owned());
        self.classes.entry(class).or_default().count(outcome);
        self.minutes
            .entry(at.0 / MINUTE)
            .or_default()
            .count(outcome);
        if self.subjects.len() < SUBJECTS_MAX || self.subjects.contains_key(&subject) {
            let share = Share::default();
            let first_line = line;
            let one = self.subjects.entry(subject);
            one.or_insert(Subject { first_line, share })
                .share
                .count(outcome);
        }
    }

    /// Subjects that were refused most.
    fn refused_most(&self) -> Vec<Subject> {
        let mut refused: Vec<Subject> = self
            .subjects
            .values()
            .filter(|subject| subject.share.refused > 0)
            .copied()
            .collect();
        refused.sort_by_key(|one| (std::cmp::Reverse(one.share.refused), one.first_line));
        refused
    }

    /// Events in a few equal stretches of time: start and share of each.
    fn over_time(&self) -> Vec<(Micros, Share)> {
        let (Some(first), Some(last)) = (self.minutes.keys().next(), self.minutes.keys().last())
        else {
            return Vec::new();
        };
        let step = (last - first + 1).div_ceil(ROWS_MAX).max(1);
        let mut rows: BTreeMap<u64, Share> = BTreeMap::new();
        for (minute, share) in &self.minutes {
            let row = rows
                .entry(first + (minute - first) / step * step)
                .or_default();
            row.events += share.events;
            row.refused += share.refused;
        }
        rows.into_iter()
            .map(|(minute, share)| (Micros(minute * MINUTE), share))
            .collect()
    }

    pub(super) fn text(&self) -> String {
        let list = |counts: &BTreeMap<String, u64>| {
            let shown: Vec<String> = counts.iter().map(|(k, n)| format!("{k} {n}")).collect();
            shown.join(", ")
        };
        let mut text = format!("{} events: {}\n", self.events, list(&self.decisions));
        if self.modes.keys().any(|mode| mode != "normal") {
            let _ = writeln!(text, "modes: {}", list(&self.modes));
        }
        if self.skipped > 0 {
            let _ = writeln!(text, "{} lines are no requests", self.skipped);
        }
        let mut causes = Table::new(["REFUSED BY", "EVENTS"]);
        for (cause, count) in &self.causes {
            causes.row([cause.clone(), count.to_string()]);
        }
        let mut classes = Table::new(["CLASS", "EVENTS", "REFUSED"]);
        for (class, share) in &self.classes {
            classes.row(row(class.clone(), *share));
        }
        let refused = self.refused_most();
        let mut subjects = Table::new(["SUBJECT", "EVENTS", "REFUSED"]);
        for subject in refused.iter().take(SUBJECTS_SHOWN) {
            subjects.row(row(
                format!("of line {}", subject.first_line),
                subject.share,
            ));
        }
        let mut times = Table::new(["FROM", "EVENTS", "REFUSED"]);
        for (at, share) in self.over_time() {
            times.row(row(at.to_rfc3339(), share));
        }
        text.push_str(&part(&causes));
        text.push_str(&part(&classes));
        text.push_str(&part(&subjects));
        if refused.len() > SUBJECTS_SHOWN {
            let _ = writeln!(text, "and {} more", refused.len() - SUBJECTS_SHOWN);
        }
        text.push_str(&part(&times));
        text.push_str(
            &self
                .compared
                .as_ref()
                .map(Compared::text)
                .unwrap_or_default(),
        );
        text
    }

    pub(super) fn as_json(&self) -> Value {
        let share = |share: &Share| json!({"events": share.events, "refused": share.refused});
        let classes: BTreeMap<&String, Value> = self
            .classes
            .iter()
            .map(|(name, one)| (name, share(one)))
            .collect();
        let subjects: Vec<Value> = self
            .refused_most()
            .iter()
            .take(SUBJECTS_SHOWN)
            .map(|one| {
                json!({"first_line": one.first_line, "events": one.share.events,
                    "refused": one.share.refused})
            })
            .collect();
        let times: Vec<Value> = self
            .over_time()
            .iter()
            .map(|(at, one)| {
                json!({"from": at.to_rfc3339(), "events": one.events, "refused": one.refused})
            })
            .collect();
        json!({"summary": {"events": self.events, "decisions": self.decisions,
            "modes": self.modes, "refused_by": self.causes, "classes": classes,
            "subjects": subjects, "over_time": times, "skipped": self.skipped,
            "against": self.compared.as_ref().map(Compared::as_json)}})
    }
}

fn row(name: String, share: Share) -> [String; 3] {
    [name, share.events.to_string(), share.refused.to_string()]
}

fn part<const N: usize>(table: &Table<N>) -> String {
    match table.is_empty() {
        true => String::new(),
        false => format!("\n{}", table.text()),
    }
}
