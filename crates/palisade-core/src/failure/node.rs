//! Failure modes of one process: a breaker per policy, the local caps and blocks of each guard
//! flow, and the timetable of probes.
//!
//! A server's background task and a test's virtual clock drive it alike: ask
//! [`NodeModes::next_due`], wait until then, do the task, ask again.
//!
//! One guard operation:
//!
//! ```
//! use palisade_core::facts::Attempt;
//! use palisade_core::failure::{
//!     CallDecision, DegradedKeys, FailureKind, NodeModes, Policy, Trust,
//! };
//! use palisade_core::record::Flow;
//! use palisade_core::{Decision, Digest, Micros, Mode};
//!
//! fn check(
//!     node: &mut NodeModes,
//!     keys: &DegradedKeys,
//!     store: impl Fn() -> Result<Decision, FailureKind>,
//!     now: Micros,
//! ) -> Decision {
//!     let CallDecision::Call(permit) = node.admit(Policy::Login, now) else {
//!         return node.answer(Flow::Login, Attempt::Check, keys, now);
//!     };
//!     match store() {
//!         Ok(decision) => {
//!             node.on_success(Policy::Login, permit, 800, now);
//!             node.saw_decision(Flow::Login, keys, &decision, now);
//!             decision
//!         }
//!         Err(kind) => {
//!             node.on_failure(Policy::Login, permit, kind, now);
//!             node.answer(Flow::Login, Attempt::Check, keys, now)
//!         }
//!     }
//! }
//!
//! let keys = DegradedKeys {
//!     prefix: Digest(1),
//!     user_agent: Digest(2),
//!     account: Some(Digest(3)),
//!     fingerprint: None,
//!     lockout: None,
//!     challenge_passed: false,
//!     trust: Trust::Untrusted,
//! };
//! let mut node = NodeModes::default();
//! let modes: Vec<Mode> = (0..4)
//!     .map(|n| check(&mut node, &keys, || Err(FailureKind::TimedOut), Micros(n)).mode)
//!     .collect();
//! assert_eq!(modes[..2], [Mode::FailClosed; 2]);
//! assert_eq!(modes[2..], [Mode::Degraded; 2]);
//! ```

use super::Policy;
use super::availability::{AvailabilityBreaker, AvailabilitySettings};
use super::breaker::{
    Breaker, CallDecision, Circuit, Event, Events, Permit, PolicyMode, ProbeResult,
};
use super::fallback::{AffectedRequest, FallbackPolicy, FallbackRule, Outage, closed};
use super::level::{DegradationLevel, FailureKind, Health, SourceHealth, StoreHealth};
use super::modes::{DegradedGuard, DegradedKeys, fail_closed};
use super::security::SecurityBreaker;
use crate::decision::{Decision, Mode, Reason};
use crate::facts::Attempt;
use crate::key::Digest;
use crate::lockout::Standing;
use crate::record::Flow;
use crate::rule::Rule;
use crate::time::{MINUTE, Micros};

/// F-EPOCH: time for which local counters outlive a degraded epoch.
pub const COUNTERS_OUTLIVE: u64 = 30 * MINUTE;

/// A task that falls due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Probe the store, then report with [`NodeModes::on_probe`].
    Probe(Policy),
    /// Call [`NodeModes::advance`]: time alone changed something.
    Advance(Policy),
}

/// Failure modes of one guard flow: whether the store may be called, and the answer to a request
/// if not.
///
/// Usable on its own, so that flows need not share a lock.
#[derive(Clone, Debug)]
pub struct GuardModes {
    breaker: SecurityBreaker,
    guard: DegradedGuard,
    release_at: Option<Micros>,
}

impl GuardModes {
    /// A closed circuit, with nothing counted.
    #[must_use]
    pub fn new(flow: Flow) -> Self {
        Self {
            breaker: SecurityBreaker::new(),
            guard: DegradedGuard::new(flow),
            release_at: None,
        }
    }

    /// The breaker.
    #[must_use]
    pub const fn breaker(&self) -> &SecurityBreaker {
        &self.breaker
    }

    /// The caps, and the blocks and lockouts that this node has seen.
    pub const fn guard(&mut self) -> &mut DegradedGuard {
        &mut self.guard
    }

