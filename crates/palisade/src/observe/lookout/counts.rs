//! Running totals that every decision adds to, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::decision::{Mode, Outcome};
use palisade_core::facts::Surface;

/// Outcomes in the order of every table here.
pub(super) const OUTCOMES: [Outcome; 4] = [
    Outcome::Allow,
    Outcome::SoftBlock,
    Outcome::Deny,
    Outcome::HardBlock,
];

/// How many there are.
pub(super) const SURFACES: usize = Surface::ALL.len();

/// Numbers by surface and outcome.
pub(super) type Table<T> = [[T; OUTCOMES.len()]; SURFACES];

/// What has happened since the start.
#[derive(Debug, Default)]
pub(super) struct Counts {
    decisions: Table<AtomicU64>,
    shadow: AtomicU64,
    without_store: AtomicU64,
}

/// The same at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) decisions: Table<u64>,
    pub(super) shadow: u64,
    pub(super) without_store: u64,
}

impl Counts {
    pub(super) fn add(&self, surface: Surface, outcome: Outcome, mode: Mode) {
        let outcome = OUTCOMES.iter().position(|one| *one == outcome);
        let row = self.decisions.get(surface as usize);
        if let Some(cell) = row.and_then(|row| row.get(outcome?)) {
            cell.fetch_add(1, Ordering::Relaxed);
        }
        if mode.is_of_outage() {
            self.without_store.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn shadowed(&self) {
        self.shadow.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn totals(&self) -> Totals {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        Totals {
            decisions: std::array::from_fn(|row| {
                std::array::from_fn(|column| read(&self.decisions[row][column]))
            }),
            shadow: read(&self.shadow),
            without_store: read(&self.without_store),
        }
    }
}
