//! The breaker of logins, one-time codes and heavy endpoints. Its settings are constants: an
//! outage that an attacker can provoke must not become a way in.

use arrayvec::ArrayVec;

use super::breaker::{
    Breaker, CallDecision, Circuit, Event, Events, Permit, PolicyMode, ProbeResult,
};
use crate::time::{MINUTE, Micros, SECOND};

/// Failures within [`TRIP_WINDOW`] that open the circuit.
pub const TRIP_FAILURES: usize = 3;
/// The window of [`TRIP_FAILURES`].
pub const TRIP_WINDOW: u64 = 10 * SECOND;
/// Time between probes after a failure that did not open the circuit: the third failure of a dead
/// store comes within [`TRIP_WINDOW`], however few requests there are.
pub const SUSPECT_INTERVAL: u64 = 3 * SECOND;
/// Time from opening, or from a failed probe, to the earliest probe.
pub const PROBE_DWELL: u64 = 5 * MINUTE;
/// Time from the first healthy probe to the earliest one that closes the circuit.
pub const HEALTHY_INTERVAL: u64 = 2 * MINUTE;
/// Time between probes once they are allowed.
pub const PROBE_INTERVAL: u64 = 5 * SECOND;
/// Re-entries within [`REENTRY_WINDOW`] that are tolerated.
pub const REENTRIES_MAX: usize = 2;
/// The window of [`REENTRIES_MAX`].
pub const REENTRY_WINDOW: u64 = 30 * MINUTE;
/// Time for which the re-entry guard refuses.
pub const REENTRY_FAIL_CLOSED: u64 = 10 * MINUTE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    /// The circuit is still closed, but a call failed and no probe has succeeded since.
    Suspect {
        next_probe: Micros,
    },
    Open {
        next_probe: Micros,
    },
    HalfOpen {
        first_healthy: Micros,
        next_probe: Micros,
    },
}

/// The `security` profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityBreaker {
    state: State,
    /// Failures of the running window, oldest first.
    failures: ArrayVec<Micros, TRIP_FAILURES>,
    /// When degraded mode was entered last.
    entered: Option<Micros>,
    /// Instants of re-entries: entries into degraded mode within [`REENTRY_WINDOW`] of the entry
    /// before. Only those of the last [`REENTRY_WINDOW`] are kept.
    reentries: ArrayVec<Micros, { REENTRIES_MAX + 1 }>,
    refuse_until: Option<Micros>,
    openings: u64,
    /// Failures counted so far, compared with the count in a [`Permit`].
    known: u64,
    latest: Micros,
}

impl Default for SecurityBreaker {
    fn default() -> Self {
        Self::new()
    }
}

impl SecurityBreaker {
    /// A closed circuit without history.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: State::Closed,
            failures: ArrayVec::new(),
            entered: None,
            reentries: ArrayVec::new(),
            refuse_until: None,
            openings: 0,
            known: 0,
            latest: Micros(0),
        }
    }

    fn observe(&mut self, now: Micros) -> Micros {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Counts a call or a probe that failed while the circuit was closed.
    fn fail(&mut self, now: Micros, events: &mut Events) {
        self.failures.retain(|at| now.since(*at) < TRIP_WINDOW);
        self.failures.push(now);
        self.known += 1;
        // The array has room for exactly as many failures as trip the breaker.
        if self.failures.is_full() {
            self.trust(events);
            self.open(now, events);
        } else if self.state == State::Closed {
            self.state = State::Suspect {
                next_probe: now.plus(SUSPECT_INTERVAL),
            };
            events.push(Event::Suspected);
        }
    }

    /// Ends the suspicion: the store has answered, or the circuit is about to open.
    fn trust(&mut self, events: &mut Events) {
        if matches!(self.state, State::Suspect { .. }) {
            self.state = State::Closed;
            events.push(Event::SuspicionEnded);
        }
    }

    fn open(&mut self, now: Micros, events: &mut Events) {
        self.state = State::Open {
            next_probe: now.plus(PROBE_DWELL),
        };
        self.failures.clear();
        self.openings += 1;
        events.push(Event::Opened);
        self.enter(now, events);
    }

    /// Enters degraded mode, or refuses everything for a time if it was entered too often lately.
    fn enter(&mut self, now: Micros, events: &mut Events) {
        let is_recent = |at: &Micros| now.since(*at) < REENTRY_WINDOW;
        self.reentries.retain(|at| is_recent(at));
        let last = self.entered.replace(now);
        if last.as_ref().is_some_and(is_recent) {
            self.reentries.push(now);
        }
        if !self.reentries.is_full() {
            events.push(Event::DegradedEntered);
            return;
        }
        // The refusal clears the history: entries after it are counted afresh.
        self.entered = None;
        self.reentries.clear();
        let until = now.plus(REENTRY_FAIL_CLOSED);
        self.refuse_until = Some(until);
        events.push(Event::ReentryGuard { until });
    }

    fn healthy(&mut self, now: Micros, first_healthy: Option<Micros>, events: &mut Events) {
        let first = first_healthy.unwrap_or(now);
        if now.since(first) >= HEALTHY_INTERVAL {
            self.close(events);
            return;
        }
        self.state = State::HalfOpen {
            first_healthy: first,
            next_probe: now.plus(PROBE_INTERVAL),
        };
        if first_healthy.is_none() {
            events.push(Event::HalfOpened);
        }
    }

    fn close(&mut self, events: &mut Events) {
        self.state = State::Closed;
        events.push(Event::Closed);
        // While the re-entry guard refuses, degraded mode was never entered: there is none to
        // leave.
        if self.refuse_until.is_none() {
            events.push(Event::DegradedExited);
        }
    }

    fn unhealthy(&mut self, now: Micros, first_healthy: Option<Micros>, events: &mut Events) {
        self.state = State::Open {
            next_probe: now.plus(PROBE_DWELL),
        };
        if first_healthy.is_some() {
            events.push(Event::Reopened);
        }
    }

    fn first_healthy(&self) -> Option<Micros> {
        match self.state {
            State::HalfOpen { first_healthy, .. } => Some(first_healthy),
            State::Closed | State::Suspect { .. } | State::Open { .. } => None,
        }
    }

    const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed | State::Suspect { .. })
    }

    fn end_refusal(&mut self, now: Micros, events: &mut Events) {
        if self.refuse_until.is_none_or(|until| now < until) {
            return;
        }
        self.refuse_until = None;
        events.push(Event::ReentryEnded);
        if !self.is_closed() {
            events.push(Event::DegradedEntered);
        }
    }
}

