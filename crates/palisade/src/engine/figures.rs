//! Gauges that are computed when somebody reads them, not counted as events happen.

use palisade_core::decision::Mode;
use palisade_core::failure::{Circuit, Policy};
use palisade_core::geo::DatabaseState;
use palisade_store::{StoreStats, Vitals};

use super::{CandidateReport, Engine, LoadFigures, ReservationFigures, TenantStats};

/// A snapshot of the engine's gauges for `/metrics`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The store's statistics. Evictions, expiries and overflows of local limits and of the
    /// fallback counters are added to them.
    pub store: StoreStats,
    /// Keys that this process holds in memory besides the store: local limits, fallback counters,
    /// leases, remembered denials, counters and blocks of degraded mode.
    pub local_keys: u64,
    /// False while calls of the store fail.
    pub store_answers: bool,
    /// Degradation level, 0 to 3.
    pub degradation_level: u8,
    /// Breaker of each failure policy: its name and 0 closed, 1 open, 2 half open.
    pub circuits: Vec<(&'static str, u8)>,
    /// Mode in which each failure policy answers without the store: its name and 0 normal, 1 fail
    /// open, 2 degraded, 3 fail closed.
    pub modes: Vec<(&'static str, u8)>,
    /// Statistics of the cached tenants' policies.
    pub tenants: TenantStats,
    /// False while the kill switch disables the policy.
    pub enabled: bool,
    /// Revision of the policy in force.
    pub policy_revision: u64,
    /// Reservations since the process started.
    pub reservations: ReservationFigures,
    /// Databases of countries and networks.
    pub geo: Vec<DatabaseState>,
    /// Comparison of the candidate policy, if there is one.
    pub candidate: Option<CandidateReport>,
    /// The limit on requests in progress, once a policy has asked for one (AD-LOAD).
    pub load: Option<LoadFigures>,
    /// Watched classes, and whether an attack tightens their limits (AD-ATTACK).
    pub attacks: Vec<(String, bool)>,
}

impl Engine {
    /// Takes a snapshot of the gauges.
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
            geo: policy.geo_databases(),
            candidate: self.candidate_report(),
            load: self.load_figures(),
            attacks: self.attack_gauges(),
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
