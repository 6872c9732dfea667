//! Interfaces of the engine to its host: the source of tenants' policies, and the observer of
//! decisions.

use std::sync::Arc;

use palisade_core::RequestFacts;
use palisade_core::challenge::ChallengeKind;
use palisade_core::failure::{Events, Policy};
use palisade_core::policy::{PolicySet, TenantPolicy};
use palisade_core::record::Flow;
use palisade_core::time::Micros;
use palisade_policy::tenants::{CachedTenant, SourceReport};
use palisade_store::{StoreError, StoreRisks};

use super::{
    AllowlistEntry, AttackMode, AttackSeen, CandidateSeen, ChallengeEvent, GuardNotes, KeyedAnswer,
    ReachedThreshold, Score,
};

/// Source of tenants' own policies. A lookup never waits: a policy that is not known yet is `None`
/// and is fetched in the background.
///
/// For example, the tenants of a policy file:
///
/// ```
/// use palisade::engine::Tenants;
/// use palisade::{Engine, EngineConfig};
/// # use std::path::Path;
/// # use std::sync::Arc;
/// # use palisade::core::{Clock, Keyring};
/// # use palisade::store::memory::{MemoryConfig, MemoryStore};
/// # let clock: Arc<dyn Clock> = Arc::new(palisade::SystemClock::new());
/// # let store = Arc::new(MemoryStore::new(Arc::clone(&clock), &MemoryConfig::default()));
///
/// let text = r#"
/// [[tenant]]
/// id = "acme"
/// limits = { org-burst = "7/min" }
/// "#;
/// # let (env, flags) = Default::default();
/// # let loaded = palisade_policy::load_text(Path::new("policy.toml"), text, &env, &flags)?;
/// # let policy = (*loaded.policy).clone();
/// # let keyring = Keyring::new(b"at least 32 random bytes go here", None)?;
///
/// let config = EngineConfig {
///     tenants: loaded.tenants,
///     ..EngineConfig::new(store, policy, keyring, clock)
/// };
/// let engine = Engine::new(config);
/// assert!(engine.tenants().find("acme").is_some());
/// assert!(engine.tenants().find("another").is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Tenants: Send + Sync + 'static {
    /// The policy of an organisation, if it is known now.
    fn find(&self, org: &str) -> Option<Arc<TenantPolicy>>;

    /// Whether the source answers.
    fn health(&self) -> palisade_core::failure::SourceHealth {
        palisade_core::failure::SourceHealth::Up
    }

    /// Statistics of the cache.
    fn stats(&self) -> TenantStats {
        TenantStats::default()
    }

    /// State of the source, for people.
    fn report(&self) -> SourceReport {
        SourceReport::always_up("file")
    }

    /// The cache entry of an organisation.
    fn cached(&self, _org: &str) -> Option<CachedTenant> {
        None
    }

    /// Asks the source again for one organisation's policy, or for all, without making requests
    /// wait; true if something was cached.
    fn invalidate(&self, _org: Option<&str>) -> bool {
        false
    }
}

/// A change of a tenant's own policy or of its source.
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
        /// The field and the reason. It names nobody.
        why: &'a str,
    },
    /// The source failed, with the reason, or answers again (`None`).
    Source(Option<&'static str>),
}

/// Statistics of cached policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantStats {
    /// Policies in the cache.
    pub cached: u64,
    /// Refreshes that failed, or brought a policy that was refused.
    pub refresh_failures: u64,
}

/// A source for deployments in which no tenant has a policy of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTenants;

impl Tenants for NoTenants {
    fn find(&self, _org: &str) -> Option<Arc<TenantPolicy>> {
        None
    }
}

