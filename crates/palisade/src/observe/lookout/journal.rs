//! Recent changes: policies, breakers, modes, the degradation level. Bounded.

use std::collections::{BTreeMap, VecDeque};

use palisade_core::adaptive::attack::AttackEnd;
use palisade_core::failure::Event;
use palisade_core::policy::{Limit, PolicySet};
use palisade_core::time::Micros;
use serde::Serialize;

use crate::engine::{AttackSeen, ModeChange};

/// Most notes that are kept.
const NOTES_KEPT: usize = 200;
/// Most policies that are kept.
const POLICIES_KEPT: usize = 10;
/// Most names in the description of one change.
const NAMES_SHOWN: usize = 20;

/// A state change of the failure machinery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// Instant, RFC 3339.
    pub at: String,
    /// `breaker`, `mode`, `level` or `attack`.
    pub kind: &'static str,
    /// A sentence for people.
    pub words: String,
}

/// A policy that came into force, and what it changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PolicyNote {
    /// Instant, RFC 3339.
    pub at: String,
    /// Revision of the policy.
    pub revision: u64,
    /// Whether the policy enforces.
    pub enabled: bool,
    /// Number of limits.
    pub limits: usize,
    /// Number of routes.
    pub routes: usize,
    /// Changes since the policy before; absent for the first.
    pub changed: Option<PolicyChanges>,
}

/// The difference between two policies. Lists are cut after twenty names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PolicyChanges {
    /// Limits that are new.
    pub added: Vec<String>,
    /// Limits that are gone.
    pub removed: Vec<String>,
    /// Limits with a different definition: name, amount before, amount now.
    pub changed: Vec<(String, String, String)>,
    /// Number of names that were left out above.
    pub left_out: usize,
    /// Whether anything of the guard, the fallback or the lockout changed.
    pub settings: bool,
    /// Whether the number or order of routes, classes or tiers changed.
    pub routes: bool,
    /// Whether the kill switch was used.
    pub enforcement: bool,
}

/// The notes and policies that are kept.
#[derive(Debug, Default)]
pub(super) struct Journal {
    notes: VecDeque<Note>,
    policies: VecDeque<PolicyNote>,
    level: Option<u8>,
}

impl Journal {
    pub(super) fn policy(&mut self, before: Option<&PolicySet>, policy: &PolicySet, now: Micros) {
        let note = PolicyNote {
            at: now.to_rfc3339(),
            revision: policy.revision,
            enabled: policy.enabled,
            limits: policy.limits().len(),
            routes: policy.routes().iter().count(),
            changed: before.map(|before| changes(before, policy)),
        };
        push(&mut self.policies, POLICIES_KEPT, note);
    }

    pub(super) fn failure(&mut self, change: &ModeChange<'_>) {
        let policy = change.policy.name();
        let why = change.reason.map(|error| error.kind().name());
        let why = why.map_or(String::new(), |why| format!(" ({why})"));
        for event in change.events {
            let Some((kind, words)) = words_of(event) else {
                continue;
            };
            let words = format!("{policy}: {words}{why}");
            self.note(kind, words, change.at);
        }
    }

    pub(super) fn attack(&mut self, seen: &AttackSeen<'_>) {
        let figures = &seen.figures;
        let what = match seen.over {
            None => "attack declared",
            Some(AttackEnd::Quiet) => "attack over",
            Some(AttackEnd::Bound) => "attack over after one hour in six",
        };
        let words = format!(
            "{}: {what} ({} refusals a minute from {} prefixes, usual {}, threshold {})",
            seen.class, figures.count, figures.prefixes, figures.usual, figures.threshold
        );
        self.note("attack", words, seen.at);
    }

    pub(super) fn level(&mut self, level: u8, now: Micros) {
        let before = self.level.replace(level);
        // The first reading is no change.
        if let Some(before) = before.filter(|before| *before != level) {
            let words = format!("degradation level {before} → {level}: {}", meaning(level));
            self.note("level", words, now);
        }
    }

