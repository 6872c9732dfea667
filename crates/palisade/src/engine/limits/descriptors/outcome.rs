//! The outcome of a call: the decision that follows from what the counters said.

use std::borrow::Cow;
use std::sync::Arc;

use palisade_core::decide::{JudgedCharges, decide, refuse};
use palisade_core::decision::Decision;
use palisade_core::limit::Reading;
use palisade_core::plan::{Charge, OnExceed, Refusal};
use palisade_core::policy::DescriptorPlan;
use palisade_core::time::Micros;

use super::super::super::counters::ChargeOutcome;
use super::Call;

/// Readings of one part of a plan: one for each charge, as far as it is known.
pub(in crate::engine::limits) struct PartReadings {
    pub(super) readings: Vec<Option<Reading>>,
    pub(in crate::engine::limits) admitted: bool,
    now: Option<Micros>,
    rebuilt: u32,
}

impl PartReadings {
    pub(in crate::engine::limits) const fn empty() -> Self {
        Self {
            readings: Vec::new(),
            admitted: true,
            now: None,
            rebuilt: 0,
        }
    }

    /// Adds the readings of the charges after these.
    pub(super) fn append(&mut self, next: Self) {
        self.readings.extend(next.readings);
        self.admitted &= next.admitted;
        self.now = next.now.or(self.now);
        self.rebuilt += next.rebuilt;
    }

