//! Many failures on one account, and their replay through the pure rules.

use std::collections::HashMap;
use std::sync::Arc;

use palisade::Engine;
use palisade::core::facts::{GuardFacts, GuardOp};
use palisade::core::guard::{
    Account, Attempt, Device, GuardKeys, Network, Policies, Records, Signals, evaluate,
};
use palisade::core::lockout::Lockout;
use palisade::core::record::{Flow, RecordKey};
use palisade::core::{Decision, PolicySet};
use palisade::store::Store;

use super::{command, keyring};

fn attacker(task: usize, n: usize) -> GuardFacts {
    let (host, device) = (task % 5, (task + n) % 7);
    command(&format!(
        r#"{{"ip":"203.0.113.{host}","account":"victim","username":"victim","user_agent":"Firefox/{host}.0",
            "device":{{"fingerprint":"d{device}","confidence":"medium"}}}}"#
    ))
}

/// A command and its answer.
pub struct Answered {
    pub facts: GuardFacts,
    pub decision: Decision,
}

/// Makes `tasks` tasks report failures on one account, spread over the nodes. `tick` is called
/// before each failure.
pub async fn attack(
    nodes: &[Arc<Engine>],
    tasks: usize,
    each: usize,
    tick: impl Fn() + Clone + Send + 'static,
) -> Vec<Answered> {
    let running = (0..tasks).map(|task| {
        let node = Arc::clone(&nodes[task % nodes.len()]);
        let tick = tick.clone();
        tokio::spawn(async move {
            let mut answers = Vec::new();
            for n in 0..each {
                tick();
                let facts = attacker(task, n);
                let answer = node.guard(GuardOp::LoginFailure, &facts).await.unwrap();
                let decision = *answer.decision;
                answers.push(Answered { facts, decision });
            }
            answers
        })
    });
    let mut all = Vec::new();
    for task in running.collect::<Vec<_>>() {
        all.extend(task.await.unwrap());
    }
    all
}

fn revision(answered: &Answered) -> u64 {
    let found = answered.decision.revisions.iter();
    let account = found.clone().find(|(kind, _)| *kind == "account-login");
    account.unwrap().1
}

/// Replays every answer through the pure rules, in the order of the account's revisions. Every
/// answer and every stored byte must be reproduced.
pub async fn replay(policy: &PolicySet, store: &dyn Store, mut answers: Vec<Answered>) {
    answers.sort_by_key(revision);
    let ring = keyring();
    let settings = &policy.settings;
    let policies = Policies {
        guard: &settings.guard,
        lockout: &settings.lockout,
    };
    let mut stored = HashMap::<RecordKey, Vec<u8>>::new();
    for (index, answered) in answers.iter().enumerate() {
        assert_eq!(
            revision(answered),
            index as u64 + 1,
            "one revision per command"
        );
        let op = GuardOp::LoginFailure;
        let signals = Signals::resolve(&ring, op, &answered.facts);
        let keys = signals.keys(Flow::Login);
        let bytes = |key: RecordKey| stored.get(&key).map_or(&[][..], Vec::as_slice);
        let records = decode(&keys, bytes);
        let at = answered.decision.at;
        let found = evaluate(
            policies,
            Flow::Login,
            Attempt::Failure,
            &signals,
            records,
            at,
        );
        let mut expected = found.answer.decision(at);
        expected.revisions.clone_from(&answered.decision.revisions);
        assert_eq!(expected, answered.decision);
        let records = found.records;
        let written = [
            (
                keys.account,
                found.changed.account,
                records.account.encode(),
            ),
            (
                Some(keys.network),
                found.changed.network,
                records.network.encode(),
            ),
            (keys.device, found.changed.device, records.device.encode()),
            (
                keys.lockout,
                found.changed.lockout,
                records.lockout.encode(),
            ),
        ];
        for (pair, changed, bytes) in written {
            if let Some(pair) = pair.filter(|_| changed) {
                stored.insert(pair.current, bytes);
            }
        }
    }
    for (key, bytes) in stored {
        let loaded = store.load(&[key]).await.unwrap();
        assert_eq!(
            loaded.records[0].as_ref().unwrap().bytes,
            bytes,
            "{}",
            key.kind.name()
        );
    }
}

fn decode<'b>(keys: &GuardKeys, bytes: impl Fn(RecordKey) -> &'b [u8]) -> Records {
    let of = |key: RecordKey| Some(bytes(key)).filter(|bytes| !bytes.is_empty());
    Records {
        account: of(keys.account.unwrap().current)
            .map_or_else(Account::default, |b| Account::decode(b).unwrap()),
        network: of(keys.network.current)
            .map_or_else(Network::default, |b| Network::decode(b).unwrap()),
        device: of(keys.device.unwrap().current)
            .map_or_else(Device::default, |b| Device::decode(b).unwrap()),
        lockout: of(keys.lockout.unwrap().current)
            .map_or_else(Lockout::default, |b| Lockout::decode(b).unwrap()),
    }
}
