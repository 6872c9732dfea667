//! Reservations that this node granted or extended and that have not ended, for operators.
//!
//! No store lists reservations: each is carried by its holder. So every node remembers its own,
//! and asks the store which of them were settled elsewhere when an operator wants to see them.

use std::collections::HashMap;

use palisade_core::Digest;
use palisade_core::budget::Reservation;
use palisade_core::time::{Micros, SECOND};
use parking_lot::Mutex;

/// Most reservations that a node remembers. Further ones are held as well, but not listed.
const REMEMBERED_MAX: usize = 10_000;
/// Shortest time between two searches of a full register for reservations that have ended.
const SWEPT_EVERY_US: u64 = SECOND;

/// The reservations that this node knows of.
#[derive(Default)]
pub(in crate::engine) struct Register(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    held: HashMap<Digest, Reservation>,
    swept_at: Micros,
}

impl Register {
    /// Remembers a reservation as it is held now.
    pub(super) fn remember(&self, reservation: &Reservation, now: Micros) {
        if reservation.parts.is_empty() {
            return;
        }
        let mut entries = self.0.lock();
        let Entries { held, swept_at } = &mut *entries;
        let is_full = held.len() >= REMEMBERED_MAX && !held.contains_key(&reservation.id);
        // A sweep looks at every entry, so a register that stays full must not sweep each time.
        if is_full && now.since(*swept_at) >= SWEPT_EVERY_US {
            held.retain(|_, one| one.ends > now);
            *swept_at = now;
        }
        if held.len() < REMEMBERED_MAX || held.contains_key(&reservation.id) {
            held.insert(reservation.id, reservation.clone());
        }
    }

    /// Forgets a reservation that was settled or has ended.
    pub(in crate::engine) fn forget(&self, id: Digest) {
        self.0.lock().held.remove(&id);
    }

    /// The reservation with this id.
    pub(in crate::engine) fn find(&self, id: Digest) -> Option<Reservation> {
        self.0.lock().held.get(&id).cloned()
    }

    /// The oldest reservations that have not ended, and the number of all.
    pub(in crate::engine) fn oldest(&self, now: Micros, count: usize) -> (Vec<Reservation>, usize) {
        let mut entries = self.0.lock();
        entries.held.retain(|_, one| one.ends > now);
        let mut all: Vec<&Reservation> = entries.held.values().collect();
        all.sort_unstable_by_key(|one| (one.at, one.id.0));
        let oldest = all.iter().take(count).copied().cloned().collect();
        (oldest, all.len())
    }
}
