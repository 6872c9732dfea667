//! One observer in front of all others. It computes digests once, and only if one of them needs
//! them.

use std::net::IpAddr;
use std::sync::Arc;

use palisade_core::RequestFacts;
use palisade_core::challenge::ChallengeKind;
use palisade_core::failure::Policy;
use palisade_core::key::Keyring;
use palisade_core::policy::PolicySet;
use palisade_core::record::Flow;
use palisade_core::time::Micros;
use palisade_store::{StoreError, StoreRisks};

use super::surges::Surges;
use super::who::Who;
use super::{Audit, DenialLog, Lookout, Metrics};
use crate::engine::{
    AttackSeen, CandidateSeen, ChallengeEvent, DecisionEvent, InstanceFailure, KeyedAnswer,
    ModeChange, Observer, OperatorChange, OverageSeen, ReachedThreshold, TenantSeen,
};

/// Metrics, log, audit and lookout of one process.
pub struct Fanout {
    keyring: Arc<Keyring>,
    metrics: Arc<Metrics>,
    log: DenialLog,
    audit: Option<Arc<Audit>>,
    surges: Surges,
    lookout: Option<Arc<Lookout>>,
    /// Hears of thresholds besides the others.
    thresholds: Option<Arc<dyn Observer>>,
}

impl Fanout {
    /// Combines the observers. Without an audit no audit events are made.
    #[must_use]
    pub fn new(
        keyring: Arc<Keyring>,
        metrics: Arc<Metrics>,
        log: DenialLog,
        audit: Option<Arc<Audit>>,
    ) -> Self {
        if let Some(audit) = &audit {
            metrics.show_audit(audit.counts());
        }
        Self {
            keyring,
            metrics,
            log,
            audit,
            surges: Surges::default(),
            lookout: None,
            thresholds: None,
        }
    }

    /// Adds a lookout.
    #[must_use]
    pub fn with_lookout(mut self, lookout: Arc<Lookout>) -> Self {
        self.lookout = Some(lookout);
        self
    }

    /// Adds an observer of the thresholds that limits reach.
    #[must_use]
    pub fn with_thresholds(mut self, observer: Arc<dyn Observer>) -> Self {
        self.thresholds = Some(observer);
        self
    }

    fn surge(&self, flow: Flow, failures: u32, at: Micros) {
        self.metrics.surge(flow);
        DenialLog::surge(flow, failures);
        if let Some(audit) = &self.audit {
            audit.surge(flow, failures, at);
        }
    }

    fn each(&self) -> impl Iterator<Item = &dyn Observer> {
        let audit = self.audit.as_deref().map(|audit| audit as &dyn Observer);
        let always: [&dyn Observer; 2] = [&*self.metrics, &self.log];
        always.into_iter().chain(audit)
    }
}

impl Observer for Fanout {
    fn decided(&self, seen: &DecisionEvent<'_>) {
        self.metrics.decided(seen);
        self.log.span(seen);
        if let Some(lookout) = &self.lookout {
            lookout.count(seen);
        }
        if let Some((flow, failures)) = self.surges.saw(seen) {
            self.surge(flow, failures, seen.decision.at);
        }
        let log = self.log.concerns(seen);
        let audit = self.audit.as_ref().filter(|audit| audit.concerns(seen));
        let lookout = self.lookout.as_ref().filter(|_| Lookout::concerns(seen));
        if !log && audit.is_none() && lookout.is_none() {
            return;
        }
        // Digests are HMACs, so they are computed once for all observers.
        let who = Who::of(&self.keyring, seen.subject);
        if log {
            self.log.record(seen, &who);
        }
        if let Some(audit) = audit {
            audit.record(seen, &who);
        }
        if let Some(lookout) = lookout {
            lookout.record(seen, &who);
        }
    }

    fn timed(&self, took_us: u64) {
        if let Some(lookout) = &self.lookout {
            lookout.timed(took_us);
        }
    }

    fn hears_times(&self) -> bool {
        self.lookout.is_some()
    }

    fn keyed(&self, answers: &[KeyedAnswer]) {
        self.metrics.keyed(answers);
        if let Some(lookout) = &self.lookout {
            lookout.keyed(answers);
        }
    }

    fn failure(&self, change: &ModeChange<'_>) {
        if let Some(lookout) = &self.lookout {
            lookout.failure(change);
        }
        self.each().for_each(|one| one.failure(change));
    }

    fn store_changed(&self, error: Option<&StoreError>, now: Micros) {
        self.each().for_each(|one| one.store_changed(error, now));
    }

    fn store_risks(&self, before: StoreRisks, found: StoreRisks) {
        self.log.store_risks(before, found);
    }

    fn store_call(&self, took_us: Option<u64>, error: Option<&StoreError>) {
        self.metrics.store_call(took_us, error);
    }

    fn rebuilt(&self, what: &'static str, count: u32) {
        self.each().for_each(|one| one.rebuilt(what, count));
    }

    fn outcome_unknown(&self, flow: Flow) {
        self.metrics.outcome_unknown(flow);
    }

    fn application_refused(&self, facts: &RequestFacts, now: Micros) {
        if let Some(audit) = &self.audit {
            audit.application_refused(facts, now);
        }
    }

    fn instance(&self, address: &str, failure: Option<InstanceFailure>) {
        self.metrics.instance(address, failure);
    }

    fn challenge(&self, event: &ChallengeEvent) {
        self.metrics.challenge(event);
    }

    fn challenge_provider(&self, kind: ChallengeKind, answers: bool, now: Micros) {
        self.each()
            .for_each(|one| one.challenge_provider(kind, answers, now));
    }

    fn not_asked(&self, policy: Policy) {
        self.metrics.not_asked(policy);
    }

    fn refilled(&self, took_us: u64) {
        self.metrics.refilled(took_us);
    }

    fn policy_changed(&self, before: Option<&PolicySet>, policy: &PolicySet, now: Micros) {
        if let Some(lookout) = &self.lookout {
            lookout.policy(before, policy, now);
        }
        self.each()
            .for_each(|one| one.policy_changed(before, policy, now));
    }

    fn tenant_policy(&self, seen: &TenantSeen<'_>, now: Micros) {
        self.each().for_each(|one| one.tenant_policy(seen, now));
    }

    fn administered(&self, done: &OperatorChange<'_>) {
        self.each().for_each(|one| one.administered(done));
    }

    fn overage(&self, seen: &OverageSeen<'_>) {
        self.each().for_each(|one| one.overage(seen));
    }

    fn threshold(&self, reached: &ReachedThreshold) {
        let others = self.thresholds.as_deref();
        self.each()
            .chain(others)
            .for_each(|one| one.threshold(reached));
    }

    fn attack(&self, seen: &AttackSeen<'_>) {
        if let Some(lookout) = &self.lookout {
            lookout.attack(seen);
        }
        self.each().for_each(|one| one.attack(seen));
    }

    fn candidate_differs(&self, seen: &CandidateSeen<'_>) {
        if let Some(audit) = &self.audit {
            audit.candidate_differs(seen);
        }
    }

    fn edge_refused(&self, peer: IpAddr, field: &'static str, now: Micros) {
        self.each()
            .for_each(|one| one.edge_refused(peer, field, now));
    }

    fn caller_refused(&self, listener: &'static str, lacks: &'static str) {
        self.metrics.caller_refused(listener, lacks);
    }
}