    fn note(&mut self, kind: &'static str, words: String, at: Micros) {
        let at = at.to_rfc3339();
        push(&mut self.notes, NOTES_KEPT, Note { at, kind, words });
    }

    /// Returns the notes, the newest first, at most `most`.
    pub(super) fn notes(&self, most: usize) -> Vec<Note> {
        self.notes.iter().rev().take(most).cloned().collect()
    }

    /// Returns the policies, the newest first.
    pub(super) fn policies(&self) -> Vec<PolicyNote> {
        self.policies.iter().rev().cloned().collect()
    }
}

fn push<T>(ring: &mut VecDeque<T>, most: usize, one: T) {
    if ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(one);
}

const fn meaning(level: u8) -> &'static str {
    match level {
        0 => "normal",
        1 => "the store is slow, or policies come from the cache",
        2 => "local counters decide",
        _ => "store and policy source are down",
    }
}

const fn words_of(event: &Event) -> Option<(&'static str, &'static str)> {
    Some(match event {
        Event::Suspected => (
            "mode",
            "a store call failed; this node decides calls that fail",
        ),
        Event::SuspicionEnded => ("mode", "the store answers again"),
        Event::Prolonged => ("mode", "a long outage: this node is not ready"),
        Event::ProlongedEnded => ("mode", "the long outage is over"),
        Event::Opened => ("breaker", "breaker opened; the store is not called"),
        Event::Reopened => ("breaker", "breaker opened again"),
        Event::HalfOpened => ("breaker", "breaker half open; the store is probed"),
        Event::Closed => ("breaker", "breaker closed"),
        Event::DegradedEntered => ("mode", "decides without the store"),
        Event::DegradedExited => ("mode", "decides with the store again"),
        Event::ReentryGuard { .. } => ("mode", "the store fails again and again; fails closed"),
        Event::ReentryEnded => ("mode", "no longer fails closed"),
        Event::DropCounters => return None,
    })
}

/// Returns the changes between two policies. Both are compared in their printed form, so that no
/// setting is forgotten.
fn changes(before: &PolicySet, after: &PolicySet) -> PolicyChanges {
    let (old, new) = (named(before), named(after));
    let mut changes = PolicyChanges {
        settings: format!("{:?}", before.settings) != format!("{:?}", after.settings),
        routes: routes(before) != routes(after),
        enforcement: before.enabled != after.enabled,
        ..PolicyChanges::default()
    };
    for (name, limit) in &new {
        match old.get(name) {
            None => changes.added.push((*name).to_owned()),
            Some(was) if format!("{:?}", was.def) != format!("{:?}", limit.def) => {
                let change = ((*name).to_owned(), figures(was), figures(limit));
                changes.changed.push(change);
            }
            Some(_) => {}
        }
    }
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    changes.removed = gone.map(|name| (*name).to_owned()).collect();
    changes.cut();
    changes
}

impl PolicyChanges {
    fn cut(&mut self) {
        let over = |length: usize| length.saturating_sub(NAMES_SHOWN);
        self.left_out =
            over(self.added.len()) + over(self.removed.len()) + over(self.changed.len());
        self.added.truncate(NAMES_SHOWN);
        self.removed.truncate(NAMES_SHOWN);
        self.changed.truncate(NAMES_SHOWN);
    }
}

fn named(policy: &PolicySet) -> BTreeMap<&str, &Limit> {
    let limits = policy.limits().iter();
    limits.map(|limit| (&*limit.name, limit)).collect()
}

fn routes(policy: &PolicySet) -> Vec<(&str, Option<&str>, Option<&str>)> {
    let routes = policy.routes().iter();
    let plain = routes.map(|route| {
        let method = route.method.as_deref();
        (route.pattern(), method, route.class.as_deref())
    });
    plain.collect()
}

fn figures(limit: &Limit) -> String {
    let spec = &limit.def.spec;
    let name = spec.algorithm().name();
    let window = spec.window().label();
    let window = window.trim_start_matches('w');
    format!("{} in {window} ({name})", spec.limit())
}
