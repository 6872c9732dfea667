//! One command from its records to its answer: the list of rules, in the order of
//! G-ORDER, and the function that runs it.

use std::borrow::Cow;

use crate::decision::KeyKind;
use crate::facts::Attempt;
use crate::lockout::{CaptchaProof, LockoutPolicy, LockoutVerdict};
use crate::record::Flow;
use crate::time::Micros;

use super::aggregate::{Answer, Candidate};
use super::command::Command;
use super::evaluation::{Evaluation, Trace};
use super::ladder::Issuer;
use super::policy::{GuardMode, GuardPolicy};
use super::records::Records;
use super::rules::{
    advisory, budget, churn, dilution, ephemeral, equilibrium, familiar, flood, new_country,
    owner_lane, pending, recovery, rotation, rotation_repeat, running, score, spray, spray_wide,
    threshold, unknown,
};
use super::signals::Signals;

/// One rule of a list: its id, and the function that applies it to a command in progress.
pub type Step = (&'static str, fn(&mut Command<'_>));

/// A rule that frees a command from a block: its id, and a function that says whether it does so
/// for a block on this key, of this issuer.
pub type Exemption = (&'static str, fn(&Command<'_>, KeyKind, Issuer) -> bool);

/// The rules of login and OTP, in the order in which they apply (G-ORDER). Tests measure the
/// effect of a rule by leaving it out of a copy.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Keys whose HARD block ends the evaluation: the first one found answers.
    pub hard_blocks: Cow<'static, [KeyKind]>,
    /// Rules that free commands from a block.
    pub exemptions: Cow<'static, [Exemption]>,
    /// Rules that score a failure, also under a running HARD block.
    pub scores: Cow<'static, [Step]>,
    /// Rules that judge a check or a failure, unless a HARD block ends the evaluation.
    pub judges: Cow<'static, [Step]>,
    /// Decides how an outcome counts that the application does not know (G-UNKNOWN).
    pub unknown: fn(&mut Command<'_>) -> Attempt,
    /// Rules for a success, unless a HARD block or the lockout refuses it.
    pub successes: Cow<'static, [Step]>,
    /// Makes one answer of all candidates (G-AGGREGATE).
    pub aggregate: fn(Vec<Candidate>) -> Answer,
}

/// All rules, in force.
pub static RULES: Rules = Rules {
    hard_blocks: Cow::Borrowed(&[
        KeyKind::Account,
        KeyKind::AccountDevice,
        KeyKind::PrefixDevice,
        KeyKind::Device,
        KeyKind::Prefix,
        KeyKind::PrefixAgent,
    ]),
    exemptions: Cow::Borrowed(&[
        ("G-ADVISORY", advisory::frees),
        ("G-OWNER-LANE", owner_lane::frees),
    ]),
    scores: Cow::Borrowed(&[
        ("G-PENDING", pending::end),
        ("G-SCORE-KNOWN", score::known),
        ("G-SCORE-NEW", score::new),
        ("G-SCORE-MISSING", score::missing),
        ("G-SCORE-REPEAT-MISSING", score::repeat_missing),
        ("G-BUDGET-EPOCH", budget::count),
    ]),
    judges: Cow::Borrowed(&[
        ("G-THRESHOLD", threshold::judge),
        ("G-ORDER", running::soft_blocks),
        ("G-PENDING", pending::judge),
        ("G-SPRAY", spray::judge),
        ("G-SPRAY-WIDE", spray_wide::answer),
        ("G-EPHEMERAL", ephemeral::arrive),
        ("G-ROTATION", rotation::judge),
        ("G-ROTATION-REPEAT", rotation_repeat::judge),
        ("G-CHURN", churn::judge),
        ("G-DILUTION", dilution::judge),
        ("G-FLOOD", flood::judge),
        ("P-GUARD", new_country::judge),
        ("G-RECOVERY", recovery::answer),
        ("G-EQUILIBRIUM", equilibrium::judge),
        ("G-BUDGET", budget::answer),
    ]),
    unknown: unknown::weigh,
    successes: Cow::Borrowed(&[
        ("G-PENDING", pending::end),
        ("G-SCORE-KNOWN", familiar::learn),
        ("G-SPRAY", familiar::leave_sets),
        ("P-GUARD", new_country::learn),
    ]),
    aggregate: Answer::of,
};

/// The policies of one command.
#[derive(Clone, Copy, Debug)]
pub struct Policies<'a> {
    /// Policy of the guard.
    pub guard: &'a GuardPolicy,
    /// Policy of the lockout.
    pub lockout: &'a LockoutPolicy,
}

