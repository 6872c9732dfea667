//! One guard command, from its facts to its decision: resolve → load → evaluate →
//! commit → record.

use std::pin::pin;

use palisade_core::decision::{Decision, Enforcement, KeyKind, LockoutNote, Mode};
use palisade_core::facts::{Attempt, FieldError, GuardFacts, GuardOp};
use palisade_core::failure::{DegradedKeys, Policy, SeenBlock, Trust};
use palisade_core::guard::policy::GuardMode;
use palisade_core::guard::{Candidate, GuardKeys, Signals};
use palisade_core::key::{Digest, Keyring};
use palisade_core::lockout::{ChallengeMode, LockoutKey, Standing};
use palisade_core::policy::PolicySet;
use palisade_core::record::Flow;
use palisade_core::rule::Rule;
use palisade_core::time::Micros;

use super::super::link::{Calls, For, NoAnswer};
use super::super::{Engine, RequestAnswer, Seen, Subject};
use super::turns::pairs_of;
use super::{Guard, areas};
use crate::deadline::until;

/// How often a lost compare-and-swap is tried again (F-CONFLICT).
pub(in crate::engine) const RETRIES_MAX: usize = 8;

/// What a guard command did, for the audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardNotes {
    /// Blocks and answers that were issued now.
    pub issued: Vec<Candidate>,
    /// The lockout has just locked.
    pub locked: bool,
    /// The answer was given before (G-ONCE).
    pub replayed: bool,
}

/// What the records said.
pub(super) struct Applied {
    pub(super) decision: Decision,
    pub(super) notes: GuardNotes,
    pub(super) seen: Vec<SeenHard>,
    /// What the name's record refuses from now on, if the lockout was asked.
    pub(super) standing: Option<Standing>,
}

/// A HARD block in the records of this command, to be remembered for an outage.
pub(super) struct SeenHard {
    pub(super) kind: KeyKind,
    pub(super) member: Option<Digest>,
    pub(super) block: SeenBlock,
    /// How long it still runs by the store's clock.
    pub(super) left_us: u64,
}

/// Why the records could not be used.
pub(super) enum Unusable {
    /// The store did not answer.
    Store(NoAnswer),
    /// A record is unreadable, too new, or changed too often.
    Record(Rule),
}

impl From<NoAnswer> for Unusable {
    fn from(no_answer: NoAnswer) -> Self {
        match no_answer {
            NoAnswer::OutOfTime => Self::Record(Rule::F_CONFLICT),
            NoAnswer::NotAsked | NoAnswer::Failed(_) => Self::Store(no_answer),
        }
    }
}

/// One command on its way.
pub(super) struct Command<'e> {
    pub(super) calls: Calls<'e>,
    pub(super) policy: &'e PolicySet,
    pub(super) keyring: &'e Keyring,
    pub(super) op: GuardOp,
    pub(super) signals: &'e Signals,
    pub(super) keys: &'e GuardKeys,
}

impl Engine {
    /// Decides a guard command.
    ///
    /// # Errors
    /// A missing account on login or OTP, or trust in nothing; nothing is touched then.
    pub async fn guard(
        &self,
        op: GuardOp,
        facts: &GuardFacts,
    ) -> Result<RequestAnswer, FieldError> {
        let began = self.begin_timing();
        let (mut answer, notes) = self.answer_command(op, facts).await?;
        self.end_timing(began);
        self.observer().decided(&Seen {
            subject: Subject::Guard(op, facts),
            decision: &answer.decision,
            bypassed: None,
            guard: Some(&notes),
        });
        answer.candidate = self.beside_command(op, facts, &answer.decision).await;
        Ok(answer)
    }

    /// The answer and what the command did; nobody is told.
    pub(in crate::engine) async fn answer_command(
        &self,
        op: GuardOp,
        facts: &GuardFacts,
    ) -> Result<(RequestAnswer, GuardNotes), FieldError> {
        facts.validate(op)?;
        let policy = self.policy.load_full();
        let (decision, notes) = if policy.enabled {
            let mut signals = Signals::resolve(&self.keyring, op, facts);
            let lockout = &policy.settings.lockout;
            if lockout.key == LockoutKey::Account && signals.username.is_none() {
                signals.count_by_account(&self.keyring, facts);
            }
            let area = self.watched_area(&policy, op, facts, &mut signals);
            let (mut decision, notes) = self.judge_command(&policy, op, &signals).await;
            let asked = signals.username.is_some() || op.attempt().is_none();
            decision.lockout = (lockout.enabled && !asked).then_some(LockoutNote::NotAsked);
            if let Some((area, account)) = area.filter(|_| !notes.replayed) {
                self.guard.areas.failed(area, account, self.now());
            }
            (decision, notes)
        } else {
            (disabled(self.now()), GuardNotes::default())
        };
        let answer = RequestAnswer {
            decision: Box::new(decision),
            policy,
            candidate: None,
        };
        Ok((answer, notes))
    }

