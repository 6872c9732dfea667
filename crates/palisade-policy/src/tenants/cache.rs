//! Cache of tenants' policies on this node.
//!
//! A lookup never waits. An unknown or nearly expired tenant is put into a queue, at most once per
//! tenant; [`super::follow`] takes batches from the queue, asks the source and settles the answers
//! here. While the source is away everything known stays in force, however old.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use palisade_core::facts::ID_BYTES_MAX;
use palisade_core::failure::SourceHealth;
use palisade_core::policy::{PolicySet, TenantPolicy};
use palisade_core::time::{Clock, Micros};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

use super::document::{Document, DocumentError};
use super::line::{Call, Line};
use super::table::{Entry, Flight, SourceStatement, Table};
use super::{SourceError, SourceReport};

/// Tenants per shard: few enough that a shard's lock is held briefly.
const SHARD_TENANTS: u32 = 1_024;
const SHARDS_MAX: u32 = 64;
/// Most tenants whose refusals are kept for display.
const REFUSALS_MAX: usize = 1_000;

/// Settings of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Age at which a policy is too old. It is fetched again before that.
    pub ttl: Duration,
    /// Age at which the absence of a policy is looked up again.
    pub negative_ttl: Duration,
    /// Tenants that are kept.
    pub tenants_max: u32,
    /// Time after which a call to the source counts as failed.
    pub timeout: Duration,
}

/// State of a tenant's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheState {
    /// As the source has it, within its time to live.
    Fresh,
    /// Older than its time to live: the source is away, or its document was refused.
    Stale,
    /// The tenant has no policy of its own, or none is known: the default applies.
    Default,
}

impl CacheState {
    /// The name of the state in the administration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Stale => "stale",
            Self::Default => "default",
        }
    }
}

/// The cached state of one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedTenant {
    /// Time since the source confirmed the state.
    pub age: Duration,
    /// The source's version; `None` while the default policy stands in.
    pub version: Option<u64>,
    /// Kind of the source that the policy comes from.
    pub source: &'static str,
    /// State of the policy.
    pub state: CacheState,
    /// The reason why the source's latest document is not in force.
    pub refused: Option<String>,
}

/// Observes a cache, for logs and audits. Must not block.
pub trait CacheListener: Send + Sync + 'static {
    /// A tenant's policy was replaced; `None` is the default policy.
    fn changed(&self, _tenant: &str, _from: Option<u64>, _to: Option<u64>) {}

    /// A tenant's document was refused; reported once until the reason changes.
    fn refused(&self, _tenant: &str, _why: &DocumentError) {}

    /// The source was lost, or answers again.
    fn source(&self, _health: SourceHealth, _error: Option<&'static str>) {}
}

/// Ignores everything.
impl CacheListener for () {}

/// The cache of tenants' policies. Bounded; no request waits for it.
pub struct TenantCache {
    source: &'static str,
    settings: CacheSettings,
    clock: Arc<dyn Clock>,
    hasher: RandomState,
    shards: Box<[RwLock<Table>]>,
    shard_max: usize,
    base: ArcSwap<PolicySet>,
    line: Mutex<Line>,
    refusals: Mutex<HashMap<Box<str>, DocumentError>>,
    failures: AtomicU64,
    listener: Box<dyn CacheListener>,
    pub(super) wake: Notify,
    started: watch::Sender<bool>,
}

impl TenantCache {
    /// An empty cache of documents that override `base`; `source` is the name of their source, for
    /// operators.
    pub fn new(
        source: &'static str,
        settings: CacheSettings,
        base: Arc<PolicySet>,
        clock: Arc<dyn Clock>,
        listener: impl CacheListener,
    ) -> Self {
        let shards = (settings.tenants_max / SHARD_TENANTS).clamp(1, SHARDS_MAX);
        let now = clock.now();
        Self {
            source,
            settings,
            clock,
            hasher: RandomState::new(),
            shards: (0..shards).map(|_| RwLock::default()).collect(),
            shard_max: usize::try_from(settings.tenants_max / shards).unwrap_or(usize::MAX),
            base: ArcSwap::new(base),
            line: Mutex::new(Line::new(&settings, now)),
            refusals: Mutex::default(),
            failures: AtomicU64::new(0),
            listener: Box::new(listener),
            wake: Notify::new(),
            started: watch::channel(false).0,
        }
    }

