//! The results of a replay: by decision, cause, class, subject and time.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use palisade::engine::Cause;
use palisade_core::decision::{Decision, Mode, Outcome};
use palisade_core::time::Micros;
use serde_json::{Value, json};

use super::super::events::WrongLines;
use super::super::table::Table;
use super::bars::{bar, split_bar};
use super::classes::Classes;
use super::compared::ReplayComparison;
use super::counter::EventCounts;
use super::outcome::class_of;
use super::subjects::{Share, Subject};

/// Most subjects that are shown.
pub(super) const SUBJECTS_SHOWN: usize = 10;
/// Most rows over time, in the terminal and on a page.
const ROWS_MAX: u64 = 24;
pub(super) const PLOT_ROWS_MAX: u64 = 120;

const OUTCOMES: [Outcome; 4] = [
    Outcome::Allow,
    Outcome::SoftBlock,
    Outcome::Deny,
    Outcome::HardBlock,
];
const MODES: [Mode; 5] = [
    Mode::Normal,
    Mode::FailClosed,
    Mode::FailOpen,
    Mode::Degraded,
    Mode::Disabled,
];

#[derive(Default)]
pub(super) struct Summary {
    pub(super) events: u64,
    decisions: [u64; OUTCOMES.len()],
    modes: [u64; MODES.len()],
    /// Causes of the refusals, with their numbers.
    causes: HashMap<Cause, u64>,
    classes: Classes,
    guard: Share,
    /// Counts by subject and time.
    pub(super) counted: EventCounts,
    pub(super) compared: Option<ReplayComparison>,
    pub(super) wrong: WrongLines,
    /// Lines that report no decision.
    pub(super) others: u64,
    /// Keys that had to share a bucket: decisions about them are stricter than with buckets of
    /// their own.
    pub(super) overflowed: u64,
}

impl Summary {
    /// Counts a decision. Subject and time are counted in another thread.
    pub(super) fn count(&mut self, decision: &Decision) {
        let is_allowed = decision.is_allowed();
        self.events += 1;
        let outcome = OUTCOMES.iter().position(|one| *one == decision.outcome);
        self.decisions[outcome.unwrap_or(0)] += 1;
        let mode = MODES.iter().position(|one| *one == decision.mode);
        self.modes[mode.unwrap_or(0)] += 1;
        if !is_allowed {
            *self.causes.entry(Cause::of(decision)).or_default() += 1;
        }
        match class_of(decision) {
            Some(class) => self.classes.count(class, is_allowed),
            None => self.guard.count(is_allowed),
        }
    }

    pub(super) fn decisions(&self) -> Vec<(&'static str, u64)> {
        let counted = OUTCOMES.iter().zip(self.decisions);
        let shown = counted.filter(|(_, count)| *count > 0);
        shown.map(|(one, count)| (one.name(), count)).collect()
    }

    fn modes(&self) -> Vec<(&'static str, u64)> {
        let counted = MODES.iter().zip(self.modes);
        let shown = counted.filter(|(_, count)| *count > 0);
        shown.map(|(one, count)| (one.name(), count)).collect()
    }

    /// Returns causes of refusals, the most frequent first.
    pub(super) fn causes(&self) -> Vec<(String, u64)> {
        let mut causes: Vec<(String, u64)> = self
            .causes
            .iter()
            .map(|(cause, count)| (cause.to_string(), *count))
            .collect();
        causes.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        causes
    }

    /// Returns classes by name, the guard's events among them.
    pub(super) fn classes(&self) -> BTreeMap<String, Share> {
        let guard = (self.guard.events > 0).then(|| ("guard".to_owned(), self.guard));
        self.classes.all().chain(guard).collect()
    }

    pub(super) fn subjects(&self) -> (Vec<Subject>, usize) {
        self.counted.subjects.refused_most(SUBJECTS_SHOWN)
    }

    pub(super) fn over_time(&mut self, rows_max: u64) -> Vec<(Micros, Share)> {
        self.counted.timeline.rows(rows_max)
    }