    /// The answer to a request whose call failed (after
    /// [`Breaker::on_failure`]) or was not made.
    pub fn answer(&mut self, op: Attempt, keys: &DegradedKeys, now: Micros) -> Decision {
        let mode = self.breaker.mode(now);
        self.guard.answer(op, keys, mode, now)
    }

    /// Schedules the release of local counters once degraded mode has ended (F-EPOCH).
    fn watch(&mut self, events: Events, now: Micros) -> Events {
        for event in &events {
            match event {
                Event::DegradedExited | Event::ReentryEnded => {
                    self.release_at = Some(now.plus(COUNTERS_OUTLIVE));
                }
                // A new outage goes on with the old counters: a recovery in between is no fresh
                // budget.
                Event::DegradedEntered | Event::ReentryGuard { .. } => self.release_at = None,
                _ => {}
            }
        }
        events
    }
}

impl Breaker for GuardModes {
    fn admit(&self, now: Micros) -> CallDecision {
        self.breaker.admit(now)
    }

    fn on_success(&mut self, permit: Permit, now: Micros) -> Events {
        let events = self.breaker.on_success(permit, now);
        self.watch(events, now)
    }

    fn on_failure(&mut self, permit: Permit, now: Micros) -> Events {
        let events = self.breaker.on_failure(permit, now);
        self.watch(events, now)
    }

    fn next_probe_at(&self) -> Option<Micros> {
        self.breaker.next_probe_at()
    }

    fn on_probe(&mut self, result: ProbeResult, began: Micros, now: Micros) -> Events {
        let events = self.breaker.on_probe(result, began, now);
        self.watch(events, now)
    }

    fn advance(&mut self, now: Micros) -> Events {
        let events = self.breaker.advance(now);
        if self.release_at.is_some_and(|at| at <= now) {
            self.release_at = None;
            self.guard.release(now);
        }
        self.watch(events, now)
    }

    fn next_advance_at(&self) -> Option<Micros> {
        [self.breaker.next_advance_at(), self.release_at]
            .into_iter()
            .flatten()
            .min()
    }

    fn circuit(&self) -> Circuit {
        self.breaker.circuit()
    }

    fn mode(&self, now: Micros) -> PolicyMode {
        self.breaker.mode(now)
    }

    fn is_suspect(&self) -> bool {
        self.breaker.is_suspect()
    }
}

/// Failure modes of one process: three guard flows, and the limits.
#[derive(Clone, Debug)]
pub struct NodeModes {
    login: GuardModes,
    otp: GuardModes,
    api: GuardModes,
    limits: AvailabilityBreaker,
    fallback: FallbackPolicy,
    health: Health,
}

impl Default for NodeModes {
    fn default() -> Self {
        Self::new(AvailabilitySettings::default(), FallbackPolicy::default())
    }
}

impl NodeModes {
    /// Closed circuits, with nothing counted.
    #[must_use]
    pub fn new(availability: AvailabilitySettings, fallback: FallbackPolicy) -> Self {
        Self {
            login: GuardModes::new(Flow::Login),
            otp: GuardModes::new(Flow::Otp),
            api: GuardModes::new(Flow::Api),
            limits: AvailabilityBreaker::new(availability),
            fallback,
            health: Health::default(),
        }
    }

    /// Replaces the configurable settings (hot reload); nothing that is under way is reset.
    pub fn reconfigure(&mut self, availability: AvailabilitySettings, fallback: FallbackPolicy) {
        self.limits.reconfigure(availability);
        self.fallback = fallback;
    }

    /// Decides whether `policy` may call the store now.
    #[must_use]
    pub fn admit(&self, policy: Policy, now: Micros) -> CallDecision {
        self.breaker(policy).admit(now)
    }

    /// True if a call of `policy` would be admitted and its success would change nothing but the
    /// latency measurements. A caller that makes many calls then need not report each of them.
    #[must_use]
    pub fn is_calm(&self, policy: Policy) -> bool {
        self.health.failing_since().is_none() && self.breaker(policy).is_calm()
    }

    /// Reports that an admitted call of `policy` was answered after `latency_us`.
    pub fn on_success(
        &mut self,
        policy: Policy,
        permit: Permit,
        latency_us: u64,
        now: Micros,
    ) -> Events {
        self.health.answered(latency_us, now);
        self.breaker_mut(policy).on_success(permit, now)
    }

