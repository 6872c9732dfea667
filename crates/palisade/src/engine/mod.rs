//! The engine: one request from end to end, in the steps resolve → charge → decide → record.
//!
//! Read `limits/check.rs` and `guard/command.rs` first, then `counters/mod.rs` and `link.rs`;
//! nothing else is needed to understand a decision. `operators` is administration, `background`
//! the work beside requests, and `ports` the interfaces to the engine's host.

mod adaptive;
mod background;
mod candidate;
mod challenge;
mod counters;
mod figures;
mod guard;
mod health;
mod limits;
mod link;
mod marks;
mod operators;
mod ports;
mod reservations;
mod seldom;
mod stand_in;
mod thresholds;
mod timing;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use palisade_core::key::Keyring;
use palisade_core::policy::{Limit, PolicySet};
use palisade_core::time::{Clock, Micros};
use palisade_store::Store;

use adaptive::{Attacks, LoadGate};
use candidate::Candidate;
use challenge::Challenges;
use counters::Counters;
use guard::Guard;
use limits::Receipts;
use link::Link;
use operators::Registries;
use reservations::{Queues, Register, Retries};
use seldom::Seldom;
use thresholds::Thresholds;

pub use adaptive::{
    ATTACK_CLASSES_MAX, AttackMode, AttackReport, AttackSeen, AttackSetting, AttackView, LOGINS,
    LoadFigures, LoadPermit,
};
pub use candidate::{
    CandidateAnswer, CandidateReport, CandidateSeen, Cause, CauseCounts, Comparison,
    ComparisonCounts, FirstDifference,
};
pub use challenge::{
    ChallengeEvent, ChallengeOutcome, ChallengeProvider, ChallengeStep, IssueOutcome,
    PROVIDER_DEADLINE, ProviderQuery, ProviderUnavailable,
};
pub use figures::Figures;
pub use guard::GuardNotes;
pub use health::{DependencyReport, HealthReport, PlacesReport, PolicyReport};
pub use limits::{
    DescriptorAnswer, DescriptorStatus, DescriptorVerdict, Figure, KEYED_MAX, Keyed, KeyedAnswer,
    RefundOutcome, RequestAnswer,
};
pub(crate) use operators::attach_stored;
pub use operators::{
    Admin, AdminError, AllowlistEntry, AllowlistError, AllowlistKind, BLOCKS_LISTED_MAX,
    BUCKETS_READ_MAX, BlockCursor, BlockPage, BlockView, BucketView, CLIENTS_MAX,
    CREDENTIALS_PAGE_MAX, CalledBucket, ClientPage, ClientView, Explanation, Finding, IssuedKey,
    KEYS_MAX, KeyPage, KeyView, LastMonth, LiftSubject, LiftSummary, LiftTarget, LookedUp,
    LookupSubject, NewAllowlistEntry, NewApiKey, OVERLAP_DEFAULT, OVERLAP_MAX, QUOTAS_PAGE_MAX,
    QuotaPage, QuotaUsage, RESERVATIONS_LISTED_MAX, ReservationPage, ReservationView,
    ReservedLimit, ResetLine, ResetSelector, SELECTORS_MAX, Score, ScoreView, SourceCredentials,
    Standing, meaning,
};
pub use ports::{
    Change, DecisionEvent, InstanceFailure, KeyChange, ModeChange, NoObserver, NoTenants, Observer,
    Operator, OperatorChange, OverageSeen, Subject, TenantSeen, TenantStats, Tenants,
};

pub use reservations::{
    ExtendAnswer, HOLD_DEFAULT, HeldReservation, Hold, ReservationError, ReservationFigures,
    ReservationGuard, ReserveAnswer, Settlement, SpendResult, TookTooLong,
};
pub use thresholds::ReachedThreshold;

/// The parts of an engine.
///
/// [`Palisade::builder`](crate::Palisade::builder) fills it in. By hand it takes any store:
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use palisade::store::model::ModelStore;
/// use palisade::{Clock, Engine, EngineConfig, Keyring, SystemClock};
///
/// let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
/// let store = Arc::new(ModelStore::new(Arc::clone(&clock)));
/// let bundle = palisade::policy::load(None, &Default::default(), &Default::default())?;
/// let policy = (*bundle.policy).clone();
/// let keyring = Keyring::new(b"at least 32 random bytes go here", None)?;
/// let config = EngineConfig {
///     deadline: Duration::from_millis(20),
///     ..EngineConfig::new(store, policy, keyring, clock)
/// };
/// assert!(Engine::new(config).policy().enabled);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EngineConfig {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The policy to start with.
    pub policy: Arc<PolicySet>,
    /// The keyring, with the secrets of all digests.
    pub keyring: Arc<Keyring>,
    /// The clock of the process.
    pub clock: Arc<dyn Clock>,
    /// Longest time that a store call may take.
    pub deadline: Duration,
    /// Source of tenants' own policies.
    pub tenants: Arc<dyn Tenants>,
    /// Receiver of metrics, logs and audit events.
    pub observer: Arc<dyn Observer>,
}

