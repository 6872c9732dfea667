//! One request, end to end: resolve → charge → decide → record.

mod admin;
mod allowlist;
mod charge;
mod denials;
mod explain;
mod fallback;
mod figures;
mod guard;
mod health;
mod lease;
mod limits;
mod probes;
mod quota;
mod reset;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwap;
use palisade_core::failure::{Events, NodeModes, Policy};
use palisade_core::key::Keyring;
use palisade_core::policy::{PolicySet, TenantPolicy};
use palisade_core::time::{Clock, Micros};
use palisade_policy::source::tenants::SourceReport;
use palisade_store::Store;
use palisade_store::memory::{MemoryConfig, MemoryStore};
use parking_lot::Mutex;

pub use admin::{Admin, AdminError};
pub use allowlist::{AllowlistEntry, AllowlistError, AllowlistKind, NewAllowlistEntry};
pub use explain::{Explanation, Finding, meaning};
pub use figures::Figures;
pub use guard::{BLOCKS_LISTED_MAX, BlockView, GuardNotes, LiftTarget};
pub use health::{DependencyReport, HealthReport, PolicyReport};
pub use limits::{RefundOutcome, RequestAnswer};
pub use quota::{QUOTAS_PAGE_MAX, QuotaPage, QuotaUsage};
pub use reset::{ResetLine, ResetSelector, SELECTORS_MAX};

/// Counters that live in this process only: local limits, throttles and fallbacks.
pub type LocalStore = MemoryStore<Arc<dyn Clock>>;

/// Most local counters of each kind; beyond that new keys share a strict one.
const LOCAL_KEYS_MAX: u64 = 1_000_000;

fn local_store(clock: &Arc<dyn Clock>) -> LocalStore {
    let config = MemoryConfig {
        keys_max: LOCAL_KEYS_MAX,
        ..MemoryConfig::default()
    };
    MemoryStore::new(Arc::clone(clock), &config)
}

/// Where tenants' own policies come from. A lookup never waits: what is not known
/// yet is answered with `None` and fetched in the background.
pub trait Tenants: Send + Sync + 'static {
    /// The policy of an organisation, as far as it is known now.
    fn find(&self, org: &str) -> Option<Arc<TenantPolicy>>;

    /// Whether the source answers.
    fn health(&self) -> palisade_core::failure::SourceHealth {
        palisade_core::failure::SourceHealth::Up
    }

    /// Figures about the cache.
    fn stats(&self) -> TenantStats {
        TenantStats::default()
    }

    /// How the source is doing, for people.
    fn report(&self) -> SourceReport {
        SourceReport::always_up("file")
    }

    /// What the cache holds for an organisation.
    fn cached(&self, _org: &str) -> Option<CachedPolicy> {
        None
    }

    /// Asks the source again about an organisation, or about all, without making
    /// anybody wait; true if something was cached.
    fn invalidate(&self, _org: Option<&str>) -> bool {
        false
    }
}

/// What happened to a tenant's own policy, or to where it comes from.
#[derive(Clone, Copy, Debug)]
pub enum TenantSeen<'a> {
    /// Another version is in force; `None` is the default policy.
    Changed {
        /// The tenant; only its digest is recorded.
        org: &'a palisade_core::Id,
        /// Version before.
        from: Option<u64>,
        /// Version now.
        to: Option<u64>,
    },
    /// A document was refused; the policy before it stays.
    Refused {
        /// The tenant; only its digest is recorded.
        org: &'a palisade_core::Id,
        /// Which field, and why. Names nobody.
        why: &'a str,
    },
    /// The source was lost, for a reason, or answers again.
    Source(Option<&'static str>),
}

/// Figures about cached policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantStats {
    /// Policies in the cache.
    pub cached: u64,
    /// Refreshes that failed, or brought a policy that was refused.
    pub refresh_failures: u64,
}