/// Judges one login or OTP command: guard and lockout run side by side, and the stricter answer
/// wins. Pure: the same records, command and instant give the same result.
#[must_use]
pub fn evaluate(
    policies: Policies<'_>,
    flow: Flow,
    attempt: Attempt,
    signals: &Signals,
    records: Records,
    now: Micros,
) -> Evaluation {
    RULES.evaluate(policies, flow, attempt, signals, records, now)
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
    // A copy, because a command borrows its records for changes; this one makes none.
    let mut records = records.clone();
    let command = Command::new(&RULES, guard, policy, attempt, signals, &mut records, now);
    running::hard_block(&command, attempt)
}

impl Rules {
    /// Judges one command by these rules.
    #[must_use]
    pub fn evaluate(
        &self,
        policies: Policies<'_>,
        flow: Flow,
        mut attempt: Attempt,
        signals: &Signals,
        mut records: Records,
        now: Micros,
    ) -> Evaluation {
        let Policies { guard, lockout } = policies;
        if let Some(answer) = replay(guard, signals, &records, now) {
            return Evaluation::replayed(records, answer);
        }
        let policy = guard.flow(flow);
        let locking = lockout.enabled && signals.username.is_some();
        let denied = locking && records.lockout.is_denying(lockout, now);

        let mut trace = Trace::default();
        // In shadow mode every attempt goes on, so the guard learns from each success, even one
        // that it would have refused.
        let refusable = attempt == Attempt::Success && guard.mode(flow) == GuardMode::Enforce;
        let mut void = refusable && denied;
        if let Some(policy) = policy.filter(|policy| policy.enabled) {
            let unpassed = records.lockout.unpassed(lockout, now);
            let unpassed = unpassed.filter(|_| !signals.challenge_passed);
            let mut command =
                Command::new(self, guard, policy, attempt, signals, &mut records, now);
            command.locked_out = denied || (locking && unpassed.is_some());
            if attempt == Attempt::Unknown {
                attempt = (self.unknown)(&mut command);
                command.attempt = attempt;
            }
            // Looked up as for a check: a network's block refuses no success, but a success under
            // it changes nothing.
            void |= refusable && running::hard_block(&command, Attempt::Check).is_some();
            trace = self.run(command, void);
        }
        let verdict = if !locking || attempt == Attempt::Unknown {
            LockoutVerdict::default()
        } else if void {
            records.lockout.look(lockout, now)
        } else {
            let passed = match (signals.captcha_passed, signals.challenge_passed) {
                (true, _) => CaptchaProof::ByHost,
                (false, true) => CaptchaProof::ForThisAttempt,
                (false, false) => CaptchaProof::Missing,
            };
            records.lockout.apply(lockout, attempt, passed, now)
        };
        trace.changed.lockout = verdict.changed;
        trace.candidates.extend(verdict.candidates);
        let mut evaluation = Evaluation {
            changed: trace.changed,
            answer: Answer {
                delay_ms: verdict.delay_ms,
                challenge: verdict.challenge,
                ..(self.aggregate)(trace.candidates)
            },
            scored: trace.scored,
            issued: trace.issued,
            locked: verdict.locked,
            replayed: false,
            records,
        };
        evaluation.note_issue(trace.soft_issue);
        evaluation.reserve(trace.reservation, policy, signals);
        evaluation.close(policies, policy, signals, now);
        evaluation
    }

    /// Applies the guard's rules to a command. A success under a HARD block, or one that the
    /// lockout denies, is `void`: it is answered and leaves no trace.
    fn run(&self, mut command: Command<'_>, void: bool) -> Trace {
        let attempt = command.attempt;
        // An unknown outcome reports an attempt that is over: there is nothing left to refuse.
        let block = match attempt {
            Attempt::Unknown => None,
            _ => running::hard_block(&command, attempt),
        };
        if attempt == Attempt::Failure {
            command.apply(&self.scores);
        }
        match attempt {
            Attempt::Check | Attempt::Failure if block.is_none() => command.apply(&self.judges),
            Attempt::Success if !void => command.apply(&self.successes),
            _ => {}
        }
        command.trace.candidates.extend(block);
        command.finish()
    }
}

/// The answer that the same request was given before (G-ONCE).
fn replay(
    policy: &GuardPolicy,
    signals: &Signals,
    records: &Records,
    now: Micros,
) -> Option<Answer> {
    let request = signals.request.as_ref()?;
    let once = &records.account.once;
    once.answer(request, policy.once_window, now).cloned()
}
