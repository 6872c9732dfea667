//! Parts that the two breaker profiles share: states, results and events.

use arrayvec::ArrayVec;

use crate::time::Micros;

/// State of a circuit, as the metric shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Circuit {
    /// The store is called.
    #[default]
    Closed,
    /// The store is not called.
    Open,
    /// The store is not called; probes are succeeding.
    HalfOpen,
}

impl Circuit {
    /// Value of the metric: 0 closed, 1 open, 2 half open.
    #[must_use]
    pub const fn gauge(self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::Open => 1,
            Self::HalfOpen => 2,
        }
    }

    /// Name of the state in metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// Mode in which requests of one policy are handled now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyMode {
    /// The store is called; a request whose own call fails is answered without it.
    Normal,
    /// The circuit is not closed: local caps or local fallback.
    Degraded,
    /// The re-entry guard refuses everything.
    FailClosed {
        /// The end of the refusal.
        until: Micros,
    },
}

/// Permission to make one store call. The call's result is reported with the permit, so that the
/// late result of a call made before the circuit opened changes nothing, and calls that fail
/// together count once (F-STALL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "report the call's result with it"]
pub struct Permit {
    pub(super) openings: u64,
    /// Failures known when the call began. A count and not an instant: it orders calls
    /// and failures exactly, whatever the clock's resolution, and clocks may step.
    pub(super) failures: u64,
}

/// Whether the store may be called for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallDecision {
    /// Call the store, then report the result with the permit.
    Call(Permit),
    /// Do not call the store: answer locally.
    DoNotCall,
}

impl CallDecision {
    /// The permit, if there is one.
    #[must_use]
    pub const fn permit(self) -> Option<Permit> {
        match self {
            Self::Call(permit) => Some(permit),
            Self::DoNotCall => None,
        }
    }
}

/// The result of a background probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeResult {
    /// The store answered within the deadline.
    Healthy,
    /// The store failed, or did not answer within the deadline.
    Failed,
}

/// Change that an operator must be able to see: the caller audits and counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call failed and the circuit is still closed: requests whose calls fail are
    /// refused (heavy endpoints: let through behind local caps).
    Suspected,
    /// The suspicion is over: a probe succeeded, or the circuit opens.
    SuspicionEnded,
    /// The circuit opened from closed.
    Opened,
    /// A first healthy probe.
    HalfOpened,
    /// A probe failed while the circuit was half open.
    Reopened,
    /// The circuit closed.
    Closed,
    /// Requests are now decided locally.
    DegradedEntered,
    /// Requests are decided by the store again.
    DegradedExited,
    /// Critical: degraded mode was entered too often; everything is refused.
    ReentryGuard {
        /// The end of the refusal.
        until: Micros,
    },
    /// The refusal of the re-entry guard ended.
    ReentryEnded,
    /// The store has answered no availability probe for too long.
    Prolonged,
    /// The store answered a probe again after a prolonged outage.
    ProlongedEnded,
    /// F-CLEAN: drop the local counters of the fallback.
    DropCounters,
}

impl Event {
    /// The change of the circuit, for `transitions_total{from,to}`.
    #[must_use]
    pub const fn transition(self) -> Option<(Circuit, Circuit)> {
        match self {
            Self::Opened => Some((Circuit::Closed, Circuit::Open)),
            Self::HalfOpened => Some((Circuit::Open, Circuit::HalfOpen)),
            Self::Reopened => Some((Circuit::HalfOpen, Circuit::Open)),
            Self::Closed => Some((Circuit::HalfOpen, Circuit::Closed)),
            _ => None,
        }
    }

    /// True for events that must page an operator.
    #[must_use]
    pub const fn is_critical(self) -> bool {
        matches!(self, Self::ReentryGuard { .. })
    }
}

/// Events of one step, in order.
pub type Events = ArrayVec<Event, 8>;

/// State machine that decides whether the store is called; both profiles implement it.
///
/// Instants may come from several threads and be slightly out of order: an earlier one never moves
/// the state back.
pub trait Breaker {
    /// Decides whether the store may be called now.
    fn admit(&self, now: Micros) -> CallDecision;

    /// Reports that an admitted call succeeded.
    fn on_success(&mut self, permit: Permit, now: Micros) -> Events;

    /// Reports that an admitted call failed: an error, a refused connection, or no answer within
    /// the deadline.
    fn on_failure(&mut self, permit: Permit, now: Micros) -> Events;

    /// When the next background probe may start; `None` while the store is trusted.
    fn next_probe_at(&self) -> Option<Micros>;

    /// Reports the result of a background probe that started at `began`. A probe that was not due
    /// is ignored.
    fn on_probe(&mut self, result: ProbeResult, began: Micros, now: Micros) -> Events;

    /// Emits the events that are due only because time has passed.
    fn advance(&mut self, now: Micros) -> Events;

    /// When [`Breaker::advance`] next has something to emit.
    fn next_advance_at(&self) -> Option<Micros>;

    /// The circuit's state.
    fn circuit(&self) -> Circuit;

    /// Mode in which the policy handles its requests.
    fn mode(&self, now: Micros) -> PolicyMode;

    /// True after a failure that did not open the circuit, until a probe succeeds.
    fn is_suspect(&self) -> bool {
        false
    }

    /// True if reporting a success would change nothing, so that callers may skip it.
    fn is_calm(&self) -> bool {
        false
    }

    /// True if a probe may start now.
    fn probe_due(&self, now: Micros) -> bool {
        self.next_probe_at().is_some_and(|at| at <= now)
    }
}
