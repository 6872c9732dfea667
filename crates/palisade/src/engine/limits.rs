//! Requests: check, peek, refund.

use std::sync::Arc;

use palisade_core::decide::{Judged, decide, refuse};
use palisade_core::decision::{Decision, Enforcement, LimitReading, Mode, Outcome, Reason};
use palisade_core::facts::RequestFacts;
use palisade_core::plan::{Charge, Plan, QuotaPlan};
use palisade_core::policy::{PolicySet, Scope, TenantPolicy, Tier, resolve};
use palisade_core::rule::Rule;
use palisade_store::{Store, StoreError, Take};

use super::charge::{Answered, NoAnswer};
use super::{Engine, Seen, Subject};

/// The answer to a request, with the policy it was found under (for headers and
/// bodies).
#[derive(Clone, Debug)]
pub struct RequestAnswer {
    /// The decision.
    pub decision: Decision,
    /// The policy in force.
    pub policy: Arc<PolicySet>,
}

/// What a refund left.
#[derive(Clone, Debug)]
pub enum RefundOutcome {
    /// Given back; the buckets as they are now.
    Done(Vec<LimitReading>),
    /// The store could not be asked: nothing was given back.
    Unavailable,
}

impl<S: Store> Engine<S> {
    /// Decides a request and charges what it costs.
    pub async fn check(&self, facts: &RequestFacts) -> RequestAnswer {
        self.run(facts, Take::Consume).await
    }

    /// Decides a request and charges nothing.
    pub async fn peek(&self, facts: &RequestFacts) -> RequestAnswer {
        self.run(facts, Take::Peek).await
    }

    async fn run(&self, facts: &RequestFacts, take: Take) -> RequestAnswer {
        let policy = self.policy.load_full();
        let tenant = self.tenant(facts);
        let plan = self.plan(&policy, tenant.as_deref(), facts);
        let class = class_of(&plan, facts);
        let (decision, bypassed) = self.decide(&policy, &plan, &class, facts, take).await;
        if take == Take::Consume {
            self.observer.decided(&Seen {
                subject: Subject::Request(facts),
                decision: &decision,
                bypassed: bypassed.as_deref(),
                guard: None,
            });
        }
        RequestAnswer { decision, policy }
    }

    fn tenant(&self, facts: &RequestFacts) -> Option<Arc<TenantPolicy>> {
        self.tenants.find(facts.org.as_ref()?.as_str())
    }

