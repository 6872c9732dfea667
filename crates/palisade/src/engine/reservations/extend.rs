//! Extending a reservation: a later end, more cost, or both.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::FieldError;
use palisade_core::budget::{Corrections, Costs, Counts, Fate, Part, Reservation};
use palisade_core::decide::{JudgedCharges, decide, refuse};
use palisade_core::decision::Decision;
use palisade_core::limit::Reading;
use palisade_core::plan::{Charge, OnExceed, Refusal};
use palisade_core::policy::{PolicySet, Role};
use palisade_core::receipt::{Line, Place};
use palisade_core::time::Micros;
use palisade_store::BucketReadings;
use tokio::time::Instant;

use super::super::Engine;
use super::super::limits::limit_named;
use super::super::link::NoAnswer;
use super::anchor::Anchor;
use super::fate::FateWrite;
use super::renew::{ending_in, taken_at};
use super::reserve::hold_outlives_its_charge;
use super::tally::Outcome;
use super::{ExtendAnswer, Hold, ReservationError, Settlement, is_slot};

/// Most tries to write a reservation's fate against concurrent changes.
const TRIES_MAX: usize = 3;

/// Parameters of an extension.
pub(super) struct Extension<'a> {
    costs: Option<&'a Costs>,
    /// Hold from now on in microseconds; `None` leaves the end as it is.
    pub(super) hold_us: Option<u64>,
}

/// Outcome of one try to extend.
enum ExtendAttempt {
    Answer(ExtendAnswer),
    /// The reservation was extended or settled concurrently.
    LostRace,
}

impl Engine {
    /// Extends a reservation by more cost, to a later end, or both; with neither, by its original
    /// hold. Its slots are taken anew. A refusal leaves the reservation as it was. The first token
    /// stays valid.
    ///
    /// # Errors
    /// A token that this deployment did not issue, a unit that was never reserved, or a hold
    /// outside its bounds.
    pub async fn extend(
        &self,
        token: &str,
        costs: Option<&Costs>,
        hold: Option<Duration>,
    ) -> Result<ExtendAnswer, ReservationError> {
        let reservation = self.open_reservation(token)?;
        self.extend_reservation(&reservation, costs, hold).await
    }

    pub(in crate::engine) async fn extend_reservation(
        &self,
        reservation: &Reservation,
        costs: Option<&Costs>,
        hold: Option<Duration>,
    ) -> Result<ExtendAnswer, ReservationError> {
        let answer = self.extend_live(reservation, costs, hold).await?;
        if let (ExtendAnswer::Held(_), Some(beside)) = (&answer, self.beside()) {
            beside.extend(reservation.id, costs, hold).await;
        }
        Ok(answer)
    }

    async fn extend_live(
        &self,
        reservation: &Reservation,
        costs: Option<&Costs>,
        hold: Option<Duration>,
    ) -> Result<ExtendAnswer, ReservationError> {
        let policy = self.policy();
        if costs.is_some_and(|costs| reservation.used(costs).is_none()) {
            let error = FieldError::new("costs", "names a unit that was not reserved");
            return Err(error.into());
        }
        let hold = hold.map(|hold| Hold {
            hold,
            ..Hold::default()
        });
        let hold_us = hold.map(|hold| self.hold_us(&policy, hold)).transpose()?;
        if hold_us.is_some_and(|hold_us| outlives_a_charge(&policy, reservation, hold_us)) {
            return Err(hold_outlives_its_charge().into());
        }
        let asked = Extension {
            costs,
            hold_us: hold_us.or(costs.is_none().then_some(reservation.hold_us)),
        };
        for _ in 0..TRIES_MAX {
            match self.try_extension(&policy, reservation, &asked).await {
                Ok(ExtendAttempt::Answer(answer)) => {
                    if matches!(answer, ExtendAnswer::Expired) {
                        self.retries.tally.count(Outcome::Expired);
                    }
                    return Ok(answer);
                }
                Ok(ExtendAttempt::LostRace) => {}
                Err(_) => return Ok(ExtendAnswer::Unavailable),
            }
        }
        Ok(ExtendAnswer::Unavailable)
    }

