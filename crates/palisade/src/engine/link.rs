//! The one way a store is called: leave from the breaker, a deadline, a report.
//!
//! A call is made [`For`] somebody, and that says what an open breaker and a failure
//! mean for it. Everything that depends on how the store is doing lives here too: the
//! failure modes of this node and the counters that stand in for the store.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use palisade_core::failure::{CallDecision, Due, Event, Events, NodeModes, Permit, Policy};
use palisade_core::policy::Settings;
use palisade_core::time::{Clock, Micros};
use palisade_store::memory::{MemoryConfig, MemoryStore};
use palisade_store::{Store, StoreError, StoreRisks, Vitals, deadline};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::ports::{ModeChange, Observer};
use super::stand_in::StandIn;
use super::timing::{self, is_measured, is_next_measured};
use crate::deadline::{TimeIsUp, until};

/// Counters that live in this process only: local limits, throttles and fallbacks.
pub(super) type LocalStore = MemoryStore<Arc<dyn Clock>>;

/// What a request may take beyond the store's deadline: it waits its turn for no longer
/// than the deadline, and a call that it makes then still has this much.
const GRACE: Duration = Duration::from_millis(40);

thread_local! {
    /// Calls of a store in this process, of which one in a few is measured.
    static TURN: Cell<u32> = const { Cell::new(0) };
}

/// Nothing but answers came from the store.
const ANSWERS: u8 = u8::MAX;

/// Most local counters of each kind; beyond that new keys share a strict one.
const LOCAL_KEYS_MAX: u64 = 1_000_000;

/// Longer than any process lives.
const FAR_OFF: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

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
    /// A probe, or a copy of a registry: made whatever the breakers say. Whoever makes a
    /// probe reports it to the breaker that wants it.
    Background,
    /// An operator: made whatever the breakers say, and no sign of how the store is
    /// doing, as a listing takes longer than a decision.
    Operator,
}

/// Why no answer came from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The breaker is open: it was not asked.
    NotAsked,
    /// The request's time was up before it was asked or had its time to answer: spent on
    /// waiting for a turn, or on lost swaps.
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
    /// When the run of calls began that these belong to.
    began: Instant,
    ends: Instant,
}

impl<S> Clone for Calls<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Calls<'_, S> {}

impl<'l, S: Store> Calls<'l, S> {
    /// Until when a turn may be waited for: after that there is no time left to use it.
    pub(super) fn turn_ends(self) -> Instant {
        self.ends - GRACE
    }

    /// When the run of calls began: of those that did not begin anew, when the request
    /// arrived.
    pub(super) const fn began(self) -> Instant {
        self.began
    }

    /// The calls that begin anew now: after a wait for a turn, or a lost swap. What went
    /// before is no fault of the store.
    pub(super) fn anew(self) -> Self {
        Self {
            began: deadline::now(),
            ..self
        }
    }

    pub(super) async fn make<T, F: Future<Output = Result<T, StoreError>>>(
        self,
        call: impl FnOnce(&'l S) -> F,
    ) -> Result<T, NoAnswer> {
        let Self {
            link, whom, began, ..
        } = self;
        link.call_in_run(whom, (None, Some(began)), self.ends, call)
            .await
    }
}

/// The store and how it is doing.
pub(super) struct Link<S> {
    store: S,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
    deadline: Duration,
    /// When nobody waits any more.
    far_off: Instant,
    modes: Mutex<NodeModes>,
    /// An answer to a limit's call has nothing to tell the breaker: see [`NodeModes::is_calm`].
    is_calm: AtomicBool,
    stand_in: StandIn,
    /// The failure that observers were told of last, or [`ANSWERS`].
    told: AtomicU8,
    /// The store has answered at least once.
    is_reached: AtomicBool,
    /// The risks that observers were told of last.
    told_risks: Mutex<StoreRisks>,
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
            stand_in: StandIn::new(&clock),
            clock,
            observer,
            deadline,
            far_off: deadline::after(FAR_OFF),
            modes: Mutex::new(modes),
            is_calm: AtomicBool::new(false),
            told: AtomicU8::new(ANSWERS),
            is_reached: AtomicBool::new(false),
            told_risks: Mutex::default(),
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

    /// True if the store answered the last call that ended.
    pub(super) fn answers(&self) -> bool {
        self.told.load(Ordering::Relaxed) == ANSWERS
    }

    /// True once the store has answered. One in this process needs no asking.
    pub(super) fn is_reached(&self) -> bool {
        self.never_waits() || self.is_reached.load(Ordering::Relaxed)
    }

    /// True while decisions under this policy are made without the store: its breaker is
    /// open.
    pub(super) fn is_cut_off(&self, policy: Policy) -> bool {
        let admitted = self.modes().admit(policy, self.now());
        matches!(admitted, CallDecision::DoNotCall)
    }

