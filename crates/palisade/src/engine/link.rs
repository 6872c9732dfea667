//! The one way a store is called: leave from the breaker, a deadline, a report.
//!
//! A call is made [`For`] somebody, and that says what an open breaker and a failure
//! mean for it. Everything that depends on how the store is doing lives here too: the
//! failure modes of this node and the counters that stand in for the store.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use palisade_core::failure::{CallDecision, Due, Event, Events, NodeModes, Policy};
use palisade_core::policy::Settings;
use palisade_core::time::{Clock, Micros};
use palisade_store::memory::{MemoryConfig, MemoryStore};
use palisade_store::{Store, StoreError, Vitals};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::ports::Observer;
use crate::deadline::until;

/// Counters that live in this process only: local limits, throttles and fallbacks.
pub(super) type LocalStore = MemoryStore<Arc<dyn Clock>>;

/// Most local counters of each kind; beyond that new keys share a strict one.
const LOCAL_KEYS_MAX: u64 = 1_000_000;

/// Empty local counters.
pub(super) fn local_store(clock: &Arc<dyn Clock>) -> LocalStore {
    let config = MemoryConfig {
        keys_max: LOCAL_KEYS_MAX,
        ..MemoryConfig::default()
    };
    MemoryStore::new(Arc::clone(clock), &config)
}

/// Whom a store call is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// A decision under this policy: not made while the policy's breaker is open, and
    /// its result counts for that breaker.
    Decision(Policy),
    /// Tokens of leased limits, fetched ahead or given back. An open breaker of the
    /// limits forbids it, but its result does not count: the request that finds no
    /// token asks by itself.
    Upkeep,
    /// An operator, a copy of a registry or a probe: made whatever the breakers say.
    /// It is not measured either, as a listing takes longer than a decision.
    Operator,
}

/// Why no answer came from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The breaker is open: it was not asked.
    NotAsked,
    /// The request's time was up before it could be asked.
    OutOfTime,
    /// It was asked and failed.
    Failed(StoreError),
}

impl From<NoAnswer> for StoreError {
    fn from(no_answer: NoAnswer) -> Self {
        match no_answer {
            NoAnswer::NotAsked | NoAnswer::OutOfTime => Self::TimedOut,
            NoAnswer::Failed(error) => error,
        }
    }
}

/// The store calls of one request: made for the same purpose, ended with the same time.
pub(super) struct Calls<'l, S> {
    pub(super) link: &'l Link<S>,
    whom: For,
    ends: Instant,
}

impl<S> Clone for Calls<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Calls<'_, S> {}

impl<'l, S: Store> Calls<'l, S> {
    /// When the request must be answered.
    pub(super) const fn ends(self) -> Instant {
        self.ends
    }

    pub(super) async fn make<T, F: Future<Output = Result<T, StoreError>>>(
        self,
        call: impl FnOnce(&'l S) -> F,
    ) -> Result<T, NoAnswer> {
        self.link.call(self.whom, self.ends, call).await
    }
}

/// The store and how it is doing.
pub(super) struct Link<S> {
    store: S,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
    deadline: Duration,
    modes: Mutex<NodeModes>,
    fallback: ArcSwap<LocalStore>,
}

impl<S: Store> Link<S> {
    pub(super) fn new(
        store: S,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
        deadline: Duration,
        settings: &Settings,
    ) -> Self {
        let modes = NodeModes::new(settings.availability, settings.fallback.clone());
        Self {
            store,
            fallback: ArcSwap::from_pointee(local_store(&clock)),
            clock,
            observer,
            deadline,
            modes: Mutex::new(modes),
        }
    }

    /// Takes over the figures of a new policy.
    pub(super) fn reconfigure(&self, settings: &Settings) {
        self.modes()
            .reconfigure(settings.availability, settings.fallback.clone());
    }

    pub(super) const fn store(&self) -> &S {
        &self.store
    }

