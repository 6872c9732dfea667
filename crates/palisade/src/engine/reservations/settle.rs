//! Settling: replaces what was reserved by what was used, once.

use palisade_core::FieldError;
use palisade_core::budget::{Corrections, Costs, Fate, Reservation, SettledUnit, SettlementRecord};
use palisade_core::limit::CountsFrom;
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::PolicySet;
use palisade_core::receipt::{Line, Place};
use palisade_store::TakenCharge;
use tokio::time::Instant;

use super::super::Engine;
use super::super::limits::limit_named;
use super::super::link::NoAnswer;
use super::super::thresholds::warnings;
use super::fate::{FateWrite, SKEW_US};
use super::tally::Outcome;
use super::{ReservationError, SETTLED_FOR_US, Settlement};

/// Number of tries against lost races for a reservation's fate.
const TRIES_MAX: usize = 4;

/// A settle that is in progress or waits for the store.
#[derive(Clone)]
pub(super) struct PendingSettle {
    pub(super) reservation: Reservation,
    /// The used costs; `None` if the reservation is released.
    pub(super) used: Option<Costs>,
}

impl PendingSettle {
    /// Reserved and used amounts of each unit, for the reservation as it is held now.
    fn units(&self, held: &Reservation) -> Vec<SettledUnit> {
        let used = match &self.used {
            Some(used) => held.used(used).unwrap_or_default(),
            None => Vec::new(),
        };
        let used = used.into_iter().chain(std::iter::repeat(0));
        let units = held.amounts.iter().zip(used);
        units
            .map(|(amount, used)| SettledUnit {
                unit: amount.unit.clone(),
                reserved: amount.reserved,
                used,
            })
            .collect()
    }
}

impl Engine {
    /// Settles a reservation: unused cost is returned, and a surplus is charged even if it does not
    /// fit. A unit that `used` does not name was used as reserved. A repeated settle changes
    /// nothing and gets the first answer.
    ///
    /// # Errors
    /// A token that this deployment did not issue, or a unit that was never reserved.
    pub async fn settle(&self, token: &str, used: &Costs) -> Result<Settlement, ReservationError> {
        let reservation = self.open_reservation(token)?;
        if reservation.used(used).is_none() {
            let error = FieldError::new("costs", "names a unit that was not reserved");
            return Err(error.into());
        }
        Ok(self
            .settle_reservation(reservation, Some(used.clone()))
            .await)
    }

    /// Releases a reservation: all of it is returned.
    ///
    /// # Errors
    /// A token that this deployment did not issue.
    pub async fn release(&self, token: &str) -> Result<Settlement, ReservationError> {
        let reservation = self.open_reservation(token)?;
        Ok(self.settle_reservation(reservation, None).await)
    }

    pub(in crate::engine) async fn settle_reservation(
        &self,
        reservation: Reservation,
        used: Option<Costs>,
    ) -> Settlement {
        if let Some(beside) = self.beside() {
            beside.settle(reservation.id, used.as_ref()).await;
        }
        let settling = PendingSettle { reservation, used };
        match self.settle_now(&settling).await {
            Ok(settlement) => {
                if settlement.late {
                    self.retries.tally.count(Outcome::Late);
                }
                settlement
            }
            Err(_) => {
                let units = settling.units(&settling.reservation);
                self.retries.add_settle(settling);
                Settlement {
                    units,
                    ..Settlement::default()
                }
            }
        }
    }

    /// Marks the reservation as settled and corrects its buckets, in one call of the store. It may
    /// be repeated, whatever became of it.
    pub(super) async fn settle_now(
        &self,
        settling: &PendingSettle,
    ) -> Result<Settlement, NoAnswer> {
        let reservation = &settling.reservation;
        if reservation.parts.is_empty() {
            return Ok(done(settling.units(reservation)));
        }
        let ends = self.link.request_ends();
        let (mut held, mut revision) = (reservation.clone(), 0);
        // Most reservations are settled once and in time, and need no read before the write.
        let mut must_look = self.now().plus(SKEW_US) > held.ends.plus(SETTLED_FOR_US);
        for _ in 0..TRIES_MAX {
            if must_look {
                let found = self.fate_of(reservation, ends).await?;
                revision = found.revision;
                match found.fate {
                    Some(Fate::Settled(first)) => {
                        return Ok(self.repeat(settling, first, revision, ends).await);
                    }
                    Some(Fate::Held(latest)) => held = *latest,
                    None => {}
                }
                if found.now > held.ends.plus(SETTLED_FOR_US) {
                    return Ok(late(settling.units(&held)));
                }
            }
            let record = SettlementRecord {
                units: settling.units(&held),
                extended: (revision > 0).then(|| Box::new(held.clone())),
            };
            if let Some(settlement) = self.correct(&held, record, revision, ends).await? {
                return Ok(settlement);
            }
            // A fate was written concurrently: read it.
            must_look = true;
        }
        Err(NoAnswer::OutOfTime)
    }