/// Receiver of events around decisions: metrics, logs and audit are observers. Methods run on the
/// request's own task, so implementations must not block.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use palisade::engine::{DecisionEvent, ModeChange, Observer};
/// # use palisade::core::RequestFacts;
/// # use palisade::{Engine, EngineConfig};
/// # use std::path::Path;
/// # use std::sync::Arc;
/// # use palisade::core::{Clock, Keyring};
/// # use palisade::store::memory::{MemoryConfig, MemoryStore};
/// # let clock: Arc<dyn Clock> = Arc::new(palisade::SystemClock::new());
/// # let store = Arc::new(MemoryStore::new(Arc::clone(&clock), &MemoryConfig::default()));
/// # let text = "[[limit]]\nname = \"two\"\nby = [\"ip\"]\nrate = \"2/min\"";
/// # let (env, flags) = Default::default();
/// # let loaded = palisade_policy::load_text(Path::new("policy.toml"), text, &env, &flags)?;
/// # let policy = (*loaded.policy).clone();
/// # let keyring = Keyring::new(b"at least 32 random bytes go here", None)?;
/// # tokio::runtime::Runtime::new()?.block_on(async {
///
/// #[derive(Default)]
/// struct Refusals(AtomicU64);
///
/// impl Observer for Refusals {
///     fn decided(&self, seen: &DecisionEvent<'_>) {
///         let is_refused = !seen.decision.is_allowed();
///         self.0.fetch_add(is_refused.into(), Ordering::Relaxed);
///     }
///     fn failure(&self, _change: &ModeChange<'_>) {}
/// }
///
/// let refusals = Arc::new(Refusals::default());
/// let engine = Engine::new(EngineConfig {
///     observer: Arc::<Refusals>::clone(&refusals),
///     ..EngineConfig::new(store, policy, keyring, clock)
/// });
/// # let facts = RequestFacts::new("203.0.113.5".parse()?, "GET", "/things");
/// # for _ in 0..3 {
/// #     engine.check(&facts).await;
/// # }
/// // The third of three, where two a minute are allowed:
/// assert_eq!(refusals.0.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// A request was decided.
    fn decided(&self, seen: &DecisionEvent<'_>);

    /// One call charged buckets whose limits the caller chose itself, not the policy.
    fn keyed(&self, _answers: &[KeyedAnswer]) {}

    /// The time from a decision's facts to its answer, for one decision in a few.
    fn timed(&self, _took_us: u64) {}

    /// Whether [`Observer::timed`] is used. If not, no time is measured for it.
    fn hears_times(&self) -> bool {
        true
    }

    /// The failure machinery changed state.
    fn failure(&self, change: &ModeChange<'_>);

    /// The store began to fail, fails in another way, or answers again (`None`). Called once per
    /// change.
    fn store_changed(&self, _error: Option<&StoreError>, _now: Micros) {}

    /// The store's settings put other things at risk than at the last probe (F-EVICT).
    fn store_risks(&self, _before: StoreRisks, _found: StoreRisks) {}

    /// A store call ended, with its duration if it was measured, and its error if it failed. Of
    /// calls of a store in this process one in a few is measured.
    fn store_call(&self, _took_us: Option<u64>, _error: Option<&StoreError>) {}

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
    fn administered(&self, _done: &OperatorChange<'_>) {}

    /// An API key went beyond its quota, or a month in which it did is over.
    fn overage(&self, _seen: &OverageSeen<'_>) {}

    /// A share of a limit is used, for the first time in its bucket's window (B-WARN).
    fn threshold(&self, _reached: &ReachedThreshold) {}

    /// An attack on a class was declared, or is over (AD-ATTACK).
    fn attack(&self, _seen: &AttackSeen<'_>) {}

    /// The outcome of an attempt is unknown: the attempt stays open until the guard ends it
    /// (G-PENDING).
    fn outcome_unknown(&self, _flow: Flow) {}

    /// The application behind the proxy answered an admitted request with 401 or 403.
    fn application_refused(&self, _facts: &RequestFacts, _now: Micros) {}

    /// An instance of the application behind the proxy answers (`None`, reported at the start and
    /// after a failure), or failed to.
    fn instance(&self, _address: &str, _failure: Option<InstanceFailure>) {}

    /// A challenge was issued, or a solution or pass was judged (C-API).
    fn challenge(&self, _event: &ChallengeEvent) {}

    /// The provider of challenges stopped answering, or answers again. Called once per change.
    fn challenge_provider(&self, _kind: ChallengeKind, _answers: bool, _now: Micros) {}

    /// The candidate policy would have decided otherwise (L-CANDIDATE).
    fn candidate_differs(&self, _seen: &CandidateSeen<'_>) {}

    /// A surface refused a request whose origin cannot be trusted (I-XFF).
    fn edge_refused(&self, _peer: std::net::IpAddr, _field: &'static str, _now: Micros) {}

    /// A listener refused a caller without a valid `token`, `certificate` or `role`. `listener` is
    /// the flag of `serve` that chooses its address.
    fn caller_refused(&self, _listener: &'static str, _lacks: &'static str) {}
}

/// Reason why an instance of the application behind the proxy gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstanceFailure {
    /// No connection to the instance could be made.
    Unreachable,
    /// The connection broke before the head of the answer was complete.
    Broken,
    /// The answer took too long. The instance may still be healthy, so it stays in use.
    Late,
    /// The health check of the instance failed or was not answered.
    Unwell,
}

impl InstanceFailure {
    /// Name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::Late => "timeout",
            Self::Unwell => "unhealthy",
        }
    }
}

/// Use of an API key beyond its quota.
#[derive(Clone, Copy, Debug)]
pub struct OverageSeen<'a> {
    /// The key's hash.
    pub api_key: &'a str,
    /// The key's tier.
    pub tier: &'a str,
    /// The month that is over; `None` if the overage begins now.
    pub month: Option<&'a str>,
    /// Requests beyond the quota.
    pub overage: u64,
    /// The instant.
    pub at: Micros,
}

/// A change in how requests are answered while the store does not answer.
#[derive(Clone, Copy, Debug)]
pub struct ModeChange<'a> {
    /// The failure policy that it concerns.
    pub policy: Policy,
    /// The changes, in order.
    pub events: &'a Events,
    /// The store's failure that caused it, if one did.
    pub reason: Option<&'a StoreError>,
    /// The instant, by this node's clock.
    pub at: Micros,
}

/// A change made by an operator.
#[derive(Clone, Copy, Debug)]
pub struct OperatorChange<'a> {
    /// The operator.
    pub by: &'a Operator,
    /// The change.
    pub change: Change<'a>,
    /// The operator's request id.
    pub request_id: Option<&'a str>,
    /// The instant.
    pub at: Micros,
}

