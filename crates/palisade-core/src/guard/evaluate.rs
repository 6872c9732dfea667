//! One command from its records to its answer, in the order of G-ORDER.

use crate::decision::KeyKind;
use crate::facts::GuardOp;
use crate::lockout::{Lockout, LockoutPolicy};
use crate::record::Flow;
use crate::rule::Rule;
use crate::time::Micros;

use super::account::Account;
use super::aggregate::{Answer, Candidate};
use super::device::Device;
use super::network::Network;
use super::policy::GuardPolicy;
use super::signals::Signals;
use super::steps::{Steps, Trace};

/// What a command reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The credential is about to be verified.
    Check,
    /// It was wrong.
    Failure,
    /// It was right.
    Success,
}

impl Attempt {
    /// The login or OTP command; `None` for the heavy API.
    #[must_use]
    pub const fn of(op: GuardOp) -> Option<Self> {
        match op {
            GuardOp::LoginCheck | GuardOp::OtpCheck => Some(Self::Check),
            GuardOp::LoginFailure | GuardOp::OtpFailure => Some(Self::Failure),
            GuardOp::LoginSuccess | GuardOp::OtpSuccess => Some(Self::Success),
            GuardOp::ApiHit => None,
        }
    }
}

/// The records of one login or OTP command. A record that does not exist yet is the
/// default one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// The account's.
    pub account: Account,
    /// The network's.
    pub network: Network,
    /// The device's; not looked at if the fingerprint is missing.
    pub device: Device,
    /// The lockout's; not looked at without a username.
    pub lockout: Lockout,
}

/// Which records must be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// The account's.
    pub account: bool,
    /// The network's.
    pub network: bool,
    /// The device's.
    pub device: bool,
    /// The lockout's.
    pub lockout: bool,
}

impl Changed {
    /// True if anything must be written.
    #[must_use]
    pub const fn any(self) -> bool {
        self.account || self.network || self.device || self.lockout
    }
}

/// Points that a failure added; for explanations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scored {
    /// The rule.
    pub rule: Rule,
    /// The key that got them.
    pub key: KeyKind,
    /// How many.
    pub points: u8,
}

/// What a command led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// The records after it.
    pub records: Records,
    /// Which of them must be written.
    pub changed: Changed,
    /// The answer.
    pub answer: Answer,
    /// Points that were added.
    pub scored: Vec<Scored>,
    /// Blocks and answers that were issued now, for the audit.
    pub issued: Vec<Candidate>,
    /// The lockout has just locked: `auth.lockout`.
    pub locked: bool,
    /// The answer is the one that the same request got before (G-ONCE).
    pub replayed: bool,
}

/// The policies of one command.
#[derive(Clone, Copy, Debug)]
pub struct Policies<'a> {
    /// The guard's.
    pub guard: &'a GuardPolicy,
    /// The lockout's.
    pub lockout: &'a LockoutPolicy,
}

/// Judges one login or OTP command: guard and lockout side by side, the stricter
/// answer wins. Pure: the same records, command and instant give the same result.
#[must_use]
pub fn evaluate(
    policies: Policies<'_>,
    flow: Flow,
    attempt: Attempt,
    signals: &Signals,
    mut records: Records,
    now: Micros,
) -> Evaluation {
    let Policies { guard, lockout } = policies;
    if let Some(answer) = replay(guard, signals, &records, now) {
        return Evaluation::replayed(records, answer);
    }
    let locking = lockout.enabled && signals.username.is_some();
    let void = attempt == Attempt::Success
        && (locking && records.lockout.is_denying(lockout, now)
            || is_blocked(guard, flow, signals, &mut records, now));

    let mut trace = Trace::default();
    if let Some(policy) = guard.flow(flow).filter(|policy| policy.enabled) {
        let mut steps = Steps::new(guard, policy, signals, &mut records, now);
        match attempt {
            Attempt::Check => steps.check(),
            Attempt::Failure => steps.failure(),
            Attempt::Success if void => steps.void(),
            Attempt::Success => steps.success(),
        }
        trace = steps.finish();
    }
    let mut verdict = crate::lockout::Verdict::default();
    if locking && void {
        verdict = records.lockout.look(lockout, now);
    } else if locking {
        verdict = records
            .lockout
            .apply(lockout, flow, attempt, signals.challenge_passed, now);
    }
    #[cfg(feature = "rule-switches")]
    if !guard.on("A-UNIFORM") && !records.account.devices.iter().any(|d| d.known) {
        verdict.delay_ms = None;
    }
    trace.changed.lockout = verdict.changed;
    trace.candidates.extend(verdict.candidates);
    let mut evaluation = Evaluation {
        changed: trace.changed,
        answer: Answer {
            delay_ms: verdict.delay_ms,
            challenge: verdict.challenge,
            ..aggregate(guard, trace.candidates)
        },
        scored: trace.scored,
        issued: trace.issued,
        locked: verdict.locked,
        replayed: false,
        records,
    };
    evaluation.close(policies, flow, signals, now);
    evaluation
}

fn replay(
    policy: &GuardPolicy,
    signals: &Signals,
    records: &Records,
    now: Micros,
) -> Option<Answer> {
    let request = signals.request.as_ref().filter(|_| policy.on("G-ONCE"))?;
    let once = &records.account.once;
    once.answer(request, policy.once_window, now).cloned()
}

/// The HARD block that binds the command now, if any; nothing is scored or observed.
#[must_use]
pub fn active_hard_block(
    guard: &GuardPolicy,
    flow: Flow,
    attempt: Attempt,
    signals: &Signals,
    records: &Records,
    now: Micros,
) -> Option<Candidate> {
    let policy = guard.flow(flow).filter(|policy| policy.enabled)?;
    let mut records = records.clone();
    Steps::new(guard, policy, signals, &mut records, now).active_hard(attempt)
}

/// True if the command comes under a running HARD block. A success is answered by
/// one on K1 or K2 as if it were not there, but leaves no trace either.
fn is_blocked(
    guard: &GuardPolicy,
    flow: Flow,
    signals: &Signals,
    records: &mut Records,
    now: Micros,
) -> bool {
    guard
        .flow(flow)
        .filter(|policy| policy.enabled)
        .is_some_and(|policy| {
            Steps::new(guard, policy, signals, records, now)
                .active_hard(Attempt::Check)
                .is_some()
        })
}

pub(super) fn aggregate(policy: &GuardPolicy, candidates: Vec<Candidate>) -> Answer {
    if policy.on("G-AGGREGATE") {
        Answer::of(candidates)
    } else {
        Answer::first(candidates)
    }
}

impl Evaluation {
    fn replayed(records: Records, answer: Answer) -> Self {
        Self {
            records,
            changed: Changed::default(),
            answer,
            scored: Vec::new(),
            issued: Vec::new(),
            locked: false,
            replayed: true,
        }
    }

    /// Remembers the request, and drops from the records what is over.
    fn close(&mut self, policies: Policies<'_>, flow: Flow, signals: &Signals, now: Micros) {
        let guard = policies.guard;
        let request = signals.request.as_ref().filter(|_| self.changed.any());
        if let Some(request) = request {
            self.records.account.once.note(request, &self.answer, now);
            self.changed.account = true;
        }
        if self.changed.lockout {
            self.records.lockout.prune(policies.lockout, now);
        }
        let Some(flow) = guard.flow(flow) else { return };
        if self.changed.account {
            self.records.account.prune(guard, flow, now);
        }
        if self.changed.network {
            self.records.network.prune(guard, &flow.correlation, now);
        }
        if self.changed.device {
            self.records.device.prune(guard, &flow.correlation, now);
        }
    }
}
