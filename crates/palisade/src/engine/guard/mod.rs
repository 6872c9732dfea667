//! Guard commands over the store: load the records, apply the rules, commit by
//! compare-and-swap.

mod api;
mod login;
mod operate;
mod records;
mod serial;
mod sessions;

use std::future::Future;
use std::pin::pin;

use palisade_core::Digest;
use palisade_core::decision::{Decision, Enforcement, KeyKind};
use palisade_core::facts::{Attempt, FieldError, GuardFacts, GuardOp};
use palisade_core::failure::modes::fail_closed;
use palisade_core::failure::{CallDecision, DegradedKeys, Policy, SeenBlock, Trust};
use palisade_core::guard::{Candidate, GuardKeys, Signals};
use palisade_core::record::Flow;
use palisade_core::rule::Rule;
use palisade_core::time::Micros;
use palisade_store::{Store, StoreError};

use super::charge::failure_kind;
use super::{Engine, RequestAnswer, Seen, Subject};
use crate::deadline::until;

pub use operate::{BLOCKS_LISTED_MAX, BlockView, LiftTarget};
pub(super) use serial::Stripes;

/// How often a lost compare-and-swap is tried again (F-CONFLICT).
const RETRIES_MAX: usize = 8;

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
struct Applied {
    decision: Decision,
    notes: GuardNotes,
    seen: Vec<SeenHard>,
}

/// A HARD block in the records of this command, to be remembered for an outage.
struct SeenHard {
    kind: KeyKind,
    member: Option<Digest>,
    block: SeenBlock,
    /// How long it still runs by the store's clock.
    left_us: u64,
}

/// Why the records could not be used.
enum Unusable {
    /// The store failed.
    Store(StoreError),
    /// A record is unreadable, too new, or changed too often.
    Record(Rule),
}

/// Who refuses instead.
enum Refused {
    /// This one request, by a rule of its own.
    Alone(Rule),
    /// The flow's failure mode decides.
    ByMode,
}

impl From<StoreError> for Unusable {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl<S: Store> Engine<S> {
    /// Decides a guard command.
    ///
    /// # Errors
    /// A missing account on login or OTP; nothing is touched then.
    pub async fn guard(
        &self,
        op: GuardOp,
        facts: &GuardFacts,
    ) -> Result<RequestAnswer, FieldError> {
        if facts.account.is_none() && op.flow() != Flow::Api {
            return Err(FieldError::new("account", "is required"));
        }
        let policy = self.policy.load_full();
        let (decision, notes) = if policy.enabled {
            let signals = Signals::resolve(&self.keyring, op, facts);
            self.judge_command(&policy, op, &signals).await
        } else {
            (disabled(self.now()), GuardNotes::default())
        };
        self.observer.decided(&Seen {
            subject: Subject::Guard(op, facts),
            decision: &decision,
            bypassed: None,
            guard: Some(&notes),
        });
        Ok(RequestAnswer { decision, policy })
    }

    async fn judge_command(
        &self,
        policy: &palisade_core::PolicySet,
        op: GuardOp,
        signals: &Signals,
    ) -> (Decision, GuardNotes) {
        let flow = op.flow();
        let keys = signals.keys(flow);
        let applied = match flow {
            Flow::Api => {
                self.within_breaker(flow, &keys, self.hit(policy, signals, &keys))
                    .await
            }
            Flow::Login | Flow::Otp => {
                let attempt = self.attempt(policy, op, signals, &keys);
                self.within_breaker(flow, &keys, attempt).await
            }
        };
        let now = self.now();
        let keys = degraded_keys(signals);
        match applied {
            Ok(applied) => {
                self.remember_blocks(flow, keys, &applied, now);
                (applied.decision, applied.notes)
            }
            Err(Refused::Alone(rule)) => (fail_closed(rule, now), GuardNotes::default()),
            Err(Refused::ByMode) => {
                let attempt = op.attempt().unwrap_or(Attempt::Check);
                let answer = self.modes.lock().answer(flow, attempt, &keys, now);
                (answer, GuardNotes::default())
            }
        }
    }

    /// Runs a command behind its flow's breaker, all of it within the deadline:
    /// waiting for its turn, loading, and every retry.
    async fn within_breaker(
        &self,
        flow: Flow,
        keys: &GuardKeys,
        command: impl Future<Output = Result<Applied, Unusable>>,
    ) -> Result<Applied, Refused> {
        let policy = Policy::from(flow);
        let started = self.now();
        let CallDecision::Call(permit) = self.modes.lock().admit(policy, started) else {
            self.observer.not_asked(policy);
            return Err(Refused::ByMode);
        };
        let ends = tokio::time::Instant::now() + self.deadline;
        let Ok(_turn) = until(ends, pin!(self.stripes.turn(keys))).await else {
            return Err(Refused::Alone(Rule::F_CONFLICT));
        };
        let result = until(ends, pin!(command))
            .await
            .unwrap_or(Err(Unusable::Store(StoreError::TimedOut)));
        let now = self.now();
        let took = now.since(started);
        let failed = match &result {
            Err(Unusable::Store(error)) => Some(error),
            Ok(_) | Err(Unusable::Record(_)) => None,
        };
        self.observer.store_call(took, failed.map(StoreError::kind));
        let events = match failed {
            None => self.modes.lock().on_success(policy, permit, took, now),
            Some(error) => {
                let kind = failure_kind(error);
                self.modes.lock().on_failure(policy, permit, kind, now)
            }
        };
        self.report(policy, &events, now);
        result.map_err(|unusable| match unusable {
            Unusable::Store(_) => Refused::ByMode,
            Unusable::Record(rule) => Refused::Alone(rule),
        })
    }

    /// F-BLOCKS: what binds now must bind in an outage too.
    fn remember_blocks(&self, flow: Flow, keys: DegradedKeys, applied: &Applied, now: Micros) {
        if applied.seen.is_empty() {
            return;
        }
        let mut modes = self.modes.lock();
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

fn disabled(now: Micros) -> Decision {
    Decision {
        enforcement: Enforcement::Disabled,
        ..Decision::allow(now)
    }
}

/// What is left of the signals without the records: only the host's word gives
/// trust.
fn degraded_keys(signals: &Signals) -> DegradedKeys {
    DegradedKeys {
        prefix: signals.prefix.current,
        user_agent: signals.user_agent.current,
        account: signals.account.map(|account| account.current),
        fingerprint: signals.fingerprint.map(|found| found.digest.current),
        trust: if signals.trusted {
            Trust::Trusted
        } else {
            Trust::Untrusted
        },
    }
}
