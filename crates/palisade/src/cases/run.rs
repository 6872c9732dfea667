//! Runs events through the engine, in order, on a virtual clock.

use std::pin::Pin;
use std::sync::Arc;

use palisade_core::decision::Decision;
use palisade_core::key::Keyring;
use palisade_core::policy::PolicySet;
use palisade_core::time::Clock;
use palisade_policy::FileTenants;
use palisade_store::memory::{MemoryConfig, MemoryStore};
use palisade_store::model::ModelStore;
use palisade_store::{Store, StoreStats, Vitals};
use serde_json::Value;

use super::challenge::Tokens;
use super::descriptors::add_statuses;
use super::event::{CaseError, Event, Operation};
use super::expect::{Mismatch, compare};
use super::fault::FaultStore;
use super::reservations::{NamedReservations, ReservationOutcome};
use crate::clock::VirtualClock;
use crate::engine::{DescriptorAnswer, Engine, EngineConfig, RequestAnswer};
use crate::wire::{Answer, WireError};

/// The result of one event.
#[derive(Clone, Debug)]
pub struct Step {
    /// The answer, as the decision API would give it; `None` for a fault.
    pub answer: Option<Value>,
    /// Members that differ from the expected ones.
    pub mismatches: Vec<Mismatch>,
}

/// The future that [`Replayer::decide`] returns. It is boxed here, so that the engine is compiled
/// once, with this crate, and not by each program that replays.
pub type DecisionFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Option<EventDecision>, CaseError>> + Send + 'a>>;

/// Runs events against a policy. Nothing is shared between two replayers.
///
/// ```
/// use palisade::cases::{Replayer, parse_event};
/// # use std::path::Path;
/// # use palisade::core::Keyring;
/// # let text = "[[limit]]\nname = \"two\"\nby = [\"ip\"]\nrate = \"2/min\"";
/// # let (env, flags) = Default::default();
/// # let loaded = palisade_policy::load_text(Path::new("policy.toml"), text, &env, &flags)?;
/// # let keyring = Keyring::new(b"at least 32 random bytes go here", None)?;
/// # tokio::runtime::Runtime::new()?.block_on(async {
///
/// // The policy: two a minute for each address.
/// let mut replayer = Replayer::new(loaded.policy, keyring);
/// let line = r#"{"at": "2026-03-02T00:00:00Z", "op": "request", "ip": "203.0.113.5",
///     "method": "GET", "path": "/things"}"#;
/// for expected in [200, 200, 429] {
///     let decided = replayer.decide(&parse_event(line)?).await?;
///     assert_eq!(decided.map(|one| one.decision.status), Some(expected));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Replayer {
    engine: Engine,
    store: Arc<FaultStore>,
    clock: Arc<VirtualClock>,
    events: u64,
    reservations: NamedReservations,
    tokens: Tokens,
}

impl Replayer {
    /// A replayer with empty counters.
    #[must_use]
    pub fn new(policy: Arc<PolicySet>, keyring: Keyring) -> Self {
        Self::plain(policy, Arc::default(), keyring)
    }

    /// A replayer that knows the tenants of the policy's own file.
    #[must_use]
    pub fn plain(policy: Arc<PolicySet>, tenants: Arc<FileTenants>, keyring: Keyring) -> Self {
        Self::on(policy, tenants, keyring, |clock| {
            Arc::new(ModelStore::new(clock))
        })
    }

    /// A replayer on the embedded store. It makes the same decisions, many times as fast, as long
    /// as no more than `keys_max` buckets count at once.
    #[must_use]
    pub fn embedded(
        policy: Arc<PolicySet>,
        tenants: Arc<FileTenants>,
        keyring: Keyring,
        keys_max: u64,
    ) -> Self {
        let config = MemoryConfig {
            keys_max,
            records_max: keys_max,
            ..MemoryConfig::default()
        };
        Self::on(policy, tenants, keyring, |clock| {
            Arc::new(MemoryStore::new(clock, &config))
        })
    }

