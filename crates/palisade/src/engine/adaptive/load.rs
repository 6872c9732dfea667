//! Places for requests in progress, as many as the measured latency allows (AD-LOAD).

use std::sync::Arc;

use palisade_core::adaptive::load::{LoadLimiter, LoadSettings, RoundTrip, ShedRequest};
use palisade_core::decision::{Decision, ErrorCode, Outcome, Reason};
use palisade_core::facts::RequestFacts;
use palisade_core::key::Keyring;
use palisade_core::policy::{PolicySet, load_class};
use palisade_core::rule::Rule;
use palisade_core::time::{Clock, Micros};
use parking_lot::Mutex;

use super::super::{Engine, RequestAnswer};

/// The limiter of this process. There is none until a policy asks for it.
#[derive(Default)]
pub(in crate::engine) struct LoadGate(Mutex<Option<(LoadSettings, LoadLimiter)>>);

impl LoadGate {
    /// Calls `look` with the limiter under these bounds.
    fn with<T>(
        &self,
        settings: LoadSettings,
        seed: impl FnOnce() -> u64,
        look: impl FnOnce(&mut LoadLimiter) -> T,
    ) -> T {
        let mut held = self.0.lock();
        let (known, limiter) =
            held.get_or_insert_with(|| (settings, LoadLimiter::new(settings, seed())));
        if *known != settings {
            *known = settings;
            limiter.reconfigure(settings);
        }
        look(limiter)
    }

    fn release(&self, began: Micros, now: Micros, end: RoundTrip) {
        if let Some((_, limiter)) = self.0.lock().as_mut() {
            limiter.release(began, now, end);
        }
    }

    fn figures(&self) -> Option<LoadFigures> {
        let held = self.0.lock();
        let (_, limiter) = held.as_ref()?;
        let (smoothed, floor) = limiter.round_trips();
        Some(LoadFigures {
            limit: limiter.limit(),
            in_progress: limiter.in_progress(),
            round_trip_us: whole(smoothed),
            floor_us: whole(floor),
        })
    }
}

fn whole(us: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a round trip is no less than zero, and the cast saturates"
    )]
    let whole = us as u64;
    whole
}

/// Snapshot of the limit on requests in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadFigures {
    /// The limit.
    pub limit: u32,
    /// Requests in progress.
    pub in_progress: u32,
    /// Smoothed round trip in microseconds.
    pub round_trip_us: u64,
    /// Round trip of an application that is not busy, in microseconds.
    pub floor_us: u64,
}

/// The place of a request in progress. Dropping it gives the place back: the application has then
/// not answered in time, or at all.
pub struct LoadPermit {
    gate: Arc<LoadGate>,
    clock: Arc<dyn Clock>,
    began: Micros,
    end: RoundTrip,
}

impl LoadPermit {
    /// Measures from now on: the application is asked now, and not before.
    pub fn begin(&mut self) {
        self.began = self.clock.now();
    }

    /// The head of the application's answer is there. An error of the application (`is_error`) may
    /// have come faster than an answer would have: it does not make the application look fast.
    pub fn answered(mut self, is_error: bool) {
        if !is_error && self.end != RoundTrip::Unmeasured {
            self.end = RoundTrip::Answered;
        }
    }

    /// Does not measure the request: how long it takes depends on its client.
    pub const fn unmeasured(&mut self) {
        self.end = RoundTrip::Unmeasured;
    }
}

impl Drop for LoadPermit {
    fn drop(&mut self) {
        self.gate.release(self.began, self.clock.now(), self.end);
    }
}

impl Engine {
    /// Finds out whether a request would be shed, before any other work is done for it. It holds no
    /// place yet: a client that is slow to send its request takes none from others.
    pub fn foresee_load(
        &self,
        policy: &Arc<PolicySet>,
        facts: &RequestFacts,
    ) -> Option<RequestAnswer> {
        let settings = policy.settings.adaptive.load.filter(|_| policy.enabled)?;
        let (_, priority) = load_class(policy, facts);
        let foreseen = self.load.with(
            settings,
            || seed(&self.keyring, self.now()),
            |limiter| limiter.foresee(priority),
        );
        let shed = foreseen.err()?;
        Some(self.shed(policy, facts, shed))
    }

    /// Takes a place for a request that is about to be forwarded. `None` where the policy protects
    /// nothing.
    ///
    /// # Errors
    /// The answer of a request that is shed, because the places of its priority are taken.
    pub fn take_place(
        &self,
        policy: &Arc<PolicySet>,
        facts: &RequestFacts,
    ) -> Result<Option<LoadPermit>, Box<RequestAnswer>> {
        let Some(settings) = policy.settings.adaptive.load.filter(|_| policy.enabled) else {
            return Ok(None);
        };
        let began = self.now();
        let (_, priority) = load_class(policy, facts);
        let admitted = self.load.with(
            settings,
            || seed(&self.keyring, began),
            |limiter| limiter.admit(priority, began),
        );
        match admitted {
            Ok(()) => Ok(Some(LoadPermit {
                gate: Arc::clone(&self.load),
                clock: Arc::clone(self.clock()),
                began,
                end: RoundTrip::CutShort,
            })),
            Err(shed) => Err(Box::new(self.shed(policy, facts, shed))),
        }
    }

    pub(in crate::engine) fn load_figures(&self) -> Option<LoadFigures> {
        self.load.figures()
    }

    /// The answer of a request that is shed. It is reported like any other decision.
    fn shed(
        &self,
        policy: &Arc<PolicySet>,
        facts: &RequestFacts,
        shed: ShedRequest,
    ) -> RequestAnswer {
        let (rule, outcome) = (Rule::AD_LOAD, Outcome::Deny);
        let error = ErrorCode::ServiceUnavailable;
        let mut decision = Decision::refuse(self.now(), outcome, rule, error);
        decision.retry_after = Some(shed.retry_after);
        decision.reasons = vec![Reason {
            rule,
            key: None,
            limit: None,
            decision: outcome,
            level: None,
            retry_after: decision.retry_after,
        }];
        decision.class = Some(load_class(policy, facts).0.into());
        let answer = RequestAnswer {
            decision: Box::new(decision),
            policy: Arc::clone(policy),
            candidate: None,
        };
        self.note(None, facts, &answer, None);
        answer
    }
}

/// Differs between nodes and between starts, so that their refused clients are spread differently.
fn seed(keyring: &Keyring, now: Micros) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "half of a digest is as good"
    )]
    let secret = keyring.named("load").0 as u64;
    secret ^ now.0
}
