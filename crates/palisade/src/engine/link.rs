//! The one way a store is called: leave from the breaker, a deadline, a report.
//!
//! A call is made [`For`] somebody, and that says what an open breaker and a failure
//! mean for it. Everything that depends on how the store is doing lives here too: the
//! failure modes of this node and the counters that stand in for the store.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use palisade_core::failure::{CallDecision, Due, Event, Events, NodeModes, Permit, Policy};
use palisade_core::policy::Settings;
use palisade_core::time::{Clock, Micros};
use palisade_store::memory::{MemoryConfig, MemoryStore};
use palisade_store::{Answer, Store, StoreError, StoreRisks, Take, deadline};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::ports::{ModeChange, Observer};
use super::stand_in::StandIn;
use super::timing::is_measured;
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

/// Store calls of limits and quotas.
pub(super) const LIMITS: For = For::Decision(Policy::Limits);

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

/// When a store call must have ended, and when it began.
#[derive(Clone, Copy)]
pub(super) struct CallTimes {
    /// When the request that it belongs to must be answered.
    ends: Instant,
    /// When the run of calls began that it belongs to; `None` if it is the only one.
    began: Option<Instant>,
    /// What the clock showed when it was made, if somebody has looked.
    started: Option<Micros>,
}

impl From<Instant> for CallTimes {
    fn from(ends: Instant) -> Self {
        Self {
            ends,
            began: None,
            started: None,
        }
    }
}

impl CallTimes {
    /// A call that is made now, where the clock has been looked at already.
    pub(super) const fn started(ends: Instant, started: Option<Micros>) -> Self {
        Self {
            ends,
            began: None,
            started,
        }
    }

    /// When the call was made, if the clock was looked at.
    pub(super) const fn started_at(self) -> Option<Micros> {
        self.started
    }
}

/// The store calls of one request: made for the same purpose, ended with the same time.
#[derive(Clone, Copy)]
pub(super) struct Calls<'l> {
    pub(super) link: &'l Link,
    whom: For,
    /// When the run of calls began that these belong to.
    began: Instant,
    ends: Instant,
}

impl<'l> Calls<'l> {
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

    pub(super) async fn make<'c, T>(
        self,
        call: impl FnOnce(&'c dyn Store) -> Answer<'c, T>,
    ) -> Result<T, NoAnswer>
    where
        'l: 'c,
    {
        let times = CallTimes {
            began: Some(self.began),
            ..self.ends.into()
        };
        self.link.call(self.whom, times, call).await
    }
}

/// Leave to call, from the breaker if the call needs its leave, and when it was given.
#[derive(Clone, Copy)]
struct Leave {
    permit: Option<Permit>,
    at: Micros,
}