    /// True if what the store is asked for is there when it has been asked.
    pub(super) fn never_waits(&self) -> bool {
        self.store.never_waits()
    }

    /// The counters that limits fall back to.
    pub(super) const fn stand_in(&self) -> &StandIn {
        &self.stand_in
    }

    /// When a request that starts now must be answered.
    pub(super) fn request_ends(&self) -> Instant {
        match self.never_waits() {
            // To look at the time would be a noticeable part of a decision in this process.
            true => self.far_off,
            false => deadline::after(self.deadline + GRACE),
        }
    }

    /// The calls of a request that starts now.
    pub(super) fn calls(&self, whom: For) -> Calls<'_, S> {
        let began = deadline::now();
        Calls {
            link: self,
            whom,
            began,
            ends: began + self.deadline + GRACE,
        }
    }

    /// One store call of a request that must be answered at `ends`. The call's own
    /// deadline starts when it is made: one that is cut short because the request's time
    /// went elsewhere says nothing about the store.
    pub(super) fn call<'l, T, F: Future<Output = Result<T, StoreError>>>(
        &'l self,
        whom: For,
        ends: Instant,
        call: impl FnOnce(&'l S) -> F,
    ) -> impl Future<Output = Result<T, NoAnswer>> {
        self.call_from(None, whom, ends, call)
    }

    /// The same of one that starts now, if the clock has been looked at: `started` is what it
    /// showed.
    pub(super) fn call_from<'l, T, F: Future<Output = Result<T, StoreError>>>(
        &'l self,
        started: Option<Micros>,
        whom: For,
        ends: Instant,
        call: impl FnOnce(&'l S) -> F,
    ) -> impl Future<Output = Result<T, NoAnswer>> {
        self.call_in_run(whom, (started, None), ends, call)
    }

    /// The same in a run of calls that began at `began`: what the whole run takes is the
    /// store's doing.
    async fn call_in_run<'l, T, F: Future<Output = Result<T, StoreError>>>(
        &'l self,
        whom: For,
        (started, began): (Option<Micros>, Option<Instant>),
        ends: Instant,
        call: impl FnOnce(&'l S) -> F,
    ) -> Result<T, NoAnswer> {
        if self.goes_without_saying(whom) {
            return match call(&self.store).await {
                Ok(answer) => {
                    self.observer.store_call(None, None);
                    Ok(answer)
                }
                Err(error) => Err(self.failed_at_once(whom, error)),
            };
        }
        let started = started.unwrap_or_else(|| self.now());
        let permit = self.permit(whom, started)?;
        if self.never_waits() {
            let result = call(&self.store).await;
            self.heard(whom, permit, started, result.as_ref().err());
            return result.map_err(NoAnswer::Failed);
        }
        let made = deadline::now();
        if made >= ends && whom != For::Upkeep {
            return Err(NoAnswer::OutOfTime);
        }
        let call_ends = ends.min(made + self.deadline);
        let result = match until(call_ends, pin!(call(&self.store))).await {
            Ok(result) => result,
            Err(TimeIsUp) if call_ends - began.unwrap_or(made) < self.deadline => {
                return Err(NoAnswer::OutOfTime);
            }
            Err(TimeIsUp) => Err(StoreError::TimedOut),
        };
        self.heard(whom, permit, started, result.as_ref().err());
        result.map_err(NoAnswer::Failed)
    }

    /// The same without a future, of a store that answers at once. `None`, and nothing is
    /// charged, if it does not, or if there is more to a call than the answer.
    pub(super) fn call_now<T>(&self, whom: For, call: impl FnOnce(&S) -> Option<T>) -> Option<T> {
        if is_next_measured(&TURN) || !self.is_unasked(whom) {
            return None;
        }
        let answer = call(&self.store)?;
        timing::count(&TURN);
        self.observer.store_call(None, None);
        Some(answer)
    }

    /// Whether a call is made without asking for leave, and nobody hears of its answer but who
    /// counts: most calls of a store in this process, while it has not failed.
    fn goes_without_saying(&self, whom: For) -> bool {
        self.is_unasked(whom) && !is_measured(&TURN)
    }

    /// Whether a call needs no leave, and its answer is no news.
    fn is_unasked(&self, whom: For) -> bool {
        whom == For::Decision(Policy::Limits)
            && self.never_waits()
            && self.is_calm.load(Ordering::Acquire)
            && self.answers()
    }

    /// The failure of a call that was made without leave. Whether the breaker has opened
    /// meanwhile is the same to it as to one that had been given leave before.
    #[cold]
    fn failed_at_once(&self, whom: For, error: StoreError) -> NoAnswer {
        let now = self.now();
        let permit = match self.modes().admit(Policy::Limits, now) {
            CallDecision::Call(permit) => Some(permit),
            CallDecision::DoNotCall => None,
        };
        self.heard(whom, permit, now, Some(&error));
        NoAnswer::Failed(error)
    }

