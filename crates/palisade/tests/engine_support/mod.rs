//! An engine on the reference store, with a clock that only tests move.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test file uses its part of it"
)]

pub mod replay;
pub mod shared;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use palisade::cases::{FaultStore, StoreState};
use palisade::core::facts::{GuardFacts, GuardOp, RequestFacts, RequestKind};
use palisade::core::failure::{Event, Policy};
use palisade::core::rule::Rule;
use palisade::core::time::{Clock, Micros};
use palisade::core::{Keyring, PolicySet};
use palisade::engine::{DecisionEvent, ModeChange, Observer, RequestAnswer};
use palisade::store::StoreError;
use palisade::store::model::ModelStore;
use palisade::wire::{self, Answer, RawGuard, RawRequest};
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::{Env, Overrides};
use parking_lot::Mutex;
use serde_json::Value;

pub type Model = ModelStore<Arc<dyn Clock>>;

/// 2026-03-02T00:00:00Z, a Monday.
pub const START: Micros = Micros(1_772_409_600_000_000);

pub fn policy(text: &str, env: &Env) -> Arc<PolicySet> {
    palisade_policy::load_text(Path::new("test.toml"), text, env, &Overrides::default())
        .unwrap()
        .policy
}

pub fn keyring() -> Keyring {
    Keyring::new(&[9; 32], None).unwrap()
}

/// The engine's reports to its observer.
#[derive(Default)]
pub struct Heard {
    pub decided: Mutex<Vec<(Option<Rule>, bool)>>,
    pub failures: Mutex<Vec<(Policy, Event)>>,
    pub rebuilt: Mutex<Vec<&'static str>>,
    pub store_calls: AtomicUsize,
    /// Reports about the store: `answers`, or the kind of its failure.
    pub told: Mutex<Vec<&'static str>>,
}

impl Observer for Heard {
    fn decided(&self, seen: &DecisionEvent<'_>) {
        let bypassed = seen.bypassed.is_some();
        self.decided.lock().push((seen.decision.rule, bypassed));
    }

    fn failure(&self, change: &ModeChange<'_>) {
        let mut failures = self.failures.lock();
        failures.extend(change.events.iter().map(|event| (change.policy, *event)));
    }

    fn store_changed(&self, error: Option<&StoreError>, _now: Micros) {
        let told = error.map_or("answers", |error| error.kind().name());
        self.told.lock().push(told);
    }

    fn store_call(&self, _took_us: Option<u64>, _error: Option<&StoreError>) {
        self.store_calls.fetch_add(1, Ordering::SeqCst);
    }

    fn rebuilt(&self, what: &'static str, _count: u32) {
        self.rebuilt.lock().push(what);
    }
}

pub struct Bench {
    pub engine: Engine,
    store: Arc<FaultStore>,
    pub clock: Arc<VirtualClock>,
    pub heard: Arc<Heard>,
}

impl Bench {
    /// A bench with the default policy.
    pub fn new() -> Self {
        Self::with("")
    }

    /// A bench with the default policy and `text`.
    pub fn with(text: &str) -> Self {
        Self::on(policy(text, &Env::default()))
    }

    pub fn on(policy: Arc<PolicySet>) -> Self {
        let clock = Arc::new(VirtualClock::at(START));
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let heard = Arc::new(Heard::default());
        let store = Arc::new(FaultStore::new(Arc::new(ModelStore::new(Arc::clone(
            &time,
        )))));
        let config = EngineConfig {
            policy,
            observer: Arc::<Heard>::clone(&heard),
            ..EngineConfig::new(
                Arc::<FaultStore>::clone(&store),
                PolicySet::empty(),
                keyring(),
                time,
            )
        };
        Self {
            engine: Engine::new(config),
            store,
            clock,
            heard,
        }
    }

    pub fn store(&self, state: StoreState) {
        self.store.set(state);
    }

    /// Moves the clock. Probes and expiries that fall due on the way happen.
    pub async fn sleep(&self, us: u64) {
        let until = self.clock.now().plus(us);
        while let Some(due) = self.engine.next_due().filter(|due| *due <= until) {
            self.clock.advance_to(due);
            self.engine.run_due(due).await;
        }
        self.clock.advance_to(until);
    }

    pub async fn check(&self, facts: &str) -> Value {
        render(&self.engine.check(&request(facts)).await)
    }

    pub async fn peek(&self, facts: &str) -> Value {
        render(&self.engine.peek(&request(facts)).await)
    }

    pub async fn job(&self, facts: &str) -> Value {
        let mut raw: RawRequest<'_> = wire::parse(facts.as_bytes()).unwrap();
        raw.op = Some(RequestKind::Job);
        let facts = raw.into_facts().unwrap();
        render(&self.engine.check(&facts).await)
    }

    pub async fn guard(&self, op: &str, facts: &str) -> Value {
        let op = GuardOp::from_name(op).unwrap();
        render(&self.engine.guard(op, &command(facts)).await.unwrap())
    }

    /// Sends `count` equal requests, and returns how many pass.
    pub async fn admitted(&self, facts: &str, count: usize) -> usize {
        let facts = request(facts);
        let mut admitted = 0;
        for _ in 0..count {
            admitted += usize::from(self.engine.check(&facts).await.decision.is_allowed());
        }
        admitted
    }
}

pub fn request(facts: &str) -> RequestFacts {
    let raw: RawRequest<'_> = wire::parse(facts.as_bytes()).unwrap();
    raw.into_facts().unwrap()
}

pub fn command(facts: &str) -> GuardFacts {
    let raw: RawGuard<'_> = wire::parse(facts.as_bytes()).unwrap();
    raw.into_facts().unwrap()
}

pub fn render(answer: &RequestAnswer) -> Value {
    let settings = &answer.policy.settings;
    let answer = Answer::new(&answer.decision, settings.headers, &settings.urls, "r-1");
    serde_json::to_value(answer).unwrap()
}

/// One bucket of an answer.
pub fn bucket<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let limits = answer["limits"].as_array().unwrap();
    let found = limits.iter().find(|limit| limit["name"] == name);
    found.unwrap_or_else(|| panic!("no bucket {name} in {answer}"))
}

pub fn remaining(answer: &Value, name: &str) -> u64 {
    bucket(answer, name)["remaining"].as_u64().unwrap()
}
