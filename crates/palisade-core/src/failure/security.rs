//! The breaker of logins, one-time codes and heavy endpoints. Its constants are
//! locked: an outage that an attacker can provoke must not become a way in.

use arrayvec::ArrayVec;

use super::breaker::{
    Breaker, CallDecision, Circuit, Event, Events, Permit, PolicyMode, ProbeResult,
};
use crate::time::{MINUTE, Micros, SECOND};

/// Failures within [`TRIP_WINDOW`] that open the circuit.
pub const TRIP_FAILURES: usize = 3;
/// The window of [`TRIP_FAILURES`].
pub const TRIP_WINDOW: u64 = 10 * SECOND;
/// From opening, or from a failed probe, to the earliest probe.
pub const PROBE_DWELL: u64 = 5 * MINUTE;
/// From the first healthy probe to the earliest one that closes the circuit.
pub const HEALTHY_INTERVAL: u64 = 2 * MINUTE;
/// Between probes once they are allowed.
pub const PROBE_INTERVAL: u64 = 5 * SECOND;
/// Re-entries within [`REENTRY_WINDOW`] that are tolerated.
pub const REENTRIES_MAX: usize = 2;
/// The window of [`REENTRIES_MAX`].
pub const REENTRY_WINDOW: u64 = 30 * MINUTE;
/// How long the re-entry guard refuses.
pub const REENTRY_FAIL_CLOSED: u64 = 10 * MINUTE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
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
    /// Entries of the last [`REENTRY_WINDOW`]: the first and the tolerated re-entries.
    entries: ArrayVec<Micros, { REENTRIES_MAX + 1 }>,
    refuse_until: Option<Micros>,
    openings: u64,
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
            entries: ArrayVec::new(),
            refuse_until: None,
            openings: 0,
            latest: Micros(0),
        }
    }

    fn observe(&mut self, now: Micros) -> Micros {
        self.latest = self.latest.max(now);
        self.latest
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

    /// Degraded mode is entered, unless it was entered too often of late.
    fn enter(&mut self, now: Micros, events: &mut Events) {
        self.entries.retain(|at| now.since(*at) < REENTRY_WINDOW);
        if self.entries.try_push(now).is_ok() {
            events.push(Event::DegradedEntered);
            return;
        }
        self.entries.clear();
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
            State::Closed | State::Open { .. } => None,
        }
    }

    fn end_refusal(&mut self, now: Micros, events: &mut Events) {
        if self.refuse_until.is_none_or(|until| now < until) {
            return;
        }
        self.refuse_until = None;
        events.push(Event::ReentryEnded);
        if self.state != State::Closed {
            events.push(Event::DegradedEntered);
        }
    }
}

impl Breaker for SecurityBreaker {
    fn admit(&self, now: Micros) -> CallDecision {
        match self.mode(now) {
            PolicyMode::Normal => CallDecision::Call(Permit {
                openings: self.openings,
            }),
            PolicyMode::Degraded | PolicyMode::FailClosed { .. } => CallDecision::DoNotCall,
        }
    }

    /// A success proves nothing here: three failures within the window trip,
    /// whatever lies between them.
    fn on_success(&mut self, _permit: Permit, now: Micros) -> Events {
        self.advance(now)
    }

    fn on_failure(&mut self, permit: Permit, now: Micros) -> Events {
        let mut events = self.advance(now);
        let now = self.latest;
        if permit.openings != self.openings {
            return events;
        }
        self.failures.retain(|at| now.since(*at) < TRIP_WINDOW);
        self.failures.push(now);
        if self.failures.is_full() {
            self.open(now, &mut events);
        }
        events
    }

    fn next_probe_at(&self) -> Option<Micros> {
        match self.state {
            State::Closed => None,
            State::Open { next_probe } | State::HalfOpen { next_probe, .. } => Some(next_probe),
        }
    }

    fn on_probe(&mut self, result: ProbeResult, now: Micros) -> Events {
        let mut events = self.advance(now);
        let now = self.latest;
        if !self.probe_due(now) {
            return events;
        }
        let first_healthy = self.first_healthy();
        match result {
            ProbeResult::Healthy => self.healthy(now, first_healthy, &mut events),
            ProbeResult::Failed => self.unhealthy(now, first_healthy, &mut events),
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
            State::Closed => Circuit::Closed,
            State::Open { .. } => Circuit::Open,
            State::HalfOpen { .. } => Circuit::HalfOpen,
        }
    }

    fn mode(&self, now: Micros) -> PolicyMode {
        let now = self.latest.max(now);
        match (self.refuse_until, self.state) {
            (Some(until), _) if now < until => PolicyMode::FailClosed { until },
            (_, State::Closed) => PolicyMode::Normal,
            (_, State::Open { .. } | State::HalfOpen { .. }) => PolicyMode::Degraded,
        }
    }
}