    pub(super) const fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(super) fn now(&self) -> Micros {
        self.clock.now()
    }

    pub(super) fn observer(&self) -> &dyn Observer {
        &*self.observer
    }

    /// The failure modes of this node.
    pub(super) fn modes(&self) -> MutexGuard<'_, NodeModes> {
        self.modes.lock()
    }

    /// The counters that limits fall back to, empty after every recovery (F-CLEAN).
    pub(super) fn fallback(&self) -> arc_swap::Guard<Arc<LocalStore>> {
        self.fallback.load()
    }

    /// When a request that starts now must be answered: all of its store calls
    /// share one deadline.
    pub(super) fn request_ends(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// The calls of a request that starts now.
    pub(super) fn calls(&self, whom: For) -> Calls<'_, S> {
        Calls {
            link: self,
            whom,
            ends: self.request_ends(),
        }
    }

    /// One store call, which ends with `ends` at the latest.
    pub(super) async fn call<'l, T, F: Future<Output = Result<T, StoreError>>>(
        &'l self,
        whom: For,
        ends: Instant,
        call: impl FnOnce(&'l S) -> F,
    ) -> Result<T, NoAnswer> {
        let policy = match whom {
            For::Decision(policy) => policy,
            For::Upkeep => Policy::Limits,
            For::Operator => {
                let result = until(ends, pin!(call(&self.store))).await;
                return result
                    .unwrap_or(Err(StoreError::TimedOut))
                    .map_err(NoAnswer::Failed);
            }
        };
        let started = self.now();
        let permit = match self.modes().admit(policy, started) {
            CallDecision::Call(permit) if whom == For::Upkeep || Instant::now() < ends => permit,
            CallDecision::Call(_) => return Err(NoAnswer::OutOfTime),
            CallDecision::DoNotCall => {
                if whom != For::Upkeep {
                    self.observer.not_asked(policy);
                }
                return Err(NoAnswer::NotAsked);
            }
        };
        let result = until(ends, pin!(call(&self.store)))
            .await
            .unwrap_or(Err(StoreError::TimedOut));
        let now = self.now();
        let took = now.since(started);
        let error = result.as_ref().err();
        self.observer.store_call(took, error);
        if whom != For::Upkeep {
            let events = match error {
                None => self.modes().on_success(policy, permit, took, now),
                Some(error) => {
                    let kind = error.kind();
                    self.modes().on_failure(policy, permit, kind, now)
                }
            };
            self.report(policy, &events, now);
        }
        result.map_err(NoAnswer::Failed)
    }

    /// One call of an operator, which nobody waits for longer than the deadline.
    pub(super) async fn operate<'l, T, F: Future<Output = Result<T, StoreError>>>(
        &'l self,
        call: impl FnOnce(&'l S) -> F,
    ) -> Result<T, StoreError> {
        let answer = self.call(For::Operator, self.request_ends(), call).await;
        answer.map_err(StoreError::from)
    }

    /// Does what is due: time's own changes, or a probe of the store.
    pub(super) async fn run(&self, due: Due, now: Micros) {
        match due {
            Due::Advance(policy) => {
                let events = self.modes().advance(policy, now);
                self.report(policy, &events, now);
            }
            Due::Probe(policy) => self.probe(policy, now).await,
        }
    }

    async fn probe(&self, policy: Policy, started: Micros) {
        let result = self.operate(Vitals::probe).await;
        let now = self.now().max(started);
        let outcome = match &result {
            Ok(_) => Ok(now.since(started)),
            Err(error) => Err(error.kind()),
        };
        let events = self.modes().on_probe(policy, outcome, now);
        self.report(policy, &events, now);
    }

    fn report(&self, policy: Policy, events: &Events, now: Micros) {
        if events.is_empty() {
            return;
        }
        if events.contains(&Event::DropCounters) {
            self.fallback.store(Arc::new(local_store(&self.clock)));
        }
        self.observer.failure(policy, events, now);
    }
}
