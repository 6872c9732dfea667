//! The breaker of limits and quotas. Configurable: here an outage costs accuracy,
//! not security.

use super::breaker::{
    Breaker, CallDecision, Circuit, Event, Events, Permit, PolicyMode, ProbeResult,
};
use crate::time::{MINUTE, Micros, SECOND};

/// Probes are never closer together than this, whatever is configured.
pub const PROBE_GAP_MIN: u64 = SECOND / 100;

/// Settings of the `availability` profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvailabilitySettings {
    /// Consecutive failures that open the circuit; 0 counts as 1.
    pub trip_failures: u32,
    /// Time from opening to the earliest probe, in microseconds.
    pub probe_dwell: u64,
    /// Time between probes once they are allowed, in microseconds.
    pub probe_interval: u64,
    /// Successful probes in a row that close the circuit; 0 counts as 1.
    pub close_successes: u32,
    /// Time without an answered probe after which the outage is prolonged, in microseconds.
    pub prolonged_after: u64,
}

impl Default for AvailabilitySettings {
    fn default() -> Self {
        Self {
            trip_failures: 5,
            probe_dwell: 10 * SECOND,
            probe_interval: 5 * SECOND,
            close_successes: 3,
            prolonged_after: 5 * MINUTE,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { next_probe: Micros },
    HalfOpen { successes: u32, next_probe: Micros },
}

/// The `availability` profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailabilityBreaker {
    settings: AvailabilitySettings,
    state: State,
    /// The instant since which the store has answered no probe, while the circuit is not closed.
    silent_since: Micros,
    prolonged_said: bool,
    openings: u64,
    /// Failures counted so far, compared with the count in a [`Permit`].
    known: u64,
    latest: Micros,
}

impl Default for AvailabilityBreaker {
    fn default() -> Self {
        Self::new(AvailabilitySettings::default())
    }
}

impl AvailabilityBreaker {
    /// A closed circuit.
    #[must_use]
    pub const fn new(settings: AvailabilitySettings) -> Self {
        Self {
            settings,
            state: State::Closed { failures: 0 },
            silent_since: Micros(0),
            prolonged_said: false,
            openings: 0,
            known: 0,
            latest: Micros(0),
        }
    }

    /// Replaces the settings; a running dwell keeps its end.
    pub const fn reconfigure(&mut self, settings: AvailabilitySettings) {
        self.settings = settings;
    }

    /// True if the store has answered no probe for so long that auth and admin
    /// limits close and readiness fails.
    #[must_use]
    pub fn is_prolonged(&self, now: Micros) -> bool {
        self.prolonged_at()
            .is_some_and(|at| self.latest.max(now) >= at)
    }

    /// Time for which the store has answered no probe, in microseconds; `None` while the circuit
    /// is closed.
    #[must_use]
    pub fn silent_for(&self, now: Micros) -> Option<u64> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { .. } | State::HalfOpen { .. } => {
                Some(self.latest.max(now).since(self.silent_since))
            }
        }
    }

    /// Microseconds until the next probe; zero while the circuit is closed.
    #[must_use]
    pub fn until_next_probe(&self, now: Micros) -> u64 {
        self.next_probe_at()
            .map_or(0, |at| at.since(self.latest.max(now)))
    }

    fn prolonged_at(&self) -> Option<Micros> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { .. } | State::HalfOpen { .. } => {
                Some(self.silent_since.plus(self.settings.prolonged_after))
            }
        }
    }

    fn open(&mut self, now: Micros, events: &mut Events) {
        self.state = self.dwelling(now);
        self.silent_since = now;
        self.openings += 1;
        events.push(Event::Opened);
        events.push(Event::DegradedEntered);
    }

    fn dwelling(&self, now: Micros) -> State {
        State::Open {
            next_probe: now.plus(self.settings.probe_dwell.max(PROBE_GAP_MIN)),
        }
    }

    fn healthy(&mut self, now: Micros, events: &mut Events) {
        self.silent_since = now;
        if std::mem::take(&mut self.prolonged_said) {
            events.push(Event::ProlongedEnded);
        }
        let before = self.successes();
        if before == 0 {
            events.push(Event::HalfOpened);
        }
        if before.saturating_add(1) >= self.settings.close_successes {
            self.state = State::Closed { failures: 0 };
            events.extend([Event::Closed, Event::DegradedExited, Event::DropCounters]);
            return;
        }
        self.state = State::HalfOpen {
            successes: before + 1,
            next_probe: now.plus(self.settings.probe_interval.max(PROBE_GAP_MIN)),
        };
    }

    fn unhealthy(&mut self, now: Micros, events: &mut Events) {
        if self.successes() > 0 {
            events.push(Event::Reopened);
        }
        self.state = self.dwelling(now);
    }

    const fn successes(&self) -> u32 {
        match self.state {
            State::HalfOpen { successes, .. } => successes,
            State::Closed { .. } | State::Open { .. } => 0,
        }
    }
}

impl Breaker for AvailabilityBreaker {
    fn admit(&self, _now: Micros) -> CallDecision {
        match self.state {
            State::Closed { .. } => CallDecision::Call(Permit {
                openings: self.openings,
                failures: self.known,
            }),
            State::Open { .. } | State::HalfOpen { .. } => CallDecision::DoNotCall,
        }
    }

    fn on_success(&mut self, permit: Permit, now: Micros) -> Events {
        let events = self.advance(now);
        if let State::Closed { failures } = &mut self.state
            && permit.openings == self.openings
        {
            *failures = 0;
        }
        events
    }

    fn on_failure(&mut self, permit: Permit, now: Micros) -> Events {
        let mut events = self.advance(now);
        if let State::Closed { failures } = &mut self.state
            && permit.openings == self.openings
            // Calls in progress together fail together (F-STALL): one that began before the last
            // failure became known adds no failure of its own.
            && permit.failures == self.known
        {
            *failures += 1;
            self.known += 1;
            if *failures >= self.settings.trip_failures {
                self.open(self.latest, &mut events);
            }
        }
        events
    }

    fn next_probe_at(&self) -> Option<Micros> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { next_probe } | State::HalfOpen { next_probe, .. } => Some(next_probe),
        }
    }

    fn on_probe(&mut self, result: ProbeResult, _began: Micros, now: Micros) -> Events {
        let mut events = self.advance(now);
        if !self.probe_due(self.latest) {
            return events;
        }
        match result {
            ProbeResult::Healthy => self.healthy(self.latest, &mut events),
            ProbeResult::Failed => self.unhealthy(self.latest, &mut events),
        }
        events
    }

    fn advance(&mut self, now: Micros) -> Events {
        self.latest = self.latest.max(now);
        let mut events = Events::new();
        if self.is_prolonged(now) && !self.prolonged_said {
            self.prolonged_said = true;
            events.push(Event::Prolonged);
        }
        events
    }

    fn next_advance_at(&self) -> Option<Micros> {
        self.prolonged_at().filter(|_| !self.prolonged_said)
    }

    fn is_calm(&self) -> bool {
        matches!(self.state, State::Closed { failures: 0 })
    }

    fn circuit(&self) -> Circuit {
        match self.state {
            State::Closed { .. } => Circuit::Closed,
            State::Open { .. } => Circuit::Open,
            State::HalfOpen { .. } => Circuit::HalfOpen,
        }
    }

    fn mode(&self, _now: Micros) -> PolicyMode {
        match self.state {
            State::Closed { .. } => PolicyMode::Normal,
            State::Open { .. } | State::HalfOpen { .. } => PolicyMode::Degraded,
        }
    }
}
