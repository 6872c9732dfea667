//! Prometheus metrics. Counting a request costs a few atomic additions; everything else happens at
//! a scrape.

pub mod catalogue;
mod cells;
mod challenges;
mod descriptors;
mod geo;
mod histogram;
mod instances;
mod limits;
mod only_successes;
mod orgs;
mod render;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use palisade_core::decision::{Decision, ErrorCode, LockoutNote, Mode};
use palisade_core::facts::Attempt;
use palisade_core::failure::{Event, FailureKind, Policy};
use palisade_core::key::Keyring;
use palisade_core::policy::PolicySet;
use palisade_core::record::Flow;
use palisade_core::rule::Rule;
use palisade_core::time::{Micros, SECOND};
use palisade_store::StoreError;
use parking_lot::Mutex;

pub use cells::CLASSES_MAX;

use self::catalogue::{self as names, LATENCY_MS_BOUNDS, MetricDescription, REFILL_SECONDS_BOUNDS};
use super::audit::AuditCounts;
use super::classes::{flow_name, op_class};
use super::surges::outcome;
use crate::engine::{
    ChallengeEvent, DecisionEvent, InstanceFailure, KeyedAnswer, ModeChange, Observer,
    ReachedThreshold, Subject,
};

/// Most limits and shares whose thresholds are counted.
const THRESHOLDS_MAX: usize = 1_000;

/// Metrics of one process.
#[derive(Debug)]
pub struct Metrics {
    keyring: Arc<Keyring>,
    cells: cells::Cells,
    descriptors: descriptors::Descriptors,
    challenges: challenges::Challenges,
    geo: geo::GeoCounts,
    instances: instances::Instances,
    limits: limits::Limits,
    only_successes: only_successes::OnlySuccesses,
    orgs: orgs::Orgs,
    is_redis: bool,
    risks: AtomicU64,
    /// Unix second of the last request that was denied by default.
    default_deny_last: AtomicU64,
    /// Reached thresholds, by limit and share.
    thresholds: Mutex<BTreeMap<(Arc<str>, String), u64>>,
    last_backup: OnceLock<LastBackup>,
    latency: histogram::Histogram<8>,
    refill: histogram::Histogram<8>,
    counters: [AtomicU64; COUNTERS.len()],
    audit: OnceLock<Arc<AuditCounts>>,
}

/// A function that returns the time of the last copy of the store, in Unix seconds.
struct LastBackup(Box<dyn Fn() -> u64 + Send + Sync>);

impl fmt::Debug for LastBackup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LastBackup")
    }
}

/// One simple counter: a metric with fixed label values.
#[derive(Debug)]
struct Counter {
    metric: MetricDescription,
    labels: &'static [&'static str],
}

macro_rules! counters {
    ($($metric:ident [$($label:literal),*];)*) => {
        const COUNTERS: [Counter; [$(stringify!($metric)),*].len()] = [$(Counter {
            metric: names::$metric,
            labels: &[$($label),*],
        }),*];
    };
}

