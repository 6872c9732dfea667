//! Guard commands: answers with the store are reproduced by the pure rules, and answers without it
//! follow the failure tables.

use std::collections::HashMap;
use std::sync::Arc;

use palisade::core::decision::KeyKind;
use palisade::core::facts::{GuardFacts, GuardOp};
use palisade::core::failure::Policy;
use palisade::core::guard::{
    Account, Attempt, Device, Evaluation, GuardKeys, KeyPair, Network, Policies, Records, Signals,
    evaluate,
};
use palisade::core::lockout::Lockout;
use palisade::core::record::{Flow, RecordKey};
use palisade::core::time::{MINUTE, Micros, SECOND};
use palisade::core::{Decision, Keyring, Mode, Outcome, PolicySet, Rule};
use parking_lot::Mutex;

use crate::breakers::Expected;
use crate::world::{Command, CommandLog, Found, World, recalled};

pub(crate) struct Asked {
    pub(crate) node: usize,
    pub(crate) op: GuardOp,
    pub(crate) facts: GuardFacts,
    pub(crate) account: u64,
    pub(crate) ip: u64,
    pub(crate) agent: u64,
    pub(crate) expected_at_start: Expected,
}

/// A second count of a node's degraded counters, made from its answers.
#[derive(Default)]
struct Caps {
    /// (node, flow, kind of key, key) → instants of its counted attempts.
    counted: HashMap<(usize, Flow, &'static str, u64), Vec<Micros>>,
    /// (node, flow, account) → instant of the last counted check.
    checked: HashMap<(usize, Flow, u64), Micros>,
    /// (node, flow, account) → end of the HARD block that the node knows of.
    blocked: HashMap<(usize, Flow, u64), Micros>,
}

pub(crate) struct Commands {
    world: Arc<World>,
    policy: Arc<PolicySet>,
    keyring: Keyring,
    caps: Mutex<Caps>,
    answers: Mutex<HashMap<&'static str, u64>>,
    refused: Mutex<bool>,
}

impl Commands {
    pub(crate) fn new(world: Arc<World>, policy: Arc<PolicySet>, keyring: Keyring) -> Self {
        Self {
            world,
            policy,
            keyring,
            caps: Mutex::default(),
            answers: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    fn violated(&self, property: &str, asked: &Asked, detail: &str) {
        let op = asked.op.name();
        self.world
            .violated(property, &format!("{op} on node {}: {detail}", asked.node));
    }

    pub(crate) fn answered(&self, asked: &Asked, command: &Command, decision: &Decision) {
        *self.answers.lock().entry(decision.mode.name()).or_default() += 1;
        *self.refused.lock() |= decision.rule == Some(Rule::F_REENTRY);
        let log = command.log.lock();
        if asked.expected_at_start != Expected::Normal && log.calls > 0 {
            self.violated(
                "F-CLEAN",
                asked,
                "the store was called while the breaker was open",
            );
        }
        let mut keys: Vec<RecordKey> = log.committed.iter().flatten().map(|w| w.key).collect();
        let written = keys.len();
        keys.sort_unstable();
        keys.dedup();
        if keys.len() < written {
            self.violated("guard §12", asked, "one command was written twice");
        }
        let is_failed = log.failed || asked.expected_at_start != Expected::Normal;
        // The breaker may have opened while the command waited for its turn.
        let policy = Policy::from(asked.op.flow());
        let is_open = self.world.expected(asked.node, policy) != Expected::Normal;
        let is_answered = decision.mode == Mode::Normal;
        match (decision.mode, is_failed || (is_open && !is_answered)) {
            (Mode::Normal, false) => {
                self.replay(asked, &log, Some(decision));
                self.saw(asked, decision);
            }
            (Mode::Normal, true) => {
                self.violated("failure §1", asked, "a normal answer without the store's")
            }
            (_, true) => {
                self.replay(asked, &log, None);
                self.follows_the_table(asked, decision);
            }
            (_, false) => {
                self.refused_alone(asked, decision);
                if asked.op.flow() == Flow::Api {
                    self.follows_the_table(asked, decision);
                }
            }
        }
    }

    /// Checks the answer to a command that was refused because of one record, not because of the
    /// store.
    fn refused_alone(&self, asked: &Asked, decision: &Decision) {
        let alone = [Rule::F_CONFLICT, Rule::F_CORRUPT, Rule::F_VERSION];
        let is_alone = decision.reasons.iter().any(|r| alone.contains(&r.rule));
        let wanted = match asked.op.flow() {
            Flow::Login | Flow::Otp => Mode::FailClosed,
            Flow::Api => Mode::FailOpen,
        };
        if !is_alone || decision.mode != wanted {
            self.violated(
                "failure §1",
                asked,
                "a failure mode although the store answered",
            );
        }
    }

    /// The records that the command before this one has left on the node.
    fn recalled(&self, node: usize, keys: &GuardKeys) -> Option<(Micros, Found)> {
        let pairs = [keys.account, Some(keys.network), keys.device, keys.lockout];
        let keys = pairs.into_iter().flatten().map(|pair| pair.current);
        recalled(&self.world.shared.lock().heard[node], keys)
    }

    /// Checks that the answer and the writes are those that the rules derive from the records that
    /// were read.
    fn replay(&self, asked: &Asked, log: &CommandLog, told: Option<&Decision>) {
        let flow = asked.op.flow();
        let Some(attempt) = asked.op.attempt() else {
            return;
        };
        let signals = Signals::resolve(&self.keyring, asked.op, &asked.facts);
        let keys = signals.keys(flow);
        let recalled = match (&log.loaded, told) {
            (None, Some(_)) => self.recalled(asked.node, &keys),
            _ => None,
        };
        let Some((now, found)) = log.loaded.as_ref().or(recalled.as_ref()) else {
            if told.is_some() {
                self.violated(
                    "guard §12",
                    asked,
                    "an answer from records that were not read",
                );
            }
            return;
        };
        let is_left = !log.is_written && !log.is_read_again;
        if told.is_some() && !log.committed.is_empty() && is_left {
            self.violated("guard §12", asked, "an answer whose change is half written");
        }
        // A cluster may write a part first and the rest later, so that no single read of the
        // records explains all writes.
        if log.parted || told.is_none() && log.committed.is_empty() {
            return;
        }
        let Some(records) = decoded(&keys, found) else {
            return;
        };
        let settings = &self.policy.settings;
        let policies = Policies {
            guard: &settings.guard,
            lockout: &settings.lockout,
        };
        let evaluation = evaluate(policies, flow, attempt, &signals, records, *now);
        let written = written(&keys, &evaluation);
        if let Some(decision) = told {
            let mut expected = evaluation.answer.decision(*now);
            expected.revisions = revisions(&keys, found, &written);
            if expected != *decision {
                self.violated("guard §12", asked, "the answer is not what the rules say");
            }
            if !written.is_empty() && log.committed.is_empty() {
                self.violated("guard §12", asked, "an answer whose change was lost");
            }
        }
        if let Some(committed) = log.committed.first() {
            let committed: HashMap<RecordKey, &Option<Vec<u8>>> =
                committed.iter().map(|w| (w.key, &w.bytes)).collect();
            let is_same = written.len() == committed.len()
                && written.iter().all(|(key, bytes)| {
                    committed
                        .get(key)
                        .is_some_and(|is| is.as_ref() == Some(bytes))
                });
            if !is_same {
                self.violated("guard §12", asked, "the records are not what the rules say");
            }
        }
    }

    /// Notes a HARD block of the account that this node knows of now.
    fn saw(&self, asked: &Asked, decision: &Decision) {
        let of_account = decision.reasons.iter().find(|reason| {
            reason.key == Some(KeyKind::Account) && reason.decision == Outcome::HardBlock
        });
        if let Some(seconds) = of_account.and_then(|reason| reason.retry_after) {
            // The answer rounds up to whole seconds, so the last second is uncertain.
            let sure = (seconds - 1) * SECOND;
            let until = self.world.node_now(asked.node).plus(sure);
            let key = (asked.node, asked.op.flow(), asked.account);
            let mut caps = self.caps.lock();
            let known = caps.blocked.entry(key).or_insert(until);
            *known = until.max(*known);
        }
    }

    /// F-BLOCKS: a block that the node has seen binds without the store, too.
    fn seen_blocks_bind(&self, asked: &Asked, decision: &Decision) {
        let key = (asked.node, asked.op.flow(), asked.account);
        let until = self.caps.lock().blocked.get(&key).copied();
        let runs = until.is_some_and(|until| self.world.node_now(asked.node) < until);
        if runs && decision.outcome != Outcome::HardBlock {
            self.violated("F-BLOCKS", asked, "a block that was seen does not bind");
        }
    }

    /// Checks an answer without the store.
    fn follows_the_table(&self, asked: &Asked, decision: &Decision) {
        let flow = asked.op.flow();
        let expected = self.world.expected(asked.node, Policy::from(flow));
        let wanted = match (expected, flow) {
            (Expected::Refusing, _) => (Mode::FailClosed, Some(Rule::F_REENTRY)),
            (Expected::Normal, Flow::Login | Flow::Otp) => (Mode::FailClosed, Some(Rule::F_CLOSED)),
            (Expected::Normal, Flow::Api) => (Mode::FailOpen, None),
            (Expected::Degraded, _) => (Mode::Degraded, None),
        };
        if decision.mode != wanted.0 || wanted.1.is_some() && decision.rule != wanted.1 {
            let is = (decision.mode.name(), decision.rule.map(Rule::id));
            self.violated("failure §3", asked, &format!("{is:?}, not {wanted:?}"));
        }
        if wanted.1.is_none() {
            self.seen_blocks_bind(asked, decision);
            self.caps_hold(asked, decision);
        }
    }

    fn caps_hold(&self, asked: &Asked, decision: &Decision) {
        let flow = asked.op.flow();
        let now = self.world.node_now(asked.node);
        let is_seen_block =
            decision.outcome == Outcome::HardBlock && decision.rule != Some(Rule::F_DEGRADED);
        // A lockout that this node has seen; it uses up no cap either.
        let is_seen_lockout = decision.outcome == Outcome::Deny
            && decision.reasons.iter().all(|reason| {
                let rules = [Rule::A_HARD, Rule::A_WINDOW, Rule::A_CAPTCHA];
                rules.contains(&reason.rule)
            });
        if is_seen_block || is_seen_lockout {
            return;
        }
        let attempt = asked.op.attempt().unwrap_or(Attempt::Check);
        if attempt == Attempt::Success {
            if decision.outcome != Outcome::Allow {
                self.violated("F-DEGRADED", asked, "a success was refused by a cap");
            }
            return;
        }
        let mut caps = self.caps.lock();
        let account = (asked.node, flow, asked.account);
        let follows = attempt == Attempt::Failure
            && caps
                .checked
                .get(&account)
                .is_some_and(|at| now.since(*at) < MINUTE);
        if follows {
            if decision.outcome != Outcome::Allow {
                self.violated(
                    "F-DEGRADED",
                    asked,
                    "a failure was counted beside its check",
                );
            }
            return;
        }
        let (window, keys) = capped(asked, flow);
        let is_full = keys.iter().any(|(kind, key, cap)| {
            let counted = caps
                .counted
                .entry((asked.node, flow, kind, *key))
                .or_default();
            counted.retain(|at| now.since(*at) < window);
            counted.len() >= *cap
        });
        if is_full == (decision.outcome == Outcome::Allow) {
            self.violated(
                "F-DEGRADED",
                asked,
                if is_full {
                    "admitted over a cap"
                } else {
                    "refused below the caps"
                },
            );
        }
        if !is_full {
            for (kind, key, _) in keys {
                caps.counted
                    .entry((asked.node, flow, kind, key))
                    .or_default()
                    .push(now);
            }
            if attempt == Attempt::Check {
                caps.checked.insert(account, now);
            }
        }
    }

    /// Whether the re-entry guard has refused a command.
    pub(crate) fn was_refusing(&self) -> bool {
        *self.refused.lock()
    }

    pub(crate) fn counts(&self) -> HashMap<&'static str, u64> {
        self.answers.lock().clone()
    }
}

type CappedKeys = Vec<(&'static str, u64, usize)>;

fn capped(asked: &Asked, flow: Flow) -> (u64, CappedKeys) {
    let (account, prefix) = (asked.account, asked.ip);
    match flow {
        Flow::Login => (10 * MINUTE, vec![("K4", account, 3), ("K1", prefix, 20)]),
        Flow::Otp => (15 * MINUTE, vec![("K4", account, 2), ("K1", prefix, 10)]),
        Flow::Api => (
            MINUTE,
            vec![("K1", prefix, 120), ("K2", prefix * 100 + asked.agent, 60)],
        ),
    }
}

fn bytes(found: &Found, pair: Option<KeyPair>) -> Option<&[u8]> {
    let stored = found.get(&pair?.current)?.as_ref()?;
    Some(&stored.bytes)
}

/// The decoded records; `None` if one of them cannot be read.
fn decoded(keys: &GuardKeys, found: &Found) -> Option<Records> {
    Some(Records {
        account: bytes(found, keys.account)
            .map_or(Some(Account::default()), |b| Account::decode(b).ok())?,
        network: bytes(found, Some(keys.network))
            .map_or(Some(Network::default()), |b| Network::decode(b).ok())?,
        device: bytes(found, keys.device)
            .map_or(Some(Device::default()), |b| Device::decode(b).ok())?,
        lockout: bytes(found, keys.lockout)
            .map_or(Some(Lockout::default()), |b| Lockout::decode(b).ok())?,
    })
}

fn written(keys: &GuardKeys, evaluation: &Evaluation) -> Vec<(RecordKey, Vec<u8>)> {
    let (records, changed) = (&evaluation.records, evaluation.changed);
    [
        (keys.account, changed.account, records.account.encode()),
        (
            Some(keys.network),
            changed.network,
            records.network.encode(),
        ),
        (keys.device, changed.device, records.device.encode()),
        (keys.lockout, changed.lockout, records.lockout.encode()),
    ]
    .into_iter()
    .filter_map(|(pair, changed, bytes)| Some((pair.filter(|_| changed)?.current, bytes)))
    .collect()
}

fn revisions(
    keys: &GuardKeys,
    found: &Found,
    written: &[(RecordKey, Vec<u8>)],
) -> Vec<(&'static str, u64)> {
    [keys.account, Some(keys.network), keys.device, keys.lockout]
        .into_iter()
        .flatten()
        .map(|pair| {
            let key = pair.current;
            let read = found
                .get(&key)
                .and_then(Option::as_ref)
                .map_or(0, |s| s.revision);
            let is_written = written.iter().any(|(written, _)| *written == key);
            (key.kind.name(), read + u64::from(is_written))
        })
        .collect()
}