/// A cached policy, as an operator may look at it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CachedPolicy {
    /// How long ago it was fetched, in milliseconds.
    pub age_ms: u64,
    /// The source's version; absent while the default policy stands in.
    pub version: Option<u64>,
    /// Where it comes from.
    pub source: &'static str,
    /// `fresh`, `stale` or `default`.
    pub state: &'static str,
    /// Why the source's latest document is not in force.
    pub refused: Option<String>,
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

    /// A store call was not made: the breaker of `policy` is open.
    fn not_asked(&self, _policy: Policy) {}

    /// A batch of leased tokens was fetched.
    fn refilled(&self, _took_us: u64) {}

    /// A policy is in force; `before` is the one it replaces, if it does.
    fn policy_changed(&self, _before: Option<&PolicySet>, _policy: &PolicySet, _now: Micros) {}

    /// Something happened to a tenant's own policy.
    fn tenant_policy(&self, _seen: &TenantSeen<'_>, _now: Micros) {}

    /// An operator changed something.
    fn administered(&self, _done: &Administered<'_>) {}

    /// A surface refused a request whose origin could not be believed (I-XFF).
    fn edge_refused(&self, _peer: std::net::IpAddr, _field: &'static str, _now: Micros) {}
}

/// Something that an operator did.
#[derive(Clone, Copy, Debug)]
pub struct Administered<'a> {
    /// Who did it.
    pub by: &'a Operator,
    /// What.
    pub change: Change<'a>,
    /// The operator's request id.
    pub request_id: Option<&'a str>,
    /// When.
    pub at: Micros,
}

/// Who administers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operator {
    /// A person or service with a name of its own; only its digest is recorded.
    Named(palisade_core::Id),
    /// The holder of the static token.
    TokenHolder,
    /// This process itself, or code that uses the library.
    Local,
}

/// What an operator changed. Nothing here is an identifier: digests and hashes only.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// An allowlist entry was added.
    AllowlistAdded(&'a AllowlistEntry),
    /// An allowlist entry was removed; its digest.
    AllowlistRemoved(&'a str),
    /// Buckets were cleared: how many, and why.
    Reset {
        /// Cleared buckets.
        buckets: usize,
        /// The operator's reason.
        reason: Option<&'a str>,
        /// The API key's hash, if a quota was reset.
        api_key: Option<&'a str>,
    },
    /// An API key was put on another tier.
    TierChanged {
        /// The key's hash.
        api_key: &'a str,
        /// Tier before.
        from: &'a str,
        /// Tier now.
        to: &'a str,
    },
    /// Cached policies were dropped.
    CacheInvalidated,
    /// A guard block was lifted; the digest of its key.
    BlockLifted(&'a str),
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
    fallback: ArcSwap<LocalStore>,
    cap_limits: ArcSwap<fallback::CapLimits>,
    allowlist: allowlist::Allowlist,
    leases: lease::Leases,
    denials: denials::Denials,
    stripes: guard::Stripes,
    tiers: ArcSwap<HashMap<String, Arc<str>>>,
    resets_seen: AtomicU64,
}

impl<S: Store> Engine<S> {
    /// Puts an engine together.
    pub fn new(config: EngineConfig<S>) -> Self {
        config
            .observer
            .policy_changed(None, &config.policy, config.clock.now());
        let settings = &config.policy.settings;
        let modes = NodeModes::new(settings.availability, settings.fallback.clone());
        Self {
            modes: Mutex::new(modes),
            local: local_store(&config.clock),
            fallback: ArcSwap::from_pointee(local_store(&config.clock)),
            cap_limits: ArcSwap::from_pointee(fallback::CapLimits::new(&settings.fallback)),
            allowlist: allowlist::Allowlist::default(),
            tiers: ArcSwap::default(),
            resets_seen: AtomicU64::default(),
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
        self.cap_limits
            .store(Arc::new(fallback::CapLimits::new(&settings.fallback)));
        let before = self.policy.swap(policy);
        self.forget_cached();
        self.observer
            .policy_changed(Some(&before), &self.policy.load(), self.now());
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

    /// Metrics, logs, audit: surfaces report what the engine does not see.
    pub fn observer(&self) -> &dyn Observer {
        &*self.observer
    }

    /// Tenants' own policies.
    pub fn tenants(&self) -> &dyn Tenants {
        &*self.tenants
    }

    fn now(&self) -> Micros {
        self.clock.now()
    }

    fn report(&self, policy: Policy, events: &Events, now: Micros) {
        if events.is_empty() {
            return;
        }
        if events.contains(&palisade_core::failure::Event::DropCounters) {
            self.fallback.store(Arc::new(local_store(&self.clock)));
        }
        self.observer.failure(policy, events, now);
    }
}