    async fn try_extension(
        &self,
        policy: &PolicySet,
        reservation: &Reservation,
        asked: &Extension<'_>,
    ) -> Result<ExtendAttempt, NoAnswer> {
        let ends = self.link.request_ends();
        if reservation.parts.is_empty() {
            return Ok(self.extend_nothing(reservation, asked));
        }
        // The token may be older than the last extension: the recorded state is what counts.
        let found = self.fate_of(reservation, ends).await?;
        let held = match found.fate {
            None => reservation.clone(),
            Some(Fate::Held(held)) => *held,
            Some(Fate::Settled(first)) => {
                return Ok(ExtendAttempt::Answer(ExtendAnswer::Settled(Settlement {
                    recorded: true,
                    units: first.units,
                    ..Settlement::default()
                })));
            }
        };
        if found.now >= held.ends {
            return Ok(ExtendAttempt::Answer(ExtendAnswer::Expired));
        }
        let Some(anchor) = Anchor::new(held.id, held.life_us) else {
            return Ok(ExtendAttempt::Answer(ExtendAnswer::Expired));
        };
        // How long it is held from now on, for what leaves its buckets at its end.
        let left_us = later_end(&held, asked.hold_us, found.now).since(found.now);
        let plan = self.planned(policy, &held, (asked, left_us), &anchor);
        // No wait would make such a cost fit.
        if plan.iter().any(PlannedCharge::is_too_dear) {
            let class: Arc<str> = (*held.class).into();
            let refused = refuse(Refusal::TooDear, &class, found.now);
            return Ok(ExtendAttempt::Answer(ExtendAnswer::Denied(Box::new(
                refused,
            ))));
        }
        let charges: Vec<Charge<'_>> = plan.iter().map(|one| one.charge.clone()).collect();
        let places = plan.iter().map(|one| one.place);
        let (readings, instants, now, admitted) = if charges.is_empty() {
            (BucketReadings::new(), Vec::new(), found.now, true)
        } else {
            let charged = self.counters.charge_placed(&charges, places, ends).await?;
            (
                charged.readings,
                charged.instants,
                charged.now,
                charged.admitted,
            )
        };
        if !admitted {
            return Ok(ExtendAttempt::Answer(denied(&held, &plan, &readings, now)));
        }
        let made = ChargedExtension::new(&held, &plan, &readings, &instants);
        // Others have taken the slot in the meantime, so the holder must stop.
        if made.has_lost_slot {
            self.undo(policy, &held, &made.taken, ends).await;
            return Ok(ExtendAttempt::Answer(ExtendAnswer::Expired));
        }
        let mut extended = made.extended(&held, asked, now);
        let (renewed, outdated) = match self.renew(policy, &held, (asked, left_us), ends).await {
            Ok(renewed) => renewed.exchange(&held, &mut extended),
            Err(error) => {
                self.undo(policy, &held, &made.taken, ends).await;
                return Err(error);
            }
        };
        let taken: Vec<Line> = made.taken.iter().cloned().chain(renewed).collect();
        let freed: Vec<Line> = made.freed.iter().cloned().chain(outdated).collect();
        let fate = Fate::Held(Box::new(extended.clone()));
        // What is held by the old end goes back with the new state. A crash before this leaves it
        // held twice until its end, and never too little.
        let corrections = Corrections {
            back: freed,
            ..Corrections::default()
        };
        let write = self.write_fate(&extended, (&fate, found.revision), &corrections, ends);
        if matches!(write.await?, FateWrite::Conflict) {
            self.undo(policy, &held, &taken, ends).await;
            return Ok(ExtendAttempt::LostRace);
        }
        self.register.remember(&extended, now);
        let answer = self.held(&extended, now).map(ExtendAnswer::Held);
        Ok(ExtendAttempt::Answer(
            answer.unwrap_or(ExtendAnswer::Expired),
        ))
    }

    /// Extends a reservation that holds no bucket: only its end moves.
    fn extend_nothing(&self, reservation: &Reservation, asked: &Extension<'_>) -> ExtendAttempt {
        let now = self.now();
        let mut extended = reservation.clone();
        extended.ends = later_end(reservation, asked.hold_us, now);
        let answer = self.held(&extended, now).map(ExtendAnswer::Held);
        ExtendAttempt::Answer(answer.unwrap_or(ExtendAnswer::Expired))
    }

