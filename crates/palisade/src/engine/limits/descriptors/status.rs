//! The status of each descriptor of a call (R-STATUS).

use std::sync::Arc;

use palisade_core::limit::{Reading, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::{DescriptorPlan, DescriptorTreatment, Limit};
use palisade_core::time::Micros;

use super::outcome::{CallOutcome, zero};

/// The verdict of a limit on one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DescriptorVerdict {
    /// It is admitted.
    Admitted,
    /// It is over the limit.
    Denied,
    /// It is over a limit that only reports (R-SHADOW).
    WouldDeny,
    /// Its negative hits gave nothing back (R-HITS): `[rls] refunds` is off, the call is over
    /// its limits, or the store cannot be asked.
    NotRefunded,
}

/// A figure and the window it holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The amount.
    pub amount: u64,
    /// The window.
    pub window: Window,
}

/// The status of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorStatus {
    /// The limit that answers it; `None` if none counts it.
    pub limit: Option<Arc<str>>,
    /// The verdict of that limit.
    pub verdict: DescriptorVerdict,
    /// The amount that it allows, and in which window; `None` where nothing is limited.
    pub figure: Option<Figure>,
    /// The amount that is left; 4,294,967,295 where nothing is limited. Where it was not
    /// read (another bucket is known to deny, or the store cannot be asked), the whole figure, or
    /// zero if the descriptor is denied: whoever looks for the closest limit finds one that denies.
    pub remaining: u64,
    /// Microseconds until the whole limit is free again.
    pub reset_us: Option<u64>,
    /// The amount that is used, where it was read.
    pub used: Option<u64>,
    /// Microseconds until it would be admitted, if it is not and waiting helps.
    pub retry_us: Option<u64>,
}

impl DescriptorStatus {
    /// This status, denied whatever is left.
    fn denied(self) -> Self {
        Self {
            verdict: DescriptorVerdict::Denied,
            remaining: 0,
            ..self
        }
    }

    const fn uncounted() -> Self {
        Self {
            limit: None,
            verdict: DescriptorVerdict::Admitted,
            figure: None,
            remaining: 0,
            reset_us: None,
            used: None,
            retry_us: None,
        }
    }

    fn unlimited(limit: &Limit) -> Self {
        Self {
            limit: Some(Arc::clone(&limit.name)),
            remaining: u32::MAX.into(),
            ..Self::uncounted()
        }
    }

    fn of(charge: &Charge<'_>, reading: Option<Reading>, now: Micros) -> Self {
        let denies = reading.is_some_and(|reading| reading.retry_at.is_some());
        let figure = Figure {
            amount: match charge.limit.denies_all() {
                true => 0,
                false => charge.spec.limit(),
            },
            window: charge.spec.window(),
        };
        let left = reading.map_or(figure.amount, |reading| reading.remaining);
        Self {
            limit: Some(Arc::clone(&charge.limit.name)),
            verdict: verdict(denies, charge.on_exceed),
            figure: Some(figure),
            remaining: left,
            reset_us: reading.map(|reading| reading.reset_at.since(now)),
            used: reading.map(|reading| reading.used),
            retry_us: reading.and_then(|reading| Some(reading.retry_at?.since(now))),
        }
    }
}

const fn verdict(denies: bool, on_exceed: OnExceed) -> DescriptorVerdict {
    match (denies, on_exceed) {
        (false, _) | (true, OnExceed::Count) => DescriptorVerdict::Admitted,
        (true, OnExceed::Deny | OnExceed::Overdraft) => DescriptorVerdict::Denied,
        (true, OnExceed::Report) => DescriptorVerdict::WouldDeny,
    }
}

/// One for each descriptor, in order.
pub(super) fn all(plan: &DescriptorPlan<'_>, counted: &CallOutcome) -> Vec<DescriptorStatus> {
    plan.asked
        .iter()
        .map(|asked| one(*asked, plan, counted))
        .collect()
}

fn one(
    asked: DescriptorTreatment<'_>,
    plan: &DescriptorPlan<'_>,
    counted: &CallOutcome,
) -> DescriptorStatus {
    let of = |charges: &[Charge<'_>], readings: &[Option<Reading>], position: usize| {
        let reading = readings.get(position).copied().flatten();
        let charge = charges.get(position)?;
        let status = DescriptorStatus::of(charge, reading, counted.now);
        let is_closed = counted.is_closed && charge.on_exceed.denies();
        Some(if is_closed { status.denied() } else { status })
    };
    let status = match asked {
        DescriptorTreatment::Nothing | DescriptorTreatment::Replaced => None,
        DescriptorTreatment::Unlimited(limit) => Some(DescriptorStatus::unlimited(limit)),
        DescriptorTreatment::Charged(position) => of(&plan.charges, &counted.charges, position),
        DescriptorTreatment::Looked(position) => of(&plan.looks, &counted.looks, position),
        DescriptorTreatment::Refunded(position) => {
            // Whether something given back would fit is no matter.
            of(&plan.refunds, &counted.refunds, position).map(|status| DescriptorStatus {
                verdict: match counted.has_refunded {
                    true => DescriptorVerdict::Admitted,
                    false => DescriptorVerdict::NotRefunded,
                },
                ..status
            })
        }
        DescriptorTreatment::Denied(position) => plan.denied.get(position).map(|charge| {
            let reading = charge.limit.denies_all().then(|| zero(charge, counted.now));
            DescriptorStatus {
                verdict: verdict(true, charge.on_exceed),
                remaining: 0,
                ..DescriptorStatus::of(charge, reading, counted.now)
            }
        }),
    };
    status.unwrap_or(DescriptorStatus::uncounted())
}
