//! A second implementation of the breakers' timetable, written from the table of the failure rules
//! and not from the engine. The engine's mode must agree with it.

use palisade::core::failure::Policy;
use palisade::core::time::{MINUTE, Micros, SECOND};

/// How a policy's requests are to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Normal,
    Degraded,
    Refusing,
}

#[derive(Clone, Copy, Debug)]
enum Circuit {
    Closed,
    Open {
        probe_from: Micros,
        healthy_since: Option<Micros>,
        successes: u32,
    },
}

/// State of a breaker when a call was admitted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Leave {
    openings: u64,
    failures: u64,
}

/// The timetable of one policy on one node.
#[derive(Clone, Debug)]
pub(crate) struct Timetable {
    policy: Policy,
    circuit: Circuit,
    failures: Vec<Micros>,
    /// Time of the next probe after a failure that did not open the breaker.
    suspect_from: Option<Micros>,
    entered: Option<Micros>,
    reentries: Vec<Micros>,
    refusing_until: Micros,
    last_answered_probe: Micros,
    failures_known: u64,
    pub(crate) openings: u64,
    pub(crate) closings: u64,
}

impl Timetable {
    pub(crate) const fn new(policy: Policy) -> Self {
        Self {
            policy,
            circuit: Circuit::Closed,
            failures: Vec::new(),
            suspect_from: None,
            entered: None,
            reentries: Vec::new(),
            refusing_until: Micros(0),
            last_answered_probe: Micros(0),
            failures_known: 0,
            openings: 0,
            closings: 0,
        }
    }

    const fn is_security(&self) -> bool {
        !matches!(self.policy, Policy::Limits)
    }

    pub(crate) fn mode(&self, now: Micros) -> Expected {
        if now < self.refusing_until {
            return Expected::Refusing;
        }
        match self.circuit {
            Circuit::Closed => Expected::Normal,
            Circuit::Open { .. } => Expected::Degraded,
        }
    }

    /// No availability probe was answered for five minutes.
    pub(crate) fn is_prolonged(&self, now: Micros) -> bool {
        matches!(self.circuit, Circuit::Open { .. })
            && now.since(self.last_answered_probe) >= 5 * MINUTE
    }

    pub(crate) fn probe_from(&self) -> Option<Micros> {
        match self.circuit {
            Circuit::Closed => self.suspect_from,
            Circuit::Open { probe_from, .. } => Some(probe_from),
        }
    }

    /// Permission for a call that begins now.
    pub(crate) const fn leave(&self) -> Leave {
        Leave {
            openings: self.openings,
            failures: self.failures_known,
        }
    }

    /// Notes the end of a call that began with this permission.
    pub(crate) fn called(&mut self, leave: Leave, failed: bool, now: Micros) {
        if leave.openings != self.openings || !matches!(self.circuit, Circuit::Closed) {
            return;
        }
        if failed {
            // F-STALL: a call that began before the last failure was known belongs to it.
            if leave.failures == self.failures_known {
                self.failed(now);
            }
        } else if !self.is_security() {
            self.failures.clear();
        }
    }

    fn failed(&mut self, now: Micros) {
        if self.is_security() {
            self.failures.retain(|at| now.since(*at) < 10 * SECOND);
            self.suspect_from.get_or_insert(now.plus(3 * SECOND));
        }
        self.failures.push(now);
        self.failures_known += 1;
        if self.failures.len() >= if self.is_security() { 3 } else { 5 } {
            self.open(now);
        }
    }

    fn open(&mut self, now: Micros) {
        self.failures.clear();
        self.suspect_from = None;
        self.openings += 1;
        self.last_answered_probe = now;
        self.dwell(now);
        if !self.is_security() {
            return;
        }
        self.reentries.retain(|at| now.since(*at) < 30 * MINUTE);
        if self.entered.is_some_and(|at| now.since(at) < 30 * MINUTE) {
            self.reentries.push(now);
        }
        self.entered = Some(now);
        if self.reentries.len() > 2 {
            self.reentries.clear();
            self.entered = None;
            self.refusing_until = now.plus(10 * MINUTE);
        }
    }

    fn dwell(&mut self, now: Micros) {
        let dwell = if self.is_security() {
            5 * MINUTE
        } else {
            10 * SECOND
        };
        self.circuit = Circuit::Open {
            probe_from: now.plus(dwell),
            healthy_since: None,
            successes: 0,
        };
    }

    pub(crate) fn probed(&mut self, healthy: bool, began: Micros, now: Micros) {
        // The breaker may have opened while the probe was under way.
        if self.probe_from().is_none_or(|from| from > now) {
            return;
        }
        let Circuit::Open {
            healthy_since,
            successes,
            ..
        } = self.circuit
        else {
            self.suspect_from = (!healthy).then(|| now.plus(3 * SECOND));
            if !healthy && self.failures.last().is_none_or(|last| began >= *last) {
                self.failed(now);
            }
            return;
        };
        if !healthy {
            return self.dwell(now);
        }
        self.last_answered_probe = now;
        let since = healthy_since.unwrap_or(now);
        let is_over = if self.is_security() {
            now.since(since) >= 2 * MINUTE
        } else {
            successes + 1 >= 3
        };
        if is_over {
            self.circuit = Circuit::Closed;
            self.closings += 1;
        } else {
            self.circuit = Circuit::Open {
                probe_from: now.plus(5 * SECOND),
                healthy_since: Some(since),
                successes: successes + 1,
            };
        }
    }
}

/// The timetables of a node's four policies.
#[derive(Clone, Debug)]
pub(crate) struct Timetables(pub(crate) [Timetable; 4]);

impl Timetables {
    pub(crate) fn new() -> Self {
        Self(Policy::ALL.map(Timetable::new))
    }

    /// The policy whose probe should have started long ago, if there is one.
    pub(crate) fn overdue(&self, now: Micros) -> Option<Policy> {
        let late = |table: &&Timetable| {
            let from = table.probe_from();
            from.is_some_and(|from| from.plus(SECOND) < now)
        };
        self.0.iter().find(late).map(|table| table.policy)
    }

    pub(crate) fn of(&mut self, policy: Policy) -> &mut Timetable {
        &mut self.0[policy as usize]
    }

    /// The policy whose probe starts now, if there is one.
    pub(crate) fn due(&self, now: Micros) -> Option<Policy> {
        self.0
            .iter()
            .filter_map(|table| Some((table.probe_from()?, table.policy)))
            .filter(|(from, _)| *from <= now)
            .min_by_key(|(from, _)| *from)
            .map(|(_, policy)| policy)
    }
}
