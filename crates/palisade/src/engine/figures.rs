//! Figures that are read when somebody asks for them, not counted as they happen.

use palisade_core::decision::Mode;
use palisade_core::failure::{Circuit, Policy};
use palisade_store::{StoreStats, Vitals};

use super::{CandidateReport, Engine, ReservationFigures, TenantStats};

/// A snapshot for `/metrics`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The store; what left or overflowed among local limits and fallback counts
    /// here too.
    pub store: StoreStats,
    /// What this process remembers by key beside the store: local limits, fallback,
    /// leases, known denials, degraded counters and blocks.
    pub local_keys: u64,
    /// Whether the store's last answer was one.
    pub store_answers: bool,
    /// Degradation level, 0 to 3.
    pub degradation_level: u8,
    /// State of each policy's breaker: name and 0 closed, 1 open, 2 half open.
    pub circuits: Vec<(&'static str, u8)>,
    /// How each policy answers what the store does not decide: name and 0 normal,
    /// 1 fail open, 2 degraded, 3 fail closed.
    pub modes: Vec<(&'static str, u8)>,
    /// Cached policies.
    pub tenants: TenantStats,
    /// False while the kill switch is on.
    pub enabled: bool,
    /// Revision of the policy in force.
    pub policy_revision: u64,
    /// Reservations since the start.
    pub reservations: ReservationFigures,
    /// How the candidate policy compares, if there is one.
    pub candidate: Option<CandidateReport>,
}

impl Engine {
    /// Reads the figures.
    pub fn figures(&self) -> Figures {
        let now = self.now();
        let source = self.tenants.health();
        let policy = self.policy.load();
        let here = [self.counters.process.stats(), self.link.stand_in().stats()];
        let mut store = self.link.store().stats();
        for local in here {
            store.evictions += local.evictions;
            store.expired += local.expired;
            store.overflowed += local.overflowed;
        }
        let buckets: u64 = here.iter().map(|local| local.tracked_keys).sum();
        let cached = self.counters.cached();
        let modes = self.link.modes();
        let local_keys = buckets + (cached + modes.tracked()) as u64;
        Figures {
            store,
            local_keys,
            store_answers: modes.health().failing_since().is_none(),
            degradation_level: modes.level(source, now).number(),
            circuits: Policy::ALL
                .into_iter()
                .map(|policy| (policy.name(), Circuit::gauge(modes.circuit(policy))))
                .collect(),
            modes: Policy::ALL
                .into_iter()
                .map(|policy| (policy.name(), gauge(modes.answer_mode(policy, now))))
                .collect(),
            tenants: self.tenants.stats(),
            enabled: policy.enabled,
            policy_revision: policy.revision,
            reservations: self.retries.tally.figures(self.retries.len()),
            candidate: self.candidate_report(),
        }
    }
}

const fn gauge(mode: Mode) -> u8 {
    match mode {
        Mode::Normal | Mode::Disabled => 0,
        Mode::FailOpen => 1,
        Mode::Degraded => 2,
        Mode::FailClosed => 3,
    }
}
