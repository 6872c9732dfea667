//! Figures that are read when somebody asks for them, not counted as they happen.

use palisade_core::failure::{Circuit, Policy};
use palisade_store::{Store, StoreStats};

use super::{Engine, TenantStats};

/// A snapshot for `/metrics`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The store; what left or overflowed among local limits and fallback counts
    /// here too.
    pub store: StoreStats,
    /// Buckets of this process beside the store's: local limits and fallback.
    pub local_keys: u64,
    /// Whether the store's last answer was one.
    pub store_answers: bool,
    /// Degradation level, 0 to 3.
    pub degradation_level: u8,
    /// State of each policy's breaker: name and 0 closed, 1 open, 2 half open.
    pub circuits: Vec<(&'static str, u8)>,
    /// Cached policies.
    pub tenants: TenantStats,
    /// False while the kill switch is on.
    pub enabled: bool,
    /// Revision of the policy in force.
    pub policy_revision: u64,
}

impl<S: Store> Engine<S> {
    /// Reads the figures.
    pub fn figures(&self) -> Figures {
        let now = self.now();
        let source = self.tenants.health();
        let policy = self.policy.load();
        let here = [self.local.stats(), self.fallback.load().stats()];
        let mut store = self.store.stats();
        for local in here {
            store.evictions += local.evictions;
            store.overflowed += local.overflowed;
        }
        let modes = self.modes.lock();
        Figures {
            store,
            local_keys: here.iter().map(|local| local.tracked_keys).sum(),
            store_answers: modes.health().failing_since().is_none(),
            degradation_level: modes.level(source, now).number(),
            circuits: Policy::ALL
                .into_iter()
                .map(|policy| (policy.name(), Circuit::gauge(modes.circuit(policy))))
                .collect(),
            tenants: self.tenants.stats(),
            enabled: policy.enabled,
            policy_revision: policy.revision,
        }
    }
}
