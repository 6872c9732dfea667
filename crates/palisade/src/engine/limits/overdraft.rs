//! Limits that may be overdrawn (B-OVERDRAFT): charges that are made although their request is
//! refused, and how much is charged beyond limits.

use palisade_core::limit::{BucketSpec, Reading};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::receipt::Place;
use palisade_store::ChargeReadings;
use tokio::time::Instant;

use super::super::Engine;
use super::super::counters::ChargeOutcome;
use super::super::link::NoAnswer;

impl Engine {
    /// Charges buckets of a refused request in full, whether or not they fit, each where it is
    /// counted. The receipt of that, for a request of this class, if one is wanted.
    pub(super) async fn charge_anyway(
        &self,
        charges: &[Charge<'_>],
        receipt_of: Option<&str>,
        ends: Instant,
    ) -> Result<(ChargeReadings, Option<Box<str>>), NoAnswer> {
        let specs = charges.iter().map(|one| one.spec.for_unbounded_charges());
        let specs: Vec<BucketSpec> = specs.collect();
        let counted: Vec<Charge<'_>> = charges.iter().zip(&specs).map(counted).collect();
        let as_charged = |one: &Charge<'_>| self.counters.charged_as(one);
        let (specs, places): (Vec<BucketSpec>, Vec<Place>) = counted.iter().map(as_charged).unzip();
        let placed = counted.iter().zip(&specs);
        let placed: Vec<Charge<'_>> = placed
            .map(|(one, spec)| Charge {
                spec,
                ..one.clone()
            })
            .collect();
        let places = places.into_iter();
        let charged = self.counters.charge_placed(&placed, places, ends).await?;
        self.note_overdrawn(charges, &charged.readings);
        let outcome = ChargeOutcome::all(&counted, charged);
        let receipt = receipt_of.and_then(|class| self.receipt(class, &outcome));
        Ok((outcome.charged, receipt))
    }

    /// Counts what these charges took beyond their limits, by unit. Several limits of one unit
    /// count the same use: the one that is overdrawn the most tells it.
    pub(super) fn note_overdrawn(&self, charges: &[Charge<'_>], readings: &[Reading]) {
        let mut units: Vec<(&str, u64)> = Vec::new();
        for (charge, reading) in charges.iter().zip(readings) {
            let over = overdrawn(charge, reading);
            if over == 0 {
                continue;
            }
            let unit = charge.limit.def.unit.name();
            match units.iter_mut().find(|(known, _)| *known == unit) {
                Some((_, most)) => *most = over.max(*most),
                None => units.push((unit, over)),
            }
        }
        for (unit, over) in units {
            self.retries.tally.add_overdraft(unit, over);
        }
    }
}

/// The charge as it is made whether or not it fits. A limit in shadow only ever reports.
fn counted<'c>((charge, spec): (&Charge<'c>, &'c BucketSpec)) -> Charge<'c> {
    Charge {
        spec,
        on_exceed: match charge.on_exceed {
            OnExceed::Report => OnExceed::Report,
            OnExceed::Deny | OnExceed::Count | OnExceed::Overdraft => OnExceed::Count,
        },
        ..charge.clone()
    }
}

/// The part of a charge that lies beyond its limit.
fn overdrawn(charge: &Charge<'_>, reading: &Reading) -> u64 {
    match charge.on_exceed {
        OnExceed::Overdraft => {
            let beyond = reading.used.saturating_sub(charge.spec.capacity());
            beyond.min(charge.cost)
        }
        OnExceed::Deny | OnExceed::Report | OnExceed::Count => 0,
    }
}
