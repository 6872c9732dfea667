//! Many tasks and several nodes at once: nothing over-admitted, nothing lost.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;

use std::sync::Arc;
use std::time::Duration;

use engine_support::shared::Shared;
use engine_support::{Model, START, command, keyring, policy, request};
use palisade::core::facts::{GuardFacts, GuardOp};
use palisade::core::guard::{Attempt, Policies, Records, Signals, evaluate};
use palisade::core::record::{Flow, RecordKey};
use palisade::core::time::{Clock, SECOND};
use palisade::core::{Decision, Mode, Outcome, PolicySet};
use palisade::store::Store;
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::Env;

type Node = Arc<Engine<Shared>>;

struct Cluster {
    nodes: Vec<Node>,
    store: Shared,
    clock: Arc<VirtualClock>,
    policy: Arc<PolicySet>,
}

impl Cluster {
    fn new(nodes: usize, text: &str) -> Self {
        let clock = Arc::new(VirtualClock::at(START));
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let store = Shared(Arc::new(Model::new(Arc::clone(&time))));
        let policy = policy(text, &Env::default());
        let node = |_| {
            let config = EngineConfig {
                policy: Arc::clone(&policy),
                // Nobody is to be refused here because the machine is busy.
                deadline: Duration::from_secs(60),
                ..EngineConfig::new(
                    store.clone(),
                    PolicySet::empty(),
                    keyring(),
                    Arc::clone(&time),
                )
            };
            Arc::new(Engine::new(config))
        };
        Self {
            nodes: (0..nodes).map(node).collect(),
            store: store.clone(),
            clock,
            policy,
        }
    }

    async fn admitted(&self, tasks: usize, each: usize, facts: &str) -> usize {
        let facts = Arc::new(request(facts));
        let running = (0..tasks).map(|task| {
            let node = Arc::clone(&self.nodes[task % self.nodes.len()]);
            let facts = Arc::clone(&facts);
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..each {
                    admitted += usize::from(node.check(&facts).await.decision.is_allowed());
                    tokio::task::yield_now().await;
                }
                admitted
            })
        });
        let mut sum = 0;
        for task in running.collect::<Vec<_>>() {
            sum += task.await.unwrap();
        }
        sum
    }
}

const AUTH: &str = r#"{"ip":"203.0.113.1","method":"POST","path":"/auth/token"}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn l_atomic_64_tasks_on_one_key_admit_exactly_the_limit() {
    for nodes in [1, 4] {
        let cluster = Cluster::new(nodes, "");
        assert_eq!(cluster.admitted(64, 20, AUTH).await, 10, "{nodes} nodes");
        cluster.clock.advance(60 * SECOND);
        assert_eq!(cluster.admitted(64, 20, AUTH).await, 10, "{nodes} nodes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn l_atomic_leased_tokens_of_several_nodes_never_exceed_the_limit() {
    let cluster = Cluster::new(
        4,
        "[[limit]]\nname = \"shared\"\nby = []\nclass = \"read\"\nrate = \"800/min\"\naccuracy = \"leased\"\n\
         [[limit]]\nname = \"ip-read\"\nby = [\"ip\"]\nclass = \"read\"\nrate = \"5000/min\"\n\
         [[limit]]\nname = \"ip-all\"\nby = [\"ip\"]\nrate = \"50000/h\"\n",
    );
    let read = r#"{"ip":"203.0.113.1","method":"GET","path":"/things"}"#;
    assert_eq!(cluster.admitted(64, 30, read).await, 800);
}

fn attacker(task: usize, n: usize) -> GuardFacts {
    let (host, device) = (task % 5, (task + n) % 7);
    command(&format!(
        r#"{{"ip":"203.0.113.{host}","account":"victim","username":"victim","user_agent":"Firefox/{host}.0",
            "device":{{"fingerprint":"d{device}","confidence":"medium"}}}}"#
    ))
}

struct Answered {
    facts: GuardFacts,
    decision: Decision,
}

async fn attack(cluster: &Cluster, tasks: usize, each: usize) -> Vec<Answered> {
    let running = (0..tasks).map(|task| {
        let node = Arc::clone(&cluster.nodes[task % cluster.nodes.len()]);
        let clock = Arc::clone(&cluster.clock);
        tokio::spawn(async move {
            let mut answers = Vec::new();
            for n in 0..each {
                clock.advance(7_000);
                let facts = attacker(task, n);
                let answer = node.guard(GuardOp::LoginFailure, &facts).await.unwrap();
                let decision = answer.decision;
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

/// Replays every answer in the order of the account's revisions through the pure
/// rules: every answer and every stored byte must come out again.
async fn replay(cluster: &Cluster, mut answers: Vec<Answered>) {
    answers.sort_by_key(revision);
    let ring = keyring();
    let settings = &cluster.policy.settings;
    let policies = Policies {
        guard: &settings.guard,
        lockout: &settings.lockout,
    };
    let mut stored = std::collections::HashMap::<RecordKey, Vec<u8>>::new();
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
        let loaded = cluster.store.load(&[key]).await.unwrap();
        assert_eq!(
            loaded.records[0].as_ref().unwrap().bytes,
            bytes,
            "{}",
            key.kind.name()
        );
    }
}

fn decode<'b>(
    keys: &palisade::core::guard::GuardKeys,
    bytes: impl Fn(RecordKey) -> &'b [u8],
) -> Records {
    use palisade::core::guard::{Account, Device, Network};
    use palisade::core::lockout::Lockout;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn f_conflict_10_000_failures_on_one_account_replay_byte_for_byte() {
    let cluster = Cluster::new(1, "");
    let answers = attack(&cluster, 64, 157).await;
    assert_eq!(answers.len(), 10_048);
    assert!(
        answers.iter().all(|a| a.decision.mode == Mode::Normal),
        "none was refused"
    );
    assert!(
        answers
            .iter()
            .any(|a| a.decision.outcome == Outcome::HardBlock)
    );
    replay(&cluster, answers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn f_conflict_several_nodes_lose_no_update_and_refuse_what_they_cannot_write() {
    let cluster = Cluster::new(4, "");
    let answers = attack(&cluster, 64, 40).await;
    let (applied, refused): (Vec<_>, Vec<_>) = answers
        .into_iter()
        .partition(|answered| answered.decision.mode == Mode::Normal);
    assert!(!applied.is_empty());
    for answered in &refused {
        assert_eq!(
            answered.decision.rule,
            Some(palisade::core::Rule::F_CONFLICT)
        );
    }
    for node in &cluster.nodes {
        let health = node.health();
        assert!(
            health.circuits.iter().all(|(_, state)| *state == "closed"),
            "no breaker failure"
        );
    }
    replay(&cluster, applied).await;
}
