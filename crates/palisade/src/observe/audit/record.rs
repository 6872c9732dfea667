//! Turns decisions, failures and changes by operators into events.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use palisade_core::bodies::{Urls, body};
use palisade_core::challenge::ChallengeKind;
use palisade_core::decision::{Decision, ErrorCode};
use palisade_core::facts::{DescriptorFacts, GuardFacts, GuardOp, RequestFacts};
use palisade_core::failure::{Event as Failure, Policy};
use palisade_core::policy::{ClassKind, PolicySet};
use palisade_core::record::Flow;
use palisade_core::rule::Rule;
use palisade_core::time::Micros;

use super::event::{Actor, Event, EventKind, Hex, Network};
use super::per_second::WriteTiming;
use super::{Audit, Severity};
use crate::engine::{
    AttackSeen, CandidateSeen, Change, DecisionEvent, KeyChange, ModeChange, Observer, Operator,
    OperatorChange, OverageSeen, ReachedThreshold, Score, Subject, TenantSeen,
};
use crate::observe::classes::{flow_name, op_class};
use crate::observe::who::{Who, log_digest};

static NO_URLS: LazyLock<Urls> = LazyLock::new(Urls::default);

/// Returns the machine-readable cause that the client sees.
pub(crate) fn code_of(decision: &Decision) -> Option<&'static str> {
    body(decision, &NO_URLS, "").map(|body| body.code)
}

impl Observer for Audit {
    fn decided(&self, seen: &DecisionEvent<'_>) {
        if self.concerns(seen) {
            self.record(seen, &Who::of(&self.keyring, seen.subject));
        }
    }

    fn failure(&self, change: &ModeChange<'_>) {
        for failure in change.events {
            if let Some(kind) = kind_of_failure(failure, change.policy) {
                let mut event = Event::new(kind, change.at);
                event.subject = Some(change.policy.name().into());
                let reason = change.reason.map(|error| error.kind().name().into());
                event.reason = reason;
                if let Some((from, to)) = failure.transition() {
                    event.from = Some(from.name().into());
                    event.to = Some(to.name().into());
                }
                self.shared.push(event);
            }
        }
    }

    fn rebuilt(&self, what: &'static str, count: u32) {
        let mut event = Event::new(EventKind::StateRebuilt, self.clock.now());
        event.subject = Some(what.into());
        event.count = Some(u64::from(count));
        // A bucket forgets some use, whereas a record forgets blocks.
        if what == "bucket" {
            event.severity = Severity::Warning;
        }
        self.shared.push(event);
    }

    fn policy_changed(&self, before: Option<&PolicySet>, policy: &PolicySet, now: Micros) {
        self.classes.learn(policy);
        let Some(before) = before else { return };
        let mut event = Event::new(EventKind::PolicyChanged, now);
        event.from = Some(before.revision.to_string().into());
        event.to = Some(policy.revision.to_string().into());
        if before.enabled != policy.enabled {
            let enforcement = if policy.enabled {
                "enabled"
            } else {
                "disabled"
            };
            event.reason = Some(format!("enforcement {enforcement}").into());
            // The kill switch concerns every request.
            event.severity = Severity::Critical;
        }
        self.shared.push(event);
    }

    fn tenant_policy(&self, seen: &TenantSeen<'_>, now: Micros) {
        let TenantSeen::Changed { org, from, to } = seen else {
            return;
        };
        let version =
            |version: &Option<u64>| version.map_or("default".into(), |v| v.to_string().into());
        let mut event = Event::new(EventKind::PolicyChanged, now);
        event.org_id = Some(Hex(log_digest(&self.keyring, "org", org.as_bytes())));
        event.from = Some(version(from));
        event.to = Some(version(to));
        self.shared.push(event);
    }

    fn administered(&self, done: &OperatorChange<'_>) {
        let mut event = changed(done.change, done.at);
        event.request_id = done.request_id.map(Into::into);
        event.actor = Some(match done.by {
            Operator::Named(id) => {
                Actor::Digest(Hex(log_digest(&self.keyring, "user", id.as_bytes())))
            }
            Operator::TokenHolder => Actor::Role("admin_token"),
            Operator::Local => Actor::Role("local"),
        });
        self.shared.push(event);
    }

    fn overage(&self, seen: &OverageSeen<'_>) {
        let mut event = Event::new(EventKind::QuotaOverage, seen.at);
        event.subject = Some(seen.api_key.into());
        event.bucket = Some(seen.tier.into());
        event.from = seen.month.map(Into::into);
        event.count = Some(seen.overage);
        self.shared.push(event);
    }

    fn threshold(&self, reached: &ReachedThreshold) {
        let mut event = Event::new(EventKind::BudgetThreshold, reached.at);
        event.subject = Some(reached.subject.hex().into());
        event.bucket = Some(Arc::clone(&reached.limit));
        event.to = Some(reached.share().into());
        event.count = Some(reached.used);
        self.shared.push(event);
    }