    /// The readings of these charges, of which not all may have been read, or in another order.
    pub(in crate::engine::limits) fn of(
        charges: &[Charge<'_>],
        outcome: &ChargeOutcome<'_, '_>,
    ) -> Self {
        let charged = &outcome.charged;
        let readings = match outcome.charges {
            Cow::Borrowed(known) if known.len() == charges.len() => {
                charged.readings.iter().copied().map(Some).collect()
            }
            _ => in_order(charges, &outcome.charges, &charged.readings),
        };
        Self {
            readings,
            admitted: charged.admitted,
            now: Some(charged.now),
            rebuilt: charged.rebuilt,
        }
    }

    /// Whether one of the charges is known to deny.
    pub(in crate::engine::limits) fn is_over(&self, charges: &[Charge<'_>]) -> bool {
        let mut pairs = charges.iter().zip(&self.readings);
        pairs.any(|(charge, reading)| {
            charge.on_exceed.denies() && reading.is_some_and(|r| r.retry_at.is_some())
        })
    }
}

/// For each charge the next reading of its bucket.
fn in_order(
    charges: &[Charge<'_>],
    known: &[Charge<'_>],
    readings: &[Reading],
) -> Vec<Option<Reading>> {
    let is_same =
        |one: &Charge<'_>, other: &Charge<'_>| (one.id, one.cost) == (other.id, other.cost);
    let mut left: Vec<Option<_>> = known.iter().zip(readings).map(Some).collect();
    let next = |charge: &Charge<'_>| {
        let own = left
            .iter_mut()
            .find(|one| one.is_some_and(|(known, _)| is_same(known, charge)))?;
        own.take().map(|(_, reading)| *reading)
    };
    charges.iter().map(next).collect()
}

/// The decision on a call, with the readings behind it.
pub(in crate::engine::limits) struct CallOutcome {
    pub(in crate::engine::limits) decision: Decision,
    pub(super) charges: Vec<Option<Reading>>,
    pub(super) looks: Vec<Option<Reading>>,
    pub(super) refunds: Vec<Option<Reading>>,
    /// By the clock that judged.
    pub(super) now: Micros,
    /// Every bucket that is counted is refused: the store was not asked (R-FAIL).
    pub(super) is_closed: bool,
    /// Negative hits have been given back.
    pub(super) has_refunded: bool,
    pub(super) rebuilt: u32,
}

impl CallOutcome {
    /// A decision that no bucket was asked for.
    pub(in crate::engine::limits) const fn without(decision: Decision) -> Self {
        let now = decision.at;
        Self {
            decision,
            charges: Vec::new(),
            looks: Vec::new(),
            refunds: Vec::new(),
            now,
            is_closed: false,
            has_refunded: false,
            rebuilt: 0,
        }
    }

    /// A refusal that closes every bucket (R-FAIL).
    pub(in crate::engine::limits) const fn closed(decision: Decision) -> Self {
        let mut outcome = Self::without(decision);
        outcome.is_closed = true;
        outcome
    }

    /// The decision on a call whose parts were counted; `now` where no bucket was asked.
    pub(in crate::engine::limits) fn new(
        call: Call<'_>,
        now: impl FnOnce() -> Micros,
        parts: [PartReadings; 3],
    ) -> Self {
        let judging = parts.iter().find_map(|part| part.now);
        let now = judging.unwrap_or_else(now);
        let rebuilt = parts.iter().map(|part| part.rebuilt).sum();
        let [charges, looks, refunds] = parts.map(|part| part.readings);
        let (found, readings) = found(call.plan, &charges, &looks, now);
        Self {
            decision: judge(call, &found, &readings, now),
            charges,
            looks,
            refunds,
            now,
            is_closed: false,
            has_refunded: false,
            rebuilt,
        }
    }
}

/// Every bucket that is known and can have a say, and what it says.
fn found<'p>(
    plan: &'p DescriptorPlan<'p>,
    charges: &[Option<Reading>],
    looks: &[Option<Reading>],
    now: Micros,
) -> (Cow<'p, [Charge<'p>]>, Vec<Reading>) {
    let all: Vec<Reading> = charges.iter().copied().flatten().collect();
    let are_all = all.len() == plan.charges.len();
    if are_all && plan.looks.is_empty() && plan.denied.is_empty() {
        // As a rule: the charges are what was found, and they are large.
        return (Cow::Borrowed(&plan.charges), all);
    }
    let pairs = known(&plan.charges, charges).chain(known(&plan.looks, looks));
    let zeros = plan
        .denied
        .iter()
        .filter(|charge| charge.limit.denies_all());
    let zeros = zeros.map(|charge| (charge.clone(), zero(charge, now)));
    let (found, readings): (Vec<Charge<'_>>, Vec<Reading>) = pairs.chain(zeros).unzip();
    (found.into(), readings)
}

fn known<'c, 'p>(
    charges: &'c [Charge<'p>],
    readings: &'c [Option<Reading>],
) -> impl Iterator<Item = (Charge<'p>, Reading)> {
    let pairs = charges.iter().zip(readings);
    pairs.filter_map(|(charge, reading)| Some((charge.clone(), (*reading)?)))
}

/// L-COST: more hits than a limit ever admits are denied whatever was used, and nobody is
/// told to wait.
fn judge(call: Call<'_>, charges: &[Charge<'_>], readings: &[Reading], now: Micros) -> Decision {
    let judged = JudgedCharges {
        charges,
        readings,
        now,
    };
    let decision = decide(None, call.class, judged);
    let is_dear =
        |charge: &Charge<'_>| charge.on_exceed == OnExceed::Deny && !charge.limit.denies_all();
    match call.plan.denied.iter().find(|charge| is_dear(charge)) {
        Some(dear) => too_dear(dear, decision, call.class),
        None => decision,
    }
}

fn too_dear(dear: &Charge<'_>, found: Decision, class: &Arc<str>) -> Decision {
    let mut decision = refuse(Refusal::TooDear, class, found.at);
    for reason in &mut decision.reasons {
        reason.limit = Some(Arc::clone(&dear.limit.name));
    }
    decision.limits = found.limits;
    decision
}

/// A limit that admits nothing, as a bucket would show it.
pub(super) fn zero(charge: &Charge<'_>, now: Micros) -> Reading {
    let end = now.plus(charge.spec.window_us());
    Reading {
        used: 0,
        remaining: 0,
        reset_at: end,
        retry_at: Some(end),
    }
}
