//! One guard command, from its facts to its decision: resolve → load → evaluate →
//! commit → record.

use std::pin::pin;

use palisade_core::challenge::PassNote;
use palisade_core::decision::{Decision, Enforcement, KeyKind, LockoutNote, Mode};
use palisade_core::facts::{Attempt, FieldError, GuardFacts, GuardOp};
use palisade_core::failure::{DegradedKeys, Policy, SeenBlock, Trust};
use palisade_core::guard::policy::GuardMode;
use palisade_core::guard::{Candidate, GuardKeys, KeyPair, Signals};
use palisade_core::key::{Digest, Keyring};
use palisade_core::lockout::{ChallengeMode, LockoutKey, Standing};
use palisade_core::policy::PolicySet;
use palisade_core::record::{Flow, RecordKind};
use palisade_core::rule::Rule;
use palisade_core::time::Micros;

use super::super::link::{Calls, For, NoAnswer};
use super::super::{DecisionEvent, Engine, RequestAnswer, Subject};
use super::turns::pairs_of;
use super::{Guard, areas};
use crate::deadline::until;

/// Most retries after a lost compare-and-swap (F-CONFLICT).
pub(in crate::engine) const RETRIES_MAX: usize = 8;

/// Effects of a guard command, for the audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardNotes {
    /// Blocks and answers that this command issued.
    pub issued: Vec<Candidate>,
    /// Whether this command locked the name.
    pub locked: bool,
    /// Whether the answer is a repetition of an earlier one (G-ONCE).
    pub replayed: bool,
}

/// Result of a command that was evaluated on the store's records and committed.
pub(super) struct CommittedCommand {
    pub(super) decision: Decision,
    pub(super) notes: GuardNotes,
    /// HARD blocks that this command met.
    pub(super) seen: Vec<SeenHard>,
    /// The destination that the account was last sent a code to.
    pub(super) sent_to: Option<Digest>,
    /// State of the name's lockout after this command, if the command has a user name.
    pub(super) standing: Option<Standing>,
}

/// A HARD block in the records of a command, remembered so that it binds in an outage too.
pub(super) struct SeenHard {
    pub(super) kind: KeyKind,
    pub(super) member: Option<Digest>,
    pub(super) block: SeenBlock,
    /// Remaining time by the store's clock.
    pub(super) left_us: u64,
}

/// Reason why a command could not be decided on the store's records.
pub(super) enum Unusable {
    /// The store gave no answer.
    Store(NoAnswer),
    /// A record is unreadable, was written by a newer version, or changed too often.
    Record(Rule),
}

impl From<NoAnswer> for Unusable {
    fn from(no_answer: NoAnswer) -> Self {
        match no_answer {
            // The time was lost to other commands on these records, and says nothing about the
            // store.
            NoAnswer::OutOfTime => Self::Record(Rule::F_CONFLICT),
            NoAnswer::NotAsked | NoAnswer::Failed(_) => Self::Store(no_answer),
        }
    }
}