counters! {
    FALLBACK_ACTIVATIONS ["redis_timeout"];
    FALLBACK_ACTIVATIONS ["redis_unavailable"];
    FALLBACK_ACTIVATIONS ["timeout"];
    FALLBACK_ACTIVATIONS ["unreachable"];
    FALLBACK_ACTIVATIONS ["exhausted"];
    FALLBACK_ACTIVATIONS ["corrupt"];
    FALLBACK_ACTIVATIONS ["other"];
    FALLBACK_REQUESTS ["allowed"];
    FALLBACK_REQUESTS ["denied"];
    FALLBACK_ALLOW [];
    FALLBACK_RECOVERIES [];
    STORE_ERRORS ["timeout"];
    STORE_ERRORS ["unreachable"];
    STORE_ERRORS ["exhausted"];
    STORE_ERRORS ["corrupt"];
    BREAKER_TRANSITIONS ["closed", "open"];
    BREAKER_TRANSITIONS ["open", "half_open"];
    BREAKER_TRANSITIONS ["half_open", "open"];
    BREAKER_TRANSITIONS ["half_open", "closed"];
    BREAKER_REJECTIONS [];
    REENTRY_GUARD [];
    QUOTA_OVERAGE [];
    DEFAULT_DENY [];
    REFUSED_CALLERS ["listen", "token"];
    REFUSED_CALLERS ["listen", "certificate"];
    REFUSED_CALLERS ["grpc", "token"];
    REFUSED_CALLERS ["grpc", "certificate"];
    REFUSED_CALLERS ["resp", "token"];
    REFUSED_CALLERS ["resp", "certificate"];
    REFUSED_CALLERS ["proxy", "certificate"];
    REFUSED_CALLERS ["admin", "token"];
    REFUSED_CALLERS ["admin", "certificate"];
    REFUSED_CALLERS ["admin", "role"];
    ALLOWLIST_BYPASSES [];
    GUARD_OUTCOMES ["login", "failure"];
    GUARD_OUTCOMES ["login", "success"];
    GUARD_OUTCOMES ["login", "unknown"];
    GUARD_OUTCOMES ["otp", "failure"];
    GUARD_OUTCOMES ["otp", "success"];
    GUARD_OUTCOMES ["otp", "unknown"];
    GUARD_UNNAMED ["login"];
    GUARD_UNNAMED ["otp"];
    GUARD_SURGES ["login"];
    GUARD_SURGES ["otp"];
    KEYED ["allow", "normal"];
    KEYED ["allow", "degraded"];
    KEYED ["deny", "normal"];
    KEYED ["deny", "degraded"];
    KEYED ["deny", "fail_closed"];
    REBUILT ["bucket"];
    REBUILT ["record"];
    WEBHOOK_EVENTS ["delivered"];
    WEBHOOK_EVENTS ["dropped"];
}

impl Metrics {
    /// Creates metrics that show the remaining quota of at most `orgs_max` organisations.
    #[must_use]
    pub fn new(keyring: Arc<Keyring>, orgs_max: usize) -> Self {
        Self {
            keyring,
            cells: cells::Cells::default(),
            descriptors: descriptors::Descriptors::default(),
            challenges: challenges::Challenges::default(),
            geo: geo::GeoCounts::default(),
            instances: instances::Instances::default(),
            limits: limits::Limits::default(),
            only_successes: only_successes::OnlySuccesses::default(),
            orgs: orgs::Orgs::new(orgs_max),
            is_redis: false,
            risks: AtomicU64::new(0),
            default_deny_last: AtomicU64::new(0),
            thresholds: Mutex::default(),
            last_backup: OnceLock::new(),
            latency: histogram::Histogram::new(LATENCY_MS_BOUNDS, 1e3),
            refill: histogram::Histogram::new(REFILL_SECONDS_BOUNDS, 1e6),
            counters: std::array::from_fn(|_| AtomicU64::new(0)),
            audit: OnceLock::new(),
        }
    }

    /// Adds the counts of an audit.
    pub fn show_audit(&self, counts: Arc<AuditCounts>) {
        let _ = self.audit.set(counts);
    }

    /// Adds the number of risky settings.
    pub fn show_risks(&self, count: usize) {
        self.risks.store(count as u64, Ordering::Relaxed);
    }

    /// Adds the time of the last copy of the store; `at` is called at each scrape.
    pub fn show_last_backup(&self, at: impl Fn() -> u64 + Send + Sync + 'static) {
        let _ = self.last_backup.set(LastBackup(Box::new(at)));
    }

    /// Labels store failures as failures of Redis.
    #[must_use]
    pub const fn of_redis(mut self) -> Self {
        self.is_redis = true;
        self
    }

