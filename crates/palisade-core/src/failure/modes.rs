//! Answers to guard operations while the store cannot be asked. They are chosen per flow, say so
//! themselves, and are never written anywhere shared.

use super::blocks::BlockCache;
use super::breaker::PolicyMode;
use super::caps::{CapKeys, CapTable, DegradedCaps, ExceededCaps};
use super::lockouts::LockoutCache;
use crate::decision::{Decision, Enforcement, ErrorCode, KeyKind, Level, Mode, Outcome, Reason};
use crate::facts::Attempt;
use crate::guard::aggregate::{Answer, Candidate};
use crate::key::Digest;
use crate::record::Flow;
use crate::rule::Rule;
use crate::time::{Micros, SECOND, retry_after_seconds};

/// Whether the request comes from a trusted session device (G-ADVISORY).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Trust {
    /// The host asserts that it does. Our own record of the association cannot be read now.
    Trusted,
    /// The request comes from no such device, or that cannot be known.
    #[default]
    Untrusted,
}

/// The subject of a request, as keyed digests under the current secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DegradedKeys {
    /// Address prefix (K1).
    pub prefix: Digest,
    /// User agent; with the prefix it is K2.
    pub user_agent: Digest,
    /// Account (K4).
    pub account: Option<Digest>,
    /// Fingerprint; with the prefix K3, with the account K5, alone the device.
    pub fingerprint: Option<Digest>,
    /// Username with prefix, where the lockout is enforced.
    pub lockout: Option<Digest>,
    /// True if no challenge is outstanding for this request: it was passed, or none is required.
    pub challenge_passed: bool,
    /// Whether the session is trusted.
    pub trust: Trust,
}

/// Local protection of one flow: its caps, and the blocks and lockouts it has seen.
#[derive(Clone, Debug)]
pub struct DegradedGuard {
    flow: Flow,
    caps: DegradedCaps,
    /// Counters of sends, apart from those of attempts: a code that is sent is also checked.
    sends: DegradedCaps,
    blocks: BlockCache,
    lockouts: LockoutCache,
}

impl DegradedGuard {
    /// No blocks and no counts, with the fixed caps of `flow`.
    #[must_use]
    pub fn new(flow: Flow) -> Self {
        Self {
            flow,
            caps: DegradedCaps::new(CapTable::of(flow)),
            sends: DegradedCaps::new(CapTable::of(flow)),
            blocks: BlockCache::default(),
            lockouts: LockoutCache::default(),
        }
    }

    /// The answer to a request whose store call failed or was not made. A call of a heavy endpoint
    /// is handled as a check: it is judged before any work is done.
    ///
    /// `mode` is the policy's mode after the failure was reported: the request that opens the
    /// circuit is already answered in the new mode.
    pub fn answer(
        &mut self,
        attempt: Attempt,
        keys: &DegradedKeys,
        mode: PolicyMode,
        now: Micros,
    ) -> Decision {
        match (mode, self.flow) {
            (PolicyMode::FailClosed { until }, _) => reentry(until, now),
            (PolicyMode::Normal, Flow::Login | Flow::Otp) => fail_closed(Rule::F_CLOSED, now),
            (PolicyMode::Normal, Flow::Api) => self.locally(attempt, keys, Mode::FailOpen, now),
            (PolicyMode::Degraded, _) => self.locally(attempt, keys, Mode::Degraded, now),
        }
    }

    /// The answer to a send whose store call failed or was not made. It is counted by its account,
    /// or by its destination if it has none.
    pub fn answer_send(&mut self, keys: &DegradedKeys, mode: PolicyMode, now: Micros) -> Decision {
        match mode {
            PolicyMode::FailClosed { until } => reentry(until, now),
            PolicyMode::Normal => fail_closed(Rule::F_CLOSED, now),
            PolicyMode::Degraded => {
                let exceeded = self.sends.count(Attempt::Check, &cap_keys(keys), now);
                capped(&exceeded, Mode::Degraded, now)
            }
        }
    }

    /// The blocks this node has seen.
    pub const fn blocks(&mut self) -> &mut BlockCache {
        &mut self.blocks
    }

    /// The lockouts this node has seen.
    pub const fn lockouts(&mut self) -> &mut LockoutCache {
        &mut self.lockouts
    }

    /// The local counters.
    #[must_use]
    pub const fn caps(&self) -> &DegradedCaps {
        &self.caps
    }

    /// Counters, blocks and lockouts kept now.
    #[must_use]
    pub fn tracked(&self) -> usize {
        self.caps.len() + self.sends.len() + self.blocks.len() + self.lockouts.len()
    }

    /// Frees the memory of counters, blocks and lockouts that have expired.
    pub fn release(&mut self, now: Micros) {
        self.caps.release(now);
        self.sends.release(now);
        self.blocks.expire(now);
        self.lockouts.expire(now);
    }

