//! A log line for each denial and for each change of the store's state. Only these lines may be
//! sampled.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use palisade_core::Id;
use palisade_core::challenge::ChallengeKind;
use palisade_core::failure::{Event, Policy};
use palisade_core::key::{Digest, Keyring, anonymised};
use palisade_core::policy::PolicySet;
use palisade_core::record::Flow;
use palisade_core::rule::Rule;
use palisade_core::time::{Micros, SECOND};
use palisade_store::{StoreError, StoreRisks};

use super::audit::record::code_of;
use super::classes::{KnownClasses, flow_name, op_class};
use super::who::{Who, log_digest};
use crate::engine::{AttackSeen, DecisionEvent, ModeChange, Observer, Subject, TenantSeen};

/// Writes denials to `tracing`, target `palisade::denied`.
#[derive(Debug)]
pub struct DenialLog {
    keyring: Arc<Keyring>,
    classes: KnownClasses,
    one_in: NonZeroU32,
    denials: AtomicU32,
    shed_second: AtomicU64,
    failing_second: AtomicU64,
    store: Option<Box<str>>,
}

impl DenialLog {
    /// Logs a surge of failures over all accounts and networks.
    pub(super) fn surge(flow: Flow, failures: u32) {
        tracing::warn!(
            target: "palisade::guard",
            event = "guard_surge",
            flow = flow_name(flow),
            failures,
            "failures over all accounts and networks rose far above the usual"
        );
    }

    /// Logs one of `one_in` denials.
    #[must_use]
    pub fn new(keyring: Arc<Keyring>, one_in: NonZeroU32) -> Self {
        Self {
            keyring,
            classes: KnownClasses::default(),
            one_in,
            denials: AtomicU32::new(0),
            shed_second: AtomicU64::new(0),
            failing_second: AtomicU64::new(0),
            store: None,
        }
    }

    /// Adds the store's kind and address, without credentials, to the lines about the store.
    #[must_use]
    pub fn about_store(mut self, store: &str) -> Self {
        self.store = Some(store.into());
        self
    }

    /// True if this decision gets a line. Shed load gets one a second at most.
    pub(super) fn concerns(&self, seen: &DecisionEvent<'_>) -> bool {
        let decision = seen.decision;
        if decision.is_allowed()
            || !tracing::enabled!(target: "palisade::denied", tracing::Level::INFO)
        {
            return false;
        }
        if decision.rule.is_some_and(Rule::sheds_load) {
            return first_of_second(&self.shed_second, decision.at);
        }
        let number = self.denials.fetch_add(1, Ordering::Relaxed);
        number.is_multiple_of(self.one_in.get())
    }

    /// Returns the name of a class if the policy has it, otherwise a fixed word: a name that only
    /// a caller uses may be any text, even an identifier.
    pub(super) fn shown_class(&self, class: &str) -> Arc<str> {
        self.classes.shown(class)
    }

    /// Writes the line of a denial.
    pub(super) fn record(&self, seen: &DecisionEvent<'_>, who: &Who) {
        let decision = seen.decision;
        let (class, ip, correlation_id) = match seen.subject {
            Subject::Request(facts) => (
                decision.class.as_deref().map(|c| self.classes.shown(c)),
                facts.address(),
                facts.correlation_id.as_ref(),
            ),
            Subject::Guard(op, facts) => (
                Some(op_class(op).into()),
                Some(facts.ip),
                facts.correlation_id.as_ref(),
            ),
            Subject::Descriptors(..) => (
                decision.class.as_deref().map(|c| self.classes.shown(c)),
                None,
                None,
            ),
        };
        let hex = |digest: Option<Digest>| digest.map(Digest::hex);
        tracing::info!(
            target: "palisade::denied",
            org = hex(who.org),
            user = hex(who.user.or(who.account)),
            token = hex(who.token),
            client = hex(who.client),
            api_key = hex(who.api_key),
            ip_prefix = ip.map(anonymised),
            class = class.as_deref(),
            bucket = decision.reasons.iter().find_map(|r| r.limit.as_deref()),
            rule = decision.rule.map(Rule::id),
            decision = decision.outcome.name(),
            mode = decision.mode.name(),
            request_id = seen.subject.request_id().map(Id::as_str),
            correlation_id = correlation_id.map(Id::as_str),
            code = code_of(decision),
            "denied"
        );
    }
}