impl EngineConfig {
    /// The parts of an engine with the default deadline, no tenants and no observer.
    pub fn new(
        store: Arc<dyn Store>,
        policy: PolicySet,
        keyring: impl Into<Arc<Keyring>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            store,
            policy: Arc::new(policy),
            keyring: keyring.into(),
            clock,
            deadline: palisade_store::DEADLINE_DEFAULT,
            tenants: Arc::new(NoTenants),
            observer: Arc::new(NoObserver),
        }
    }
}

/// Decides requests, calls and guard commands. All surfaces of a process share one engine.
///
/// ```
/// use palisade::{Palisade, RequestFacts};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let policy = "limit = [{ name = 'two', by = ['ip'], rate = '2/min' }]";
/// let palisade = Palisade::builder().policy(policy).start().await?;
/// let engine = palisade.engine();
/// let facts = RequestFacts::new("203.0.113.5".parse()?, "GET", "/things");
/// for _ in 0..2 {
///     assert!(engine.check(&facts).await.decision.is_allowed());
/// }
/// assert_eq!(engine.check(&facts).await.decision.status, 429);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine {
    policy: ArcSwap<PolicySet>,
    keyring: Arc<Keyring>,
    tenants: Arc<dyn Tenants>,
    link: Arc<Link>,
    counters: Counters,
    receipts: Receipts,
    /// The limit of buckets that a caller figures itself.
    keyed: Limit,
    guard: Guard,
    registries: Arc<Registries>,
    candidate: Seldom<Candidate>,
    retries: Retries,
    register: Register,
    queues: Queues,
    thresholds: Thresholds,
    challenges: Challenges,
    load: Arc<LoadGate>,
    attacks: Attacks,
}

impl Engine {
    /// Builds an engine from its parts.
    pub fn new(config: EngineConfig) -> Self {
        Self::sharing(config, Arc::default())
    }

    /// An engine that shares the registries of another one: the candidate's engine, so that
    /// operators' changes apply to both.
    fn sharing(config: EngineConfig, registries: Arc<Registries>) -> Self {
        let EngineConfig {
            store,
            policy,
            keyring,
            clock,
            deadline,
            tenants,
            observer,
        } = config;
        observer.policy_changed(None, &policy, clock.now());
        let settings = &policy.settings;
        let link = Arc::new(Link::new(store, clock, observer, deadline, settings));
        Self {
            counters: Counters::new(Arc::clone(&link), &settings.fallback),
            link,
            receipts: Receipts::new(),
            keyed: limits::keyed_limit(),
            guard: Guard::default(),
            candidate: Seldom::default(),
            retries: Retries::default(),
            register: Register::default(),
            queues: Queues::default(),
            thresholds: Thresholds::default(),
            challenges: Challenges::default(),
            load: Arc::default(),
            attacks: Attacks::default(),
            policy: ArcSwap::new(registries.credentials.attach(policy)),
            registries,
            keyring,
            tenants,
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<PolicySet> {
        self.policy.load_full()
    }

    /// Calls `look` with the policy in force, without the cost of a counted reference.
    pub fn with_policy<T>(&self, look: impl FnOnce(&Arc<PolicySet>) -> T) -> T {
        look(&self.policy.load())
    }

    /// True on the embedded store: a decision on limits never waits, and the future of
    /// [`Engine::check`] is ready at its first poll.
    pub fn answers_at_once(&self) -> bool {
        self.link.answers_at_once()
    }

    /// True while a candidate policy decides beside the one in force.
    pub fn has_candidate(&self) -> bool {
        self.candidate.is_there()
    }

    /// Puts a new policy in force. Requests in progress finish under the old one. Use counted so
    /// far stays, and unused tokens of leased limits are returned.
    pub fn set_policy(&self, policy: Arc<PolicySet>) {
        self.link.reconfigure(&policy.settings);
        self.counters.reconfigure(&policy.settings.fallback);
        let before = self.policy.swap(self.registries.credentials.attach(policy));
        // Keys may have changed between attaching and swapping.
        self.attach_registered();
        self.counters.retire();
        self.observer()
            .policy_changed(Some(&before), &self.policy.load(), self.now());
    }

    /// Drops remembered denials and leased tokens, so that the next request calls the store.
    pub fn forget_cached(&self) {
        self.counters.forget_cached();
    }

    /// The store.
    pub fn store(&self) -> &dyn Store {
        self.link.store()
    }

    /// The clock of this process.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        self.link.clock()
    }

    /// The secrets.
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// The receiver of metrics, logs and audit events. Surfaces report to it what the engine does
    /// not see.
    pub fn observer(&self) -> &dyn Observer {
        self.link.observer()
    }

    /// Source of tenants' own policies.
    pub fn tenants(&self) -> &dyn Tenants {
        &*self.tenants
    }

    fn now(&self) -> Micros {
        self.link.now()
    }
}