    /// The policy of a tenant, as it is cached now.
    pub fn find(&self, tenant: &str) -> Option<Arc<TenantPolicy>> {
        let hash = self.hasher.hash_one(tenant);
        let now = self.clock.now();
        {
            let table = self.shard(hash).read();
            if let Some(entry) = table.get(hash, tenant) {
                entry.set_used(true);
                // Of all lookups that find the entry due, the one that moves it to `Queued` adds
                // the tenant to the queue: a busy tenant stands in it once.
                let claimed = entry.is_due(now) && entry.advance(Flight::Idle, Flight::Queued);
                let policy = match &entry.known {
                    SourceStatement::Policy(policy) => Some(Arc::clone(policy)),
                    SourceStatement::Never | SourceStatement::Absent => None,
                };
                // `want` locks the queue, and `report` locks shards while it holds the queue.
                drop(table);
                if claimed {
                    self.want(tenant.into());
                }
                return policy;
            }
        }
        self.meet(hash, tenant);
        None
    }

    /// Adds a tenant that is not in the cache.
    fn meet(&self, hash: u64, tenant: &str) {
        // Clients choose these names. No source has a document under such a name, so an entry
        // would only take space from tenants that exist.
        if tenant.len() > ID_BYTES_MAX || tenant.contains('\0') {
            return;
        }
        let claimed = {
            let mut table = self.shard(hash).write();
            let met = table.get_or_insert(hash, tenant, self.shard_max);
            met.is_some_and(|(entry, _)| entry.advance(Flight::Idle, Flight::Queued))
        };
        if claimed {
            self.want(tenant.into());
        }
    }

    fn shard(&self, hash: u64) -> &RwLock<Table> {
        // The upper bits choose the shard, because the table's own index uses the lower ones.
        let at = usize::try_from(hash >> 48).unwrap_or(0) % self.shards.len();
        &self.shards[at]
    }

    fn want(&self, tenant: Box<str>) {
        self.line.lock().push(tenant);
        self.wake.notify_one();
    }

    /// Replaces the policy that documents are checked against. Cached policies stay in force until
    /// they were checked again.
    pub fn set_base(&self, base: Arc<PolicySet>) {
        self.base.store(base);
        for shard in &self.shards {
            // Only due, not queued: `sweep` queues the tenants that were used, and the others wait
            // for their next lookup.
            for entry in shard.read().entries() {
                entry.set_due(Micros(0));
            }
        }
        self.line.lock().sweep_now();
        self.wake.notify_one();
    }

    /// Asks the source again about a tenant, or about all; true if there was a tenant to ask about.
    /// Cached policies stay in force until the answer.
    pub fn invalidate(&self, tenant: Option<&str>) -> bool {
        let again: Vec<Box<str>> = match tenant {
            Some(tenant) => {
                let hash = self.hasher.hash_one(tenant);
                let table = self.shard(hash).read();
                let Some(entry) = table.get(hash, tenant) else {
                    return false;
                };
                ask_again(entry).into_iter().collect()
            }
            None => {
                let mut all = Vec::new();
                for shard in &self.shards {
                    all.extend(shard.read().entries().iter().filter_map(ask_again));
                }
                all
            }
        };
        let known = tenant.is_some() || self.len() > 0;
        again.into_iter().for_each(|tenant| self.want(tenant));
        known
    }

    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Returns the cached state of a tenant.
    pub fn look(&self, tenant: &str) -> Option<CachedTenant> {
        let hash = self.hasher.hash_one(tenant);
        let now = self.clock.now();
        let table = self.shard(hash).read();
        let entry = table.get(hash, tenant)?;
        let age = match &entry.known {
            SourceStatement::Never => Duration::ZERO,
            SourceStatement::Absent | SourceStatement::Policy(_) => {
                Duration::from_micros(now.since(entry.fetched()))
            }
        };
        let is_fresh = age <= self.settings.ttl && !entry.is_doubted();
        let state = match &entry.known {
            SourceStatement::Never | SourceStatement::Absent => CacheState::Default,
            SourceStatement::Policy(_) if is_fresh => CacheState::Fresh,
            SourceStatement::Policy(_) => CacheState::Stale,
        };
        let version = entry.known.version();
        drop(table);
        let refusals = self.refusals.lock();
        Some(CachedTenant {
            age,
            version,
            source: self.source,
            state,
            refused: refusals.get(tenant).map(|refused| refused.0.clone()),
        })
    }

