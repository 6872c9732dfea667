//! Requests and calls while the store cannot be asked: the failure rules of limits (F-FALLBACK,
//! R-FAIL).

use std::num::NonZeroU64;
use std::sync::Arc;

use arrayvec::ArrayVec;
use palisade_core::Digest;
use palisade_core::decide::decide;
use palisade_core::decision::{Decision, Enforcement, Mode, Outcome, Reason};
use palisade_core::facts::{Layers, RequestFacts};
use palisade_core::failure::fallback::{self, AffectedRequest, Share};
use palisade_core::failure::{Caller, FallbackRule};
use palisade_core::key::{Keyring, Prefix, SEGMENTS_MAX, Segment, SegmentKind};
use palisade_core::limit::{BucketSpec, CountsFrom};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::{ClassKind, Limit, WhenProlonged};
use palisade_core::rule::Rule;
use palisade_store::Take;

use super::super::Engine;
use super::super::link::NoAnswer;
use super::check::Check;
use super::descriptors::{Call, CallOutcome, PartReadings};

impl Engine {
    /// The decision of a request that got no answer from the store.
    pub(super) fn without_answer(&self, check: Check<'_>, no_answer: &NoAnswer) -> Decision {
        match self.counters.is_conflict(no_answer) {
            true => self.conflict(check.class),
            false => self.fall_back(check),
        }
    }

    /// The refusal of a request whose time was up before its turn.
    pub(super) fn conflict(&self, class: &Arc<str>) -> Decision {
        Decision {
            class: Some(Arc::clone(class)),
            ..fallback::conflicted(self.now())
        }
    }

    /// The decision of a request that the store was not asked for.
    pub(super) fn fall_back(&self, check: Check<'_>) -> Decision {
        let Check {
            policy,
            plan,
            class,
            facts,
            terms,
        } = check;
        let take = terms.take;
        let now = self.now();
        let own = plan.charges.iter();
        let request = AffectedRequest {
            class: policy.class_kind(class),
            prolonged: policy.when_prolonged(class),
            method: &facts.method,
            path: &facts.path,
            caller: caller(facts),
            limits: fallback::strictest(own.map(|charge| charge.limit.def.on_store_failure)),
        };
        let rule = self.link.modes().fallback(request, now);
        let bound = self.counters.cap_limits();
        let mut decision = match rule {
            FallbackRule::Closed => self.link.modes().closed(now),
            FallbackRule::Exempt => {
                let charges = match facts.layers {
                    Layers::Identity => Vec::new(),
                    Layers::All | Layers::Edge => {
                        let ip = Prefix::of(facts.ip);
                        let ip = self.keyring.segment(SegmentKind::Ip, &[ip.bytes()]);
                        let segments = std::iter::once(ip).collect();
                        caps_of(&self.keyring, &bound.exempt, &segments, facts)
                    }
                };
                self.decide_here(class, charges, (take, Mode::Degraded))
            }
            FallbackRule::Share(share) => {
                let specs = shares(&plan.charges, share);
                let charges = with_specs(&plan.charges, &specs);
                self.decide_here(class, charges, (take, Mode::Degraded))
            }
            FallbackRule::Local { cap, mode } => {
                let limits = bound.of(&cap, request.caller);
                // The cap stands for who asks, not for where from: with two calls it is the
                // second one's (L-LAYERS).
                let mut charges = match facts.layers {
                    Layers::Edge => Vec::new(),
                    Layers::All | Layers::Identity => {
                        cap_charges(&self.keyring, &limits, &plan.charges, facts)
                    }
                };
                // And never laxer than the request's own limits (D32).
                charges.extend(plan.charges.iter().cloned());
                self.decide_here(class, charges, (take, mode))
            }
        };
        decision.class = Some(Arc::clone(class));
        decision
    }

    /// The decision of counters of this node.
    fn decide_here(
        &self,
        class: &Arc<str>,
        charges: Vec<Charge<'_>>,
        (take, mode): (Take, Mode),
    ) -> Decision {
        let outcome = self.counters.charge_here(charges, take);
        degraded(decide(None, class, outcome.judged()), mode)
    }

    /// The refusal of the throttle while the store is away, if it refuses.
    pub(super) fn shed_without_store(&self, check: Check<'_>) -> Option<Decision> {
        let throttle = &check.plan.throttle;
        let outcome = self.counters.throttle_here(throttle, check.terms.take);
        let decide = || decide(None, check.class, outcome.judged());
        (!outcome.charged.admitted).then(|| degraded(decide(), Mode::Degraded))
    }

    /// The decision of a call that got no answer from the store.
    pub(super) fn call_without_answer(&self, call: Call<'_>, no_answer: &NoAnswer) -> CallOutcome {
        match self.counters.is_conflict(no_answer) {
            true => self.conflicted_call(call),
            false => self.fall_back_call(call),
        }
    }

    /// A call whose time was up before its turn, while the store answers others: counters
    /// beside the store would admit its limits a second time (F-CONFLICT). Limits that only
    /// report refuse nobody (R-SHADOW).
    fn conflicted_call(&self, call: Call<'_>) -> CallOutcome {
        let plan = call.plan;
        let mut limits = plan.charges.iter().chain(&plan.looks).chain(&plan.denied);
        if limits.any(|charge| charge.on_exceed.denies()) {
            return CallOutcome::closed(self.conflict(call.class));
        }
        let mut decision = fallback::allowed(Mode::Degraded, self.now());
        decision.class = Some(Arc::clone(call.class));
        for reason in &mut decision.reasons {
            reason.rule = Rule::F_CONFLICT;
        }
        CallOutcome::without(decision)
    }

