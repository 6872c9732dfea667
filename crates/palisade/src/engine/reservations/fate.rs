//! The fate of a reservation as a record: read, and written by compare-and-swap (B-ONCE).

use palisade_core::budget::{Fate, Reservation};
use palisade_core::receipt::Place;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{MINUTE, Micros};
use palisade_store::{Commit, Records, StoreError};
use tokio::time::Instant;

use super::super::Engine;
use super::super::link::{LIMITS, NoAnswer};
use super::SETTLED_FOR_US;

/// Clocks of nodes and of the store differ by less than this; fates are kept so much longer
/// than anybody may ask for them.
pub(super) const SKEW_US: u64 = MINUTE;

/// A fate as it was found.
pub(super) struct FoundFate {
    pub(super) fate: Option<Fate>,
    /// Zero if there is none.
    pub(super) revision: u64,
    /// The clock of where it is kept.
    pub(super) now: Micros,
}

/// Where the fate of a reservation is kept: in the store, unless only this process counts it.
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
            let local = self.counters.process.load(&keys).await;
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

    /// Writes what becomes of it, if nobody has since `revision`; false if somebody has.
    pub(super) async fn seal_fate(
        &self,
        reservation: &Reservation,
        (fate, revision): (&Fate, u64),
        ends: Instant,
    ) -> Result<bool, NoAnswer> {
        let Some(bytes) = fate.encode() else {
            return Ok(false);
        };
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
            let local = self.counters.process.commit(&write).await;
            local.map_err(NoAnswer::Failed)?
        } else {
            let call = self.link.call(LIMITS, ends, |store| store.commit(&write));
            call.await?
        };
        Ok(commit == Commit::Done)
    }
}
