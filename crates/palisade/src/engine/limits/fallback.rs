//! Requests while the store cannot be asked: bounded local counters, never none.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;

use arrayvec::ArrayVec;
use palisade_core::decide::{JudgedCharges, decide};
use palisade_core::decision::{Decision, Enforcement, Mode, Outcome, Reason};
use palisade_core::facts::{Layers, RequestFacts};
use palisade_core::failure::fallback::{self, AffectedRequest, Share};
use palisade_core::failure::{Caller, FallbackPolicy, FallbackRule, LocalCap};
use palisade_core::key::{Keyring, Prefix, SEGMENTS_MAX, Segment, SegmentKind};
use palisade_core::limit::BucketSpec;
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::{Dimension, Limit, LimitDef};
use palisade_core::rule::Rule;
use palisade_store::{ChargeOutcome, Take};

use super::super::link::NoAnswer;
use super::charge::Counters;
use super::check::Asked;

impl Counters<'_> {
    /// The decision of a request that got no answer from the store.
    pub(super) fn without_answer(self, asked: Asked<'_>, no_answer: &NoAnswer) -> Decision {
        match self.is_conflict(no_answer) {
            true => self.conflict(asked.class),
            false => self.fall_back(asked),
        }
    }

    /// True if a request's time was up before its turn while the store answers others.
    /// Counters beside such a store would admit its limits a second time (F-CONFLICT); where
    /// who went before has found that it fails, it is an outage for all.
    pub(super) fn is_conflict(self, no_answer: &NoAnswer) -> bool {
        *no_answer == NoAnswer::OutOfTime && self.link.answers()
    }

    /// The refusal of a request whose time was up before its turn.
    pub(super) fn conflict(self, class: &Arc<str>) -> Decision {
        Decision {
            class: Some(Arc::clone(class)),
            ..fallback::conflicted(self.link.now())
        }
    }

    /// The decision of a request that the store was not asked for.
    pub(super) fn fall_back(self, asked: Asked<'_>) -> Decision {
        let Asked {
            policy,
            plan,
            class,
            facts,
            keyring,
            take,
            ..
        } = asked;
        let now = self.link.now();
        let request = AffectedRequest {
            class: policy.class_kind(class),
            prolonged: policy.when_prolonged(class),
            method: &facts.method,
            path: &facts.path,
            caller: caller(facts),
            limits: fallback::strictest(
                plan.charges
                    .iter()
                    .map(|charge| charge.limit.def.on_store_failure),
            ),
        };
        let rule = self.link.modes().fallback(request, now);
        let mut decision = match rule {
            FallbackRule::Exempt => {
                let bound = self.limits.cap_limits.load();
                let charges = match facts.layers {
                    Layers::Identity => Vec::new(),
                    Layers::All | Layers::Edge => {
                        let ip = keyring.segment(SegmentKind::Ip, &[Prefix::of(facts.ip).bytes()]);
                        let segments = std::iter::once(ip).collect();
                        capped(keyring, &bound.exempt, &segments, facts)
                    }
                };
                degraded(self.charge_locally(class, charges, take), Mode::Degraded)
            }
            FallbackRule::Closed => self.link.modes().closed(now),
            FallbackRule::Share(share) => {
                let specs = shares(&plan.charges, share);
                let charges = with_specs(&plan.charges, &specs);
                let answer = self.charge_locally(class, charges, take);
                degraded(answer, Mode::Degraded)
            }
            FallbackRule::Local { cap, mode } => {
                let bound = self.limits.cap_limits.load();
                let limits = bound.of(&cap, request.caller);
                // The cap stands for who asks, not for where from: with two calls it is the
                // second one's (L-LAYERS).
                let mut charges = match facts.layers {
                    Layers::Edge => Vec::new(),
                    Layers::All | Layers::Identity => {
                        cap_charges(keyring, &limits, &plan.charges, facts)
                    }
                };
                // And never laxer than the request's own limits (D32).
                charges.extend(plan.charges.iter().cloned());
                degraded(self.charge_locally(class, charges, take), mode)
            }
        };
        decision.class = Some(Arc::clone(class));
        decision
    }

    /// Charges local counters, all or nothing: buckets of this process where they are
    /// counted at all times, the others where an outage counts. The charges in the order of
    /// their readings.
    pub(super) fn charge_here<'p>(
        self,
        charges: Vec<Charge<'p>>,
        take: Take,
    ) -> (Vec<Charge<'p>>, ChargeOutcome) {
        let (here, mut charges): (Vec<_>, Vec<_>) = charges
            .into_iter()
            .partition(|charge| self.limits.is_local(charge));
        let standing_in = self.link.stand_in();
        let mut charged = standing_in.charge_now(&charges, take);
        if !here.is_empty() {
            let take_here = if charged.admitted { take } else { Take::Peek };
            let near = self.limits.local.charge_now(&here, take_here);
            if take_here == Take::Consume && !near.admitted {
                standing_in.give_back_now(&charged.taken(&charges));
            }
            charged.admitted &= near.admitted;
            charged.readings.extend(near.readings);
            charges.extend(here);
        }
        (charges, charged)
    }

    /// What local counters decide.
    fn charge_locally(self, class: &Arc<str>, charges: Vec<Charge<'_>>, take: Take) -> Decision {
        let (charges, charged) = self.charge_here(charges, take);
        let judged = JudgedCharges {
            charges: &charges,
            readings: &charged.readings,
            now: charged.now,
        };
        decide(None, class, judged)
    }

    /// The throttle that all instances share, counted here while the store is away: an
    /// instance alone admits no more than all of them may (D32).
    pub(super) fn throttle_locally(self, asked: Asked<'_>) -> Option<Decision> {
        let throttle = asked.plan.throttle.iter();
        let shared = throttle.filter(|charge| !self.limits.is_local(charge));
        let shared: Vec<Charge<'_>> = shared.cloned().collect();
        let charged = self.link.stand_in().charge_now(&shared, asked.take);
        let judged = JudgedCharges {
            charges: &shared,
            readings: &charged.readings,
            now: charged.now,
        };
        (!charged.admitted).then(|| degraded(decide(None, asked.class, judged), Mode::Degraded))
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
    capped(keyring, limits, &segments, facts)
}