    /// Returns the reason why a fallback began. Redis has two reasons only: a call was late, or
    /// Redis could not be reached.
    fn fallback_reason(&self, error: Option<&StoreError>) -> &'static str {
        let Some(kind) = error.map(StoreError::kind) else {
            return "other";
        };
        match kind {
            FailureKind::TimedOut if self.is_redis => "redis_timeout",
            FailureKind::Unreachable | FailureKind::Exhausted if self.is_redis => {
                "redis_unavailable"
            }
            kind => kind.name(),
        }
    }

    fn bump(&self, metric: &MetricDescription, labels: &[&str], by: u64) {
        let index = COUNTERS
            .iter()
            .position(|counter| counter.metric.name == metric.name && counter.labels == labels);
        if let Some(cell) = index.and_then(|index| self.counters.get(index)) {
            cell.fetch_add(by, Ordering::Relaxed);
        }
    }

    fn read(&self, index: usize) -> u64 {
        self.counters
            .get(index)
            .map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    fn count_fallback(&self, is_allowed: bool, count: u64) {
        if is_allowed {
            self.bump(&names::FALLBACK_REQUESTS, &["allowed"], count);
            self.bump(&names::FALLBACK_ALLOW, &[], count);
        } else {
            self.bump(&names::FALLBACK_REQUESTS, &["denied"], count);
        }
    }

    /// Counts a surge of failures in this flow.
    pub(super) fn surge(&self, flow: Flow) {
        self.bump(&names::GUARD_SURGES, &[flow_name(flow)], 1);
    }

    /// Counts thresholds that the webhook's receiver took.
    pub fn webhook_delivered(&self, count: u64) {
        self.bump(&names::WEBHOOK_EVENTS, &["delivered"], count);
    }

    /// Counts thresholds that the webhook's receiver did not take, or that there was no room for.
    pub fn webhook_dropped(&self, count: u64) {
        self.bump(&names::WEBHOOK_EVENTS, &["dropped"], count);
    }

    fn count_outcome(&self, seen: &DecisionEvent<'_>) {
        self.only_successes.saw(seen);
        if let Some((flow, attempt)) = outcome(seen) {
            let outcome = match attempt {
                Attempt::Failure => "failure",
                Attempt::Unknown => "unknown",
                Attempt::Check | Attempt::Success => "success",
            };
            self.bump(&names::GUARD_OUTCOMES, &[flow_name(flow), outcome], 1);
            if seen.decision.lockout == Some(LockoutNote::NotAsked) {
                self.bump(&names::GUARD_UNNAMED, &[flow_name(flow)], 1);
            }
        }
    }

    fn count_shadow(&self, decision: &Decision) {
        let would_deny = |reading: &&palisade_core::decision::LimitReading| {
            reading.shadow && reading.retry_after.is_some()
        };
        for reading in decision.limits.iter().filter(would_deny) {
            let place = self.cells.place(reading.scope, &reading.class);
            self.cells.count_shadow(place);
        }
    }
}

/// Returns the labels for an answer about a bucket whose limit the caller chose itself.
const fn said(answer: &KeyedAnswer) -> (&'static str, Mode) {
    match answer.admitted {
        true => ("allow", answer.mode),
        false => ("deny", answer.mode),
    }
}

/// Returns the labels of a decision: the scope that decided, and its class.
fn labels_of<'a>(seen: &DecisionEvent<'a>) -> (&'static str, &'a str) {
    let decision = seen.decision;
    match seen.subject {
        Subject::Guard(op, _) => ("guard", op_class(op)),
        Subject::Request(_) | Subject::Descriptors(..) => {
            let scope = match decision.limits.first() {
                _ if seen.bypassed.is_some() => "allowlist",
                Some(reading) => reading.scope,
                None => "none",
            };
            (scope, decision.class.as_deref().unwrap_or("none"))
        }
    }
}

/// True for a refusal because a limit was exceeded, not because the store or a right was missing.
fn is_exceeded(decision: &Decision) -> bool {
    let is_exceeded = decision.error.is_some_and(ErrorCode::is_exceeded);
    !decision.is_allowed() && (is_exceeded || decision.rule.is_some_and(Rule::sheds_load))
}

fn is_beyond_quota(decision: &Decision) -> bool {
    let quota = decision.quota.as_ref();
    let beyond = quota.is_some_and(|quota| quota.limit.is_some_and(|limit| quota.used > limit));
    beyond && decision.is_allowed()
}

impl Observer for Metrics {
    fn threshold(&self, reached: &ReachedThreshold) {
        let mut thresholds = self.thresholds.lock();
        let key = (Arc::clone(&reached.limit), reached.share());
        // Policies come and go: limits that are counted already go on.
        if thresholds.len() < THRESHOLDS_MAX || thresholds.contains_key(&key) {
            *thresholds.entry(key).or_default() += 1;
        }
    }