    fn on(
        policy: Arc<PolicySet>,
        tenants: Arc<FileTenants>,
        keyring: Keyring,
        store: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>,
    ) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let store = Arc::new(FaultStore::new(store(Arc::clone(&time))));
        let config = EngineConfig {
            policy,
            tenants,
            // An outage is an event of the recording. A machine that stalls must not look like one.
            deadline: std::time::Duration::from_secs(24 * 3600),
            ..EngineConfig::new(
                Arc::<FaultStore>::clone(&store),
                PolicySet::empty(),
                keyring,
                time,
            )
        };
        Self {
            engine: Engine::new(config),
            store,
            clock,
            events: 0,
            reservations: NamedReservations::default(),
            tokens: Tokens::default(),
        }
    }

    /// Decides one event; `None` is a fault.
    ///
    /// # Errors
    /// An `at` that goes back, or facts that the operation cannot take; nothing is
    /// touched then.
    pub fn decide<'a>(&'a mut self, event: &'a Event) -> DecisionFuture<'a> {
        Box::pin(self.decided(event))
    }

    async fn decided(&mut self, event: &Event) -> Result<Option<EventDecision>, CaseError> {
        if self.events > 0 && event.at < self.clock.now() {
            return Err(CaseError::Field("at", "goes back; events must be in order"));
        }
        self.advance_to(event.at).await;
        self.events += 1;
        Ok(match &event.operation {
            Operation::Fault(state) => {
                self.store.set(*state);
                None
            }
            Operation::Request(facts) => {
                if let Some(costs) = &facts.costs {
                    // Refused as in the decision API (B-UNIT).
                    let known = self.engine.with_policy(|policy| policy.knows_units(costs));
                    known.map_err(WireError::from)?;
                }
                let answer = match event.challenge {
                    None => self.engine.check(facts).await,
                    Some(shown) => {
                        let token = self.tokens.on_request(&self.engine, shown, facts);
                        self.engine.check(&token.await).await
                    }
                };
                Some(answer.into())
            }
            Operation::Descriptors(call) => {
                let facts = call.facts().map_err(WireError::from)?;
                Some(self.engine.check_descriptors(&facts).await.into())
            }
            Operation::Reserve(asked) => {
                let id = format!("event-{}", self.events);
                let named = self.reservations.reserve(&self.engine, asked, &id);
                Some(named.await?.into())
            }
            Operation::FollowUp(asked) => {
                let id = format!("event-{}", self.events);
                let now = self.clock.now();
                let answered = self.reservations.follow_up(&self.engine, asked, &id, now);
                Some(answered.await?.into())
            }
            Operation::Guard(op, facts) => {
                let answer = match event.challenge {
                    None => self.engine.guard(*op, facts).await,
                    Some(shown) => {
                        let command = (*op, &**facts);
                        let token = self.tokens.on_command(&self.engine, shown, command);
                        self.engine.guard(*op, &token.await).await
                    }
                };
                Some(answer.map_err(WireError::from)?.into())
            }
        })
    }

    /// Runs one event, renders the answer and compares it with what is expected.
    ///
    /// # Errors
    /// As [`Replayer::decide`].
    pub async fn step(&mut self, event: Event) -> Result<Step, CaseError> {
        let decided = self.decide(&event).await?;
        let request_id = format!("event-{}", self.events);
        let answer = decided.map(|decided| decided.render(&request_id));
        let mismatches = match (&event.expect, &answer) {
            (Some(expect), Some(answer)) => compare(expect, answer),
            _ => Vec::new(),
        };
        Ok(Step { answer, mismatches })
    }

    /// Returns statistics of the store.
    pub fn stats(&self) -> StoreStats {
        self.store.stats()
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

/// The decision about one event.
#[derive(Clone, Debug)]
pub struct EventDecision {
    /// The decision; for a call with several descriptors, the overall one.
    pub decision: Decision,
    policy: Arc<PolicySet>,
    call: Option<Box<DescriptorAnswer>>,
    /// The answer about a reservation, which has members of its own.
    shown: Option<Box<Value>>,
}

impl From<ReservationOutcome> for EventDecision {
    fn from(answer: ReservationOutcome) -> Self {
        Self {
            decision: answer.decision,
            policy: answer.policy,
            call: None,
            shown: Some(Box::new(answer.shown)),
        }
    }
}

impl From<RequestAnswer> for EventDecision {
    fn from(answer: RequestAnswer) -> Self {
        Self {
            decision: *answer.decision,
            policy: answer.policy,
            call: None,
            shown: None,
        }
    }
}

impl From<DescriptorAnswer> for EventDecision {
    fn from(answer: DescriptorAnswer) -> Self {
        Self {
            decision: answer.decision.clone(),
            policy: Arc::clone(&answer.policy),
            call: Some(Box::new(answer)),
            shown: None,
        }
    }
}

impl EventDecision {
    fn render(&self, request_id: &str) -> Value {
        if let Some(shown) = &self.shown {
            return (**shown).clone();
        }
        let settings = &self.policy.settings;
        let answer = Answer::new(&self.decision, settings.headers, &settings.urls, request_id);
        let mut shown = serde_json::to_value(answer).unwrap_or_default();
        if let (Some(call), Value::Object(members)) = (&self.call, &mut shown) {
            add_statuses(call, members);
        }
        shown
    }
}
