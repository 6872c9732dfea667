//! The only way to call a store: permission from the breaker, a deadline, and a report of the
//! outcome.
//!
//! A call is made [`For`] a purpose, which decides how an open breaker and a failure affect it.
//! This module also holds everything that depends on the state of the store: the failure modes of
//! this node and the counters that stand in for the store.

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

/// Counters in this process only: local limits, throttles and fallback counters.
pub(super) type LocalStore = MemoryStore<Arc<dyn Clock>>;

/// Time that a request may take beyond the store's deadline. A request waits for its turn no longer
/// than the deadline, so that a store call after the wait still has this much time.
const GRACE: Duration = Duration::from_millis(40);

thread_local! {
    /// Number of calls of a synchronous store on this thread; one in a few is measured.
    static TURN: Cell<u32> = const { Cell::new(0) };
}

/// Value of `Link::told` while the store answers; other values are kinds of failures.
const ANSWERS: u8 = u8::MAX;

/// Most local counters of each kind. Further keys share one strict counter.
const LOCAL_KEYS_MAX: u64 = 1_000_000;

/// Distance of a deadline that never passes: no process lives this long.
const FAR_OFF: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Empty local counters.
pub(super) fn local_store(clock: &Arc<dyn Clock>) -> LocalStore {
    let config = MemoryConfig {
        keys_max: LOCAL_KEYS_MAX,
        ..MemoryConfig::default()
    };
    MemoryStore::new(Arc::clone(clock), &config)
}

/// The purpose of a store call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// A decision under this failure policy. The call is not made while the policy's breaker is
    /// open, and its result counts for that breaker.
    Decision(Policy),
    /// Fetching or returning tokens of leased limits. The call is not made while the breaker of the
    /// limits is open, but its result does not count for it: a request that finds no token calls
    /// the store itself.
    Upkeep,
    /// A probe, or a copy of a registry. The call is made even if breakers are open, and its result
    /// does not count for them; a probe's result is reported separately.
    Background,
    /// A request by an operator. The call is made even if breakers are open. Its result says
    /// nothing about the store's health, because a listing may take longer than a decision.
    Operator,
}

/// Store calls of limits and quotas.
pub(super) const LIMITS: For = For::Decision(Policy::Limits);

/// Reason why a store call has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The breaker is open, so the store was not called.
    NotAsked,
    /// The request's time ended before the call, or before the store had its full deadline: it was
    /// spent waiting for a turn or on lost swaps.
    OutOfTime,
    /// The store was called and failed.
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

/// Time limits of a store call.
#[derive(Clone, Copy)]
pub(super) struct CallTimes {
    /// Time at which the request must be answered.
    ends: Instant,
    /// Start of the series of calls that this one belongs to; `None` if it is the only one.
    began: Option<Instant>,
    /// The clock's reading when the call was made, if the caller already has it.
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
    /// A call that starts at a reading of the clock which the caller already has.
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

/// The store calls of one request, which share a purpose and a time limit.
#[derive(Clone, Copy)]
pub(super) struct Calls<'l> {
    pub(super) link: &'l Link,
    whom: For,
    /// Start of the current series of calls.
    began: Instant,
    ends: Instant,
}

impl<'l> Calls<'l> {
    /// Time until which the request may wait for its turn. Later there would be no time left to use
    /// it.
    pub(super) fn turn_ends(self) -> Instant {
        self.ends - GRACE
    }

    /// Start of the current series of calls: the request's arrival, unless `anew` has restarted the
    /// series.
    pub(super) const fn began(self) -> Instant {
        self.began
    }

    /// Restarts the series after a wait for a turn or a lost swap, so that the time before it is
    /// not held against the store.
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

/// Permission to call the store: the breaker's permit, if the call needs one, and when it was
/// given.
#[derive(Clone, Copy)]
struct Leave {
    permit: Option<Permit>,
    at: Micros,
}

/// The store, with everything that depends on its state.
pub(super) struct Link {
    store: Arc<dyn Store>,
    /// The store answers bucket calls synchronously and is used by this node alone.
    answers_at_once: bool,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
    deadline: Duration,
    /// The deadline of calls that need none.
    far_off: Instant,
    modes: Mutex<NodeModes>,
    /// A successful limit call would not change the breaker: see [`NodeModes::is_calm`].
    is_calm: AtomicBool,
    stand_in: StandIn,
    /// The last failure that was reported to the observer, or [`ANSWERS`].
    told: AtomicU8,
    /// The store has answered at least once.
    is_reached: AtomicBool,
    /// The risks that were last reported to the observer.
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

    /// Takes over the settings of a new policy.
    pub(super) fn reconfigure(&self, settings: &Settings) {
        self.modes()
            .reconfigure(settings.availability, settings.fallback.clone());
    }

    pub(super) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Whether the store answers bucket calls synchronously. Such a call needs no deadline.
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

    /// True if the last call that ended was successful.
    pub(super) fn answers(&self) -> bool {
        self.told.load(Ordering::Relaxed) == ANSWERS
    }

