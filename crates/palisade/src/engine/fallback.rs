//! Requests while the store cannot be asked: bounded local counters, never none.

use std::num::NonZeroU32;
use std::sync::Arc;

use arrayvec::ArrayVec;
use palisade_core::decide::{Judged, decide};
use palisade_core::decision::{Decision, Enforcement, Mode, Outcome, Reason};
use palisade_core::facts::RequestFacts;
use palisade_core::failure::{Caller, FallbackRule, LocalCap, fallback};
use palisade_core::key::{Prefix, SEGMENTS_MAX, Segment, SegmentKind};
use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::plan::{Charge, OnExceed, Plan};
use palisade_core::policy::{Dimension, Limit, LimitDef, OnStoreFailure, PolicySet};
use palisade_core::rule::Rule;
use palisade_core::time::{MINUTE, SECOND};
use palisade_store::{Store, Take};

use super::Engine;

impl<S: Store> Engine<S> {
    pub(super) async fn fall_back(
        &self,
        policy: &PolicySet,
        plan: &Plan<'_>,
        class: &Arc<str>,
        facts: &RequestFacts,
        take: Take,
    ) -> Decision {
        let now = self.now();
        let caller = if facts.org.is_some() {
            Caller::Tenant
        } else {
            Caller::Anonymous
        };
        let rule = self.modes.lock().fallback(class, &facts.path, caller, now);
        let closed = plan
            .charges
            .iter()
            .any(|charge| charge.limit.def.on_store_failure == OnStoreFailure::Closed);
        let mut decision = match rule {
            FallbackRule::Exempt => fallback::allowed(now),
            FallbackRule::Closed => self.modes.lock().closed(now),
            _ if closed => self.modes.lock().closed(now),
            FallbackRule::Share(share) => {
                let specs = shares(&plan.charges, share);
                let charges = with_specs(&plan.charges, &specs);
                self.charge_locally(plan, class, &charges, take).await
            }
            FallbackRule::Local(cap) => {
                let limits = cap_limits(cap);
                let charges = self.cap_charges(&limits, facts);
                self.charge_locally(plan, class, &charges, take).await
            }
        };
        if open_bounded(plan) && decision.is_allowed() {
            decision.mode = Mode::FailOpen;
        }
        decision.class = Some(Arc::clone(class));
        let _ = policy;
        decision
    }

    async fn charge_locally(
        &self,
        plan: &Plan<'_>,
        class: &Arc<str>,
        charges: &[Charge<'_>],
        take: Take,
    ) -> Decision {
        let Ok(charged) = self.fallback.charge(charges, take).await else {
            return self.modes.lock().closed(self.now());
        };
        let judged = Judged {
            charges,
            readings: &charged.readings,
            now: charged.now,
        };
        let without_quota = Plan {
            quota: None,
            charges: Vec::new(),
            throttle: Vec::new(),
            ..plan.clone()
        };
        degraded(decide(&without_quota, class, judged))
    }

    fn cap_charges<'l>(&self, limits: &'l [Limit], facts: &RequestFacts) -> Vec<Charge<'l>> {
        let org = facts.org.as_ref();
        let ip = self
            .keyring
            .segment(SegmentKind::Ip, &[Prefix::of(facts.ip).bytes()]);
        let org = org.map(|org| self.keyring.segment(SegmentKind::Org, &[org.as_bytes()]));
        let segments: ArrayVec<Segment, SEGMENTS_MAX> = org.into_iter().chain([ip]).collect();
        limits
            .iter()
            .map(|limit| Charge {
                limit,
                spec: &limit.def.spec,
                id: self.keyring.combine(limit.digest, &segments),
                segments: segments.clone(),
                cost: facts.cost.map_or(1, NonZeroU32::get),
                on_exceed: OnExceed::Deny,
            })
            .collect()
    }
}

fn open_bounded(plan: &Plan<'_>) -> bool {
    !plan.charges.is_empty()
        && plan
            .charges
            .iter()
            .all(|charge| charge.limit.def.on_store_failure == OnStoreFailure::OpenBounded)
}

fn shares(charges: &[Charge<'_>], share: fallback::Share) -> Vec<BucketSpec> {
    charges
        .iter()
        .map(|charge| charge.spec.scaled(|amount| share.of(u64::from(amount))))
        .collect()
}

fn with_specs<'s>(charges: &[Charge<'s>], specs: &'s [BucketSpec]) -> Vec<Charge<'s>> {
    charges
        .iter()
        .zip(specs)
        .map(|(charge, spec)| Charge {
            spec,
            ..charge.clone()
        })
        .collect()
}

/// The buckets of a local cap: a sliding minute and, for tenants, a token bucket.
fn cap_limits(cap: LocalCap) -> Vec<Limit> {
    let by = vec![Dimension::Org, Dimension::Ip];
    let minute = BucketSpec::new(
        Algorithm::default_for(cap.per_minute.get()),
        cap.per_minute,
        Window::Span(MINUTE),
        None,
    );
    let smooth = cap.smoothing.map(|smoothing| {
        BucketSpec::new(
            Algorithm::TokenBucket,
            smoothing.per_second,
            Window::Span(SECOND),
            Some(smoothing.burst),
        )
    });
    [
        ("fallback-minute", Some(minute)),
        ("fallback-smoothing", smooth),
    ]
    .into_iter()
    .filter_map(|(name, spec)| Some(Limit::bind(LimitDef::new(name, by.clone(), spec?.ok()?))))
    .collect()
}

/// Marks an answer of local counters as such.
fn degraded(mut decision: Decision) -> Decision {
    decision.mode = Mode::Degraded;
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
