//! Many tasks and several nodes at once: no over-admission and no lost update.
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

use engine_support::replay::{Answered, attack, replay};
use engine_support::shared::Shared;
use engine_support::{Model, START, keyring, policy, request};
use palisade::core::time::{Clock, SECOND};
use palisade::core::{Mode, Outcome, PolicySet};
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::Env;

type Node = Arc<Engine>;

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
                // Long, so that no request is refused because the machine is busy.
                deadline: Duration::from_secs(60),
                ..EngineConfig::new(
                    Arc::new(store.clone()),
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

async fn attacked(cluster: &Cluster, tasks: usize, each: usize) -> Vec<Answered> {
    let clock = Arc::clone(&cluster.clock);
    attack(&cluster.nodes, tasks, each, move || clock.advance(7_000)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn f_conflict_10_000_failures_on_one_account_replay_byte_for_byte() {
    let cluster = Cluster::new(1, "");
    let answers = attacked(&cluster, 64, 157).await;
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
    replay(&cluster.policy, &cluster.store, answers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn f_conflict_several_nodes_lose_no_update_and_refuse_what_they_cannot_write() {
    let cluster = Cluster::new(4, "");
    let answers = attacked(&cluster, 64, 40).await;
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
    replay(&cluster.policy, &cluster.store, applied).await;
}
