//! One request, from its facts to its decision: resolve → charge → decide → record.

use std::borrow::Cow;
use std::sync::Arc;

use palisade_core::decide::{JudgedCharges, decide, decide_boxed, refuse};
use palisade_core::decision::{Decision, Enforcement, Mode, Outcome, Reason};
use palisade_core::facts::{Layers, RequestFacts};
use palisade_core::failure::Policy;
use palisade_core::headers::{Header, headers};
use palisade_core::plan::{Charge, Plan};
use palisade_core::policy::{
    PolicySet, Scope, TenantPolicy, Tier, resolve, resolve_without_exemption,
};
use palisade_core::rule::Rule;
use palisade_core::time::Micros;
use palisade_store::Take;

use super::super::adaptive::attack_note;
use super::super::counters::Terms;
use super::super::link::NoAnswer;
use super::super::thresholds::warnings;
use super::super::{CandidateAnswer, DecisionEvent, Engine, Subject};
use super::challenge::asks_for_challenge;

/// The answer to a request, with the policy it was found under (for headers and
/// bodies).
///
/// ```
/// # use palisade::core::RequestFacts;
/// # use palisade::{Engine, EngineConfig};
/// # use std::path::Path;
/// # use std::sync::Arc;
/// # use palisade::core::{Clock, Keyring};
/// # use palisade::store::memory::{MemoryConfig, MemoryStore};
/// # let clock: Arc<dyn Clock> = Arc::new(palisade::SystemClock::new());
/// # let store = Arc::new(MemoryStore::new(Arc::clone(&clock), &MemoryConfig::default()));
/// # let text = "[[limit]]\nname = \"two\"\nby = [\"ip\"]\nrate = \"2/min\"";
/// # let (env, flags) = Default::default();
/// # let loaded = palisade_policy::load_text(Path::new("policy.toml"), text, &env, &flags)?;
/// # let policy = (*loaded.policy).clone();
/// # let keyring = Keyring::new(b"at least 32 random bytes go here", None)?;
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let engine = Engine::new(EngineConfig::new(store, policy, keyring, clock));
/// let facts = RequestFacts::new("203.0.113.5".parse()?, "GET", "/things");
/// let answer = engine.check(&facts).await;
/// assert!(answer.decision.is_allowed());
/// let tightest = &answer.decision.limits[0];
/// assert_eq!((&*tightest.name, tightest.remaining), ("two", 1));
/// let headers = answer.headers();
/// assert!(headers.contains(&("X-RateLimit-Remaining", "1".to_owned())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RequestAnswer {
    /// The decision. It is large, and handed on by every step from here to the answer.
    pub decision: Box<Decision>,
    /// The policy in force.
    pub policy: Arc<PolicySet>,
    /// Where the candidate policy would have decided otherwise (L-CANDIDATE).
    pub candidate: Option<Box<CandidateAnswer>>,
}

impl RequestAnswer {
    /// The headers of the answer, in the families that the policy chooses.
    #[must_use]
    pub fn headers(&self) -> Vec<Header> {
        let mut all = headers(&self.decision, self.policy.settings.headers);
        all.extend(self.candidate.as_ref().and_then(|one| one.header()));
        all
    }
}

/// One request on its way.
#[derive(Clone, Copy)]
pub(super) struct Check<'a> {
    pub(super) policy: &'a PolicySet,
    pub(super) plan: &'a Plan<'a>,
    pub(super) class: &'a Arc<str>,
    pub(super) facts: &'a RequestFacts,
    pub(super) terms: Terms,
}

impl Engine {
    /// Decides a request and charges what it costs.
    pub async fn check(&self, facts: &RequestFacts) -> RequestAnswer {
        self.check_under(self.policy(), facts).await
    }

    /// [`Engine::check`] under the policy that the facts were read for.
    pub(crate) async fn check_under(
        &self,
        policy: Arc<PolicySet>,
        facts: &RequestFacts,
    ) -> RequestAnswer {
        self.run(policy, facts, Take::Consume).await
    }

    /// Decides a request and charges nothing.
    pub async fn peek(&self, facts: &RequestFacts) -> RequestAnswer {
        self.run(self.policy(), facts, Take::Peek).await
    }