    /// Another settle came first: repeats its answer, and completes its correction where it was cut
    /// short (B-ID).
    async fn repeat(
        &self,
        settling: &PendingSettle,
        first: SettlementRecord,
        revision: u64,
        ends: Instant,
    ) -> Settlement {
        let extended = first.extended.as_deref();
        let held = extended.unwrap_or(&settling.reservation).clone();
        self.register.forget(held.id);
        let answer = done(first.units.clone());
        let before = revision.saturating_sub(1);
        match self.correct(&held, first, before, ends).await {
            Ok(Some(settlement)) => settlement,
            Ok(None) => answer,
            Err(_) => {
                self.retries.add_settle(settling.clone());
                answer
            }
        }
    }

    /// Writes the settlement and corrects the buckets; `None` if another fate was written since
    /// `revision`.
    async fn correct(
        &self,
        held: &Reservation,
        record: SettlementRecord,
        revision: u64,
        ends: Instant,
    ) -> Result<Option<Settlement>, NoAnswer> {
        let units = record.units.clone();
        let used: Vec<u64> = units.iter().map(|unit| unit.used).collect();
        let corrections = held.corrections(&used);
        let fate = Fate::Settled(record);
        let write = self.write_fate(held, (&fate, revision), &corrections, ends);
        let (limits, is_new) = match write.await? {
            FateWrite::Made(limits) => (limits, true),
            FateWrite::Repeated(limits) => (limits, false),
            FateWrite::Conflict => return Ok(None),
        };
        self.register.forget(held.id);
        self.queues.note_freed(held);
        let mut settlement = Settlement {
            limits,
            ..done(units)
        };
        if is_new {
            self.note_settled(&mut settlement);
        }
        Ok(Some(settlement))
    }

    /// Counts a settlement, and tells of the thresholds that it has crossed.
    fn note_settled(&self, settlement: &mut Settlement) {
        let policy = self.policy();
        self.retries.tally.count(Outcome::Settled);
        for unit in &settlement.units {
            self.retries.tally.add_overdraft(&unit.unit, unit.over());
        }
        settlement.warnings = warnings(&policy, &settlement.limits);
        if settlement.warnings.is_some() {
            for reading in &settlement.limits {
                self.note_reading(&policy, reading, None);
            }
        }
    }

    /// Returns lines of a reservation to their buckets.
    pub(super) async fn return_lines(
        &self,
        policy: &PolicySet,
        held: &Reservation,
        back: &[Line],
        ends: Instant,
    ) -> Result<(), NoAnswer> {
        let taken = self.taken(policy, held, back);
        if !taken.is_empty() {
            self.return_placed(&taken, ends).await?;
        }
        Ok(())
    }

    /// The charges of a correction, made whether or not they fit: what was used of charges that go back whole,
    /// from the instant at which it was reserved (B-EXPIRE), and use beyond the reservation (B-BOUND).
    pub(super) fn surcharges<'p>(
        &self,
        policy: &'p PolicySet,
        held: &Reservation,
        corrections: &'p Corrections,
    ) -> Vec<(Place, Charge<'p>)> {
        let since = |line: &'p Line| {
            let (place, charge) = self
                .placed(policy, held, std::slice::from_ref(line))
                .pop()?;
            Some((place, charge.counted(CountsFrom::Instant(line.at))))
        };
        let used = corrections.used.iter().filter_map(since);
        used.chain(self.placed(policy, held, &corrections.more))
            .collect()
    }

    /// [`Engine::placed`] of lines that go back, with their instants.
    pub(super) fn taken<'p>(
        &self,
        policy: &'p PolicySet,
        held: &Reservation,
        back: &'p [Line],
    ) -> Vec<(Place, TakenCharge<'p>)> {
        let taken = |line: &'p Line| {
            let lines = std::slice::from_ref(line);
            let (place, charge) = self.placed(policy, held, lines).pop()?;
            let at = line.at;
            Some((place, TakenCharge { charge, at }))
        };
        back.iter().filter_map(taken).collect()
    }

    /// Charges for those lines whose limits are in the policy and whose buckets this process can
    /// touch. They are made whether or not they fit.
    pub(super) fn placed<'p>(
        &self,
        policy: &'p PolicySet,
        held: &Reservation,
        lines: &'p [Line],
    ) -> Vec<(Place, Charge<'p>)> {
        let is_ours = held.process == self.receipts.process;
        let reachable = lines
            .iter()
            .filter(|line| line.place == Place::Store || is_ours);
        reachable
            .filter_map(|line| {
                let limit = limit_named(policy, line.limit)?;
                let mut charge = line.charge(limit);
                // A limit in shadow mode never denies.
                if limit.def.on_exceed == OnExceed::Report {
                    charge.on_exceed = OnExceed::Report;
                }
                Some((line.place, charge))
            })
            .collect()
    }
}

fn done(units: Vec<SettledUnit>) -> Settlement {
    Settlement {
        late: false,
        recorded: true,
        units,
        limits: Vec::new(),
        warnings: None,
    }
}

fn late(units: Vec<SettledUnit>) -> Settlement {
    Settlement {
        late: true,
        ..done(units)
    }
}