    fn attack(&self, seen: &AttackSeen<'_>) {
        let kind = match seen.over {
            None => EventKind::AttackDeclared,
            Some(_) => EventKind::AttackOver,
        };
        let mut event = Event::new(kind, seen.at);
        let figures = &seen.figures;
        event.class = Some(seen.class.into());
        event.count = Some(u64::from(figures.count));
        event.from = Some(format!("usual {}", figures.usual).into());
        event.to = Some(format!("threshold {}", figures.threshold).into());
        event.subject = Some(format!("prefixes {}", figures.prefixes).into());
        event.reason = seen.over.map(|end| end.name().into());
        self.shared.push(event);
    }

    fn candidate_differs(&self, seen: &CandidateSeen<'_>) {
        self.record_difference(seen);
    }

    fn challenge_provider(&self, kind: ChallengeKind, answers: bool, now: Micros) {
        let event = match answers {
            true => EventKind::ChallengeProviderAnswers,
            false => EventKind::ChallengeProviderFailing,
        };
        let mut event = Event::new(event, now);
        event.subject = Some(kind.name().into());
        self.shared.push(event);
    }

    fn application_refused(&self, facts: &RequestFacts, now: Micros) {
        let who = Who::of(&self.keyring, Subject::Request(facts));
        if let Some(kind) = self.kind_of_probe(facts, &who, now) {
            let mut event = Event::new(kind, now);
            with_request(&mut event, facts, &who);
            self.shared.count(event);
        }
    }

    fn edge_refused(&self, peer: IpAddr, field: &'static str, now: Micros) {
        let mut event = Event::new(EventKind::OriginRefused, now);
        event.subject = Some(field.into());
        event.ip_prefix = Some(Network::of(peer));
        self.shared.count_as(event, WriteTiming::Together);
    }
}

impl Audit {
    /// True if a decision needs the subject's digests. Cheap for allowed requests, and for load
    /// that is shed.
    pub(in crate::observe) fn concerns(&self, seen: &DecisionEvent<'_>) -> bool {
        if seen.decision.rule.is_some_and(Rule::sheds_load) {
            // Counted without digests, which would cost more than the decision to shed the request.
            let mut event = Event::new(EventKind::GlobalThrottleExceeded, seen.decision.at);
            event.rule = seen.decision.rule;
            event.code = Some("throttling.rate_limit_exceeded");
            self.shared.count_as(event, WriteTiming::Together);
            return false;
        }
        if seen.decision.is_allowed()
            && let Subject::Request(facts) = seen.subject
        {
            self.streaks.allowed(&self.keyring, facts);
        }
        let (replayed, locked) = seen
            .guard
            .map_or((false, false), |notes| (notes.replayed, notes.locked));
        let refused = !seen.decision.is_allowed() || seen.decision.would_refuse();
        // A repeated answer was recorded when it was first given.
        !replayed && (locked || seen.bypassed.is_some() || refused)
    }

    /// Records a decision that [`Audit::concerns`] it.
    pub(in crate::observe) fn record(&self, seen: &DecisionEvent<'_>, who: &Who) {
        match seen.subject {
            Subject::Request(facts) => self.record_request(seen, facts, who),
            Subject::Guard(op, facts) => self.record_guard(seen, op, facts, who),
            Subject::Descriptors(facts, _) => self.record_call(seen, facts),
        }
    }

    fn record_request(&self, seen: &DecisionEvent<'_>, facts: &RequestFacts, who: &Who) {
        let decision = seen.decision;
        let kind = match seen.bypassed {
            Some(_) => Some(EventKind::AllowlistBypassed),
            None if lacks_right(decision) => self.kind_of_probe(facts, who, decision.at),
            None => kind_of_refusal(decision),
        };
        let Some(kind) = kind else { return };
        let mut event = with_decision(Event::new(kind, decision.at), decision);
        self.name_class(&mut event, decision);
        with_request(&mut event, facts, who);
        event.subject = seen.bypassed.map(Into::into);
        if seen.bypassed.is_none()
            && decision.error.is_some_and(ErrorCode::is_exceeded)
            && let Some(streak) = self.streaks.denied(&self.keyring, facts)
        {
            let mut repeated = event.clone();
            repeated.kind = EventKind::RepeatedThrottling;
            repeated.severity = repeated.kind.severity();
            repeated.count = Some(u64::from(streak));
            self.shared.count(repeated);
        }
        match seen.bypassed {
            // W-BYPASS: each request that passes has an event of its own.
            Some(_) => self.shared.push(event),
            None => self.shared.count(event),
        }
    }