    fn decided(&self, seen: &DecisionEvent<'_>) {
        let decision = seen.decision;
        let (scope, class) = labels_of(seen);
        let place = self.cells.place(scope, class);
        self.cells.count(place, decision.outcome, decision.mode);
        if is_exceeded(decision) {
            self.cells.count_exceeded(place);
        }
        if let Subject::Request(facts) = seen.subject
            && let Some(geo) = facts.geo.known()
        {
            self.geo.count(geo, !decision.is_allowed());
        }
        if decision.would_refuse() {
            self.cells.count_shadow(place);
        }
        if decision.mode.is_of_outage() {
            self.count_fallback(decision.is_allowed(), 1);
        }
        if decision.rule == Some(Rule::L_DEFAULT_DENY) {
            self.bump(&names::DEFAULT_DENY, &[], 1);
            let second = decision.at.0 / SECOND;
            self.default_deny_last.fetch_max(second, Ordering::Relaxed);
        }
        if is_beyond_quota(decision) {
            self.bump(&names::QUOTA_OVERAGE, &[], 1);
        }
        if seen.bypassed.is_some() {
            self.bump(&names::ALLOWLIST_BYPASSES, &[], 1);
        }
        self.count_shadow(decision);
        self.limits.saw(&decision.limits, decision.at);
        self.count_outcome(seen);
        match seen.subject {
            Subject::Request(facts) => self.orgs.saw(&self.keyring, facts, &decision.limits),
            Subject::Descriptors(_, statuses) => self.descriptors.count(statuses),
            Subject::Guard(..) => {}
        }
    }

    fn keyed(&self, answers: &[KeyedAnswer]) {
        // Adjacent equal answers are counted in one step.
        for run in answers.chunk_by(|one, next| said(one) == said(next)) {
            let (Some(first), count) = (run.first(), run.len() as u64) else {
                continue;
            };
            let (outcome, mode) = said(first);
            self.bump(&names::KEYED, &[outcome, mode.name()], count);
            if mode.is_of_outage() {
                self.count_fallback(first.admitted, count);
            }
        }
    }

    fn failure(&self, change: &ModeChange<'_>) {
        for event in change.events {
            if let Some((from, to)) = event.transition() {
                self.bump(&names::BREAKER_TRANSITIONS, &[from.name(), to.name()], 1);
            }
            match event {
                Event::DegradedEntered => {
                    let reason = self.fallback_reason(change.reason);
                    self.bump(&names::FALLBACK_ACTIVATIONS, &[reason], 1);
                }
                Event::DegradedExited => self.bump(&names::FALLBACK_RECOVERIES, &[], 1),
                Event::ReentryGuard { .. } => self.bump(&names::REENTRY_GUARD, &[], 1),
                _ => {}
            }
        }
    }

    fn store_call(&self, took_us: Option<u64>, error: Option<&StoreError>) {
        if let Some(took_us) = took_us {
            self.latency.observe_us(took_us);
        }
        if let Some(error) = error {
            self.bump(&names::STORE_ERRORS, &[error.kind().name()], 1);
        }
    }

    fn rebuilt(&self, what: &'static str, count: u32) {
        self.bump(&names::REBUILT, &[what], u64::from(count));
    }

    fn outcome_unknown(&self, flow: Flow) {
        self.bump(&names::GUARD_OUTCOMES, &[flow_name(flow), "unknown"], 1);
    }

    fn instance(&self, address: &str, failure: Option<InstanceFailure>) {
        self.instances.saw(address, failure);
    }

    fn challenge(&self, event: &ChallengeEvent) {
        self.challenges.saw(event);
    }

    fn not_asked(&self, _policy: Policy) {
        self.bump(&names::BREAKER_REJECTIONS, &[], 1);
    }

    fn caller_refused(&self, listener: &'static str, lacks: &'static str) {
        self.bump(&names::REFUSED_CALLERS, &[listener, lacks], 1);
    }

    fn refilled(&self, took_us: u64) {
        self.refill.observe_us(took_us);
    }

    fn policy_changed(&self, _before: Option<&PolicySet>, policy: &PolicySet, now: Micros) {
        self.cells.classes.learn(policy);
        self.descriptors.learn(policy);
        self.limits.learn(policy, now);
    }
}
