//! [`Lookout`]: the data behind a dashboard of this process, sampled once a second and kept in
//! bounded memory.
//!
//! A decision adds to a few totals. A refusal adds to a sketch of the most refused subjects, limits
//! and classes. Everything else happens once a second, for all viewers together. No subject is
//! named: the digests are those of the audit.

mod budgets;
mod counts;
mod durations;
mod history;
mod journal;
mod quotas;
mod top;

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use palisade_core::decision::{Decision, KeyKind, LimitReading, Outcome};
use palisade_core::facts::Surface;
use palisade_core::key::{Digest, Keyring, Prefix};
use palisade_core::policy::PolicySet;
use palisade_core::time::Micros;
use parking_lot::Mutex;
use serde::Serialize;

use super::classes::{KnownClasses, op_class};
use super::who::{Who, log_digest};
use crate::engine::{AttackSeen, DecisionEvent, HealthReport, KeyedAnswer, ModeChange, Subject};
use budgets::Budgets;
use counts::Counts;
use durations::Histogram;
use history::{History, Read};
use journal::Journal;
use quotas::Quotas;
use top::Top;

pub use budgets::FilledBudget;
pub use history::{Columns, MINUTES_KEPT, SECONDS_KEPT};
pub use journal::{Note, PolicyChanges, PolicyNote};
pub use quotas::NearQuota;

/// Lines in a list of the most frequent.
const TOP_SHOWN: usize = 20;
/// Notes that are shown.
const NOTES_SHOWN: usize = 50;
/// Digits of a pseudonym: enough to distinguish a few thousand, and to find it in the audit.
const PSEUDONYM_DIGITS: usize = 12;

/// Collects the numbers behind the dashboard, about the decisions of one process.
pub struct Lookout {
    keyring: Arc<Keyring>,
    started: Micros,
    counts: Counts,
    durations: Histogram,
    classes: KnownClasses,
    tops: Mutex<Tops>,
    quotas: Mutex<Quotas>,
    budgets: Mutex<Budgets>,
    journal: Mutex<Journal>,
    history: Mutex<History>,
}

/// Sketches of the most refused.
#[derive(Debug, Default)]
struct Tops {
    limits: Top<Arc<str>>,
    classes: Top<Arc<str>>,
    subjects: Top<(&'static str, Digest)>,
    shadow: Top<Arc<str>>,
}

/// One line of a list of the most frequent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Frequent {
    /// A limit, a rule or a class of the policy.
    pub name: Arc<str>,
    /// Occurrences within ten minutes; never too low.
    pub count: u64,
}

/// A subject that is refused often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrequentSubject {
    /// The kind of subject: `ip`, `account`, `user`, `org`, `token`, `client`, `api_key` or
    /// `descriptor`.
    pub kind: &'static str,
    /// First digits of the subject's digest, the same as in the audit.
    pub pseudonym: String,
    /// Occurrences within ten minutes; never too low.
    pub count: u64,
}

/// Everything but the history, at one instant.
#[derive(Clone, Debug, Serialize)]
pub struct Outlook {
    /// Start of this process's counts, RFC 3339.
    pub started: String,
    /// The second that ended last.
    pub newest: Columns,
    /// Limits and rules that refused most in the last ten minutes.
    pub limits: Vec<Frequent>,
    /// Classes that are refused most.
    pub classes: Vec<Frequent>,
    /// Subjects that are refused most.
    pub subjects: Vec<FrequentSubject>,
    /// Limits and rules in shadow mode that would refuse most.
    pub shadow: Vec<Frequent>,
    /// API keys near the end of their quota.
    pub quotas: Vec<NearQuota>,
    /// Budgets in units of the policy's own, the fullest first.
    pub budgets: Vec<FilledBudget>,
    /// Changes of breakers and modes, the newest first.
    pub notes: Vec<Note>,
    /// Policies that came into force, the newest first.
    pub policies: Vec<PolicyNote>,
}

impl std::fmt::Debug for Lookout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookout").finish_non_exhaustive()
    }
}

