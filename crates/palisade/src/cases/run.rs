//! Events through the engine, in order, on a virtual clock.

use std::sync::Arc;

use palisade_core::key::Keyring;
use palisade_core::policy::PolicySet;
use palisade_core::time::Clock;
use palisade_store::model::ModelStore;
use serde_json::Value;

use super::descriptors::add_statuses;
use super::event::{CaseError, Event, Operation};
use super::expect::{Mismatch, compare};
use super::fault::FaultStore;
use crate::clock::VirtualClock;
use crate::engine::{DescriptorAnswer, Engine, EngineConfig, RequestAnswer};
use crate::wire::Answer;

/// What one event led to.
#[derive(Clone, Debug)]
pub struct Step {
    /// The answer, as the decision API would give it; `None` for a fault.
    pub answer: Option<Value>,
    /// Where it differs from what was expected.
    pub mismatches: Vec<Mismatch>,
}

/// Runs events against a policy. Nothing is shared between two replayers.
pub struct Replayer {
    engine: Engine<FaultStore<ModelStore<Arc<dyn Clock>>>>,
    clock: Arc<VirtualClock>,
    events: u64,
}

impl Replayer {
    /// A replayer with empty counters.
    #[must_use]
    pub fn new(policy: Arc<PolicySet>, keyring: Keyring) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let store = FaultStore::new(ModelStore::new(Arc::clone(&time)));
        let config = EngineConfig {
            policy,
            // Outages are events here; a machine that stalls is none.
            deadline: std::time::Duration::from_secs(24 * 3600),
            ..EngineConfig::new(store, PolicySet::empty(), keyring, time)
        };
        Self {
            engine: Engine::new(config),
            clock,
            events: 0,
        }
    }

    /// Runs one event.
    ///
    /// # Errors
    /// An `at` that goes back, or facts that the operation cannot take; nothing is
    /// touched then.
    pub async fn step(&mut self, event: Event) -> Result<Step, CaseError> {
        if self.events > 0 && event.at < self.clock.now() {
            return Err(CaseError::Field("at", "goes back; events must be in order"));
        }
        self.advance_to(event.at).await;
        self.events += 1;
        let request_id = format!("event-{}", self.events);
        let answer = match &event.operation {
            Operation::Fault(state) => {
                self.engine.store().set(*state);
                None
            }
            Operation::Request(facts) => {
                let answer = self.engine.check(facts).await;
                Some(render(&answer, &request_id))
            }
            Operation::Descriptors(call) => {
                let facts = call.facts().map_err(crate::wire::WireError::from)?;
                let answer = self.engine.check_descriptors(&facts).await;
                Some(render_call(&answer, &request_id))
            }
            Operation::Guard(op, facts) => {
                let answer = self.engine.guard(*op, facts).await;
                let answer = answer.map_err(crate::wire::WireError::from)?;
                Some(render(&answer, &request_id))
            }
        };
        let mismatches = match (&event.expect, &answer) {
            (Some(expect), Some(answer)) => compare(expect, answer),
            _ => Vec::new(),
        };
        Ok(Step { answer, mismatches })
    }

    /// Moves the clock, stopping wherever a probe or an expiry falls due.
    async fn advance_to(&self, at: palisade_core::Micros) {
        while let Some(due) = self.engine.next_due().filter(|due| *due <= at) {
            self.clock.advance_to(due);
            self.engine.run_due(due).await;
        }
        self.clock.advance_to(at);
    }
}

fn render_call(answer: &DescriptorAnswer, request_id: &str) -> Value {
    let as_request = RequestAnswer {
        decision: answer.decision.clone(),
        policy: Arc::clone(&answer.policy),
    };
    let mut shown = render(&as_request, request_id);
    if let Value::Object(members) = &mut shown {
        add_statuses(answer, members);
    }
    shown
}

fn render(answer: &RequestAnswer, request_id: &str) -> Value {
    let settings = &answer.policy.settings;
    let answer = Answer::new(
        &answer.decision,
        settings.headers,
        &settings.urls,
        request_id,
    );
    serde_json::to_value(answer).unwrap_or_default()
}