    /// Reports on the source and the cache.
    pub fn report(&self) -> SourceReport {
        let policies = self.shards.iter().map(|shard| shard.read().policies());
        let policies: usize = policies.sum();
        let line = self.line.lock();
        SourceReport {
            source: self.source,
            health: line.health(),
            error: line.error(),
            since: line.down_since(),
            policies: policies as u64,
            tenants: self.len() as u64,
            failures: self.failures.load(Ordering::Relaxed),
        }
    }

    /// Waits until the source was called for the first time, whatever the result.
    pub async fn started(&self) {
        let _ = self.started.subscribe().wait_for(|started| *started).await;
    }

    /// The timeout of calls to the source.
    pub(super) const fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    /// Returns the next call to make to the source, if one is due.
    pub(super) fn take(&self) -> Option<Call> {
        let now = self.clock.now();
        if self.line.lock().sweep_is_due(now) {
            self.sweep(now);
        }
        let call = self.line.lock().take(now)?;
        for tenant in call.tenants() {
            self.with(tenant, |entry| entry.set_flight(Flight::Asked));
        }
        Some(call)
    }

    /// Returns the time until a call is due, unless a lookup changes that.
    pub(super) fn pause(&self) -> Duration {
        let now = self.clock.now();
        self.line.lock().pause(now)
    }

    /// Queues tenants that were used and are due, so that a tenant with rare requests is not
    /// served an old policy either.
    fn sweep(&self, now: Micros) {
        for shard in &self.shards {
            let due: Vec<Box<str>> = shard
                .read()
                .entries()
                .iter()
                .filter(|entry| entry.is_used() && entry.is_due(now))
                .filter(|entry| entry.advance(Flight::Idle, Flight::Queued))
                .map(|entry| entry.tenant.clone())
                .collect();
            let mut line = self.line.lock();
            due.into_iter().for_each(|tenant| line.push(tenant));
        }
    }

    fn with<T>(&self, tenant: &str, act: impl FnOnce(&Entry) -> T) -> Option<T> {
        let hash = self.hasher.hash_one(tenant);
        self.shard(hash).read().get(hash, tenant).map(act)
    }

    /// Applies the source's answer to a call.
    pub(super) fn settle(&self, call: Call, answer: Result<Vec<Document>, SourceError>) {
        let now = self.clock.now();
        match answer {
            Ok(documents) => {
                match call {
                    Call::First(_) => self.preload(documents, now),
                    Call::Tenants(tenants) => self.settle_each(&tenants, &documents, now),
                }
                let regained = self.line.lock().answered(now);
                if regained {
                    self.listener.source(SourceHealth::Up, None);
                }
            }
            Err(error) => self.fail(call, &error, now),
        }
        self.started.send_replace(true);
    }