    pub(super) fn text(&mut self) -> String {
        let list = |counts: &[(&'static str, u64)]| {
            let shown: Vec<String> = counts.iter().map(|(k, n)| format!("{k} {n}")).collect();
            shown.join(", ")
        };
        let mut text = format!("{} events: {}\n", self.events, list(&self.decisions()));
        if self.modes().iter().any(|(mode, _)| *mode != "normal") {
            let _ = writeln!(text, "modes: {}", list(&self.modes()));
        }
        text.push_str(&self.remarks());
        text.push_str(&self.tables());
        if let Some(compared) = &self.compared {
            text.push_str(&compared.text());
        }
        text
    }

    fn remarks(&self) -> String {
        let mut text = String::new();
        if self.wrong.count > 0 {
            let _ = writeln!(text, "{} lines could not be used", self.wrong.count);
            for (line, why) in &self.wrong.first {
                let _ = writeln!(text, "  line {line}: {why}");
            }
        }
        if self.others > 0 {
            let _ = writeln!(text, "{} lines report no decision", self.others);
        }
        if self.overflowed > 0 {
            let _ = writeln!(
                text,
                "{} keys shared a bucket and were refused sooner: raise `--keys-max`",
                self.overflowed
            );
        }
        text
    }

    fn tables(&mut self) -> String {
        let causes = self.causes();
        let most = causes.first().map_or(0, |(_, count)| *count);
        let mut refused = Table::new(["REFUSED BY", "EVENTS", ""]);
        for (cause, count) in &causes {
            refused.row([cause.clone(), count.to_string(), bar(*count, most)]);
        }
        let mut classes = Table::new(["CLASS", "EVENTS", "REFUSED", ""]);
        let by_class = self.classes();
        let most = by_class.values().map(|share| share.events).max();
        for (class, share) in by_class {
            classes.row(row(class, share, most.unwrap_or(0)));
        }
        let (top, count) = self.subjects();
        let mut subjects = Table::new(["SUBJECT", "EVENTS", "REFUSED", ""]);
        let most = top.iter().map(|one| one.share.events).max();
        for one in &top {
            let name = format!("of line {}", one.first_line);
            subjects.row(row(name, one.share, most.unwrap_or(0)));
        }
        let mut times = Table::new(["FROM", "EVENTS", "REFUSED", ""]);
        let rows = self.over_time(ROWS_MAX);
        let most = rows.iter().map(|(_, share)| share.events).max();
        for (at, share) in rows {
            times.row(row(at.to_rfc3339(), share, most.unwrap_or(0)));
        }
        let mut text = part(&refused) + &part(&classes) + &part(&subjects);
        if count > top.len() {
            let more = count - top.len();
            let at_least = if self.counted.subjects.is_partial {
                " at least"
            } else {
                ""
            };
            let _ = writeln!(text, "and{at_least} {more} more");
        }
        text + &part(&times)
    }

    pub(super) fn as_json(&mut self) -> Value {
        let share = |share: &Share| json!({"events": share.events, "refused": share.refused});
        let times: Vec<Value> = self
            .over_time(ROWS_MAX)
            .iter()
            .map(|(at, one)| {
                json!({"from": at.to_rfc3339(), "events": one.events, "refused": one.refused})
            })
            .collect();
        let classes: BTreeMap<String, Value> = self
            .classes()
            .iter()
            .map(|(name, one)| (name.clone(), share(one)))
            .collect();
        let (top, refused) = self.subjects();
        let subjects: Vec<Value> = top
            .iter()
            .map(|one| {
                json!({"first_line": one.first_line, "events": one.share.events,
                    "refused": one.share.refused})
            })
            .collect();
        let wrong: Vec<Value> = self
            .wrong
            .first
            .iter()
            .map(|(line, why)| json!({"line": line, "why": why}))
            .collect();
        json!({"summary": {"events": self.events,
            "decisions": BTreeMap::from_iter(self.decisions()),
            "modes": BTreeMap::from_iter(self.modes()),
            "refused_by": BTreeMap::from_iter(self.causes()), "classes": classes,
            "subjects": subjects, "subjects_refused": refused,
            "subjects_seen": self.counted.subjects.len(), "over_time": times,
            "wrong_lines": self.wrong.count, "first_wrong_lines": wrong,
            "other_lines": self.others, "overflowed": self.overflowed,
            "against": self.compared.as_ref().map(ReplayComparison::as_json)}})
    }
}

fn row(name: String, share: Share, most: u64) -> [String; 4] {
    [
        name,
        share.events.to_string(),
        share.refused.to_string(),
        split_bar(share.events, share.refused, most),
    ]
}

fn part<const N: usize>(table: &Table<N>) -> String {
    match table.is_empty() {
        true => String::new(),
        false => format!("\n{}", table.text()),
    }
}