    /// Returns what an extension has charged. What cannot be returned ends with its window.
    async fn undo(&self, policy: &PolicySet, held: &Reservation, lines: &[Line], ends: Instant) {
        let _ = self.return_lines(policy, held, lines, ends).await;
    }

    /// The charges of an extension: a new hit for each slot, more for each bucket of a unit that
    /// costs more, and the anchors, which show whether the store still has what is held.
    fn planned<'p>(
        &self,
        policy: &'p PolicySet,
        held: &'p Reservation,
        (asked, left_us): (&Extension<'_>, u64),
        anchor: &'p Anchor,
    ) -> Vec<PlannedCharge<'p>> {
        let mut plan: Vec<PlannedCharge<'p>> = Vec::new();
        for (position, part) in held.parts.iter().enumerate() {
            let Some(limit) = limit_named(policy, part.line.limit) else {
                continue;
            };
            let what = match part.counts {
                Counts::Slot if asked.hold_us.is_some() => What::Slot(position),
                counts if is_first_of_bucket(held, position) => match counts.unit() {
                    Some((unit, _)) => What::More(position, unit),
                    None => continue,
                },
                _ => continue,
            };
            // Charged whether or not it fits, because a slot's old hit may still fill its bucket.
            // For more cost the limit decides, as set below.
            let mut charge = part.line.charge(limit);
            match what {
                What::More(_, unit) => {
                    let more = asked
                        .costs
                        .and_then(|costs| costs.of(&held.amounts[unit].unit));
                    let cost = more.map_or(0, |more| part.weighed(more));
                    (charge.cost, charge.on_exceed) = (cost, limit.def.on_exceed);
                    charge.from = ending_in(part, left_us);
                }
                _ if limit.def.on_exceed == OnExceed::Report => charge.on_exceed = OnExceed::Report,
                _ => {}
            }
            let is_here = self.is_reachable(held, part);
            if charge.cost > 0 && is_here {
                let place = part.line.place;
                plan.push(PlannedCharge {
                    what,
                    place,
                    charge,
                });
            }
        }
        let slots = plan.iter().filter(|one| matches!(one.what, What::Slot(_)));
        let stored = slots.filter(|one| one.place == Place::Store);
        let firsts: Vec<_> = stored
            .map(|one| one.charge.segments.first().copied())
            .collect();
        // An anchor that is still there is left alone; one that was lost is charged again.
        let anchors = anchor.charges(firsts, OnExceed::Report);
        plan.extend(anchors.into_iter().map(|charge| PlannedCharge {
            what: What::Anchor,
            place: Place::Store,
            charge,
        }));
        plan
    }
}

/// Purpose of a charge of an extension.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// A new hit for the slot of the part at this position.
    Slot(usize),
    /// More cost for the part at this position, in the unit at that one.
    More(usize, usize),
    Anchor,
}

struct PlannedCharge<'p> {
    what: What,
    place: Place,
    charge: Charge<'p>,
}

impl PlannedCharge<'_> {
    /// Whether the cost is more than its bucket can ever hold (L-COST).
    fn is_too_dear(&self) -> bool {
        self.charge.limit.role == Role::Usage
            && self.charge.on_exceed == OnExceed::Deny
            && self.charge.cost > self.charge.spec.capacity()
    }
}

/// The result of the charges of an extension.
struct ChargedExtension {
    /// All lines that were charged, without anchors.
    taken: Vec<Line>,
    /// Old hits of slots that got a new one, to be returned.
    freed: Vec<Line>,
    /// The parts of the reservation after the extension.
    parts: Vec<Part>,
    /// A slot was lost and could not be taken again.
    has_lost_slot: bool,
}

