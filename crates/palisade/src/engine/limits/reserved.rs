//! Bucket calls of reservations: charges that were made earlier are given back or
//! made again, each where it was counted.

use palisade_core::Digest;
use palisade_core::decision::LimitReading;
use palisade_core::plan::Charge;
use palisade_core::policy::{Limit, PolicySet};
use palisade_core::receipt::{Line, Place};
use palisade_core::time::Micros;
use palisade_store::{BucketReadings, ChargeOutcome, Take, TakenCharge};
use tokio::time::Instant;

use super::super::Engine;
use super::super::link::NoAnswer;
use super::both_names;
use super::charge::LIMITS;
use super::refund::{limit_of, shown};
use super::{Limits, receipts};

/// Outcome of charges in several places.
pub(in crate::engine) struct ChargedParts {
    /// True if every bucket admitted; then all were charged, else none.
    pub(in crate::engine) admitted: bool,
    /// One reading for each charge, in order.
    pub(in crate::engine) readings: BucketReadings,
    /// When each was judged, by the clock of its place.
    pub(in crate::engine) instants: Vec<Micros>,
    /// The store's clock, or this process's where the store was not asked.
    pub(in crate::engine) now: Micros,
}

impl From<ChargedParts> for ChargeOutcome {
    fn from(parts: ChargedParts) -> Self {
        Self {
            now: parts.now,
            admitted: parts.admitted,
            readings: parts.readings,
            rebuilt: 0,
            instants: parts.instants,
        }
    }
}

impl Limits {
    /// The number of this process in receipts.
    pub(in crate::engine) const fn process(&self) -> u64 {
        self.receipts.process
    }

    /// Something is reserved of these limits: denials of them are remembered for a moment only
    /// (B-REMEMBER).
    pub(in crate::engine) fn note_reserved(&self, charges: &[Charge<'_>]) {
        if self.is_shared {
            self.denials.note_reserved(charges);
        }
    }

    /// A charge as it would be made for a receipt, now and with no cost: what may be charged
    /// to its bucket later.
    pub(in crate::engine) fn idle_line(&self, charge: &Charge<'_>, now: Micros) -> Line {
        let (spec, place) = self.charged_as(charge);
        Line::new(charge, spec, now, place)
    }
}

impl Engine {
    /// The charges in a receipt of this engine.
    pub(in crate::engine) fn lines_of(&self, receipt: &str) -> Vec<Line> {
        let opened = receipts::open(&self.keyring, receipt);
        opened.map(|receipt| receipt.lines).unwrap_or_default()
    }

    /// Charges again, all or nothing, whatever was remembered of a denial.
    pub(in crate::engine) async fn charge_placed(
        &self,
        charges: &[(Place, Charge<'_>)],
        ends: Instant,
    ) -> Result<ChargedParts, NoAnswer> {
        let of = |wanted: Place| -> Vec<Charge<'_>> {
            let own = charges.iter().filter(|(place, _)| *place == wanted);
            own.map(|(_, charge)| charge.clone()).collect()
        };
        let (here, there) = (of(Place::Process), of(Place::Store));
        let near = self.limits.local.charge_now(&here, Take::Consume);
        let take = if near.admitted {
            Take::Consume
        } else {
            Take::Peek
        };
        let mut far = None;
        if !there.is_empty() {
            let call = self.link.call(LIMITS, ends, |store| {
                both_names::charge(store, &there, take)
            });
            let asked = call.await;
            let is_taken = asked.as_ref().is_ok_and(|far| far.admitted);
            if !here.is_empty() && near.admitted && !is_taken {
                self.limits.local.give_back_now(&near.taken(&here));
            }
            far = Some(asked?);
        }
        Ok(merged(charges, &near, far.as_ref()))
    }

    /// Gives back what was charged, as far as it still counts.
    pub(in crate::engine) async fn return_placed(
        &self,
        lines: &[(Place, TakenCharge<'_>)],
        ends: Instant,
    ) -> Result<ChargeOutcome, NoAnswer> {
        let charged = self.counters().give_back_lines(lines, ends).await?;
        let charges: Vec<Charge<'_>> = lines.iter().map(|(_, one)| one.charge.clone()).collect();
        self.reopen(&charges, charged.now);
        Ok(charged)
    }

    /// The readings of buckets now, without the denials that are remembered.
    pub(in crate::engine) async fn look_into(
        &self,
        charges: &[Charge<'_>],
        ends: Instant,
    ) -> Result<ChargeOutcome, NoAnswer> {
        let call = self
            .link
            .call(LIMITS, ends, |store| store.charge(charges, Take::Peek));
        call.await
    }
}

/// The limit that a charge was made for, if the policy still has it.
pub(in crate::engine) fn limit_named(policy: &PolicySet, digest: Digest) -> Option<&Limit> {
    limit_of(policy, digest)
}

/// Buckets as an answer shows them, each once: of several charges of one bucket the last
/// reading is what is left.
pub(in crate::engine) fn readings_of(
    class: &str,
    charges: &[Charge<'_>],
    charged: &ChargeOutcome,
) -> Vec<LimitReading> {
    let is_last = |at: &usize| {
        let mut later = charges[at + 1..].iter();
        later.all(|other| other.id != charges[*at].id)
    };
    let last: Vec<usize> = (0..charges.len()).filter(is_last).collect();
    let readings = last
        .iter()
        .filter_map(|at| charged.readings.get(*at).copied());
    let charged = ChargeOutcome {
        now: charged.now,
        admitted: charged.admitted,
        readings: readings.collect(),
        rebuilt: 0,
        instants: Vec::new(),
    };
    let charges: Vec<Charge<'_>> = last.into_iter().map(|at| charges[at].clone()).collect();
    shown(class, &charges, &charged)
}

fn merged(
    charges: &[(Place, Charge<'_>)],
    near: &ChargeOutcome,
    far: Option<&ChargeOutcome>,
) -> ChargedParts {
    let (mut here, mut there) = (0.., 0..);
    let mut found = ChargedParts {
        admitted: near.admitted && far.is_none_or(|far| far.admitted),
        readings: BucketReadings::with_capacity(charges.len()),
        instants: Vec::with_capacity(charges.len()),
        now: far.map_or(near.now, |far| far.now),
    };
    for (place, _) in charges {
        let (charged, at) = match (place, far) {
            (Place::Store, Some(far)) => (far, there.next().unwrap_or_default()),
            _ => (near, here.next().unwrap_or_default()),
        };
        found.readings.extend(charged.readings.get(at).copied());
        found.instants.push(charged.judged_at(at));
    }
    found
}