    /// Leave to call, if the call needs one.
    fn permit(&self, whom: For, now: Micros) -> Result<Option<Permit>, NoAnswer> {
        let policy = match whom {
            For::Decision(policy) => policy,
            For::Upkeep => Policy::Limits,
            For::Background | For::Operator => return Ok(None),
        };
        match self.modes().admit(policy, now) {
            CallDecision::Call(permit) => Ok(Some(permit)),
            CallDecision::DoNotCall => {
                if whom != For::Upkeep {
                    self.observer.not_asked(policy);
                }
                Err(NoAnswer::NotAsked)
            }
        }
    }

    /// What a call's end means for metrics, for the breaker, and for who is told that
    /// the store fails.
    fn heard(&self, whom: For, permit: Option<Permit>, from: Micros, error: Option<&StoreError>) {
        if whom == For::Operator {
            return;
        }
        let now = self.now();
        if error.is_none() && !self.is_reached.load(Ordering::Relaxed) {
            self.is_reached.store(true, Ordering::Relaxed);
        }
        self.tell(error, now);
        let took = now.since(from);
        if whom != For::Background {
            self.observer.store_call(Some(took), error);
        }
        if let (For::Decision(policy), Some(permit)) = (whom, permit) {
            let mut modes = self.modes();
            let events = match error {
                None => modes.on_success(policy, permit, took, now),
                Some(error) => modes.on_failure(policy, permit, error.kind(), now),
            };
            self.note_calm(&modes);
            drop(modes);
            self.report(policy, &events, error, now);
        }
    }

    fn note_calm(&self, modes: &NodeModes) {
        let is_calm = modes.is_calm(Policy::Limits);
        if self.is_calm.load(Ordering::Relaxed) != is_calm {
            self.is_calm.store(is_calm, Ordering::Release);
        }
    }

    /// Tells observers that the store fails, or answers again, once per change.
    fn tell(&self, error: Option<&StoreError>, now: Micros) {
        let state = error.map_or(ANSWERS, |error| error.kind() as u8);
        if self.told.load(Ordering::Relaxed) != state
            && self.told.swap(state, Ordering::Relaxed) != state
        {
            self.observer.store_changed(error, now);
        }
    }

    /// One call of an operator, which nobody waits for longer than the deadline.
    pub(super) async fn operate<'l, T, F: Future<Output = Result<T, StoreError>>>(
        &'l self,
        call: impl FnOnce(&'l S) -> F,
    ) -> Result<T, StoreError> {
        let answer = self.call(For::Operator, self.request_ends(), call).await;
        answer.map_err(StoreError::from)
    }

    /// One call beside all requests.
    pub(super) async fn attend<'l, T, F: Future<Output = Result<T, StoreError>>>(
        &'l self,
        call: impl FnOnce(&'l S) -> F,
    ) -> Result<T, StoreError> {
        let answer = self.call(For::Background, self.request_ends(), call).await;
        answer.map_err(StoreError::from)
    }

    /// Does what is due: time's own changes, or a probe of the store.
    pub(super) async fn run(&self, due: Due, now: Micros) {
        match due {
            Due::Advance(policy) => {
                let events = self.modes().advance(policy, now);
                self.report(policy, &events, None, now);
            }
            Due::Probe(policy) => self.probe(policy, now).await,
        }
    }

    /// Asks the store for a sign of life, and looks at what its settings put at risk.
    pub(super) async fn look(&self) -> Result<Micros, StoreError> {
        let answer = self.attend(Vitals::probe).await;
        if let Some(found) = self.store.stats().risks {
            let mut told = self.told_risks.lock();
            if *told != found {
                self.observer.store_risks(*told, found);
                *told = found;
            }
        }
        answer
    }

    async fn probe(&self, policy: Policy, started: Micros) {
        let result = self.look().await;
        let now = self.now().max(started);
        let outcome = match &result {
            Ok(_) => Ok(now.since(started)),
            Err(error) => Err(error.kind()),
        };
        let mut modes = self.modes();
        let events = modes.on_probe(policy, outcome, started, now);
        self.note_calm(&modes);
        drop(modes);
        self.report(policy, &events, result.as_ref().err(), now);
    }

    fn report(&self, policy: Policy, events: &Events, reason: Option<&StoreError>, at: Micros) {
        if events.is_empty() {
            return;
        }
        if events.contains(&Event::DropCounters) {
            self.stand_in.recover();
        }
        self.observer.failure(&ModeChange {
            policy,
            events,
            reason,
            at,
        });
    }
}