impl Breaker for SecurityBreaker {
    fn admit(&self, now: Micros) -> CallDecision {
        match self.mode(now) {
            PolicyMode::Normal => CallDecision::Call(Permit {
                openings: self.openings,
                failures: self.known,
            }),
            PolicyMode::Degraded | PolicyMode::FailClosed { .. } => CallDecision::DoNotCall,
        }
    }

    /// Handles only what is due by time: a success proves nothing here. Three failures within the
    /// window trip the breaker, whatever happens between them.
    fn on_success(&mut self, _permit: Permit, now: Micros) -> Events {
        self.advance(now)
    }

    fn on_failure(&mut self, permit: Permit, now: Micros) -> Events {
        let mut events = self.advance(now);
        let now = self.latest;
        // Calls in progress together fail together (F-STALL): one that began before the last
        // failure became known adds no failure of its own.
        if permit.openings != self.openings || permit.failures != self.known {
            return events;
        }
        self.fail(now, &mut events);
        events
    }

    fn next_probe_at(&self) -> Option<Micros> {
        match self.state {
            State::Closed => None,
            State::Suspect { next_probe }
            | State::Open { next_probe }
            | State::HalfOpen { next_probe, .. } => Some(next_probe),
        }
    }

    fn on_probe(&mut self, result: ProbeResult, began: Micros, now: Micros) -> Events {
        let mut events = self.advance(now);
        let now = self.latest;
        if !self.probe_due(now) {
            return events;
        }
        let first_healthy = self.first_healthy();
        match (self.state, result) {
            (State::Suspect { .. }, ProbeResult::Healthy) => self.trust(&mut events),
            (State::Suspect { .. }, ProbeResult::Failed) => {
                self.state = State::Suspect {
                    next_probe: now.plus(SUSPECT_INTERVAL),
                };
                // A probe that was under way when a call failed is part of the same failure
                // (F-STALL).
                if self.failures.last().is_none_or(|last| began >= *last) {
                    self.fail(now, &mut events);
                }
            }
            (_, ProbeResult::Healthy) => self.healthy(now, first_healthy, &mut events),
            (_, ProbeResult::Failed) => self.unhealthy(now, first_healthy, &mut events),
        }
        events
    }

    fn advance(&mut self, now: Micros) -> Events {
        let now = self.observe(now);
        let mut events = Events::new();
        self.end_refusal(now, &mut events);
        events
    }

    fn next_advance_at(&self) -> Option<Micros> {
        self.refuse_until
    }

    fn circuit(&self) -> Circuit {
        match self.state {
            State::Closed | State::Suspect { .. } => Circuit::Closed,
            State::Open { .. } => Circuit::Open,
            State::HalfOpen { .. } => Circuit::HalfOpen,
        }
    }

    fn is_suspect(&self) -> bool {
        matches!(self.state, State::Suspect { .. })
    }

    fn mode(&self, now: Micros) -> PolicyMode {
        let now = self.latest.max(now);
        match (self.refuse_until, self.state) {
            (Some(until), _) if now < until => PolicyMode::FailClosed { until },
            (_, State::Closed | State::Suspect { .. }) => PolicyMode::Normal,
            (_, State::Open { .. } | State::HalfOpen { .. }) => PolicyMode::Degraded,
        }
    }
}
