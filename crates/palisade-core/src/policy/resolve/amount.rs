//! The amount of a decision's costs that each limit is charged (B-UNIT).

use std::num::NonZeroU32;

use super::super::{Limit, QuotaUnit, RouteMatch};
use crate::facts::RequestFacts;
use crate::limit::COUNT_MAX;
use crate::plan::OnExceed;

/// Amount that a limit is charged, where a decision's costs are stated by unit.
pub(super) enum Amount {
    /// The decision states no cost in the limit's unit, or requests no slot.
    NotAsked,
    Whole(u64),
    /// More than any bucket holds (L-COST).
    TooLarge,
}

pub(super) fn amount(limit: &Limit, route: &RouteMatch<'_>, facts: &RequestFacts) -> Amount {
    if limit.def.concurrency {
        return match facts.slots {
            true => Amount::Whole(1),
            false => Amount::NotAsked,
        };
    }
    let asked = match &facts.costs {
        Some(costs) => costs.of(limit.def.unit.name()),
        None => None,
    };
    let Some(asked) = asked else {
        return Amount::NotAsked;
    };
    let charged = asked.checked_mul(u64::from(weight_in(limit, route).get()));
    let charged = charged.filter(|charged| *charged <= COUNT_MAX);
    match charged {
        Some(charged) => Amount::Whole(charged),
        // As much as a bucket can owe.
        None if facts.report || limit.def.on_exceed == OnExceed::Overdraft => {
            Amount::Whole(COUNT_MAX)
        }
        None => Amount::TooLarge,
    }
}

/// Weight of one unit in a limit. The costs of routes and limits multiply requests only.
#[must_use]
pub fn weight_in(limit: &Limit, route: &RouteMatch<'_>) -> NonZeroU32 {
    match limit.def.unit {
        QuotaUnit::Requests if !limit.def.concurrency => {
            let of_route = route.cost.unwrap_or(NonZeroU32::MIN);
            limit.def.cost.saturating_mul(of_route)
        }
        _ => NonZeroU32::MIN,
    }
}