    async fn run(&self, policy: Arc<PolicySet>, facts: &RequestFacts, take: Take) -> RequestAnswer {
        let began = self.begin_timing();
        let (mut answer, bypassed) = self.answer(policy, facts, take).await;
        if take == Take::Consume {
            self.note(began, facts, &answer, bypassed.as_deref());
            answer.candidate = self.beside_request(facts, &answer.decision).await;
        }
        answer
    }

    /// The decision on a plan, and the allowlist entry that let it pass. Nothing is reported.
    pub(in crate::engine) async fn decide_plan(
        &self,
        policy: &PolicySet,
        plan: &Plan<'_>,
        facts: &RequestFacts,
    ) -> (Box<Decision>, Option<String>) {
        let class = class_of(plan, facts);
        let check = Check {
            policy,
            plan,
            class: &class,
            facts,
            terms: Terms {
                take: Take::Consume,
                ends: self.link.request_ends(),
                receipt: facts.receipt,
            },
        };
        self.decide(&check).await
    }

    /// Reports a decision to metrics, audit and billing. `began` is when the request came, if it
    /// is measured.
    pub(in crate::engine) fn note(
        &self,
        began: Option<Micros>,
        facts: &RequestFacts,
        answer: &RequestAnswer,
        bypassed: Option<&str>,
    ) {
        self.end_timing(began);
        let decision = &answer.decision;
        if decision.quota.is_some() {
            self.note_overage(&answer.policy, facts, decision);
        }
        self.note_thresholds(&answer.policy, decision, Some(Subject::Request(facts)));
        self.note_attack(&answer.policy, facts, decision);
        self.link.observer().decided(&DecisionEvent {
            subject: Subject::Request(facts),
            decision,
            bypassed,
            guard: None,
        });
    }

    /// The answer, and the allowlist entry that let it pass. Nothing is reported yet.
    pub(in crate::engine) async fn answer(
        &self,
        policy: Arc<PolicySet>,
        facts: &RequestFacts,
        take: Take,
    ) -> (RequestAnswer, Option<String>) {
        let terms = Terms {
            take,
            ends: self.link.request_ends(),
            receipt: facts.receipt,
        };
        let tenant = self.tenant(facts);
        let plan = self.plan(&policy, tenant.as_deref(), facts);
        let class = class_of(&plan, facts);
        let check = Check {
            policy: &policy,
            plan: &plan,
            class: &class,
            facts,
            terms,
        };
        let (decision, bypassed) = self.decide(&check).await;
        let mut answer = RequestAnswer {
            decision,
            policy: Arc::clone(&policy),
            candidate: None,
        };
        tell_not_asked(&plan, &mut answer.decision);
        answer.decision.warnings = warnings(&policy, &answer.decision.limits);
        answer.decision.attack = attack_note(&plan, &answer.decision);
        self.note_use(&plan, take, &answer.decision);
        (answer, bypassed)
    }

    pub(in crate::engine) fn tenant(&self, facts: &RequestFacts) -> Option<Arc<TenantPolicy>> {
        self.tenants.find(facts.org.as_ref()?.as_str())
    }

