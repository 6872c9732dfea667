//! What the counters said to a call, and the decision that follows.

use std::borrow::Cow;
use std::sync::Arc;

use palisade_core::decide::{JudgedCharges, decide, refuse};
use palisade_core::decision::Decision;
use palisade_core::limit::Reading;
use palisade_core::plan::{Charge, OnExceed, Refusal};
use palisade_core::policy::DescriptorPlan;
use palisade_core::time::Micros;
use palisade_store::ChargeOutcome;

use super::Call;

/// What was found about one part of a plan: a reading for each charge, as far as known.
pub(super) struct Part {
    pub(super) readings: Vec<Option<Reading>>,
    pub(super) admitted: bool,
    now: Option<Micros>,
    rebuilt: u32,
}

impl Part {
    pub(super) const fn empty() -> Self {
        Self {
            readings: Vec::new(),
            admitted: true,
            now: None,
            rebuilt: 0,
        }
    }

    pub(super) fn all(charged: ChargeOutcome) -> Self {
        Self {
            readings: charged.readings.into_iter().map(Some).collect(),
            admitted: charged.admitted,
            now: Some(charged.now),
            rebuilt: charged.rebuilt,
        }
    }

    /// Adds what was found about the charges after these.
    pub(super) fn append(&mut self, next: Self) {
        self.readings.extend(next.readings);
        self.admitted &= next.admitted;
        self.now = next.now.or(self.now);
        self.rebuilt += next.rebuilt;
    }

    /// What is known of charges, one of which denies.
    pub(super) const fn remembered(readings: Vec<Option<Reading>>, now: Micros) -> Self {
        Self {
            readings,
            admitted: false,
            now: Some(now),
            rebuilt: 0,
        }
    }

    /// Readings of some of the charges, which deny.
    pub(super) fn some(
        charges: &[Charge<'_>],
        known: &[Charge<'_>],
        readings: &[Reading],
        now: Micros,
    ) -> Self {
        Self {
            readings: in_order(charges, known, readings),
            admitted: false,
            now: Some(now),
            rebuilt: 0,
        }
    }

    /// The same of counters that keep another order.
    pub(super) fn sorted(
        charges: &[Charge<'_>],
        known: &[Charge<'_>],
        charged: &ChargeOutcome,
    ) -> Self {
        Self {
            readings: in_order(charges, known, &charged.readings),
            admitted: charged.admitted,
            now: Some(charged.now),
            rebuilt: charged.rebuilt,
        }
    }

    /// Whether one of the charges is known to deny.
    pub(super) fn is_over(&self, charges: &[Charge<'_>]) -> bool {
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
    let mut left: Vec<Option<_>> = known.iter().zip(readings).map(Some).collect();
    let next = |charge: &Charge<'_>| {
        let own = left
            .iter_mut()
            .find(|one| one.is_some_and(|(known, _)| known.id == charge.id))?;
        own.take().map(|(_, reading)| *reading)
    };
    charges.iter().map(next).collect()
}

/// What a call was told, bucket by bucket, and the decision.
pub(super) struct Counted {
    pub(super) decision: Decision,
    pub(super) charges: Vec<Option<Reading>>,
    pub(super) looks: Vec<Option<Reading>>,
    pub(super) refunds: Vec<Option<Reading>>,
    /// By the clock that judged.
    pub(super) now: Micros,
    /// Every bucket that is counted is refused: the store was not asked (R-FAIL).
    pub(super) is_closed: bool,
    /// What was to be given back has been.
    pub(super) has_refunded: bool,
    pub(super) rebuilt: u32,
}

impl Counted {
    /// A decision that no bucket was asked for.
    pub(super) const fn without(decision: Decision) -> Self {
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

    /// The decision on a call whose parts were counted; `now` where no bucket was asked.
    pub(super) fn of(call: Call<'_>, now: impl FnOnce() -> Micros, parts: [Part; 3]) -> Self {
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