    /// The decision of a call that the store was not asked for. What was to be given back is
    /// not: nothing of an outage reaches the store.
    fn fall_back_call(&self, call: Call<'_>) -> CallOutcome {
        let (plan, now) = (call.plan, self.now());
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
            FallbackRule::Closed => CallOutcome::closed(self.link.modes().closed(now)),
            // A call names no path, so that it is never exempt.
            FallbackRule::Exempt | FallbackRule::Share(_) => {
                self.count_call_here(call, &[], Mode::Degraded)
            }
            FallbackRule::Local { cap, mode } => {
                let bound = self.counters.cap_limits();
                let caps = bound.of(&cap, Caller::Anonymous);
                self.count_call_here(call, &caps, mode)
            }
        };
        counted.decision.class = Some(Arc::clone(call.class));
        counted
    }

    /// The call's own limits at their figures and, for each bucket of somebody's own, the
    /// caps of strangers: who shares one bucket with everybody is no caller.
    fn count_call_here(&self, call: Call<'_>, caps: &[Limit], mode: Mode) -> CallOutcome {
        let plan = call.plan;
        let looked = self.counters.charge_here(plan.looks.clone(), Take::Peek);
        let looks = PartReadings::of(&plan.looks, &looked);
        let denies = |charge: &Charge<'_>| charge.on_exceed.denies();
        let is_over = plan.denied.iter().any(denies) || !looks.admitted;
        let take = if is_over { Take::Peek } else { call.take };
        let mut charges = plan.charges.clone();
        let capped = charges.len();
        charges.extend(self.call_caps(&plan.charges, caps));
        let cap_charges: Vec<Charge<'_>> = charges[capped..].to_vec();
        let outcome = self.counters.charge_here(charges, take);
        let own = PartReadings::of(&plan.charges, &outcome);
        let now = || outcome.charged.now;
        let mut counted = CallOutcome::new(call, now, [own, looks, PartReadings::empty()]);
        let of_caps = PartReadings::of(&cap_charges, &outcome);
        if counted.decision.is_allowed() && of_caps.is_over(&cap_charges) {
            counted.decision = decide(None, call.class, outcome.judged());
        }
        counted.decision = degraded(counted.decision, mode);
        counted
    }

    fn call_caps<'l>(&self, own: &[Charge<'_>], caps: &'l [Limit]) -> Vec<Charge<'l>> {
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
                    from: CountsFrom::Now,
                });
            }
        }
        charges
    }
}

/// Digests that the plan already has are not made again.
fn cap_charges<'l>(
    keyring: &Keyring,
    limits: &'l [Limit],
    plan: &[Charge<'_>],
    facts: &RequestFacts,
) -> Vec<Charge<'l>> {
    let segment = |kind, bytes: &[u8]| {
        let mut planned = plan.iter().flat_map(|charge| &charge.segments);
        let found = planned.find(|segment| segment.kind == kind).copied();
        found.unwrap_or_else(|| keyring.segment(kind, &[bytes]))
    };
    let ip = segment(SegmentKind::Ip, Prefix::of(facts.ip).bytes());
    let org = facts.org.as_ref();
    let org = org.map(|org| segment(SegmentKind::Org, org.as_bytes()));
    let segments = org.into_iter().chain([ip]).collect();
    caps_of(keyring, limits, &segments, facts)
}

fn caps_of<'l>(
    keyring: &Keyring,
    limits: &'l [Limit],
    segments: &ArrayVec<Segment, SEGMENTS_MAX>,
    facts: &RequestFacts,
) -> Vec<Charge<'l>> {
    let cost = facts.cost.map_or(1, NonZeroU64::get);
    limits
        .iter()
        .map(|limit| Charge {
            limit,
            spec: &limit.def.spec,
            id: keyring.combine(limit.digest, segments),
            segments: segments.clone(),
            previous: None,
            cost: cost.min(limit.def.spec.capacity()),
            on_exceed: OnExceed::Deny,
            from: CountsFrom::Now,
        })
        .collect()
}

const fn caller(facts: &RequestFacts) -> Caller {
    match facts.org {
        Some(_) => Caller::Tenant,
        None => Caller::Anonymous,
    }
}

fn shares(charges: &[Charge<'_>], share: Share) -> Vec<BucketSpec> {
    charges
        .iter()
        .map(|charge| share.of_spec(charge.spec, charge.cost))
        .collect()
}

/// A cost that fits a window but not its share takes the whole share, unless the limit may be
/// overdrawn.
fn with_specs<'s>(charges: &[Charge<'s>], specs: &'s [BucketSpec]) -> Vec<Charge<'s>> {
    charges
        .iter()
        .zip(specs)
        .map(|(charge, spec)| Charge {
            spec,
            cost: match charge.on_exceed {
                OnExceed::Overdraft => charge.cost,
                _ => charge.cost.min(spec.capacity()),
            },
            ..charge.clone()
        })
        .collect()
}

/// Marks an answer of local counters as such.
pub(super) fn degraded(mut decision: Decision, mode: Mode) -> Decision {
    if decision.mode == Mode::FailClosed {
        return decision;
    }
    decision.mode = mode;
    decision.enforcement = Enforcement::Degraded;
    decision.reasons.insert(
        0,
        Reason {
            rule: Rule::F_FALLBACK,
            key: None,
            limit: None,
            decision: decision.outcome,
            level: None,
            retry_after: decision.retry_after,
        },
    );
    if decision.outcome == Outcome::Deny {
        decision.rule = Some(Rule::F_FALLBACK);
    }
    decision
}