    pub(in crate::engine) fn plan<'p>(
        &self,
        policy: &'p PolicySet,
        tenant: Option<&'p TenantPolicy>,
        facts: &RequestFacts,
    ) -> Plan<'p> {
        let mut plan = resolve(policy, tenant, &self.keyring, facts, |hash| {
            self.tier_of(policy, hash)
        });
        self.tighten(policy, tenant, facts, &mut plan);
        plan
    }

    /// The tier that an operator put a key on, if one did.
    pub(in crate::engine) fn tier_of<'p>(
        &self,
        policy: &'p PolicySet,
        hash: &str,
    ) -> Option<&'p Tier> {
        policy.tier(self.registries.tiers().get(hash)?)
    }

    pub(in crate::engine) fn allowlisted(&self, facts: &RequestFacts) -> Option<String> {
        let allowlist = self.registries.allowlist();
        allowlist.find(&self.keyring, facts, || self.now())
    }

    /// L-ORDER: kill switch, throttle, refusals, allowlist, buckets.
    async fn decide(&self, check: &Check<'_>) -> (Box<Decision>, Option<String>) {
        let Check { plan, class, .. } = *check;
        if !check.policy.enabled {
            return (Box::new(disabled(self.now(), class)), None);
        }
        let throttled = self.throttle(check).await;
        if let ThrottleOutcome::Shed(shed) = throttled {
            return (shed, None);
        }
        let has_failed = matches!(throttled, ThrottleOutcome::WithoutStore);
        if let Some(refusal) = plan.refusal.filter(|refusal| refusal.denies_access()) {
            let guessing = self.limit_guesses(check, has_failed).await;
            let refused = || Box::new(refuse(refusal, class, self.now()));
            return (guessing.unwrap_or_else(refused), None);
        }
        if let Some(entry) = self.allowlisted(check.facts) {
            return (Box::new(bypass(self.now(), class)), Some(entry));
        }
        if let Some(refusal) = plan.refusal {
            return (Box::new(refuse(refusal, class, self.now())), None);
        }
        (self.judge(check, has_failed).await, None)
    }

    /// The denial of an address that tries API keys, or comes without one, and has used up its
    /// limits. The plan holds nothing but these.
    async fn limit_guesses(&self, check: &Check<'_>, has_failed: bool) -> Option<Box<Decision>> {
        let is_free = check.plan.charges.is_empty() || self.allowlisted(check.facts).is_some();
        if is_free {
            return None;
        }
        let decision = self.judge(check, has_failed).await;
        (!decision.is_allowed()).then_some(decision)
    }

    /// The decision of the buckets. A store that has just failed this request is not asked a
    /// second time by it.
    pub(super) async fn judge(&self, check: &Check<'_>, has_failed: bool) -> Box<Decision> {
        let Check { plan, class, .. } = *check;
        if has_failed {
            return Box::new(self.fall_back(*check));
        }
        if plan.charges.is_empty() {
            return Box::new(self.without_bucket(*check));
        }
        let charging = self.counters.charge(&plan.charges, check.terms);
        let outcome = match charging.await {
            Ok(outcome) => outcome,
            Err(no_answer) => return Box::new(self.without_answer(*check, &no_answer)),
        };
        if outcome.charged.rebuilt > 0 {
            let rebuilt = outcome.charged.rebuilt;
            self.link.observer().rebuilt("bucket", rebuilt);
        }
        let quota = outcome.quota(plan);
        let mut decision = decide_boxed(quota, class, outcome.judged());
        if !decision.is_allowed() && asks_for_challenge(&outcome) && !check.facts.slots {
            // Boxed, like the rarer ways below.
            let beyond = Box::pin(self.beyond_limits(check, &outcome, decision));
            decision = match beyond.await {
                Ok(decision) => decision,
                Err(no_answer) => return Box::new(self.without_answer(*check, &no_answer)),
            };
        }
        if check.terms.take == Take::Consume {
            if outcome.charged.admitted {
                self.note_overdrawn(&outcome.charges, &outcome.charged.readings);
            }
            if check.terms.receipt {
                decision.receipt = decision.receipt.or_else(|| self.receipt(class, &outcome));
            }
        }
        let due = charged_anyway(check, &decision);
        if !due.is_empty() {
            // Boxed: other requests would carry its state.
            let charging = Box::pin(self.charge_refused(check, &due, &mut decision));
            if let Err(no_answer) = charging.await {
                return Box::new(self.without_answer(*check, &no_answer));
            }
        }
        decision
    }

    /// Charges what a refused request is charged all the same, and shows what that left.
    async fn charge_refused(
        &self,
        check: &Check<'_>,
        due: &[Charge<'_>],
        decision: &mut Decision,
    ) -> Result<(), NoAnswer> {
        let Terms { receipt, ends, .. } = check.terms;
        let receipt_of = receipt.then_some(&**check.class);
        let (charged, receipt) = self.charge_anyway(due, receipt_of, ends).await?;
        for (charge, reading) in due.iter().zip(&charged.readings) {
            let mut shown = decision.limits.iter_mut();
            if let Some(shown) = shown.find(|shown| shown.partition == charge.id) {
                shown.remaining = reading.remaining;
                shown.reset = reading.reset_at.unix_seconds_ceil();
            }
            if let Some(quota) = &mut decision.quota
                && charge.limit.scope == Scope::ApiKey
            {
                quota.used = reading.used;
            }
        }
        decision.receipt = receipt;
        Ok(())
    }

    /// No bucket of the layers that were asked counts the request: others do (L-LAYERS).
    /// In an outage the cap of whoever asks counts it, which is the second call's.
    fn without_bucket(&self, check: Check<'_>) -> Decision {
        if check.plan.route.exempt && self.link.is_cut_off(Policy::Limits) {
            return self.bound_exempt(check);
        }
        if check.facts.layers == Layers::Identity && self.link.is_cut_off(Policy::Limits) {
            return self.fall_back(check);
        }
        unlimited(check.class, self.now())
    }

    /// An exempt route in an outage: its requests have the bounds that others of their class
    /// have, since nobody may be without one (F-BOUNDED, D36).
    fn bound_exempt(&self, check: Check<'_>) -> Decision {
        let tenant = self.tenant(check.facts);
        let tier_of = |hash: &str| self.tier_of(check.policy, hash);
        let plan = resolve_without_exemption(
            check.policy,
            tenant.as_deref(),
            &self.keyring,
            check.facts,
            tier_of,
        );
        let check = Check {
            plan: &plan,
            ..check
        };
        self.fall_back(check)
    }

    /// The global throttle, taken before any other work (L-GLOBAL). While the store
    /// cannot be asked, the instance's own bucket still binds, and what all instances
    /// share is counted here.
    async fn throttle(&self, check: &Check<'_>) -> ThrottleOutcome {
        let throttle = &check.plan.throttle;
        if throttle.is_empty() {
            return ThrottleOutcome::Passed;
        }
        match self.counters.charge(throttle, check.terms).await {
            Ok(outcome) if outcome.charged.admitted => ThrottleOutcome::Passed,
            Ok(outcome) => ThrottleOutcome::shed(decide(None, check.class, outcome.judged())),
            Err(no_answer) if self.counters.is_conflict(&no_answer) => {
                ThrottleOutcome::shed(self.conflict(check.class))
            }
            Err(_) => {
                let shed = self.shed_without_store(*check);
                shed.map_or(ThrottleOutcome::WithoutStore, ThrottleOutcome::shed)
            }
        }
    }
}