/// A guard command with everything it needs on its way to a decision.
pub(super) struct GuardCommand<'e> {
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
    /// A field that is missing or not valid for this command; nothing is counted then.
    pub async fn guard(
        &self,
        op: GuardOp,
        facts: &GuardFacts,
    ) -> Result<RequestAnswer, FieldError> {
        let began = self.begin_timing();
        let (mut answer, notes) = self.answer_command(op, facts).await?;
        self.end_timing(began);
        self.note_login(&answer.policy, (op, facts), &answer.decision, &notes);
        self.observer().decided(&DecisionEvent {
            subject: Subject::Guard(op, facts),
            decision: &answer.decision,
            bypassed: None,
            guard: Some(&notes),
        });
        answer.candidate = self.beside_command(op, facts, &answer.decision).await;
        Ok(answer)
    }

    /// The answer and the effects of the command, without reporting them to the observer.
    pub(in crate::engine) async fn answer_command(
        &self,
        op: GuardOp,
        facts: &GuardFacts,
    ) -> Result<(RequestAnswer, GuardNotes), FieldError> {
        facts.validate(op)?;
        let policy = self.policy.load_full();
        let (decision, notes) = if !policy.enabled {
            (disabled(self.now()), GuardNotes::default())
        } else if op == GuardOp::OtpSend {
            let pass = self.spend_on_command(op, facts).await;
            let passed = pass.as_ref().is_some_and(PassNote::is_accepted);
            let (mut decision, notes) = self.judge_send(&policy, facts, passed).await;
            decision.pass = pass;
            self.offer_to_command(&policy, op, facts, &mut decision);
            (decision, notes)
        } else {
            let mut signals = Signals::resolve(&self.keyring, op, facts);
            let lockout = &policy.settings.lockout;
            if lockout.key == LockoutKey::Account && signals.username.is_none() {
                signals.count_by_account(&self.keyring, facts);
            }
            let area = self.watched_area(&policy, op, facts, &mut signals);
            let pass = self.spend_on_command(op, facts).await;
            signals.challenge_passed |= pass.as_ref().is_some_and(PassNote::is_accepted);
            let located = self.located(&policy, op, facts, &mut signals);
            let (mut decision, notes, sent_to) = self.judge_command(&policy, op, &signals).await;
            if op == GuardOp::OtpSuccess && decision.is_allowed() && !notes.replayed {
                self.verify_sends(&policy, facts, sent_to).await;
            }
            decision.pass = pass;
            self.offer_to_command(&policy, op, facts, &mut decision);
            // The lockout counts attempts only, so other commands get no note about it.
            let asked = signals.username.is_some() || op.attempt().is_none();
            decision.lockout = (lockout.enabled && !asked).then_some(LockoutNote::NotAsked);
            // A repetition of an earlier answer is no second failure (G-ONCE).
            if let Some((area, account)) = area.filter(|_| !notes.replayed) {
                self.guard.areas.failed(area, account, self.now());
            }
            if let Some((account, country)) = located.filter(|_| decision.is_allowed()) {
                self.guard.countries.succeeded(account, country);
            }
            (decision, notes)
        };
        let answer = RequestAnswer {
            decision: Box::new(decision),
            policy,
            candidate: None,
        };
        Ok((answer, notes))
    }

    /// Applies G-SPRAY-WIDE if the flow uses it: tells the signals of a command whether its area is
    /// sprayed. Returns the area and account to count if the command reports a failure.
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
    ) -> (Decision, GuardNotes, Option<Digest>) {
        let flow = op.flow();
        let command = GuardCommand {
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
            // A block that shadow mode did not enforce must not bind in an outage either.
            Ok(applied) if policy.settings.guard.mode(flow) == GuardMode::Shadow => {
                (applied.decision.in_shadow(), applied.notes, applied.sent_to)
            }
            Ok(applied) => {
                self.remember_blocks(flow, keys, &applied, now);
                (applied.decision, applied.notes, applied.sent_to)
            }
            Err(unusable) => {
                let attempt = op.attempt().unwrap_or(Attempt::Check);
                let mut modes = self.link.modes();
                let answer = match unusable {
                    Unusable::Record(rule) => modes.answer_alone(flow, rule, attempt, &keys, now),
                    Unusable::Store(_) => modes.answer(flow, attempt, &keys, now),
                };
                (answer, GuardNotes::default(), None)
            }
        }
    }

    /// Remembers the blocks and the lockout that bind now, so that they bind in an outage too
    /// (F-BLOCKS).
    fn remember_blocks(
        &self,
        flow: Flow,
        keys: DegradedKeys,
        applied: &CommittedCommand,
        now: Micros,
    ) {
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
            // A record may have blocks of devices and user agents other than this command's.
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
    /// Runs a command. Waiting for its turn, loading and every retry share the request's time.
    async fn run(&self, command: &GuardCommand<'_>) -> Result<CommittedCommand, Unusable> {
        let pairs = pairs_of(command.keys, command.sends());
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

impl GuardCommand<'_> {
    /// The account's sends, for a success that may verify one. They are read along with the other
    /// records, so that an application without sends pays no round trip for them.
    fn sends(&self) -> Option<KeyPair> {
        let is_asked = self.op == GuardOp::OtpSuccess && self.policy.settings.guard.send.enabled;
        let account = self.signals.account.filter(|_| is_asked)?;
        Some(KeyPair::new(RecordKind::SendAccount, account))
    }
}

fn disabled(now: Micros) -> Decision {
    Decision {
        mode: Mode::Disabled,
        enforcement: Enforcement::Disabled,
        ..Decision::allow(now)
    }
}

/// The keys of degraded mode. Without the records a device cannot be known as the owner's: only the
/// host's word makes an attempt trusted.
pub(super) fn degraded_keys(policy: &PolicySet, flow: Flow, signals: &Signals) -> DegradedKeys {
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
        // Where no challenge is required, its absence must not be held against an attempt.
        challenge_passed: signals.captcha_passed || !is_required,
        trust: if signals.trusted {
            Trust::Trusted
        } else {
            Trust::Untrusted
        },
    }
}