    /// Reports that an admitted call of `policy` failed. Answer the request only after this: the
    /// failure may have opened the circuit.
    pub fn on_failure(
        &mut self,
        policy: Policy,
        permit: Permit,
        kind: FailureKind,
        now: Micros,
    ) -> Events {
        self.health.failed(kind, now);
        self.breaker_mut(policy).on_failure(permit, now)
    }

    /// The answer to a guard operation that the store did not decide.
    pub fn answer(
        &mut self,
        flow: Flow,
        op: Attempt,
        keys: &DegradedKeys,
        now: Micros,
    ) -> Decision {
        self.guard_modes(flow).answer(op, keys, now)
    }

    /// The answer to a guard operation that failed because of one record and not because of the
    /// store; `rule` is `F-CONFLICT`, `F-CORRUPT` or `F-VERSION`.
    pub fn answer_alone(
        &mut self,
        flow: Flow,
        rule: Rule,
        op: Attempt,
        keys: &DegradedKeys,
        now: Micros,
    ) -> Decision {
        let is_open = self.mode(Policy::from(flow), now) != PolicyMode::Normal;
        // Heavy endpoints, and flows whose circuit is open, are decided by local caps as in any
        // outage.
        if flow != Flow::Api && !is_open {
            return fail_closed(rule, now);
        }
        let mut decision = self.answer(flow, op, keys, now);
        decision.reasons.push(Reason {
            rule,
            key: None,
            limit: None,
            decision: decision.outcome,
            level: None,
            retry_after: None,
        });
        decision
    }

    /// The answer to a send that the store did not decide; `alone` is the rule if the trouble is one
    /// record and not the store.
    pub fn answer_send(
        &mut self,
        alone: Option<Rule>,
        keys: &DegradedKeys,
        now: Micros,
    ) -> Decision {
        let mode = self.otp.breaker.mode(now);
        match alone.filter(|_| mode == PolicyMode::Normal) {
            Some(rule) => fail_closed(rule, now),
            None => self.otp.guard.answer_send(keys, mode, now),
        }
    }

    /// Remembers the HARD blocks of a decision that the store made (F-BLOCKS).
    pub fn saw_decision(
        &mut self,
        flow: Flow,
        keys: &DegradedKeys,
        decision: &Decision,
        now: Micros,
    ) {
        let blocks = self.guard_modes(flow).guard().blocks();
        blocks.saw_decision(keys, decision, now);
    }

    /// Remembers the lockout that a name's record shows (F-BLOCKS). Login and OTP share it
    /// (A-SHARED).
    pub fn saw_lockout(&mut self, name: Digest, standing: &Standing, now: Micros) {
        for modes in [&mut self.login, &mut self.otp] {
            modes.guard.lockouts().saw(name, standing, now);
        }
    }

    /// Forgets a name that an operator freed.
    pub fn lift_lockout(&mut self, name: Digest) {
        for modes in [&mut self.login, &mut self.otp] {
            modes.guard.lockouts().lift(name);
        }
    }

    /// The caps and seen blocks of a flow.
    pub const fn guard(&mut self, flow: Flow) -> &mut DegradedGuard {
        self.guard_modes(flow).guard()
    }

    /// Returns the fallback rule of a limited request.
    #[must_use]
    pub fn fallback(&self, request: AffectedRequest<'_>, now: Micros) -> FallbackRule {
        self.fallback.select(request, self.outage(now))
    }

    /// The refusal of a closed class; it lasts until the next probe.
    #[must_use]
    pub fn closed(&self, now: Micros) -> Decision {
        closed(self.limits.until_next_probe(now), now)
    }

    /// The stage of the outage.
    #[must_use]
    pub fn outage(&self, now: Micros) -> Outage {
        if self.limits.is_prolonged(now) {
            Outage::Prolonged
        } else {
            Outage::Brief
        }
    }

    /// The next background probe, of whichever policy comes first.
    #[must_use]
    pub fn next_probe_at(&self) -> Option<(Policy, Micros)> {
        Policy::ALL
            .into_iter()
            .filter_map(|policy| Some((policy, self.breaker(policy).next_probe_at()?)))
            .min_by_key(|(_, at)| *at)
    }