    fn locally(
        &mut self,
        attempt: Attempt,
        keys: &DegradedKeys,
        mode: Mode,
        now: Micros,
    ) -> Decision {
        if let Some(refusal) = self.seen(attempt, keys, mode, now) {
            return refusal;
        }
        // A success is not counted: the caps bound guesses.
        if attempt == Attempt::Success {
            self.passed(keys, now);
            return allowed(mode, now);
        }
        let exceeded = self.caps.count(attempt, &cap_keys(keys), now);
        capped(&exceeded, mode, now)
    }

    /// F-BLOCKS: the refusal by blocks and lockouts that this node has seen, aggregated like those
    /// of the store's records.
    fn seen(
        &mut self,
        attempt: Attempt,
        keys: &DegradedKeys,
        mode: Mode,
        now: Micros,
    ) -> Option<Decision> {
        // Before the lookup: this request must not meet the challenge that it has passed.
        if keys.challenge_passed {
            self.passed(keys, now);
        }
        let block = self.blocks.binding(self.flow, attempt, keys, now);
        let block = block.map(|(key, block)| Candidate {
            rule: block.rule,
            key,
            outcome: Outcome::HardBlock,
            level: Some(block.level),
            retry_after: retry_after_seconds(block.until.since(now)),
        });
        let lockouts = self.lockouts.binding(attempt, keys, now);
        let candidates: Vec<Candidate> = block.into_iter().chain(lockouts).collect();
        let answer = Answer {
            challenge: self.lockouts.challenge(keys, now),
            ..Answer::of(candidates)
        };
        (answer.outcome != Outcome::Allow).then(|| Decision {
            mode,
            enforcement: Enforcement::Degraded,
            ..answer.decision(now)
        })
    }

    fn passed(&mut self, keys: &DegradedKeys, now: Micros) {
        if let Some(name) = keys.lockout {
            self.lockouts.pass(name, now);
        }
    }
}

const fn cap_keys(keys: &DegradedKeys) -> CapKeys {
    CapKeys {
        prefix: keys.prefix,
        user_agent: keys.user_agent,
        account: keys.account,
    }
}

fn capped(exceeded: &ExceededCaps, mode: Mode, now: Micros) -> Decision {
    match exceeded.is_empty() {
        true => allowed(mode, now),
        false => over_cap(exceeded, mode, now),
    }
}

/// FAIL_CLOSED for one request: `F-CLOSED`, or `F-CORRUPT`, `F-VERSION`, `F-CONFLICT` where the
/// trouble is one record and not the store.
#[must_use]
pub fn fail_closed(rule: Rule, now: Micros) -> Decision {
    blocked(
        Refusal {
            rule,
            level: Level::L2,
            seconds: l2_seconds(),
            mode: Mode::FailClosed,
            error: ErrorCode::ServiceUnavailable,
        },
        &[None],
        now,
    )
}

fn reentry(until: Micros, now: Micros) -> Decision {
    blocked(
        Refusal {
            rule: Rule::F_REENTRY,
            level: Level::L2,
            seconds: retry_after_seconds(until.since(now)),
            mode: Mode::FailClosed,
            error: ErrorCode::ServiceUnavailable,
        },
        &[None],
        now,
    )
}

fn over_cap(exceeded: &ExceededCaps, mode: Mode, now: Micros) -> Decision {
    let keys: arrayvec::ArrayVec<Option<KeyKind>, 3> =
        exceeded.iter().map(|kind| Some(*kind)).collect();
    blocked(
        Refusal {
            rule: Rule::F_DEGRADED,
            level: Level::L2,
            seconds: l2_seconds(),
            mode,
            error: ErrorCode::RateLimitExceeded,
        },
        &keys,
        now,
    )
}

const fn l2_seconds() -> u64 {
    Level::L2.duration() / SECOND
}

const fn allowed(mode: Mode, now: Micros) -> Decision {
    let mut decision = Decision::allow(now);
    decision.mode = mode;
    decision.enforcement = Enforcement::Degraded;
    decision
}

#[derive(Clone, Copy)]
struct Refusal {
    rule: Rule,
    level: Level,
    seconds: u64,
    mode: Mode,
    /// `ServiceUnavailable` where the store is the reason: the answer must not look like an
    /// exceeded limit.
    error: ErrorCode,
}

fn blocked(refusal: Refusal, keys: &[Option<KeyKind>], now: Micros) -> Decision {
    let reason = |key: &Option<KeyKind>| Reason {
        rule: refusal.rule,
        key: *key,
        limit: None,
        decision: Outcome::HardBlock,
        level: Some(refusal.level),
        retry_after: Some(refusal.seconds),
    };
    Decision {
        level: Some(refusal.level),
        retry_after: Some(refusal.seconds),
        mode: refusal.mode,
        reasons: keys.iter().map(reason).collect(),
        enforcement: Enforcement::Degraded,
        ..Decision::refuse(now, Outcome::HardBlock, refusal.rule, refusal.error)
    }
}
