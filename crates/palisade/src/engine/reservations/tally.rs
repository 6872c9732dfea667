//! Counts of reservations by outcome, for `/metrics`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::budget::SettledUnit;
use parking_lot::Mutex;

/// Most units that surplus is counted of: policies come and go.
const UNITS_MAX: usize = 64;

/// Outcome of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Reserved,
    Settled,
    /// Settled too late to change anything.
    Late,
    /// Extended after its end, or when its place was gone.
    Expired,
    /// A correction that was lost.
    Dropped,
}

impl Outcome {
    const ALL: [Self; 5] = [
        Self::Reserved,
        Self::Settled,
        Self::Late,
        Self::Expired,
        Self::Dropped,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Settled => "settled",
            Self::Late => "late",
            Self::Expired => "expired",
            Self::Dropped => "dropped",
        }
    }
}

/// By what the reservation of a request was settled whose costs a surface reads (B-SPEND).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpendResult {
    /// By what its answer said.
    Seen,
    /// By its estimate: the answer did not say, or nobody waited for it.
    Unseen,
    /// Nothing was used: the answer was an error.
    Failed,
    /// Nothing was used: the application never got the request.
    Released,
}

impl SpendResult {
    const ALL: [Self; 4] = [Self::Seen, Self::Unseen, Self::Failed, Self::Released];

    const fn name(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Unseen => "unseen",
            Self::Failed => "failed",
            Self::Released => "released",
        }
    }
}

/// Counts since the start.
#[derive(Default)]
pub(in crate::engine) struct Tally {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    spends: [AtomicU64; SpendResult::ALL.len()],
    /// Surplus charged beyond reservations, by unit.
    overdraft: Mutex<BTreeMap<Box<str>, u64>>,
}

/// Figures of reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationFigures {
    /// Counts by outcome.
    pub outcomes: Vec<(&'static str, u64)>,
    /// Counts of requests whose costs a surface reads, by what they were settled by.
    pub spends: Vec<(&'static str, u64)>,
    /// Surplus charged beyond reservations, by unit.
    pub overdraft: Vec<(Box<str>, u64)>,
    /// Corrections that wait for the store.
    pub waiting: u64,
}

impl Tally {
    pub(super) fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_spend(&self, result: SpendResult) {
        self.spends[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn of(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// A settle that charged more than was reserved.
    pub(super) fn count_overdraft(&self, units: &[SettledUnit]) {
        for unit in units.iter().filter(|unit| unit.over() > 0) {
            let mut overdraft = self.overdraft.lock();
            if overdraft.len() < UNITS_MAX || overdraft.contains_key(&unit.unit) {
                let counted = overdraft.entry(unit.unit.clone()).or_default();
                *counted = counted.saturating_add(unit.over());
            }
        }
    }

    pub(in crate::engine) fn figures(&self, waiting: usize) -> ReservationFigures {
        let outcomes = Outcome::ALL.map(|outcome| (outcome.name(), self.of(outcome)));
        let spent = |one: SpendResult| {
            (
                one.name(),
                self.spends[one as usize].load(Ordering::Relaxed),
            )
        };
        let overdraft = self.overdraft.lock();
        ReservationFigures {
            outcomes: outcomes.to_vec(),
            spends: SpendResult::ALL.map(spent).to_vec(),
            overdraft: overdraft
                .iter()
                .map(|(unit, over)| (unit.clone(), *over))
                .collect(),
            waiting: waiting as u64,
        }
    }
}