    /// Returns the next task and when it is due. At one instant, changes by time alone come before
    /// probes.
    #[must_use]
    pub fn next_due(&self) -> Option<(Micros, Due)> {
        let advance = Policy::ALL
            .into_iter()
            .filter_map(|policy| Some((policy, self.breaker(policy).next_advance_at()?)))
            .min_by_key(|(_, at)| *at)
            .map(|(policy, at)| (at, Due::Advance(policy)));
        let probe = self
            .next_probe_at()
            .map(|(policy, at)| (at, Due::Probe(policy)));
        // `min_by_key` returns the first of several minima: advances come before probes.
        [advance, probe]
            .into_iter()
            .flatten()
            .min_by_key(|(at, _)| *at)
    }

    /// Reports the outcome of a probe made for `policy` at `began`: its latency in microseconds,
    /// or why it failed.
    pub fn on_probe(
        &mut self,
        policy: Policy,
        outcome: Result<u64, FailureKind>,
        began: Micros,
        now: Micros,
    ) -> Events {
        let result = match outcome {
            Ok(latency_us) => {
                self.health.answered(latency_us, now);
                ProbeResult::Healthy
            }
            Err(kind) => {
                self.health.failed(kind, now);
                ProbeResult::Failed
            }
        };
        self.breaker_mut(policy).on_probe(result, began, now)
    }

    /// Emits the events of `policy` that are due only because time has passed.
    pub fn advance(&mut self, policy: Policy, now: Micros) -> Events {
        self.breaker_mut(policy).advance(now)
    }

    /// Mode in which `policy` handles its requests.
    #[must_use]
    pub fn mode(&self, policy: Policy, now: Micros) -> PolicyMode {
        self.breaker(policy).mode(now)
    }

    /// The mode in which `policy` answers requests that the store does not decide, or
    /// [`Mode::Normal`] while there are none.
    #[must_use]
    pub fn answer_mode(&self, policy: Policy, now: Micros) -> Mode {
        let breaker = self.breaker(policy);
        match (breaker.mode(now), policy) {
            (PolicyMode::FailClosed { .. }, _) => Mode::FailClosed,
            (PolicyMode::Degraded, _) => Mode::Degraded,
            (PolicyMode::Normal, _) if !breaker.is_suspect() => Mode::Normal,
            (PolicyMode::Normal, Policy::Api) => Mode::FailOpen,
            (PolicyMode::Normal, _) => Mode::FailClosed,
        }
    }

    /// The circuit of `policy`.
    #[must_use]
    pub fn circuit(&self, policy: Policy) -> Circuit {
        self.breaker(policy).circuit()
    }

    /// The store's measurements.
    #[must_use]
    pub const fn health(&self) -> &Health {
        &self.health
    }

    /// False while the outage is prolonged: traffic should go elsewhere.
    #[must_use]
    pub fn is_ready(&self, now: Micros) -> bool {
        self.outage(now) == Outage::Brief
    }

    /// Time for which the store has answered no availability probe, in microseconds; `None` while
    /// the circuit is closed.
    #[must_use]
    pub fn silent_for(&self, now: Micros) -> Option<u64> {
        self.limits.silent_for(now)
    }

    /// Counters and blocks that are kept for the guard flows.
    #[must_use]
    pub fn tracked(&self) -> usize {
        [&self.login, &self.otp, &self.api]
            .into_iter()
            .map(|flow| flow.guard.tracked())
            .sum()
    }

    /// The degradation level. While any policy decides locally, it is at least
    /// [`DegradationLevel::Fallback`], even if the store answers again.
    #[must_use]
    pub fn level(&self, source: SourceHealth, now: Micros) -> DegradationLevel {
        let local = Policy::ALL
            .into_iter()
            .any(|policy| self.mode(policy, now) != PolicyMode::Normal);
        let store = if local {
            StoreHealth::Down
        } else {
            self.health.store(now)
        };
        DegradationLevel::of(store, source)
    }

    const fn guard_modes(&mut self, flow: Flow) -> &mut GuardModes {
        match flow {
            Flow::Login => &mut self.login,
            Flow::Otp => &mut self.otp,
            Flow::Api => &mut self.api,
        }
    }

    fn breaker(&self, policy: Policy) -> &dyn Breaker {
        match policy {
            Policy::Login => &self.login,
            Policy::Otp => &self.otp,
            Policy::Api => &self.api,
            Policy::Limits => &self.limits,
        }
    }

    fn breaker_mut(&mut self, policy: Policy) -> &mut dyn Breaker {
        match policy {
            Policy::Login => &mut self.login,
            Policy::Otp => &mut self.otp,
            Policy::Api => &mut self.api,
            Policy::Limits => &mut self.limits,
        }
    }
}