    fn plan<'p>(
        &self,
        policy: &'p PolicySet,
        tenant: Option<&'p TenantPolicy>,
        facts: &RequestFacts,
    ) -> Plan<'p> {
        resolve(policy, tenant, &self.keyring, facts, |hash| {
            self.tier_of(policy, hash)
        })
    }

    /// The tier that an operator put a key on, if one did.
    pub(super) fn tier_of<'p>(&self, policy: &'p PolicySet, hash: &str) -> Option<&'p Tier> {
        policy.tier(self.tiers.load().get(hash)?)
    }

    /// L-ORDER: kill switch, throttle, refusals, allowlist, buckets.
    async fn decide(
        &self,
        policy: &PolicySet,
        plan: &Plan<'_>,
        class: &Arc<str>,
        facts: &RequestFacts,
        take: Take,
    ) -> (Decision, Option<String>) {
        if !policy.enabled {
            return (disabled(self.now(), class), None);
        }
        if let Some(shed) = self.throttle(plan, class, take).await {
            return (shed, None);
        }
        if let Some(refusal) = plan
            .refusal
            .filter(|refusal| matches!(refusal.status, 401 | 403))
        {
            return (refuse(refusal, class, self.now()), None);
        }
        if let Some(entry) = self.allowlist.find(&self.keyring, facts, self.now()) {
            return (bypass(self.now(), class), Some(entry));
        }
        if let Some(refusal) = plan.refusal {
            return (refuse(refusal, class, self.now()), None);
        }
        (self.judge(policy, plan, class, facts, take).await, None)
    }

    async fn judge(
        &self,
        policy: &PolicySet,
        plan: &Plan<'_>,
        class: &Arc<str>,
        facts: &RequestFacts,
        take: Take,
    ) -> Decision {
        match self.charge(&plan.charges, take).await {
            Ok(Answered::All(charged)) => {
                if charged.rebuilt > 0 {
                    self.observer.rebuilt("bucket", charged.rebuilt);
                }
                let judged = Judged {
                    charges: &plan.charges,
                    readings: &charged.readings,
                    now: charged.now,
                };
                decide(plan.quota, class, judged)
            }
            Ok(Answered::Denied(charge, reading, now)) => {
                let judged = Judged {
                    charges: std::slice::from_ref(charge),
                    readings: &[reading],
                    now,
                };
                let quota = plan.quota.filter(|_| charge.limit.scope == Scope::ApiKey);
                let quota = quota.map(|quota| QuotaPlan { charge: 0, ..quota });
                decide(quota, class, judged)
            }
            Err(_) => self.fall_back(policy, plan, class, facts, take).await,
        }
    }

    /// The global throttle, taken before any other work (L-GLOBAL). A store that
    /// cannot be asked does not shed load: the instance's own bucket still binds.
    async fn throttle(&self, plan: &Plan<'_>, class: &Arc<str>, take: Take) -> Option<Decision> {
        if plan.throttle.is_empty() {
            return None;
        }
        let charged = self.take_near(&plan.throttle, take).await.ok()?;
        if charged.admitted {
            return None;
        }
        let judged = Judged {
            charges: &plan.throttle,
            readings: &charged.readings,
            now: charged.now,
        };
        Some(decide(None, class, judged))
    }

    /// Gives back what a request was charged.
    pub async fn refund(&self, facts: &RequestFacts) -> RefundOutcome {
        let policy = self.policy.load_full();
        let tenant = self.tenant(facts);
        let plan = self.plan(&policy, tenant.as_deref(), facts);
        let class = class_of(&plan, facts);
        match self.refund_charges(&plan.charges).await {
            Ok(charged) => {
                let judged = Judged {
                    charges: &plan.charges,
                    readings: &charged.readings,
                    now: charged.now,
                };
                self.forget_cached();
                RefundOutcome::Done(decide(plan.quota, &class, judged).limits)
            }
            Err(_) => RefundOutcome::Unavailable,
        }
    }

    async fn refund_charges(
        &self,
        charges: &[Charge<'_>],
    ) -> Result<palisade_store::Charged, NoAnswer> {
        self.call(
            palisade_core::failure::Policy::Limits,
            self.store.refund(charges),
        )
        .await
    }

    /// Clears every bucket that a request with these facts would be charged to.
    ///
    /// # Errors
    /// The store's.
    pub async fn reset(&self, facts: &RequestFacts) -> Result<Vec<(Arc<str>, bool)>, StoreError> {
        let policy = self.policy.load_full();
        let tenant = self.tenant(facts);
        let plan = self.plan(&policy, tenant.as_deref(), facts);
        let reset = self
            .within_deadline(self.store.reset(&plan.charges))
            .await?;
        self.forget_cached();
        let names = plan.charges.iter().map(|c| Arc::clone(&c.limit.name));
        Ok(names.zip(reset.done).collect())
    }
}

fn class_of(plan: &Plan<'_>, facts: &RequestFacts) -> Arc<str> {
    match (&facts.class, plan.route.class) {
        (Some(class), _) => class.as_str().into(),
        (None, Some(class)) => Arc::clone(class),
        (None, None) => "none".into(),
    }
}

fn disabled(now: palisade_core::Micros, class: &Arc<str>) -> Decision {
    Decision {
        enforcement: Enforcement::Disabled,
        class: Some(Arc::clone(class)),
        ..Decision::allow(now)
    }
}

fn bypass(now: palisade_core::Micros, class: &Arc<str>) -> Decision {
    Decision {
        mode: Mode::Normal,
        class: Some(Arc::clone(class)),
        reasons: vec![Reason {
            rule: Rule::W_BYPASS,
            key: None,
            limit: None,
            decision: Outcome::Allow,
            level: None,
            retry_after: None,
        }],
        ..Decision::allow(now)
    }
}