    pub(super) fn name_class(&self, event: &mut Event, decision: &Decision) {
        if let Some(class) = decision.class.as_deref() {
            event.class = Some(self.classes.shown(class));
            event.is_of_auth = self.classes.kind(class) == ClassKind::Auth;
        }
    }

    fn record_call(&self, seen: &DecisionEvent<'_>, facts: &DescriptorFacts<'_>) {
        let decision = seen.decision;
        let Some(kind) = kind_of_refusal(decision) else {
            return;
        };
        let mut event = with_decision(Event::new(kind, decision.at), decision);
        self.name_class(&mut event, decision);
        event.request_id = facts.request_id.as_ref().map(|id| id.as_str().into());
        self.shared.count(event);
    }

    /// Returns the kind of event if this refusal for lack of a right is to be reported. One such
    /// refusal concerns only the caller; many are a probe.
    fn kind_of_probe(&self, facts: &RequestFacts, who: &Who, at: Micros) -> Option<EventKind> {
        self.probes
            .refused(&self.keyring, facts.ip, who.actor(), at)
            .then_some(EventKind::PrivilegeProbing)
    }

    /// Records a surge of failures over all accounts and networks.
    pub(in crate::observe) fn surge(&self, flow: Flow, failures: u32, now: Micros) {
        let mut event = Event::new(EventKind::GuardSurge, now);
        event.class = Some(flow_name(flow).into());
        event.count = Some(u64::from(failures));
        self.shared.push(event);
    }

    fn record_guard(&self, seen: &DecisionEvent<'_>, op: GuardOp, facts: &GuardFacts, who: &Who) {
        let decision = seen.decision;
        let locked = seen.guard.is_some_and(|notes| notes.locked);
        let kind = match decision.error {
            _ if decision.shadow.is_some() => EventKind::GuardShadow,
            _ if locked => EventKind::Lockout,
            Some(ErrorCode::AccountLocked | ErrorCode::ChallengeRequired) => EventKind::Lockout,
            _ => EventKind::GuardBlock,
        };
        let mut event = with_decision(Event::new(kind, decision.at), decision);
        if let Some(shadow) = &decision.shadow {
            event.rule = shadow.rule;
            event.decision = Some(shadow.decision.name());
            event.level = shadow.level;
            event.retry_after = shadow.retry_after;
        }
        event.lockout_rule = lockout_beside_guard(decision);
        event.class = Some(op_class(op).into());
        event.op = Some(op.name());
        event.issued = seen.guard.map(|notes| locked || !notes.issued.is_empty());
        event.request_id = facts.request_id.as_ref().map(|id| id.as_str().into());
        event.correlation_id = facts.correlation_id.as_ref().map(|id| id.as_str().into());
        event.ip_prefix = Some(Network::of(facts.ip));
        with_who(&mut event, who);
        self.shared.count(event);
    }
}

fn with_request(event: &mut Event, facts: &RequestFacts, who: &Who) {
    event.request_id = facts.request_id.as_ref().map(|id| id.as_str().into());
    event.correlation_id = facts.correlation_id.as_ref().map(|id| id.as_str().into());
    event.ip_prefix = facts.address().map(Network::of);
    with_who(event, who);
}

pub(super) fn with_who(event: &mut Event, who: &Who) {
    event.org_id = who.org.map(Hex);
    event.actor = who.actor().map(|digest| Actor::Digest(Hex(digest)));
    event.token = who.token.map(Hex);
    event.client = who.client.map(Hex);
}

pub(super) fn with_decision(mut event: Event, decision: &Decision) -> Event {
    let denying = decision.reasons.iter().find_map(|r| r.limit.as_ref());
    event.bucket = denying.map(Arc::clone);
    event.partition = decision.limits.first().map(|reading| reading.partition);
    event.rule = decision
        .rule
        .or_else(|| decision.reasons.first().map(|reason| reason.rule));
    event.code = code_of(decision);
    event.mode = Some(decision.mode);
    event.decision = Some(decision.outcome.name());
    event.level = decision.level;
    event.retry_after = decision.retry_after;
    event
}

/// Returns the lockout's rule if the answer's own rule is one of the guard (D37).
fn lockout_beside_guard(decision: &Decision) -> Option<Rule> {
    let is_lockout = |rule: &Rule| matches!(*rule, Rule::A_HARD | Rule::A_WINDOW);
    let mut rules = decision.reasons.iter().map(|reason| reason.rule);
    let found = rules.find(is_lockout)?;
    decision
        .rule
        .filter(|rule| !is_lockout(rule))
        .map(|_| found)
}

/// True for an answer of 401 or 403.
const fn lacks_right(decision: &Decision) -> bool {
    matches!(
        decision.error,
        Some(ErrorCode::InvalidApiKey | ErrorCode::Forbidden)
    )
}