impl Lookout {
    /// Starts counting at `now`.
    #[must_use]
    pub fn new(keyring: Arc<Keyring>, now: Micros) -> Self {
        Self {
            keyring,
            started: now,
            counts: Counts::default(),
            durations: Histogram::default(),
            classes: KnownClasses::default(),
            tops: Mutex::default(),
            quotas: Mutex::default(),
            budgets: Mutex::default(),
            journal: Mutex::default(),
            history: Mutex::default(),
        }
    }

    /// Counts a decision.
    pub(super) fn count(&self, seen: &DecisionEvent<'_>) {
        let decision = seen.decision;
        let surface = match seen.subject {
            Subject::Request(facts) => facts.surface,
            Subject::Guard(..) => Surface::Guard,
            Subject::Descriptors(..) => Surface::Envoy,
        };
        self.counts.add(surface, decision.outcome, decision.mode);
        let shadowed = shadow_of(decision);
        if let Some(name) = shadowed {
            self.counts.shadowed();
            self.tops.lock().shadow.add(&name, decision.at);
        }
        if let Some(quota) = decision
            .quota
            .as_ref()
            .filter(|quota| quotas::is_near(quota))
            && let Subject::Request(facts) = seen.subject
            && let Some(key) = &facts.api_key
        {
            self.quotas.lock().saw(key.as_str(), quota);
        }
    }

    /// Counts the answers to a caller that chose the limits of its buckets itself.
    pub(super) fn keyed(&self, answers: &[KeyedAnswer]) {
        for answer in answers {
            let outcome = match answer.admitted {
                true => Outcome::Allow,
                false => Outcome::Deny,
            };
            self.counts.add(Surface::Resp, outcome, answer.mode);
        }
    }

    /// True if [`Lookout::record`] needs the subject's digests.
    pub(super) fn concerns(seen: &DecisionEvent<'_>) -> bool {
        let decision = seen.decision;
        !decision.is_allowed() || decision.limits.iter().any(budgets::is_budget)
    }

    /// Remembers the budgets of a subject and, if it was refused, the limit or rule that refused
    /// it.
    pub(super) fn record(&self, seen: &DecisionEvent<'_>, who: &Who) {
        let decision = seen.decision;
        for reading in decision.limits.iter().filter(|one| budgets::is_budget(one)) {
            self.budgets.lock().saw(reading, who.named(reading.scope));
        }
        if decision.is_allowed() {
            return;
        }
        let class = match seen.subject {
            Subject::Guard(op, _) => op_class(op).into(),
            Subject::Request(_) | Subject::Descriptors(..) => {
                let class = decision.class.as_deref().unwrap_or("none");
                self.classes.shown(class)
            }
        };
        let subject = self.subject(seen, who);
        let mut tops = self.tops.lock();
        if let Some(name) = refused_by(decision) {
            tops.limits.add(&name, decision.at);
        }
        tops.classes.add(&class, decision.at);
        tops.subjects.add(&subject, decision.at);
    }

    /// Returns the subject of the bucket or block that refused.
    fn subject(&self, seen: &DecisionEvent<'_>, who: &Who) -> (&'static str, Digest) {
        let of_address = |ip: IpAddr| {
            let digest = log_digest(&self.keyring, "ip", Prefix::of(ip).bytes());
            ("ip", digest)
        };
        match seen.subject {
            Subject::Guard(_, facts) => {
                // A block on a network is reported under the address, any other under the account.
                let key = seen.decision.reasons.iter().find_map(|reason| reason.key);
                let is_of_network = matches!(
                    key,
                    Some(KeyKind::Prefix | KeyKind::PrefixAgent | KeyKind::PrefixDevice)
                );
                let account = who.account.filter(|_| !is_of_network);
                account.map_or_else(|| of_address(facts.ip), |digest| ("account", digest))
            }
            Subject::Descriptors(..) => {
                let denying = denying(seen.decision);
                let digest = denying.map_or(Digest::default(), |reading| reading.partition);
                ("descriptor", digest)
            }
            Subject::Request(facts) => {
                let scope = denying(seen.decision).map_or("none", |reading| reading.scope);
                who.named(scope).unwrap_or_else(|| of_address(facts.ip))
            }
        }
    }