impl ChargedExtension {
    fn new(
        held: &Reservation,
        plan: &[PlannedCharge<'_>],
        readings: &[Reading],
        instants: &[Micros],
    ) -> Self {
        let mut made = Self {
            taken: Vec::new(),
            freed: Vec::new(),
            parts: held.parts.clone(),
            has_lost_slot: false,
        };
        let is_anchored = |charge: &Charge<'_>| {
            let mut anchors = plan
                .iter()
                .zip(readings)
                .filter(|(one, _)| one.what == What::Anchor);
            let first = |anchor: &Charge<'_>| anchor.segments.iter().rev().nth(1).copied();
            let own =
                anchors.find(|(one, _)| first(&one.charge) == charge.segments.first().copied());
            // The anchor could not be charged again, so the store still has it.
            own.is_none_or(|(_, reading)| reading.retry_at.is_some())
        };
        for ((one, reading), at) in plan.iter().zip(readings).zip(instants) {
            let was_full = reading.retry_at.is_some();
            // `Report` takes nothing from a full bucket: a limit in shadow mode, or an anchor that
            // still exists.
            if was_full && one.charge.on_exceed == OnExceed::Report {
                continue;
            }
            let counted = one.charge.counted_at(*at);
            let new = |part: &Part| part.line.charged(one.charge.returnable(reading), counted);
            match one.what {
                What::Anchor => {}
                What::Slot(position) => {
                    let part = &held.parts[position];
                    // The bucket may be full, as long as the slot's old hit is part of it.
                    let is_alive = is_anchored(&one.charge) && part.line.counts_at(*at);
                    made.has_lost_slot |= was_full && !is_alive;
                    made.taken.push(new(part));
                    made.freed.push(part.line.clone());
                    made.parts[position].line = new(part);
                }
                What::More(position, _) => {
                    let part = &held.parts[position];
                    made.taken.push(new(part));
                    // Charged at an instant of its own, so it is returned as a part of its own.
                    made.parts.push(Part {
                        line: new(part),
                        counts: taken_at(part.counts, *at),
                    });
                }
            }
        }
        made
    }

    fn extended(&self, held: &Reservation, asked: &Extension<'_>, now: Micros) -> Reservation {
        let mut extended = held.clone();
        extended.parts.clone_from(&self.parts);
        for amount in &mut extended.amounts {
            let more = asked.costs.and_then(|costs| costs.of(&amount.unit));
            amount.reserved = amount.reserved.saturating_add(more.unwrap_or(0));
        }
        extended.ends = later_end(held, asked.hold_us, now);
        extended
    }
}

/// Whether a hold is longer than the window of a limit that counts a unit of the policy's own.
fn outlives_a_charge(policy: &PolicySet, held: &Reservation, hold_us: u64) -> bool {
    let limits = held.parts.iter();
    let mut limits = limits.filter_map(|part| limit_named(policy, part.line.limit));
    limits.any(|limit| {
        limit
            .unit_window_us()
            .is_some_and(|window| window < hold_us)
    })
}

/// The end of a reservation that is held for `hold_us` from now: not before its current end and not
/// after its longest life.
fn later_end(held: &Reservation, hold_us: Option<u64>, now: Micros) -> Micros {
    let Some(hold_us) = hold_us else {
        return held.ends;
    };
    let slots = held.parts.iter().filter(|part| is_slot(part));
    let hold_us = slots
        .map(|part| part.line.spec.window_us())
        .fold(hold_us, u64::min);
    let latest = held.at.plus(held.life_us);
    held.ends.max(now.plus(hold_us).min(latest))
}

/// Whether a part is the first of those that share its bucket, so that more cost is charged only
/// once.
fn is_first_of_bucket(held: &Reservation, position: usize) -> bool {
    let part = &held.parts[position];
    held.parts[..position]
        .iter()
        .all(|earlier| !earlier.shares(part))
}

/// The refusal of more cost, with the buckets that count it.
fn denied(
    held: &Reservation,
    plan: &[PlannedCharge<'_>],
    readings: &[Reading],
    now: Micros,
) -> ExtendAnswer {
    let own = plan
        .iter()
        .zip(readings)
        .filter(|(one, _)| matches!(one.what, What::More(..)));
    let (charges, readings): (Vec<Charge<'_>>, Vec<Reading>) = own
        .map(|(one, reading)| (one.charge.clone(), *reading))
        .unzip();
    let judged = JudgedCharges {
        charges: &charges,
        readings: &readings,
        now,
    };
    let decision: Decision = decide(None, &(*held.class).into(), judged);
    ExtendAnswer::Denied(Box::new(decision))
}