/// True once per second, by the decisions' own clock.
fn first_of_second(last: &AtomicU64, at: Micros) -> bool {
    let second = at.0 / SECOND;
    last.swap(second, Ordering::Relaxed) != second
}

/// The log level of a change of mode.
#[derive(Clone, Copy)]
enum Loudness {
    Info,
    Warn,
    Error,
}

/// Level, event and message of the line about a change of mode.
#[derive(Clone, Copy)]
struct Line(Loudness, &'static str, &'static str);

impl Line {
    /// Writes the line; `store` is the store's kind and address.
    fn write(self, change: &ModeChange<'_>, store: Option<&str>) {
        let Self(loudness, event, message) = self;
        let policy = change.policy.name();
        let reason = change.reason.map(tracing::field::display);
        match loudness {
            Loudness::Info => {
                tracing::info!(target: "palisade::store", event, policy, store, reason, "{message}");
            }
            Loudness::Warn => {
                tracing::warn!(target: "palisade::store", event, policy, store, reason, "{message}");
            }
            Loudness::Error => {
                tracing::error!(target: "palisade::store", event, policy, store, reason, "{message}");
            }
        }
    }
}

/// Returns the line of a change; `None` for a change that only follows from another.
const fn line_of(event: Event, policy: Policy) -> Option<Line> {
    use Loudness::{Error, Info, Warn};
    let fails_open = matches!(policy, Policy::Api);
    Some(match event {
        Event::Suspected if fails_open => Line(
            Warn,
            "fail_open_entered",
            "a store call failed: local caps decide",
        ),
        Event::Suspected => Line(
            Warn,
            "fail_closed_entered",
            "a store call failed: requests that the store does not decide are refused",
        ),
        Event::SuspicionEnded if fails_open => Line(Info, "fail_open_ended", "fail-open is over"),
        Event::SuspicionEnded => Line(Info, "fail_closed_ended", "fail-closed is over"),
        Event::Opened => Line(
            Warn,
            "breaker_opened",
            "the breaker opened: the store is no longer called",
        ),
        Event::HalfOpened => Line(Info, "breaker_half_open", "the store answers probes again"),
        Event::Reopened => Line(Warn, "breaker_opened", "the store stopped answering probes"),
        Event::Closed => Line(
            Info,
            "breaker_closed",
            "the breaker closed: the store is called again",
        ),
        Event::DegradedEntered => Line(
            Warn,
            "rate_limiter_unavailable",
            "the store is not available: deciding locally",
        ),
        Event::DegradedExited => Line(Info, "rate_limiter_recovered", "the store decides again"),
        Event::ReentryGuard { .. } => Line(
            Error,
            "reentry_guard",
            "degraded mode was entered too often: failing closed",
        ),
        Event::ReentryEnded => Line(Warn, "reentry_guard_ended", "no longer failing closed"),
        Event::Prolonged => Line(
            Error,
            "outage_prolonged",
            "the store has not answered for a long time: this node is not ready",
        ),
        Event::ProlongedEnded => Line(
            Info,
            "outage_prolonged_ended",
            "the store answers again: this node is ready",
        ),
        Event::DropCounters => return None,
    })
}

impl Observer for DenialLog {
    fn attack(&self, seen: &AttackSeen<'_>) {
        let figures = &seen.figures;
        match seen.over {
            None => tracing::warn!(
                target: "palisade::limits",
                event = "attack_declared",
                class = seen.class,
                count = figures.count,
                prefixes = figures.prefixes,
                usual = figures.usual,
                threshold = figures.threshold,
                "an attack was declared: limits are tightened"
            ),
            Some(end) => tracing::warn!(
                target: "palisade::limits",
                event = "attack_over",
                class = seen.class,
                count = figures.count,
                reason = end.name(),
                "an attack is over"
            ),
        }
    }

    fn decided(&self, seen: &DecisionEvent<'_>) {
        if self.concerns(seen) {
            self.record(seen, &Who::of(&self.keyring, seen.subject));
        }
    }

    fn failure(&self, change: &ModeChange<'_>) {
        for event in change.events {
            if let Some(line) = line_of(*event, change.policy) {
                line.write(change, self.store.as_deref());
            }
        }
    }

