//! Settling: replaces what was reserved by what was used, once.

use palisade_core::FieldError;
use palisade_core::budget::{Corrections, Costs, Fate, Reservation, SettledUnit, SettlementRecord};
use palisade_core::decision::LimitReading;
use palisade_core::limit::CountsFrom;
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::PolicySet;
use palisade_core::receipt::{Line, Place};
use palisade_core::time::Micros;
use palisade_store::TakenCharge;
use tokio::time::Instant;

use super::super::Engine;
use super::super::limits::{limit_named, readings_of};
use super::super::link::NoAnswer;
use super::super::thresholds::warnings;
use super::fate::SKEW_US;
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
    /// Distinguishes this settle from others of the same reservation.
    pub(super) by: u64,
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
        let settling = PendingSettle {
            reservation,
            used,
            by: rand::random(),
        };
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

    /// Marks the reservation as settled, then corrects its buckets.
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
                    // Another settle came first: repeat its answer.
                    Some(Fate::Settled(first)) if first.by != settling.by => {
                        self.register.forget(reservation.id);
                        return Ok(done(first.units));
                    }
                    // An earlier try of this settle has written the fate, and its answer was lost.
                    Some(Fate::Settled(own)) => {
                        return self.correct(&held, own.units, ends).await;
                    }
                    Some(Fate::Held(latest)) => held = *latest,
                    None => {}
                }
                if found.now > held.ends.plus(SETTLED_FOR_US) {
                    return Ok(late(settling.units(&held)));
                }
            }
            let units = settling.units(&held);
            let fate = Fate::Settled(SettlementRecord {
                by: settling.by,
                units: units.clone(),
            });
            if self.seal_fate(&held, (&fate, revision), ends).await? {
                return self.correct(&held, units, ends).await;
            }
            // A fate was written concurrently: read it.
            must_look = true;
        }
        Err(NoAnswer::OutOfTime)
    }

    /// Corrects the buckets of a reservation that this settle has marked. A correction that fails
    /// is not repeated, because it may have been made, and making it twice would admit more than
    /// the limit; its buckets then count what was reserved.
    async fn correct(
        &self,
        held: &Reservation,
        units: Vec<SettledUnit>,
        ends: Instant,
    ) -> Result<Settlement, NoAnswer> {
        let policy = self.policy();
        let used: Vec<u64> = units.iter().map(|unit| unit.used).collect();
        let Corrections { back, used, more } = held.corrections(&used);
        self.register.forget(held.id);
        self.retries.tally.count(Outcome::Settled);
        for unit in &units {
            self.retries.tally.add_overdraft(&unit.unit, unit.over());
        }
        let mut settlement = done(units);
        // What is charged comes first, so that a crash in between leaves too much counted and not
        // too little. In two steps, because charges of one bucket in one step count from one instant.
        for (lines, from) in [(&used, Surplus::SinceReserved), (&more, Surplus::FromNow)] {
            match self
                .charge_surplus(&policy, held, (lines, from), ends)
                .await
            {
                Ok(limits) => show_latest(&mut settlement.limits, limits),
                Err(_) => self.retries.note_dropped(),
            }
        }
        match self.return_lines(&policy, held, &back, ends).await {
            Ok(limits) => show_latest(&mut settlement.limits, limits),
            Err(_) => self.retries.note_dropped(),
        }
        self.queues.note_freed(held);
        settlement.warnings = warnings(&policy, &settlement.limits);
        if settlement.warnings.is_some() {
            for reading in &settlement.limits {
                self.note_reading(&policy, reading, None);
            }
        }
        Ok(settlement)
    }

    /// Returns lines of a reservation to their buckets.
    pub(super) async fn return_lines(
        &self,
        policy: &PolicySet,
        held: &Reservation,
        back: &[Line],
        ends: Instant,
    ) -> Result<Vec<LimitReading>, NoAnswer> {
        let placed = self.placed(policy, held, back);
        let taken = placed.iter().zip(back_instants(&placed));
        let taken: Vec<(Place, TakenCharge<'_>)> = taken
            .map(|((place, charge, _), at)| {
                let charge = charge.clone();
                (*place, TakenCharge { charge, at })
            })
            .collect();
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        let charged = self.return_placed(&taken, ends).await?;
        let charges: Vec<Charge<'_>> = taken.into_iter().map(|(_, one)| one.charge).collect();
        Ok(readings_of(&held.class, &charges, &charged))
    }

    /// Charges use beyond the reservation (B-BOUND), or in place of what it holds (B-EXPIRE), whether
    /// or not it fits.
    async fn charge_surplus(
        &self,
        policy: &PolicySet,
        held: &Reservation,
        (lines, from): (&[Line], Surplus),
        ends: Instant,
    ) -> Result<Vec<LimitReading>, NoAnswer> {
        let placed = self.placed(policy, held, lines);
        let charges = placed.iter();
        let charges: Vec<Charge<'_>> = charges
            .map(|(_, one, line)| one.clone().counted(from.of(line)))
            .collect();
        if charges.is_empty() {
            return Ok(Vec::new());
        }
        let places = placed.iter().map(|(place, ..)| *place);
        let found = self.counters.charge_placed(&charges, places, ends).await?;
        Ok(readings_of(&held.class, &charges, &found))
    }

    /// Charges for those lines whose limits are in the policy and whose buckets this process can
    /// touch. They are made whether or not they fit.
    fn placed<'p>(
        &self,
        policy: &'p PolicySet,
        held: &Reservation,
        lines: &'p [Line],
    ) -> Vec<(Place, Charge<'p>, &'p Line)> {
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
                Some((line.place, charge, line))
            })
            .collect()
    }
}

/// Instant from which a surplus counts.
#[derive(Clone, Copy)]
enum Surplus {
    FromNow,
    /// The instant of its line.
    SinceReserved,
}

impl Surplus {
    const fn of(self, line: &Line) -> CountsFrom {
        match self {
            Self::FromNow => CountsFrom::Now,
            Self::SinceReserved => CountsFrom::Instant(line.at),
        }
    }
}

/// Adds readings to those of earlier steps; of a bucket that both read the latest one stays.
fn show_latest(shown: &mut Vec<LimitReading>, latest: Vec<LimitReading>) {
    shown.retain(|one| latest.iter().all(|new| new.partition != one.partition));
    shown.extend(latest);
}

fn back_instants<'p>(
    placed: &'p [(Place, Charge<'_>, &Line)],
) -> impl Iterator<Item = Micros> + 'p {
    placed.iter().map(|(_, _, line)| line.at)
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