/// Returns the kind of event for a refusal. Refusals because of an outage have none, because the
/// outage has an event of its own.
fn kind_of_refusal(decision: &Decision) -> Option<EventKind> {
    match decision.error {
        Some(ErrorCode::RateLimitExceeded) => Some(EventKind::RateLimitExceeded),
        Some(ErrorCode::UserRateLimitExceeded) => Some(EventKind::UserRateLimitExceeded),
        Some(ErrorCode::ClientRateLimitExceeded) => Some(EventKind::ClientRateLimitExceeded),
        Some(ErrorCode::QuotaExceeded) => Some(EventKind::QuotaExceeded),
        Some(ErrorCode::AccountLocked | ErrorCode::ChallengeRequired) => Some(EventKind::Lockout),
        Some(ErrorCode::ServiceUnavailable) if decision.rule == Some(Rule::L_DEFAULT_DENY) => {
            Some(EventKind::DefaultDeny)
        }
        _ => None,
    }
}

const fn kind_of_failure(failure: &Failure, policy: Policy) -> Option<EventKind> {
    match failure {
        Failure::Suspected if matches!(policy, Policy::Api) => Some(EventKind::FailOpenEntered),
        Failure::SuspicionEnded if matches!(policy, Policy::Api) => Some(EventKind::FailOpenEnded),
        Failure::Suspected | Failure::Prolonged => Some(EventKind::FailClosedEntered),
        Failure::SuspicionEnded | Failure::ProlongedEnded => Some(EventKind::FailClosedEnded),
        Failure::Opened | Failure::Reopened => Some(EventKind::BreakerOpened),
        Failure::Closed => Some(EventKind::BreakerClosed),
        Failure::DegradedEntered => Some(EventKind::DegradedEntered),
        Failure::DegradedExited => Some(EventKind::DegradedExited),
        Failure::ReentryGuard { .. } => Some(EventKind::ReentryGuard),
        Failure::ReentryEnded => Some(EventKind::ReentryGuardEnded),
        Failure::HalfOpened | Failure::DropCounters => None,
    }
}

fn changed(change: Change<'_>, at: Micros) -> Event {
    match change {
        Change::AllowlistAdded(entry) => {
            let mut event = Event::new(EventKind::AllowlistAdded, at);
            event.subject = Some(entry.id.as_str().into());
            event.reason = Some(entry.reason.as_str().into());
            event
        }
        Change::AllowlistRemoved(id) => {
            let mut event = Event::new(EventKind::AllowlistRemoved, at);
            event.subject = Some(id.into());
            event
        }
        Change::Reset {
            buckets,
            reason,
            api_key,
        } => {
            let mut event = Event::new(EventKind::Reset, at);
            event.count = Some(buckets as u64);
            event.reason = reason.map(Into::into);
            event.subject = api_key.map(Into::into);
            event
        }
        Change::TierChanged {
            api_key,
            from,
            to,
            reason,
        } => {
            let mut event = Event::new(EventKind::TierChanged, at);
            event.subject = Some(api_key.into());
            event.from = Some(from.into());
            event.to = Some(to.into());
            event.reason = reason.map(Into::into);
            event
        }
        Change::ApiKey {
            what,
            api_key,
            reason,
        } => {
            let kind = match what {
                KeyChange::Created => EventKind::ApiKeyCreated,
                KeyChange::Rotated => EventKind::ApiKeyRotated,
                KeyChange::Revoked => EventKind::ApiKeyRevoked,
            };
            let mut event = Event::new(kind, at);
            event.subject = Some(api_key.into());
            event.reason = reason.map(Into::into);
            event
        }
        Change::Client {
            id,
            is_added,
            reason,
        } => {
            let mut event = Event::new(
                match is_added {
                    true => EventKind::ClientAdded,
                    false => EventKind::ClientRemoved,
                },
                at,
            );
            event.subject = Some(id.into());
            event.reason = reason.map(Into::into);
            event
        }
        Change::CacheInvalidated => Event::new(EventKind::CacheInvalidated, at),
        Change::ReservationReleased { id, reason } => {
            let mut event = Event::new(EventKind::ReservationReleased, at);
            event.subject = Some(id.into());
            event.reason = Some(reason.into());
            event
        }
        Change::AttackSet {
            class,
            mode,
            reason,
        } => {
            let mut event = Event::new(EventKind::AttackSet, at);
            event.class = Some(class.into());
            event.to = Some(mode.name().into());
            event.reason = reason.map(Into::into);
            event
        }
        Change::BlockLifted { id, score, reason } => {
            let mut event = Event::new(EventKind::BlockLifted, at);
            event.subject = Some(id.into());
            event.reason = Some(match score {
                Score::Keep => reason.into(),
                Score::Forget => format!("score forgotten: {reason}").into(),
            });
            event
        }
    }
}