    fn store_changed(&self, error: Option<&StoreError>, now: Micros) {
        let store = self.store.as_deref();
        match error {
            Some(error) if first_of_second(&self.failing_second, now) => tracing::warn!(
                target: "palisade::store",
                event = "store_failing",
                store,
                kind = error.kind().name(),
                %error,
                "the store fails"
            ),
            Some(_) => {}
            None => tracing::info!(
                target: "palisade::store",
                event = "store_answers",
                store,
                "the store answers again"
            ),
        }
    }

    fn challenge_provider(&self, kind: ChallengeKind, answers: bool, _now: Micros) {
        let kind = kind.name();
        if answers {
            tracing::info!(
                target: "palisade::challenge",
                event = "challenge_provider_answers",
                kind,
                "the provider of challenges answers again"
            );
        } else {
            tracing::warn!(
                target: "palisade::challenge",
                event = "challenge_provider_failing",
                kind,
                "the provider of challenges does not answer"
            );
        }
    }

    fn store_risks(&self, before: StoreRisks, found: StoreRisks) {
        let is_at_risk = |risks: StoreRisks| risks.eviction || risks.unsaved_replication;
        if found.eviction && !before.eviction {
            tracing::warn!(
                target: "palisade::store",
                event = "store_risk",
                risk = "eviction",
                "the store drops keys by itself when its memory is full: set maxmemory-policy to noeviction"
            );
        }
        if found.unsaved_replication && !before.unsaved_replication {
            tracing::warn!(
                target: "palisade::store",
                event = "store_risk",
                risk = "unsaved_replication",
                "the store has replicas and writes nothing to disk: a restart empties all of them"
            );
        }
        if is_at_risk(before) && !is_at_risk(found) {
            tracing::info!(
                target: "palisade::store",
                event = "store_risk_ended",
                "the store's settings no longer put counters at risk"
            );
        }
        if found.evicted_keys > 0 && before.evicted_keys == 0 {
            tracing::error!(
                target: "palisade::store",
                event = "store_evicts",
                keys = found.evicted_keys,
                "the store drops keys by itself: limits and blocks are being forgotten"
            );
        }
    }

    fn rebuilt(&self, what: &'static str, count: u32) {
        tracing::error!(
            target: "palisade::store",
            event = "state_rebuilt",
            what,
            count,
            "unreadable state was set aside or rebuilt from zero"
        );
    }

    fn policy_changed(&self, before: Option<&PolicySet>, policy: &PolicySet, _now: Micros) {
        self.classes.learn(policy);
        let was_enabled = before.is_none_or(|before| before.enabled);
        if was_enabled && !policy.enabled {
            tracing::error!(
                target: "palisade::policy",
                event = "enforcement_disabled",
                "the kill switch is on: nothing is limited"
            );
        }
        if let Some(before) = before {
            tracing::info!(
                target: "palisade::policy",
                event = "policy_changed",
                from = before.revision,
                to = policy.revision,
                "another policy is in force"
            );
            for (limit, key) in policy.limits_starting_anew(before) {
                tracing::warn!(
                    target: "palisade::policy",
                    event = "limit_starts_anew",
                    limit = &*limit.name,
                    changed = key,
                    "the use of this limit is not carried over"
                );
            }
        }
    }

    fn tenant_policy(&self, seen: &TenantSeen<'_>, _now: Micros) {
        let digest = |org: &Id| log_digest(&self.keyring, "org", org.as_bytes()).hex();
        match seen {
            TenantSeen::Changed { org, from, to } => tracing::info!(
                target: "palisade::policy",
                event = "policy_changed",
                org = digest(org),
                from,
                to,
                "another policy of a tenant is in force"
            ),
            TenantSeen::Refused { org, why } => tracing::error!(
                target: "palisade::policy",
                event = "policy_refused",
                org = digest(org),
                why,
                "a tenant's policy was refused, the one in force stays"
            ),
            TenantSeen::Source(Some(error)) => tracing::warn!(
                target: "palisade::policy",
                event = "policy_source_unavailable",
                error,
                "the policy source does not answer: cached policies stay in force"
            ),
            TenantSeen::Source(None) => tracing::info!(
                target: "palisade::policy",
                event = "policy_source_recovered",
                "the policy source answers again"
            ),
        }
    }
}