/// Identity of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operator {
    /// A person or service with a name of its own; only its digest is recorded.
    Named(palisade_core::Id),
    /// The holder of the static token.
    TokenHolder,
    /// This process itself, or code that uses the library.
    Local,
}

/// A change of an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// The key was created.
    Created,
    /// The key's secret was replaced.
    Rotated,
    /// The key was revoked.
    Revoked,
}

/// A change made by an operator. It contains no identifiers, only digests and hashes.
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
        /// The operator's reason, if one was given.
        reason: Option<&'a str>,
    },
    /// An API key was created, rotated or revoked.
    ApiKey {
        /// Which of the three.
        what: KeyChange,
        /// The hash that names the key.
        api_key: &'a str,
        /// The operator's reason, if one was given.
        reason: Option<&'a str>,
    },
    /// An OAuth client was registered or removed.
    Client {
        /// The hash of its id.
        id: &'a str,
        /// False if it was removed.
        is_added: bool,
        /// The operator's reason, if one was given.
        reason: Option<&'a str>,
    },
    /// Cached policies were dropped.
    CacheInvalidated,
    /// A reservation was released.
    ReservationReleased {
        /// The reservation's id.
        id: &'a str,
        /// The operator's reason.
        reason: &'a str,
    },
    /// The state of attacks was set (AD-ATTACK).
    AttackSet {
        /// The class, `logins`, or `*` for all.
        class: &'a str,
        /// The state.
        mode: AttackMode,
        /// The operator's reason, if one was given.
        reason: Option<&'a str>,
    },
    /// Blocks were lifted.
    BlockLifted {
        /// The digest of the record, or of the subject that was named.
        id: &'a str,
        /// Whether the score was forgotten too.
        score: Score,
        /// The operator's reason.
        reason: &'a str,
    },
}

/// One decision as it is reported to the observer.
#[derive(Clone, Copy, Debug)]
pub struct DecisionEvent<'a> {
    /// The subject of the decision.
    pub subject: Subject<'a>,
    /// The answer.
    pub decision: &'a palisade_core::Decision,
    /// The allowlist entry that let the subject pass, if one did.
    pub bypassed: Option<&'a str>,
    /// Effects of a guard command, besides its answer.
    pub guard: Option<&'a GuardNotes>,
}

/// The subject of a decision.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A request.
    Request(&'a palisade_core::RequestFacts),
    /// A guard command.
    Guard(
        palisade_core::facts::GuardOp,
        &'a palisade_core::facts::GuardFacts,
    ),
    /// A call of an Envoy rate-limit service, and the status of each descriptor.
    Descriptors(
        &'a palisade_core::facts::DescriptorFacts<'a>,
        &'a [super::DescriptorStatus],
    ),
}

impl<'a> Subject<'a> {
    /// The id of the request (I-ID).
    #[must_use]
    pub const fn request_id(self) -> Option<&'a palisade_core::Id> {
        match self {
            Self::Request(facts) => facts.request_id.as_ref(),
            Self::Guard(_, facts) => facts.request_id.as_ref(),
            Self::Descriptors(facts, _) => facts.request_id.as_ref(),
        }
    }
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn decided(&self, _seen: &DecisionEvent<'_>) {}
    fn failure(&self, _change: &ModeChange<'_>) {}

    fn hears_times(&self) -> bool {
        false
    }
}
