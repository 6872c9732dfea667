//! Calls while the store cannot be asked: the failure rules of limits (R-FAIL).

use std::sync::Arc;

use palisade_core::Digest;
use palisade_core::decide::{JudgedCharges, decide};
use palisade_core::decision::Mode;
use palisade_core::failure::fallback::{self, AffectedRequest};
use palisade_core::failure::{Caller, FallbackRule};
use palisade_core::plan::Charge;
use palisade_core::policy::{ClassKind, Limit, WhenProlonged};
use palisade_core::rule::Rule;
use palisade_store::Take;

use super::super::super::Engine;
use super::super::super::link::NoAnswer;
use super::super::fallback::degraded;
use super::Call;
use super::counted::{Counted, Part};

impl Engine {
    /// The decision of a call that got no answer from the store.
    pub(super) fn without_answer(&self, call: Call<'_>, no_answer: &NoAnswer) -> Counted {
        match self.counters().is_conflict(no_answer) {
            true => self.conflicted_call(call),
            false => self.fall_back_call(call),
        }
    }

    /// A call whose time was up before its turn, while the store answers others: counters
    /// beside the store would admit its limits a second time (F-CONFLICT). Limits that only
    /// report refuse nobody (R-SHADOW).
    fn conflicted_call(&self, call: Call<'_>) -> Counted {
        let plan = call.plan;
        let mut limits = plan.charges.iter().chain(&plan.looks).chain(&plan.denied);
        if limits.any(|charge| charge.on_exceed.denies()) {
            return Counted {
                is_closed: true,
                ..Counted::without(self.counters().conflict(call.class))
            };
        }
        let mut decision = fallback::allowed(Mode::Degraded, self.link.now());
        decision.class = Some(Arc::clone(call.class));
        for reason in &mut decision.reasons {
            reason.rule = Rule::F_CONFLICT;
        }
        Counted::without(decision)
    }

    /// The decision of a call that the store was not asked for. What was to be given back is
    /// not: nothing of an outage reaches the store.
    fn fall_back_call(&self, call: Call<'_>) -> Counted {
        let (plan, now) = (call.plan, self.link.now());
        let limits = plan.charges.iter().chain(&plan.looks).chain(&plan.refunds);
        let request = AffectedRequest {
            class: ClassKind::Ordinary,
            prolonged: WhenProlonged::Local,
            method: "",
            path: "",
            caller: Caller::Anonymous,
            limits: fallback::strictest(limits.map(|charge| charge.limit.def.on_store_failure)),
        };
        let rule = self.link.modes().fallback(request, now);
        let mut counted = match rule {
            FallbackRule::Closed => Counted {
                is_closed: true,
                ..Counted::without(self.link.modes().closed(now))
            },
            // A call names no path, so that it is never exempt.
            FallbackRule::Exempt | FallbackRule::Share(_) => {
                self.count_call_here(call, &[], Mode::Degraded)
            }
            FallbackRule::Local { cap, mode } => {
                let bound = self.counters().limits.cap_limits.load();
                let caps = bound.of(&cap, Caller::Anonymous);
                self.count_call_here(call, &caps, mode)
            }
        };
        counted.decision.class = Some(Arc::clone(call.class));
        counted
    }

    /// The call's own limits at their figures and, for each bucket of somebody's own, the
    /// caps of strangers: who shares one bucket with everybody is no caller.
    fn count_call_here(&self, call: Call<'_>, caps: &[Limit], mode: Mode) -> Counted {
        let (plan, counters) = (call.plan, self.counters());
        let (known, looked) = counters.charge_here(plan.looks.clone(), Take::Peek);
        let looks = Part::sorted(&plan.looks, &known, &looked);
        let denies = |charge: &Charge<'_>| charge.on_exceed.denies();
        let is_over = plan.denied.iter().any(denies) || !looks.admitted;
        let take = if is_over { Take::Peek } else { call.take };
        let mut charges = plan.charges.clone();
        let capped = charges.len();
        charges.extend(self.capped(&plan.charges, caps));
        let cap_charges: Vec<Charge<'_>> = charges[capped..].to_vec();
        let (known, charged) = counters.charge_here(charges, take);
        let own = Part::sorted(&plan.charges, &known, &charged);
        let mut counted = Counted::of(call, || charged.now, [own, looks, Part::empty()]);
        let of_caps = Part::sorted(&cap_charges, &known, &charged);
        if counted.decision.is_allowed() && of_caps.is_over(&cap_charges) {
            let judged = JudgedCharges {
                charges: &known,
                readings: &charged.readings,
                now: charged.now,
            };
            counted.decision = decide(None, call.class, judged);
        }
        counted.decision = degraded(counted.decision, mode);
        counted
    }

    fn capped<'l>(&self, own: &[Charge<'_>], caps: &'l [Limit]) -> Vec<Charge<'l>> {
        let mut charges: Vec<Charge<'l>> = Vec::new();
        for charge in own.iter().filter(|charge| !charge.segments.is_empty()) {
            for limit in caps {
                // Of each limit by itself: a user and a client of the same name are two.
                let own = self.keyring.combine(limit.digest, &charge.segments);
                let id = Digest(own.0.wrapping_add(charge.limit.digest.0));
                if charges.iter().any(|known| known.id == id) {
                    continue;
                }
                charges.push(Charge {
                    limit,
                    spec: &limit.def.spec,
                    id,
                    segments: charge.segments.clone(),
                    previous: None,
                    cost: charge.cost.min(limit.def.spec.capacity()),
                    on_exceed: charge.on_exceed,
                });
            }
        }
        charges
    }
}