fn capped<'l>(
    keyring: &Keyring,
    limits: &'l [Limit],
    segments: &ArrayVec<Segment, SEGMENTS_MAX>,
    facts: &RequestFacts,
) -> Vec<Charge<'l>> {
    let cost = facts.cost.map_or(1, NonZeroU32::get);
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

/// The limits of both local caps for either caller, made once for each policy: a store
/// that is away must not cost more than one that answers.
pub(super) struct CapLimits {
    caps: [(LocalCap, Caller, Vec<Limit>); 3],
    /// Those of exempt routes, apart from the others.
    exempt: Vec<Limit>,
}

impl CapLimits {
    pub(super) fn new(policy: &FallbackPolicy) -> Self {
        let of = |cap, caller| (cap, caller, cap_limits(&cap, caller));
        let exempt = LocalCap::exempt().into_iter();
        let named =
            |spec: &BucketSpec| LimitDef::new("fallback-exempt", vec![Dimension::Ip], *spec);
        Self {
            caps: [
                of(policy.tenant, Caller::Tenant),
                of(policy.anonymous, Caller::Anonymous),
                // Where a limit is open but bounded, a tenant has the cap of strangers.
                of(policy.anonymous, Caller::Tenant),
            ],
            exempt: exempt
                .flat_map(|cap| cap.specs().map(named).map(Limit::bind).collect::<Vec<_>>())
                .collect(),
        }
    }

    /// The limits of a cap. A cap of a policy that is being replaced is not among the known
    /// ones: its limits are made anew.
    pub(super) fn of(&self, cap: &LocalCap, caller: Caller) -> Cow<'_, [Limit]> {
        let known = self
            .caps
            .iter()
            .find(|one| (&one.0, one.1) == (cap, caller));
        known.map_or_else(
            || Cow::Owned(cap_limits(cap, caller)),
            |(_, _, limits)| Cow::Borrowed(limits.as_slice()),
        )
    }
}

/// The buckets of a local cap: a sliding minute and, for tenants, a token bucket.
fn cap_limits(cap: &LocalCap, caller: Caller) -> Vec<Limit> {
    let by = match caller {
        Caller::Tenant => vec![Dimension::Org, Dimension::Ip],
        Caller::Anonymous => vec![Dimension::Ip],
    };
    ["fallback-minute", "fallback-smoothing"]
        .into_iter()
        .zip(cap.specs())
        .map(|(name, spec)| Limit::bind(LimitDef::new(name, by.clone(), *spec)))
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
