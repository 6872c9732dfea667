//! The fate of a reservation, kept as a record, which is written by
//! compare-and-swap together with the buckets that change with it (B-ONCE).

use palisade_core::budget::{Corrections, Fate, Reservation};
use palisade_core::decision::LimitReading;
use palisade_core::plan::Charge;
use palisade_core::receipt::Place;
use palisade_core::record::{Record, RecordKey, RecordKind};
use palisade_core::time::{MINUTE, Micros};
use palisade_store::{ChargeReadings, CorrectionOutcome, Mark, Records, StoreError};
use tokio::time::Instant;

use super::super::Engine;
use super::super::counters::PlacedCorrection;
use super::super::limits::readings_of;
use super::super::link::{LIMITS, NoAnswer};
use super::SETTLED_FOR_US;

/// Bound on the difference between the clocks of nodes and store. Fates are kept this much longer
/// than they can be needed.
pub(super) const SKEW_US: u64 = MINUTE;

/// Most fates that one call reads.
const LOADED_AT_ONCE: usize = 100;

/// The fate of a reservation as it was read.
pub(super) struct FoundFate {
    pub(super) fate: Option<Fate>,
    /// Revision of the record; zero if there is none.
    pub(super) revision: u64,
    /// Time by the clock of the store that keeps the record.
    pub(super) now: Micros,
}

/// Outcome of writing a fate.
pub(super) enum FateWrite {
    /// The fate was written and the buckets were corrected, which are now as these readings say.
    Made(Vec<LimitReading>),
    /// This very fate was there before.
    Repeated(Vec<LimitReading>),
    /// Another fate has been written since.
    Conflict,
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

fn decoded(record: Option<Record>) -> Result<Option<Fate>, StoreError> {
    let unread = || StoreError::Corrupt("a reservation's fate".to_owned());
    record
        .map(|record| Fate::decode(&record.bytes).ok_or_else(unread))
        .transpose()
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
        Ok(FoundFate {
            fate: decoded(record).map_err(NoAnswer::Failed)?,
            revision,
            now: loaded.now,
        })
    }

    /// The recorded fates of several reservations, in their order.
    pub(in crate::engine) async fn fates_of(
        &self,
        reservations: &[Reservation],
    ) -> Result<Vec<Option<Fate>>, StoreError> {
        let mut fates = vec![None; reservations.len()];
        let (here, stored): (Vec<usize>, Vec<usize>) =
            (0..reservations.len()).partition(|one| is_here(&reservations[*one]));
        let keys_of = |which: &[usize]| -> Vec<RecordKey> {
            which.iter().map(|one| key(&reservations[*one])).collect()
        };
        // Few in one call, so that none of them takes long.
        for which in stored.chunks(LOADED_AT_ONCE) {
            let keys = keys_of(which);
            let loaded = self.link.operate(|store| store.load(&keys)).await?;
            for (one, record) in which.iter().zip(loaded.records) {
                fates[*one] = decoded(record)?;
            }
        }
        let keys = keys_of(&here);
        let loaded = self.counters.process.load(&keys).await?;
        for (one, record) in here.iter().zip(loaded.records) {
            fates[*one] = decoded(record)?;
        }
        Ok(fates)
    }

    /// Writes the fate unless it has changed since `revision`, and corrects the reservation's
    /// buckets in the same step (B-ONCE). A call of unknown outcome may be repeated as it is.
    pub(super) async fn write_fate(
        &self,
        reservation: &Reservation,
        (fate, revision): (&Fate, u64),
        corrections: &Corrections,
        ends: Instant,
    ) -> Result<FateWrite, NoAnswer> {
        let Some(bytes) = fate.encode() else {
            return Ok(FateWrite::Conflict);
        };
        // The record must outlive every token of the reservation.
        let lasts = match fate {
            Fate::Held(held) => held.ends.max(reservation.ends),
            Fate::Settled(_) => reservation.ends,
        };
        let policy = self.policy();
        let correction = PlacedCorrection {
            mark: Mark {
                key: key(reservation),
                expect: revision,
                bytes,
                expires_at: lasts.plus(SETTLED_FOR_US + SKEW_US),
            },
            place: match is_here(reservation) {
                true => Place::Process,
                false => Place::Store,
            },
            more: self.surcharges(&policy, reservation, corrections),
            back: self.taken(&policy, reservation, &corrections.back),
        };
        let outcome = self.counters.correct(&correction, ends).await?;
        let readings = |found: ChargeReadings| {
            let back: Vec<Charge<'_>> = correction
                .back
                .iter()
                .map(|(_, one)| one.charge.clone())
                .collect();
            if !back.is_empty() {
                self.reopen(&back, found.now);
            }
            let more = correction.more.iter().map(|(_, one)| one.clone());
            let charges: Vec<Charge<'_>> = more.chain(back).collect();
            readings_of(&reservation.class, &charges, &found)
        };
        Ok(match outcome {
            CorrectionOutcome::Made(found) => FateWrite::Made(readings(found)),
            CorrectionOutcome::Repeated(found) => FateWrite::Repeated(readings(found)),
            CorrectionOutcome::Conflict => FateWrite::Conflict,
        })
    }
}
