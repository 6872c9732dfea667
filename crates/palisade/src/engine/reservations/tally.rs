//! Counts of reservations by outcome, for `/metrics`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Most units for which surplus is counted, because reloads may bring new ones.
const UNITS_MAX: usize = 64;

/// Outcome of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Reserved,
    Settled,
    /// A settle came too late to change anything.
    Late,
    /// An extension was refused, because the reservation had ended or its slot was taken.
    Expired,
    /// A settle or a refund was given up, so its buckets stay as they were charged.
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

/// Counts since the process started.
#[derive(Default)]
pub(in crate::engine) struct Tally {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    spends: [AtomicU64; SpendResult::ALL.len()],
    /// Amounts charged beyond limits and reservations, by unit.
    overdraft: Mutex<BTreeMap<Box<str>, u64>>,
}

/// Statistics of reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationFigures {
    /// Counts by outcome.
    pub outcomes: Vec<(&'static str, u64)>,
    /// Counts of requests whose costs a surface reads, by what they were settled by.
    pub spends: Vec<(&'static str, u64)>,
    /// Amounts charged beyond limits and reservations, by unit.
    pub overdraft: Vec<(Box<str>, u64)>,
    /// Number of corrections that wait for the store.
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

    /// Something was charged beyond a limit or a reservation.
    pub(in crate::engine) fn add_overdraft(&self, unit: &str, amount: u64) {
        if amount == 0 {
            return;
        }
        let mut overdraft = self.overdraft.lock();
        if overdraft.len() < UNITS_MAX || overdraft.contains_key(unit) {
            let counted = overdraft.entry(unit.into()).or_default();
            *counted = counted.saturating_add(amount);
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
