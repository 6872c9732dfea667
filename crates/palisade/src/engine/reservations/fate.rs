//! The fate of a reservation, kept as a record and written by compare-and-swap (B-ONCE).

use palisade_core::budget::{Fate, Reservation};
use palisade_core::receipt::Place;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{MINUTE, Micros};
use palisade_store::{Commit, Records, StoreError};
use tokio::time::Instant;

use super::super::Engine;
use super::super::link::{For, NoAnswer};
use super::SETTLED_FOR_US;
use palisade_core::failure::Policy;

const LIMITS: For = For::Decision(Policy::Limits);

/// Bound on the difference between the clocks of nodes and store. Fates are kept this much longer
/// than they can be needed.
pub(super) const SKEW_US: u64 = MINUTE;

/// The fate of a reservation as it was read.
pub(super) struct FoundFate {
    pub(super) fate: Option<Fate>,
    /// Revision of the record; zero if there is none.
    pub(super) revision: u64,
    /// Time by the clock of the store that keeps the record.
    pub(super) now: Micros,
}

/// Whether the fate is kept in this process, because no bucket of the reservation is in the store.
fn is_here(reservation: &Reservation) -> bool {
    let mut parts = reservation.parts.iter();
    parts.all(|part| part.line.place == Place::Process)
}

const fn key(reservation: &Reservation) -> RecordKey {
    RecordKey {
        kind: RecordKind::Reservation,
        digest: reservation.id,
    }
}

impl Engine {
    /// The recorded fate of a reservation.
    pub(super) async fn fate_of(
        &self,
        reservation: &Reservation,
        ends: Instant,
    ) -> Result<FoundFate, NoAnswer> {
        let keys = [key(reservation)];
        let mut loaded = if is_here(reservation) {
            let local = self.limits.local().load(&keys).await;
            local.map_err(NoAnswer::Failed)?
        } else {
            let call = self.link.call(LIMITS, ends, |store| store.load(&keys));
            call.await?
        };
        let record = loaded.records.pop().flatten();
        let revision = record.as_ref().map_or(0, |record| record.revision);
        let fate = match record {
            None => None,
            Some(record) => {
                let unread = || StoreError::Corrupt("a reservation's fate".to_owned());
                let decoded = Fate::decode(&record.bytes).ok_or_else(unread);
                Some(decoded.map_err(NoAnswer::Failed)?)
            }
        };
        Ok(FoundFate {
            fate,
            revision,
            now: loaded.now,
        })
    }

    /// Writes the fate unless it has changed since `revision`; returns false if it has.
    pub(super) async fn seal_fate(
        &self,
        reservation: &Reservation,
        (fate, revision): (&Fate, u64),
        ends: Instant,
    ) -> Result<bool, NoAnswer> {
        let Some(bytes) = fate.encode() else {
            return Ok(false);
        };
        // The record must outlive every token of the reservation.
        let lasts = match fate {
            Fate::Held(held) => held.ends.max(reservation.ends),
            Fate::Settled(_) => reservation.ends,
        };
        let write = [RecordWrite {
            key: key(reservation),
            expect: revision,
            bytes: Some(bytes),
            expires_at: lasts.plus(SETTLED_FOR_US + SKEW_US),
        }];
        let commit = if is_here(reservation) {
            let local = self.limits.local().commit(&write).await;
            local.map_err(NoAnswer::Failed)?
        } else {
            let call = self.link.call(LIMITS, ends, |store| store.commit(&write));
            call.await?
        };
        Ok(commit == Commit::Done)
    }
}