    /// G-SPRAY-WIDE, where it is on: a check is told whether its area was sprayed; of a
    /// failure the area and account to note.
    fn watched_area(
        &self,
        policy: &PolicySet,
        op: GuardOp,
        facts: &GuardFacts,
        signals: &mut Signals,
    ) -> Option<(Digest, Digest)> {
        let flow = policy.settings.guard.flow(op.flow())?;
        let threshold = flow.correlation.spray_wide as usize;
        let attempt = op.attempt().filter(|_| threshold > 0)?;
        let area = areas::area(&self.keyring, facts.ip);
        signals.sprayed_area = self.guard.areas.accounts(area, self.now()) >= threshold;
        let account = signals.account.filter(|_| attempt == Attempt::Failure)?;
        Some((area, account.current))
    }

    async fn judge_command(
        &self,
        policy: &PolicySet,
        op: GuardOp,
        signals: &Signals,
    ) -> (Decision, GuardNotes) {
        let flow = op.flow();
        let command = Command {
            calls: self.link.calls(For::Decision(Policy::from(flow))),
            policy,
            keyring: &self.keyring,
            op,
            signals,
            keys: &signals.keys(flow),
        };
        let applied = self.guard.run(&command).await;
        let now = self.now();
        let keys = degraded_keys(policy, flow, signals);
        match applied {
            // What shadow mode did not enforce must not bind in an outage either.
            Ok(applied) if policy.settings.guard.mode(flow) == GuardMode::Shadow => {
                (applied.decision.in_shadow(), applied.notes)
            }
            Ok(applied) => {
                self.remember_blocks(flow, keys, &applied, now);
                (applied.decision, applied.notes)
            }
            Err(unusable) => {
                let attempt = op.attempt().unwrap_or(Attempt::Check);
                let mut modes = self.link.modes();
                let answer = match unusable {
                    Unusable::Record(rule) => modes.answer_alone(flow, rule, attempt, &keys, now),
                    Unusable::Store(_) => modes.answer(flow, attempt, &keys, now),
                };
                (answer, GuardNotes::default())
            }
        }
    }

    /// F-BLOCKS: what binds now must bind in an outage too.
    fn remember_blocks(&self, flow: Flow, keys: DegradedKeys, applied: &Applied, now: Micros) {
        let lockout = keys.lockout.zip(applied.standing.as_ref());
        if applied.seen.is_empty() && lockout.is_none() {
            return;
        }
        let mut modes = self.link.modes();
        if let Some((name, standing)) = lockout {
            modes.saw_lockout(name, standing, now);
        }
        let blocks = modes.guard(flow).blocks();
        for seen in &applied.seen {
            let keys = match (seen.kind, seen.member) {
                (KeyKind::AccountDevice | KeyKind::PrefixDevice, Some(member)) => DegradedKeys {
                    fingerprint: Some(member),
                    ..keys
                },
                (KeyKind::PrefixAgent, Some(member)) => DegradedKeys {
                    user_agent: member,
                    ..keys
                },
                _ => keys,
            };
            let block = SeenBlock {
                until: now.plus(seen.left_us),
                ..seen.block
            };
            blocks.saw(seen.kind, &keys, block, now);
        }
    }
}

impl Guard {
    /// Runs a command, all of it within the request's time: waiting for its turn,
    /// loading, and every retry.
    async fn run(&self, command: &Command<'_>) -> Result<Applied, Unusable> {
        let pairs = pairs_of(command.keys);
        let turn = self.turns.turn(&pairs);
        let Ok(mut turn) = until(command.calls.turn_ends(), pin!(turn)).await else {
            return Err(Unusable::Record(Rule::F_CONFLICT));
        };
        match command.op.flow() {
            Flow::Api => command.hit().await,
            Flow::Login | Flow::Otp => command.attempt(&pairs, &mut turn).await,
        }
    }
}

fn disabled(now: Micros) -> Decision {
    Decision {
        mode: Mode::Disabled,
        enforcement: Enforcement::Disabled,
        ..Decision::allow(now)
    }
}

/// What is left of the signals without the records: only the host's word gives
/// trust.
fn degraded_keys(policy: &PolicySet, flow: Flow, signals: &Signals) -> DegradedKeys {
    let lockout = &policy.settings.lockout;
    let is_enforced = policy.settings.guard.mode(flow) == GuardMode::Enforce;
    let is_required = lockout.challenge_mode == ChallengeMode::Require;
    let name = signals.username.map(|name| name.current);
    DegradedKeys {
        prefix: signals.prefix.current,
        user_agent: signals.user_agent.current,
        account: signals.account.map(|account| account.current),
        fingerprint: signals.fingerprint.map(|found| found.digest.current),
        lockout: name.filter(|_| lockout.enabled && is_enforced),
        challenge_passed: signals.challenge_passed || !is_required,
        trust: if signals.trusted {
            Trust::Trusted
        } else {
            Trust::Untrusted
        },
    }
}
