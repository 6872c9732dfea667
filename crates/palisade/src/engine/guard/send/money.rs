//! Money for sends (S-SPEND): limits in a unit of their own, reserved before and settled later.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::Id;
use palisade_core::budget::Costs;
use palisade_core::decision::{ErrorCode, KeyKind, Mode, Outcome, Readings, ThresholdWarning};
use palisade_core::facts::{GuardFacts, NO_ADDRESS, RequestFacts, Surface};
use palisade_core::guard::Candidate;
use palisade_core::policy::PolicySet;
use palisade_core::rule::Rule;
use palisade_core::send::policy::{HARD_LEVEL, SpendPolicy};

use super::super::super::link::NoAnswer;
use super::super::super::{Engine, Hold};
use super::super::command::Unusable;

/// Path of the request that stands for a send among the limits.
const PATH: &str = "/v1/guard/otp/send";

/// Answer of the budgets to a send.
pub(super) enum SpendOutcome {
    Held(ReservedMoney),
    Denied(Candidate),
}

/// Money that is reserved for a send.
pub(super) struct ReservedMoney {
    pub(super) reservation: Option<Box<str>>,
    pub(super) warnings: Option<Box<[ThresholdWarning]>>,
    pub(super) limits: Readings,
}

impl Engine {
    /// Reserves what a send may cost (S-SPEND).
    pub(super) async fn reserve_money(
        &self,
        policy: &Arc<PolicySet>,
        spend: &SpendPolicy,
        facts: &GuardFacts,
    ) -> Result<SpendOutcome, Unusable> {
        let unavailable = || Unusable::Store(NoAnswer::NotAsked);
        let asked = facts.destination.as_ref().and_then(|to| {
            let price = facts.price.unwrap_or_else(|| spend.price_of(to).into());
            let costs = Costs::new([(&*spend.unit, price)]).ok()?;
            let class = Id::new("class", &spend.class_of(to)).ok()?;
            // Of nobody: whoever asks is exempt from no budget.
            Some(RequestFacts {
                class: Some(class),
                costs: Some(costs.into()),
                request_id: facts.request_id.clone(),
                correlation_id: facts.correlation_id.clone(),
                surface: Surface::Guard,
                ..RequestFacts::new(NO_ADDRESS, "POST", PATH)
            })
        });
        let asked = asked.ok_or_else(unavailable)?;
        let longest = policy.settings.reservations.max_hold_us;
        let hold = Hold {
            hold: Duration::from_micros(spend.settle_within.min(longest)),
            ..Hold::default()
        };
        let reserving = Box::pin(self.reserve(&asked, hold)).await;
        let reserved = reserving.map_err(|_| unavailable())?;
        let decision = *reserved.answer.decision;
        if decision.mode != Mode::Normal {
            return Err(unavailable());
        }
        match reserved.held {
            Some(held) => Ok(SpendOutcome::Held(ReservedMoney {
                reservation: Some(held.token),
                warnings: decision.warnings,
                limits: decision.limits,
            })),
            None if decision.error.is_some_and(ErrorCode::is_exceeded)
                || decision.error == Some(ErrorCode::CostExceedsLimit) =>
            {
                Ok(SpendOutcome::Denied(Candidate {
                    rule: Rule::S_SPEND,
                    key: KeyKind::Range,
                    outcome: Outcome::HardBlock,
                    level: Some(HARD_LEVEL),
                    retry_after: decision.retry_after.unwrap_or(1).max(1),
                }))
            }
            None => Err(unavailable()),
        }
    }
}
