//! Counters of decisions, one atomic per combination of labels: counting a request takes no lock
//! and allocates nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use palisade_core::decision::{Mode, Outcome};
use palisade_core::policy::PolicySet;

use crate::observe::classes;

/// Most classes that have a label of their own; all others are `other`.
pub const CLASSES_MAX: usize = 64;
const CLASSES: usize = CLASSES_MAX + 1;
const UNKNOWN: usize = CLASSES_MAX;

/// The values of the label `scope`: the scopes of limits, the guard, the allowlist, and `none` for
/// decisions that no bucket made.
pub(super) const SCOPES: [&str; 12] = [
    "none",
    "global",
    "shared",
    "ip",
    "client",
    "org",
    "token",
    "user",
    "api_key",
    "descriptor",
    "guard",
    "allowlist",
];

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

/// A position in the tables of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CellPosition {
    scope: usize,
    class: usize,
}

/// Names of classes, each with a number that never changes. A sorted map: among so few names
/// comparing is faster than hashing.
#[derive(Debug, Default)]
pub(super) struct Classes {
    known: ArcSwap<BTreeMap<Arc<str>, usize>>,
}

impl Classes {
    /// Gives the classes of a policy labels of their own.
    pub(super) fn learn(&self, policy: &PolicySet) {
        let mut known = BTreeMap::clone(&self.known.load());
        for name in classes::names(policy) {
            let next = known.len();
            if next < CLASSES_MAX && !known.contains_key(name) {
                known.insert(name.into(), next);
            }
        }
        self.known.store(Arc::new(known));
    }

    fn number(&self, name: &str) -> usize {
        self.known.load().get(name).copied().unwrap_or(UNKNOWN)
    }

    fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = vec![classes::OTHER.into(); CLASSES];
        for (name, number) in self.known.load().iter() {
            if let Some(slot) = names.get_mut(*number) {
                *slot = Arc::clone(name);
            }
        }
        names
    }
}

/// Decisions by scope, class, outcome and mode; refusals and shadow refusals by
/// scope and class.
pub(super) struct Cells {
    pub(super) classes: Classes,
    requests: Box<[AtomicU64]>,
    exceeded: Box<[AtomicU64]>,
    shadow: Box<[AtomicU64]>,
}

impl std::fmt::Debug for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cells").finish_non_exhaustive()
    }
}

impl Default for Cells {
    fn default() -> Self {
        let places = SCOPES.len() * CLASSES;
        Self {
            classes: Classes::default(),
            requests: zeros(places * OUTCOMES.len() * MODES.len()),
            exceeded: zeros(places),
            shadow: zeros(places),
        }
    }
}

fn zeros(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// One counted combination of labels.
pub(super) struct LabelCount<const N: usize> {
    pub(super) labels: [String; N],
    pub(super) count: u64,
}

impl Cells {
    pub(super) fn place(&self, scope: &str, class: &str) -> CellPosition {
        CellPosition {
            scope: SCOPES.iter().position(|s| *s == scope).unwrap_or(0),
            class: self.classes.number(class),
        }
    }

    pub(super) fn count(&self, place: CellPosition, outcome: Outcome, mode: Mode) {
        let outcome = position(&OUTCOMES, &outcome);
        let mode = position(&MODES, &mode);
        let index = (flat(place) * OUTCOMES.len() + outcome) * MODES.len() + mode;
        bump(&self.requests, index);
    }

    pub(super) fn count_exceeded(&self, place: CellPosition) {
        bump(&self.exceeded, flat(place));
    }

    pub(super) fn count_shadow(&self, place: CellPosition) {
        bump(&self.shadow, flat(place));
    }

    pub(super) fn requests(&self) -> Vec<LabelCount<4>> {
        let names = self.classes.names();
        counted(&self.requests)
            .map(|(index, count)| {
                let (rest, mode) = (index / MODES.len(), index % MODES.len());
                let (place, outcome) = (rest / OUTCOMES.len(), rest % OUTCOMES.len());
                let [scope, class] = labels(place, &names);
                let decision = OUTCOMES[outcome].name().to_owned();
                let labels = [scope, class, decision, MODES[mode].name().to_owned()];
                LabelCount { labels, count }
            })
            .collect()
    }

    pub(super) fn exceeded(&self) -> Vec<LabelCount<2>> {
        self.by_place(&self.exceeded)
    }

    pub(super) fn shadow(&self) -> Vec<LabelCount<2>> {
        self.by_place(&self.shadow)
    }

    fn by_place(&self, cells: &[AtomicU64]) -> Vec<LabelCount<2>> {
        let names = self.classes.names();
        counted(cells)
            .map(|(place, count)| LabelCount {
                labels: labels(place, &names),
                count,
            })
            .collect()
    }
}

fn counted(cells: &[AtomicU64]) -> impl Iterator<Item = (usize, u64)> {
    cells
        .iter()
        .map(|cell| cell.load(Ordering::Relaxed))
        .enumerate()
        .filter(|(_, count)| *count > 0)
}

fn labels(place: usize, names: &[Arc<str>]) -> [String; 2] {
    let class = names
        .get(place % CLASSES)
        .map_or(classes::OTHER, |name| &**name);
    [SCOPES[place / CLASSES].to_owned(), class.to_owned()]
}

const fn flat(place: CellPosition) -> usize {
    place.scope * CLASSES + place.class
}

fn bump(cells: &[AtomicU64], index: usize) {
    if let Some(cell) = cells.get(index) {
        cell.fetch_add(1, Ordering::Relaxed);
    }
}

fn position<T: PartialEq>(all: &[T], one: &T) -> usize {
    all.iter().position(|known| known == one).unwrap_or(0)
}