/// The charges that are made although the request is refused: of a report all, else those of limits
/// that say so (B-OVERDRAFT). A reservation that is refused has used nothing.
fn charged_anyway<'p>(check: &Check<'p>, decision: &Decision) -> Vec<Charge<'p>> {
    let facts = check.facts;
    if decision.is_allowed() || check.terms.take == Take::Peek || facts.slots {
        return Vec::new();
    }
    let is_due =
        |charge: &&Charge<'_>| charge.cost > 0 && (facts.report || charge.limit.def.charged_anyway);
    let charges = check.plan.charges.iter();
    charges.filter(is_due).cloned().collect()
}

/// Names the concurrency limits that apply but were not asked, since this request holds no slot
/// (B-SLOT).
fn tell_not_asked(plan: &Plan<'_>, decision: &mut Decision) {
    if !plan.not_asked.is_empty() {
        let names = plan.not_asked.iter().map(|limit| Arc::clone(&limit.name));
        decision.not_asked = Some(names.collect());
    }
}

/// The outcome of the global throttle.
enum ThrottleOutcome {
    Passed,
    /// Passed, and the store could not be asked.
    WithoutStore,
    Shed(Box<Decision>),
}

impl ThrottleOutcome {
    fn shed(decision: Decision) -> Self {
        Self::Shed(Box::new(decision))
    }
}

pub(super) fn class_of<'p>(plan: &Plan<'p>, facts: &RequestFacts) -> Cow<'p, Arc<str>> {
    match (&facts.class, plan.route.class) {
        (Some(class), _) => Cow::Owned(class.as_str().into()),
        (None, Some(class)) => Cow::Borrowed(class),
        (None, None) => Cow::Owned("none".into()),
    }
}

/// The decision while the kill switch is on.
pub(super) fn disabled(now: Micros, class: &Arc<str>) -> Decision {
    Decision {
        mode: Mode::Disabled,
        enforcement: Enforcement::Disabled,
        class: Some(Arc::clone(class)),
        ..Decision::allow(now)
    }
}

fn unlimited(class: &Arc<str>, now: Micros) -> Decision {
    let judged = JudgedCharges {
        charges: &[],
        readings: &[],
        now,
    };
    decide(None, class, judged)
}

fn bypass(now: Micros, class: &Arc<str>) -> Decision {
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