    /// True once the store has answered. A synchronous store counts as reached from the start.
    pub(super) fn is_reached(&self) -> bool {
        self.answers_at_once || self.is_reached.load(Ordering::Relaxed)
    }

    /// True while decisions under this failure policy are made without the store because its
    /// breaker is open.
    pub(super) fn is_cut_off(&self, policy: Policy) -> bool {
        let admitted = self.modes().admit(policy, self.now());
        matches!(admitted, CallDecision::DoNotCall)
    }

    /// The counters that limits fall back to while the store cannot be called.
    pub(super) const fn stand_in(&self) -> &StandIn {
        &self.stand_in
    }

    /// Time by which a request that starts now must be answered.
    pub(super) fn request_ends(&self) -> Instant {
        match self.answers_at_once {
            // Reading the time would be a noticeable part of a decision in memory.
            true => self.far_off,
            false => deadline::after(self.deadline + GRACE),
        }
    }

    /// The store calls of a request that starts now.
    pub(super) fn calls(&self, whom: For) -> Calls<'_> {
        let began = deadline::now();
        Calls {
            link: self,
            whom,
            began,
            ends: began + self.deadline + GRACE,
        }
    }

    /// Makes one store call of a request. The call's own deadline starts now; if the request's time
    /// ends it earlier, that is not held against the store.
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
            // A store that answers later has not been called yet (futures are lazy), so asking the
            // breaker now is still in time.
            (Answer::Later(answer), None) => {
                let leave = self.leave(whom, times)?;
                self.finish(whom, (times, leave), Answer::Later(answer))
                    .await
            }
            (answer, Some(leave)) => self.finish(whom, (times, leave), answer).await,
        }
    }

    /// Waits for the answer until its deadline and reports the outcome.
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
                    // The store did not have its full deadline: the time was lost before this call.
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

    /// Whether to make a call without the breaker's permission and report it with a bare count.
    /// True of most limit calls of a synchronous store that has not failed, for which permission
    /// and full report would cost more than the call.
    fn skips_breaker(&self, whom: For) -> bool {
        self.answers_at_once
            && whom == For::Decision(Policy::Limits)
            && self.is_calm.load(Ordering::Acquire)
            && self.answers()
            && !is_measured(&TURN)
    }

    /// Reports the failure of a call that skipped the breaker. The permit is requested only now; if
    /// the breaker has opened in the meantime, the failure does not count for it.
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

    /// Asks the breaker for permission, unless the call does not depend on one.
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

    /// Reports the outcome of a call to metrics, to the breaker and, if the store's state changed,
    /// to the observer.
    fn record_outcome(&self, whom: For, leave: Leave, error: Option<&StoreError>) {
        // See [`For::Operator`]: a slow listing is no sign of a slow store.
        if whom == For::Operator {
            return;
        }
        let now = self.now();
        // Checked first, because a write on every call would make threads contend for the cache
        // line.
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
        // As above, write only on change.
        if self.is_calm.load(Ordering::Relaxed) != is_calm {
            self.is_calm.store(is_calm, Ordering::Release);
        }
    }

    /// Reports to the observer that the store fails or answers again, once per change.
    fn notify_on_change(&self, error: Option<&StoreError>, now: Micros) {
        let state = error.map_or(ANSWERS, |error| error.kind() as u8);
        if self.told.load(Ordering::Relaxed) != state
            && self.told.swap(state, Ordering::Relaxed) != state
        {
            self.observer.store_changed(error, now);
        }
    }

    /// Makes a call for an operator. It ends with the deadline of a request.
    pub(super) async fn operate<'c, T>(
        &'c self,
        call: impl FnOnce(&'c dyn Store) -> Answer<'c, T>,
    ) -> Result<T, StoreError> {
        let answer = self.call(For::Operator, self.request_ends(), call).await;
        answer.map_err(StoreError::from)
    }

    /// Makes a background call.
    pub(super) async fn attend<'c, T>(
        &'c self,
        call: impl FnOnce(&'c dyn Store) -> Answer<'c, T>,
    ) -> Result<T, StoreError> {
        let answer = self.call(For::Background, self.request_ends(), call).await;
        answer.map_err(StoreError::from)
    }

    /// Does what is due: a time-driven change of a breaker, or a probe of the store.
    pub(super) async fn run(&self, due: Due, now: Micros) {
        match due {
            Due::Advance(policy) => {
                let events = self.modes().advance(policy, now);
                self.report(policy, &events, None, now);
            }
            Due::Probe(policy) => self.probe(policy, now).await,
        }
    }

    /// Probes the store, and reports if its settings put other things at risk than before.
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

/// Whether a store answers bucket calls synchronously, found out by a call without buckets. Its
/// future is never polled, so an asynchronous store is not called. Shared stores do not count even
/// if they answer at once: their requests wait for each other (for a lease to be filled) and need a
/// deadline in any case.
fn answers_at_once(store: &dyn Store) -> bool {
    !store.is_shared() && matches!(store.charge(&[], Take::Peek), Answer::Ready(_))
}