/// The store and how it is doing.
pub(super) struct Link {
    store: Arc<dyn Store>,
    /// Whether a call on buckets has been answered when it has been made.
    answers_at_once: bool,
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

impl Link {
    pub(super) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
        deadline: Duration,
        settings: &Settings,
    ) -> Self {
        let modes = NodeModes::new(settings.availability, settings.fallback.clone());
        Self {
            answers_at_once: answers_at_once(&*store),
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

    pub(super) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Whether a call on buckets has been answered when it has been made: nobody needs a
    /// deadline for one.
    pub(super) const fn answers_at_once(&self) -> bool {
        self.answers_at_once
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
        self.answers_at_once || self.is_reached.load(Ordering::Relaxed)
    }

    /// True while decisions under this policy are made without the store: its breaker is
    /// open.
    pub(super) fn is_cut_off(&self, policy: Policy) -> bool {
        let admitted = self.modes().admit(policy, self.now());
        matches!(admitted, CallDecision::DoNotCall)
    }

    /// The counters that limits fall back to.
    pub(super) const fn stand_in(&self) -> &StandIn {
        &self.stand_in
    }

    /// When a request that starts now must be answered.
    pub(super) fn request_ends(&self) -> Instant {
        match self.answers_at_once {
            // To look at the time would be a noticeable part of a decision in this process.
            true => self.far_off,
            false => deadline::after(self.deadline + GRACE),
        }
    }

    /// The calls of a request that starts now.
    pub(super) fn calls(&self, whom: For) -> Calls<'_> {
        let began = deadline::now();
        Calls {
            link: self,
            whom,
            began,
            ends: began + self.deadline + GRACE,
        }
    }

    /// One store call of a request. The call's own deadline starts when it is made: one that
    /// is cut short because the request's time went elsewhere says nothing about the store.
    pub(super) async fn call<'c, T>(
        &'c self,
        whom: For,
        times: impl Into<CallTimes>,
        call: impl FnOnce(&'c dyn Store) -> Answer<'c, T>,
    ) -> Result<T, NoAnswer> {
        let times = times.into();
        let leave = match self.skips_breaker(whom) {
            true => None,
            false => Some(self.leave(whom, times)?),
        };
        match (call(&*self.store), leave) {
            (Answer::Ready(Ok(found)), None) => {
                self.observer.store_call(None, None);
                Ok(found)
            }
            (Answer::Ready(Err(error)), None) => Err(self.failed_at_once(whom, error)),
            // Nothing has been asked yet of a store that answers later: leave is in time.
            (Answer::Later(answer), None) => {
                let leave = self.leave(whom, times)?;
                self.finish(whom, (times, leave), Answer::Later(answer))
                    .await
            }
            (answer, Some(leave)) => self.finish(whom, (times, leave), answer).await,
        }
    }

    /// Waits for an answer until its deadline, and tells whoever wants to know how it ended.
    async fn finish<T>(
        &self,
        whom: For,
        (times, leave): (CallTimes, Leave),
        answer: Answer<'_, T>,
    ) -> Result<T, NoAnswer> {
        let result = match answer {
            Answer::Ready(result) => result,
            Answer::Later(mut answer) => {
                let made = deadline::now();
                if made >= times.ends && whom != For::Upkeep {
                    return Err(NoAnswer::OutOfTime);
                }
                let ends = times.ends.min(made + self.deadline);
                match until(ends, Pin::new(&mut answer)).await {
                    Ok(result) => result,
                    Err(TimeIsUp) if ends - times.began.unwrap_or(made) < self.deadline => {
                        return Err(NoAnswer::OutOfTime);
                    }
                    Err(TimeIsUp) => Err(StoreError::TimedOut),
                }
            }
        };
        self.record_outcome(whom, leave, result.as_ref().err());
        result.map_err(NoAnswer::Failed)
    }

    /// Whether a call is made without asking for leave, and nobody hears of its answer but who
    /// counts: most calls of a store in this process, while it has not failed.
    fn skips_breaker(&self, whom: For) -> bool {
        self.answers_at_once
            && whom == For::Decision(Policy::Limits)
            && self.is_calm.load(Ordering::Acquire)
            && self.answers()
            && !is_measured(&TURN)
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
        self.record_outcome(whom, Leave { permit, at: now }, Some(&error));
        NoAnswer::Failed(error)
    }

    /// Leave to call, from the breaker if it has a say.
    fn leave(&self, whom: For, times: CallTimes) -> Result<Leave, NoAnswer> {
        let at = times.started.unwrap_or_else(|| self.now());
        let policy = match whom {
            For::Decision(policy) => policy,
            For::Upkeep => Policy::Limits,
            For::Background | For::Operator => return Ok(Leave { permit: None, at }),
        };
        match self.modes().admit(policy, at) {
            CallDecision::Call(permit) => Ok(Leave {
                permit: Some(permit),
                at,
            }),
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
    fn record_outcome(&self, whom: For, leave: Leave, error: Option<&StoreError>) {
        if whom == For::Operator {
            return;
        }
        let now = self.now();
        if error.is_none() && !self.is_reached.load(Ordering::Relaxed) {
            self.is_reached.store(true, Ordering::Relaxed);
        }
        self.notify_on_change(error, now);
        let took = now.since(leave.at);
        if whom != For::Background {
            self.observer.store_call(Some(took), error);
        }
        if let (For::Decision(policy), Some(permit)) = (whom, leave.permit) {
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
    fn notify_on_change(&self, error: Option<&StoreError>, now: Micros) {
        let state = error.map_or(ANSWERS, |error| error.kind() as u8);
        if self.told.load(Ordering::Relaxed) != state
            && self.told.swap(state, Ordering::Relaxed) != state
        {
            self.observer.store_changed(error, now);
        }
    }

    /// One call of an operator, which nobody waits for longer than the deadline.
    pub(super) async fn operate<'c, T>(
        &'c self,
        call: impl FnOnce(&'c dyn Store) -> Answer<'c, T>,
    ) -> Result<T, StoreError> {
        let answer = self.call(For::Operator, self.request_ends(), call).await;
        answer.map_err(StoreError::from)
    }

    /// One call beside all requests.
    pub(super) async fn attend<'c, T>(
        &'c self,
        call: impl FnOnce(&'c dyn Store) -> Answer<'c, T>,
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
        let answer = self.attend(|store| store.probe()).await;
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

/// Whether a store in this process answers: found out by a call that concerns no bucket. One
/// that is answered later is never made, since nobody polls it. Where nodes share a store,
/// requests wait for each other (for a lease to be filled), and have a deadline in any case.
fn answers_at_once(store: &dyn Store) -> bool {
    !store.is_shared() && matches!(store.charge(&[], Take::Peek), Answer::Ready(_))
}