    fn fail(&self, call: Call, error: &SourceError, now: Micros) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        for tenant in call.tenants() {
            // Not `Idle`: `Line::failed` puts these tenants back into the queue, where a lookup
            // must not add them a second time.
            self.with(tenant, |entry| entry.set_flight(Flight::Queued));
        }
        let lost = self.line.lock().failed(call, error.kind(), now);
        if lost {
            self.listener.source(SourceHealth::Down, Some(error.kind()));
        }
    }

    fn preload(&self, documents: Vec<Document>, now: Micros) {
        for document in documents {
            let hash = self.hasher.hash_one(&*document.tenant);
            let met = {
                let mut table = self.shard(hash).write();
                let met = table.get_or_insert(hash, &document.tenant, self.shard_max);
                // A tenant in the queue gets its own answer, which is newer than this one.
                met.is_some_and(|(entry, _)| entry.flight() == Flight::Idle)
            };
            if met {
                self.apply(&document.tenant, Some(&document), now);
            }
        }
    }

    fn settle_each(&self, tenants: &[Box<str>], documents: &[Document], now: Micros) {
        let mut found: HashMap<&str, &Document> = HashMap::with_capacity(documents.len());
        for document in documents {
            let slot = found.entry(&document.tenant).or_insert(document);
            // A source may return several documents of one tenant: the newest one counts.
            if document.stated_version() > slot.stated_version() {
                *slot = document;
            }
        }
        for tenant in tenants {
            self.apply(tenant, found.get(&**tenant).copied(), now);
            self.land(tenant);
        }
    }

    /// Marks the tenant as no longer asked about, or queues it again if it was invalidated
    /// meanwhile.
    fn land(&self, tenant: &str) {
        let again = self.with(tenant, |entry| {
            !entry.advance(Flight::Asked, Flight::Idle)
                && entry.advance(Flight::AskedAgain, Flight::Queued)
        });
        if again == Some(true) {
            self.want(tenant.into());
        }
    }

    /// Puts the source's document for a tenant in force if it is valid.
    fn apply(&self, tenant: &str, document: Option<&Document>, now: Micros) {
        let base = self.base.load_full();
        let checked = match document {
            Some(document) => document
                .check(&base)
                .map(|policy| SourceStatement::Policy(Arc::new(policy))),
            None => Ok(SourceStatement::Absent),
        };
        match checked.and_then(|known| self.not_older(tenant, known)) {
            Ok(known) => {
                self.refusals.lock().remove(tenant);
                self.accept(tenant, known, now);
            }
            Err(refused) => self.refuse(tenant, &refused, now),
        }
        // The base policy was replaced during the check: check again under the new one.
        if !Arc::ptr_eq(&base, &self.base.load()) {
            self.with(tenant, |entry| entry.set_due(Micros(0)));
        }
    }

    /// Refuses a version older than the one in force: a replica that lags must not bring an old
    /// policy back. An operator who wants to go back invalidates the tenant.
    fn not_older(
        &self,
        tenant: &str,
        known: SourceStatement,
    ) -> Result<SourceStatement, DocumentError> {
        let older = self.with(tenant, |entry| {
            let versions = (known.version(), entry.known.version());
            !entry.is_doubted() && matches!(versions, (Some(new), Some(old)) if new < old)
        });
        match older {
            Some(true) => Err(DocumentError(
                "`version` is older than the one in force; invalidate the tenant to go back"
                    .to_owned(),
            )),
            _ => Ok(known),
        }
    }

    fn accept(&self, tenant: &str, known: SourceStatement, now: Micros) {
        let life = match known {
            SourceStatement::Policy(_) => self.settings.ttl,
            SourceStatement::Never | SourceStatement::Absent => self.settings.negative_ttl,
        };
        let is_same = self.with(tenant, |entry| entry.known == known);
        // A document that has not changed needs no write lock, which lookups would wait for.
        if is_same == Some(false) {
            self.replace(tenant, known);
        }
        self.with(tenant, |entry| {
            entry.set_fetched(now);
            entry.set_due(now.plus(ahead_us(life)));
            entry.set_used(false);
            // Invalidated after this answer was requested: the next answer settles it.
            if entry.flight() != Flight::AskedAgain {
                entry.set_doubted(false);
            }
        });
    }

    fn replace(&self, tenant: &str, known: SourceStatement) {
        let hash = self.hasher.hash_one(tenant);
        let to = known.version();
        let before = self.shard(hash).write().replace(hash, tenant, known);
        if let Some(before @ (SourceStatement::Absent | SourceStatement::Policy(_))) = before {
            self.listener.changed(tenant, before.version(), to);
        }
    }

    fn refuse(&self, tenant: &str, refused: &DocumentError, now: Micros) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.with(tenant, |entry| {
            entry.set_due(now.plus(ahead_us(self.settings.ttl)));
            entry.set_used(false);
        });
        let mut refusals = self.refusals.lock();
        let is_new = refusals.get(tenant) != Some(refused);
        // A full map still updates the tenants that it has; others are only counted and logged.
        if refusals.len() < REFUSALS_MAX || refusals.contains_key(tenant) {
            refusals.insert(tenant.into(), refused.clone());
        }
        drop(refusals);
        if is_new {
            self.listener.refused(tenant, refused);
        }
    }
}

/// Age at which a policy is fetched again: three quarters of its life.
fn ahead_us(life: Duration) -> u64 {
    u64::try_from(life.as_micros() * 3 / 4).unwrap_or(u64::MAX)
}

/// Marks an entry as doubted; returns its name if it has to join the queue.
fn ask_again(entry: &Entry) -> Option<Box<str>> {
    entry.set_doubted(true);
    entry.set_due(Micros(0));
    let _ = entry.advance(Flight::Asked, Flight::AskedAgain);
    entry
        .advance(Flight::Idle, Flight::Queued)
        .then(|| entry.tenant.clone())
}
