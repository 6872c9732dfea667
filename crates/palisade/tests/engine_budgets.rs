//! Budgets: costs in units that the policy names, reservations and their settlement, and limits on
//! concurrent work.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;

#[path = "engine_budgets/bounds.rs"]
mod bounds;
#[path = "engine_budgets/concurrency.rs"]
mod concurrency;
#[path = "engine_budgets/failures.rs"]
mod failures;
#[path = "engine_budgets/guards.rs"]
mod guards;
#[path = "engine_budgets/held.rs"]
mod held;
#[path = "engine_budgets/overdraft.rs"]
mod overdraft;
#[path = "engine_budgets/queue.rs"]
mod queue;
#[path = "engine_budgets/settling.rs"]
mod settling;
#[path = "engine_budgets/thresholds.rs"]
mod thresholds;
#[path = "engine_budgets/two_nodes.rs"]
mod two_nodes;
#[path = "engine_budgets/units.rs"]
mod units;

use std::sync::Arc;
use std::time::Duration;

use engine_support::shared::Shared;
use engine_support::{Model, START, keyring, policy, render, request};
use palisade::core::budget::Costs;
use palisade::core::time::{Clock, SECOND};
use palisade::core::{PolicySet, RequestFacts};
use palisade::engine::{
    DecisionEvent, ExtendAnswer, HeldReservation, Hold, ModeChange, Observer, ReachedThreshold,
    ReserveAnswer, Settlement,
};
use palisade::store::Store;
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::Env;
use parking_lot::Mutex;
use serde_json::Value;

/// The thresholds that were told: limit, share, used.
#[derive(Default)]
struct ToldThresholds(Mutex<Vec<(String, String, u64)>>);

impl Observer for ToldThresholds {
    fn decided(&self, _seen: &DecisionEvent<'_>) {}
    fn failure(&self, _change: &ModeChange<'_>) {}
    fn threshold(&self, reached: &ReachedThreshold) {
        let told = (reached.limit.to_string(), reached.share(), reached.used);
        self.0.lock().push(told);
    }
}

/// Engines that share a store and a clock.
struct Nodes {
    engines: Vec<Arc<Engine>>,
    thresholds: Arc<ToldThresholds>,
    clock: Arc<VirtualClock>,
}

impl Nodes {
    fn new(count: usize, limits: &str) -> Self {
        let clock = Arc::new(VirtualClock::at(START));
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let store: Arc<dyn Store> = Arc::new(Shared(Arc::new(Model::new(Arc::clone(&time)))));
        let text = format!("[policy]\ndefaults = false\n{limits}");
        let thresholds = Arc::new(ToldThresholds::default());
        let engine = |_| {
            let config = EngineConfig {
                observer: Arc::<ToldThresholds>::clone(&thresholds),
                policy: policy(&text, &Env::default()),
                ..EngineConfig::new(
                    Arc::clone(&store),
                    PolicySet::empty(),
                    keyring(),
                    Arc::clone(&time),
                )
            };
            Arc::new(Engine::new(config))
        };
        Self {
            engines: (0..count).map(engine).collect(),
            thresholds,
            clock,
        }
    }

    fn sleep(&self, us: u64) {
        self.clock.advance_to(self.clock.now().plus(us));
    }

    async fn check(&self, node: usize, costs: &[(&str, u64)]) -> Value {
        render(&self.engines[node].check(&asking(costs)).await)
    }

    async fn reserve(&self, node: usize, costs: &[(&str, u64)]) -> ReserveAnswer {
        let facts = asking(costs);
        let reserved = self.engines[node].reserve(&facts, Hold::default());
        reserved.await.unwrap()
    }

    async fn held(&self, node: usize, costs: &[(&str, u64)]) -> HeldReservation {
        let answer = self.reserve(node, costs).await;
        answer
            .held
            .unwrap_or_else(|| panic!("{:?}", answer.answer.decision))
    }

    async fn settle(&self, node: usize, token: &str, used: &[(&str, u64)]) -> Settlement {
        let used = costs(used);
        self.engines[node].settle(token, &used).await.unwrap()
    }

    async fn release(&self, node: usize, token: &str) -> Settlement {
        self.engines[node].release(token).await.unwrap()
    }

    async fn extend(
        &self,
        node: usize,
        token: &str,
        more: &[(&str, u64)],
        hold_s: Option<u64>,
    ) -> ExtendAnswer {
        let more = (!more.is_empty()).then(|| costs(more));
        let hold = hold_s.map(Duration::from_secs);
        let extended = self.engines[node].extend(token, more.as_ref(), hold);
        extended.await.unwrap()
    }

    /// Remaining units of a limit in `unit`, found by a peek.
    async fn left(&self, node: usize, limit: &str, unit: &str) -> u64 {
        let found = self.engines[node].peek(&asking(&[(unit, 1)])).await;
        let mut limits = found.decision.limits.iter();
        limits.find(|one| &*one.name == limit).unwrap().remaining
    }
}

fn costs(amounts: &[(&str, u64)]) -> Costs {
    Costs::new(amounts.iter().copied()).unwrap()
}

fn asking(amounts: &[(&str, u64)]) -> RequestFacts {
    let mut facts =
        request(r#"{"ip":"203.0.113.5","method":"POST","path":"/v1/chat","org":"acme"}"#);
    facts.costs = (!amounts.is_empty()).then(|| Box::new(costs(amounts)));
    facts
}

/// Limits of requests and of tokens per minute, for each organisation.
const POLICY: &str = r#"
[[limit]]
name = "requests-per-org"
by = ["org"]
rate = "10/min"

[[limit]]
name = "tokens-per-org"
by = ["org"]
rate = "10000/min"
unit = "tokens"
"#;

const MINUTE: u64 = 60 * SECOND;
