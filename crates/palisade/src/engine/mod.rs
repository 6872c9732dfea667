//! One request, end to end: resolve → charge → decide → record.

mod allowlist;
mod charge;
mod denials;
mod fallback;
mod guard;
mod health;
mod lease;
mod limits;
mod probes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use palisade_core::failure::{Events, NodeModes, Policy};
use palisade_core::key::Keyring;
use palisade_core::policy::{PolicySet, TenantPolicy};
use palisade_core::time::{Clock, Micros};
use palisade_store::Store;
use parking_lot::Mutex;

pub use allowlist::{AllowlistEntry, AllowlistError, AllowlistKind, NewAllowlistEntry};
pub use guard::{BLOCKS_LISTED_MAX, BlockView, GuardNotes, LiftTarget};
pub use health::{DependencyReport, HealthReport};
pub use limits::{RefundOutcome, RequestAnswer};

/// Counters that live in this process only: local limits, throttles and fallbacks.
pub type LocalStore = palisade_store::model::ModelStore<Arc<dyn Clock>>;

/// Where tenants' own policies come from. A lookup never waits: what is not known
/// yet is answered with `None` and fetched in the background.
pub trait Tenants: Send + Sync + 'static {
    /// The policy of an organisation, as far as it is known now.
    fn find(&self, org: &str) -> Option<Arc<TenantPolicy>>;

    /// Whether the source answers.
    fn health(&self) -> palisade_core::failure::SourceHealth {
        palisade_core::failure::SourceHealth::Up
    }
}

/// No tenant has a policy of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTenants;

impl Tenants for NoTenants {
    fn find(&self, _org: &str) -> Option<Arc<TenantPolicy>> {
        None
    }
}

/// What happens around decisions, for metrics, logs and audit. Called on the
/// request's own task: implementations must not block.
pub trait Observer: Send + Sync + 'static {
    /// A request was decided.
    fn decided(&self, seen: &Seen<'_>);

    /// The failure machinery changed state.
    fn failure(&self, policy: Policy, events: &Events, now: Micros);

    /// A store call ended: its duration and, if it failed, the kind of error.
    fn store_call(&self, _took_us: u64, _error: Option<&'static str>) {}

    /// Buckets had to be rebuilt from zero, or a record was set aside (F-CORRUPT).
    fn rebuilt(&self, _what: &'static str, _count: u32) {}
}

/// One decision as an observer sees it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// What was asked.
    pub subject: Subject<'a>,
    /// The answer.
    pub decision: &'a palisade_core::Decision,
    /// The allowlist entry that let it pass, if one did.
    pub bypassed: Option<&'a str>,
    /// What a guard command did beyond its answer.
    pub guard: Option<&'a GuardNotes>,
}

/// What a decision was about.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A request.
    Request(&'a palisade_core::RequestFacts),
    /// A guard command.
    Guard(
        palisade_core::facts::GuardOp,
        &'a palisade_core::facts::GuardFacts,
    ),
}

/// Sees nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn decided(&self, _seen: &Seen<'_>) {}
    fn failure(&self, _policy: Policy, _events: &Events, _now: Micros) {}
}

/// What an engine is made of.
pub struct EngineConfig<S> {
    /// The store.
    pub store: S,
    /// The policy to start with.
    pub policy: Arc<PolicySet>,
    /// Secrets.
    pub keyring: Keyring,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The longest a store call may take.
    pub deadline: Duration,
    /// Tenants' own policies.
    pub tenants: Arc<dyn Tenants>,
    /// Metrics, logs, audit.
    pub observer: Arc<dyn Observer>,
}

impl<S> EngineConfig<S> {
    /// An engine with the default deadline, no tenants and no observer.
    pub fn new(store: S, policy: PolicySet, keyring: Keyring, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            policy: Arc::new(policy),
            keyring,
            clock,
            deadline: palisade_store::DEADLINE_DEFAULT,
            tenants: Arc::new(NoTenants),
            observer: Arc::new(NoObserver),
        }
    }
}

/// Decides. Shared by every surface of a process.
pub struct Engine<S> {
    store: S,
    policy: ArcSwap<PolicySet>,
    keyring: Keyring,
    clock: Arc<dyn Clock>,
    deadline: Duration,
    tenants: Arc<dyn Tenants>,
    observer: Arc<dyn Observer>,
    modes: Mutex<NodeModes>,
    local: LocalStore,
    fallback: LocalStore,
    allowlist: allowlist::Allowlist,
    leases: lease::Leases,
    denials: denials::Denials,
    stripes: guard::Stripes,
    tiers: ArcSwap<HashMap<String, Arc<str>>>,
}

impl<S: Store> Engine<S> {
    /// Puts an engine together.
    pub fn new(config: EngineConfig<S>) -> Self {
        let settings = &config.policy.settings;
        let modes = NodeModes::new(settings.availability, settings.fallback.clone());
        Self {
            modes: Mutex::new(modes),
            local: LocalStore::new(Arc::clone(&config.clock)),
            fallback: LocalStore::new(Arc::clone(&config.clock)),
            allowlist: allowlist::Allowlist::default(),
            tiers: ArcSwap::default(),
            leases: lease::Leases::default(),
            denials: denials::Denials::default(),
            stripes: guard::Stripes::default(),
            store: config.store,
            policy: ArcSwap::new(config.policy),
            keyring: config.keyring,
            clock: config.clock,
            deadline: config.deadline,
            tenants: config.tenants,
            observer: config.observer,
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<PolicySet> {
        self.policy.load_full()
    }

    /// Puts a new policy in force. Requests under way finish with the old one;
    /// what was used stays used.
    pub fn set_policy(&self, policy: Arc<PolicySet>) {
        let settings = &policy.settings;
        self.modes
            .lock()
            .reconfigure(settings.availability, settings.fallback.clone());
        self.policy.store(policy);
        self.forget_cached();
    }

    /// Drops cached denials and leased tokens: the next request asks the store.
    pub fn forget_cached(&self) {
        self.leases.clear();
        self.denials.clear();
    }

    /// The store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The clock of this process.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The secrets.
    pub const fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    fn now(&self) -> Micros {
        self.clock.now()
    }

    fn report(&self, policy: Policy, events: &Events, now: Micros) {
        if events.is_empty() {
            return;
        }
        if events.contains(&palisade_core::failure::Event::DropCounters) {
            self.fallback.clear();
        }
        self.observer.failure(policy, events, now);
    }
}