    /// Records the duration of a decision.
    pub(super) fn timed(&self, took_us: u64) {
        self.durations.observe_us(took_us);
    }

    /// Records a state change of the failure machinery.
    pub(super) fn failure(&self, change: &ModeChange<'_>) {
        self.journal.lock().failure(change);
    }

    /// Records that an attack was declared, or is over.
    pub(super) fn attack(&self, seen: &AttackSeen<'_>) {
        self.journal.lock().attack(seen);
    }

    /// Records that another policy is in force.
    pub(super) fn policy(&self, before: Option<&PolicySet>, policy: &PolicySet, now: Micros) {
        self.classes.learn(policy);
        self.journal.lock().policy(before, policy, now);
    }

    /// Closes the second that is over; to be called once a second. False if none is over.
    pub fn tick(&self, health: &HealthReport, now: Micros) -> bool {
        self.journal.lock().level(health.degradation_level, now);
        let read = Read {
            totals: self.counts.totals(),
            durations: self.durations.read(),
            store_us: health.store.p99_us.and_then(|us| u32::try_from(us).ok()),
            level: health.degradation_level,
        };
        self.history.lock().push(now, read)
    }

    /// Returns the last hour, by the second.
    #[must_use]
    pub fn seconds(&self) -> Columns {
        self.history.lock().seconds()
    }

    /// Returns the last day, by the minute.
    #[must_use]
    pub fn minutes(&self) -> Columns {
        self.history.lock().minutes()
    }

    /// Returns everything but the history.
    #[must_use]
    pub fn outlook(&self, now: Micros) -> Outlook {
        let tops = self.tops.lock();
        let (limits, classes) = (
            tops.limits.read(TOP_SHOWN, now),
            tops.classes.read(TOP_SHOWN, now),
        );
        let subjects = tops.subjects.read(TOP_SHOWN, now);
        let shadow = tops.shadow.read(TOP_SHOWN, now);
        drop(tops);
        let journal = self.journal.lock();
        Outlook {
            started: self.started.to_rfc3339(),
            newest: self.history.lock().newest(),
            limits: frequent(limits),
            classes: frequent(classes),
            subjects: subjects.into_iter().map(FrequentSubject::from).collect(),
            shadow: frequent(shadow),
            quotas: self.quotas.lock().read(TOP_SHOWN, now),
            budgets: self.budgets.lock().read(TOP_SHOWN, now),
            notes: journal.notes(NOTES_SHOWN),
            policies: journal.policies(),
        }
    }
}

impl From<((&'static str, Digest), u64)> for FrequentSubject {
    fn from(((kind, digest), count): ((&'static str, Digest), u64)) -> Self {
        let mut pseudonym = digest.hex();
        pseudonym.truncate(PSEUDONYM_DIGITS);
        Self {
            kind,
            pseudonym,
            count,
        }
    }
}

fn frequent(all: Vec<(Arc<str>, u64)>) -> Vec<Frequent> {
    let all = all.into_iter();
    all.map(|(name, count)| Frequent { name, count }).collect()
}

/// Returns the limit that refused or, where none did, the rule.
fn refused_by(decision: &Decision) -> Option<Arc<str>> {
    let limit = decision
        .reasons
        .iter()
        .find_map(|reason| reason.limit.clone());
    limit.or_else(|| decision.rule.map(|rule| rule.id().into()))
}

/// Returns the reading of the bucket that refused.
fn denying(decision: &Decision) -> Option<&LimitReading> {
    let mut limits = decision.limits.iter();
    limits.find(|reading| reading.retry_after.is_some() && !reading.shadow)
}

/// Returns the limit or rule that would have refused if it were not in shadow mode.
fn shadow_of(decision: &Decision) -> Option<Arc<str>> {
    if let Some(shadow) = decision.shadow.as_ref().filter(|_| decision.would_refuse()) {
        return shadow.rule.map(|rule| rule.id().into());
    }
    let would = |reading: &&LimitReading| reading.shadow && reading.retry_after.is_some();
    let reading = decision.limits.iter().find(would);
    reading.map(|reading| Arc::clone(&reading.name))
}
