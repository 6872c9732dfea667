//! The policy: validated, immutable, with a revision. [`resolve`] turns facts into
//! a plan.

mod debug;
mod descriptor;
mod domains;
mod host;
mod limits;
mod registered;
mod reservations;
mod resolve;
mod route;
mod tenant;
mod tiers;

use std::collections::{BTreeMap, HashMap};
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use crate::budget::Costs;
use crate::facts::{ClientType, FieldError};
use crate::limit::BucketSpec;
use crate::plan::OnExceed;
use domains::Domains;
use tiers::bind_tiers;

pub use descriptor::{DescriptorRule, EntryMatch, RlsSettings, Standing, ValueMatch};
pub use domains::{
    DescriptorPlan, DescriptorTreatment, Instead, orgs_of, own_figures, resolve_descriptors,
};
pub use host::{HOST_BYTES_MAX, Host, HostPattern};
pub use limits::{
    Accuracy, Class, ClassKind, Dimension, Family, Limit, LimitDef, OnStoreFailure, QuotaUnit,
    Scope, SlotQueue, WhenProlonged,
};
pub use registered::{KeyRegistration, Origin, RegisteredCredentials};
pub use reservations::ReservationSettings;
pub use resolve::{
    api_key_segment, hash_api_key, keep_guesses, quota_charge, resolve, resolve_without_exemption,
    weight_in,
};
pub use route::{PatternError, Route, RouteMatch, Routes};
pub use tenant::{Override, TenantPolicy};
pub use tiers::{ApiKey, Overage, Tier};

/// Settings of a policy other than its limits.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The guard.
    pub guard: crate::guard::GuardPolicy,
    /// The OWASP lockout.
    pub lockout: crate::lockout::LockoutPolicy,
    /// Fallback of limits while the store is down.
    pub fallback: crate::failure::FallbackPolicy,
    /// The breaker of limits and quotas.
    pub availability: crate::failure::AvailabilitySettings,
    /// Links in bodies.
    pub urls: crate::bodies::Urls,
    /// Header families.
    pub headers: crate::headers::HeaderFamilies,
    /// Meaning of an escaped slash in a path (I-PATH).
    pub encoded_slash: crate::path::EncodedSlash,
    /// Settings of limits of Envoy domains.
    pub rls: RlsSettings,
    /// Reservations.
    pub reservations: ReservationSettings,
}

/// A policy, whole and checked. Cheap to share; replaced, never changed.
#[derive(Clone)]
pub struct PolicySet {
    /// Revision number, which grows with every change.
    pub revision: u64,
    /// False while the operator's kill switch is on: nothing is limited then.
    pub enabled: bool,
    /// Settings other than the limits.
    pub settings: Settings,
    routes: Routes,
    classes: HashMap<Arc<str>, (ClassKind, WhenProlonged)>,
    limits: Vec<Limit>,
    /// Limits by class, in a tree: for so few names comparing is faster than hashing.
    by_class: BTreeMap<Arc<str>, Vec<usize>>,
    unclassed: Vec<usize>,
    throttle: Vec<usize>,
    domains: Domains,
    clients: HashMap<Box<str>, ClientType>,
    api_keys: HashMap<Box<str>, ApiKey>,
    registered: Arc<RegisteredCredentials>,
    tiers: HashMap<Arc<str>, Tier>,
    bot_patterns: Vec<String>,
    /// True if some limit is for bots only.
    asks_for_agents: bool,
    /// True if some limit has thresholds.
    has_thresholds: bool,
    /// Some limit is on what is in progress.
    has_slots: bool,
    /// True if some limit has a queue for its slots.
    has_queues: bool,
    api_limits: Option<[Limit; 3]>,
}

/// The parts of a policy, as a source delivers them.
#[derive(Clone)]
pub struct PolicyParts {
    /// False if the operator's kill switch is on.
    pub enabled: bool,
    /// Settings other than the limits.
    pub settings: Settings,
    /// Routes; more specific ones win whatever the order.
    pub routes: Vec<Route>,
    /// Classes with a behaviour other than ordinary.
    pub classes: Vec<Class>,
    /// Limits.
    pub limits: Vec<LimitDef>,
    /// Registered OAuth clients.
    pub clients: HashMap<Box<str>, ClientType>,
    /// Registered API keys, by lower-case hexadecimal SHA-256.
    pub api_keys: HashMap<Box<str>, ApiKey>,
    /// Tiers: name, monthly quota, overage.
    pub tiers: Vec<(String, Option<NonZeroU64>, Overage)>,
    /// Lower-case user-agent fragments that mark a bot.
    pub bot_patterns: Vec<String>,
}

impl PolicySet {
    /// Binds the parts into a policy.
    ///
    /// # Errors
    /// A tier whose quota cannot be a limit. (Everything else is checked where it
    /// is read, with its place in the file.)
    pub fn new(revision: u64, parts: PolicyParts) -> Result<Self, crate::limit::SpecError> {
        let mut limits: Vec<Limit> = parts.limits.into_iter().map(Limit::bind).collect();
        limits.sort_by_key(|limit| limit.scope);
        let tiers = bind_tiers(parts.tiers)?;
        let api_limits = bind_api(&parts.settings.guard.api)?;
        let classes: HashMap<_, _> = parts
            .classes
            .into_iter()
            .map(|c| (c.name, (c.kind, c.prolonged)))
            .collect();
        let mut set = Self {
            revision,
            enabled: parts.enabled,
            settings: parts.settings,
            routes: Routes::new(parts.routes),
            classes,
            limits,
            clients: parts.clients,
            api_keys: parts.api_keys,
            tiers,
            bot_patterns: parts.bot_patterns,
            api_limits: Some(api_limits),
            ..Self::empty()
        };
        set.index();
        Ok(set)
    }

    /// A policy without a single limit: every request is denied (L-DEFAULT-DENY).
    #[must_use]
    pub fn empty() -> Self {
        Self {
            revision: 0,
            enabled: true,
            settings: Settings::default(),
            routes: Routes::default(),
            classes: HashMap::new(),
            limits: Vec::new(),
            by_class: BTreeMap::new(),
            unclassed: Vec::new(),
            throttle: Vec::new(),
            domains: Domains::default(),
            clients: HashMap::new(),
            api_keys: HashMap::new(),
            registered: Arc::default(),
            tiers: HashMap::new(),
            bot_patterns: Vec::new(),
            asks_for_agents: false,
            has_thresholds: false,
            has_slots: false,
            has_queues: false,
            api_limits: None,
        }
    }

    fn index(&mut self) {
        self.domains = Domains::of(&self.limits);
        self.asks_for_agents = self.limits.iter().any(|limit| limit.def.bots_only);
        self.has_thresholds = self.limits.iter().any(|one| !one.def.warn_at.is_empty());
        self.has_queues = self.limits.iter().any(|limit| limit.def.queue.is_some());
        self.has_slots = self.limits.iter().any(|limit| limit.def.concurrency);
        for (index, limit) in self.limits.iter().enumerate() {
            if !limit.is_of_requests() {
                continue;
            }
            if limit.scope == Scope::Global {
                self.throttle.push(index);
            } else if limit.def.classes.is_empty() {
                self.unclassed.push(index);
            } else {
                for class in &limit.def.classes {
                    self.by_class
                        .entry(class.as_str().into())
                        .or_default()
                        .push(index);
                }
            }
        }
        let named = self.routes.iter().filter_map(|route| route.class.clone());
        for class in named.chain(self.classes.keys().cloned()) {
            self.by_class.entry(class).or_default();
        }
        for list in self.by_class.values_mut() {
            list.extend(&self.unclassed);
            // Limits are sorted by layer: in the order of positions, the merged list is too.
            list.sort_unstable();
        }
    }

    /// Every limit, in the order of the layers.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// True if some limit has thresholds (B-WARN).
    #[must_use]
    pub const fn has_thresholds(&self) -> bool {
        self.has_thresholds
    }

    /// The limit with this name.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&Limit> {
        self.limits.iter().find(|limit| &*limit.name == name)
    }

    /// The limits that forget what was used of them under `before`, each with the key whose change
    /// is the reason.
    pub fn limits_starting_anew<'p>(
        &'p self,
        before: &'p Self,
    ) -> impl Iterator<Item = (&'p Limit, &'static str)> {
        self.limits.iter().filter_map(|limit| {
            let old = before.limit(&limit.name)?;
            Some((limit, limit.starts_anew_by(old)?))
        })
    }

    /// Names of the Envoy domains that the policy has limits for.
    pub fn domains(&self) -> impl Iterator<Item = &Arc<str>> {
        self.domains.names()
    }

    /// The routes.
    #[must_use]
    pub const fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Returns the behaviour of a class while the store is down.
    #[must_use]
    pub fn class_kind(&self, class: &str) -> ClassKind {
        self.classes
            .get(class)
            .map_or_else(ClassKind::default, |(kind, _)| *kind)
    }

    /// Returns the behaviour of a class when the store stays down.
    #[must_use]
    pub fn when_prolonged(&self, class: &str) -> WhenProlonged {
        self.classes
            .get(class)
            .map_or_else(WhenProlonged::default, |(_, prolonged)| *prolonged)
    }

    /// The registered type of a client; public if it is not registered.
    #[must_use]
    pub fn client_type(&self, id: &str) -> ClientType {
        let others = || self.registered.clients.get(id).map(|(kind, _)| *kind);
        let known = self.clients.get(id).copied().or_else(others);
        known.unwrap_or(ClientType::Public)
    }

    /// Returns this policy with keys and clients from outside its file.
    #[must_use]
    pub fn with_registered(&self, registered: Arc<RegisteredCredentials>) -> Self {
        Self {
            registered,
            ..self.clone()
        }
    }

    /// The API key with this hash, unless it was revoked.
    #[must_use]
    pub fn api_key(&self, hash: &str) -> Option<&ApiKey> {
        if self.registered.revoked.contains(hash) {
            return None;
        }
        let others = || self.registered.api_keys.get(hash).map(|(key, _)| key);
        self.api_keys.get(hash).or_else(others)
    }

    /// Whether any API key is registered. Where none is, and no route requires one, an
    /// application's own header of that name does not concern us (I-APIKEY). A key that was just
    /// revoked counts: it must be refused, not ignored.
    #[must_use]
    pub fn has_api_keys(&self) -> bool {
        !self.api_keys.is_empty()
            || !self.registered.api_keys.is_empty()
            || !self.registered.revoked.is_empty()
    }

    /// Hash and registration of every API key in force, each once.
    pub fn api_keys(&self) -> impl Iterator<Item = (&str, &ApiKey)> {
        let own = self.api_keys.iter().map(|(hash, key)| (&**hash, key));
        let others = self.registered.api_keys.iter();
        let others = others.filter(|(hash, _)| !self.api_keys.contains_key(*hash));
        own.chain(others.map(|(hash, (key, _))| (&**hash, key)))
            .filter(|(hash, _)| !self.registered.revoked.contains(*hash))
    }

    /// The tier with this name.
    #[must_use]
    pub fn tier(&self, name: &str) -> Option<&Tier> {
        self.tiers.get(name)
    }

    /// The names of the tiers, in order.
    #[must_use]
    pub fn tier_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.tiers.keys().map(|name| &**name).collect();
        names.sort_unstable();
        names
    }

    /// The limits of the tiers' quotas.
    pub fn tier_limits(&self) -> impl Iterator<Item = &Limit> {
        self.tiers.values().map(|tier| &tier.limit)
    }

    /// True if some limit is for bots only, so that the user agent of a client matters (I-BOT).
    #[must_use]
    pub const fn asks_for_agents(&self) -> bool {
        self.asks_for_agents
    }

    /// True if some limit is on what is in progress: only then a request may take a slot (B-SLOT).
    #[must_use]
    pub const fn has_slots(&self) -> bool {
        self.has_slots
    }

    /// True if some limit has a queue for its slots (B-FAIR).
    #[must_use]
    pub const fn has_queues(&self) -> bool {
        self.has_queues
    }

    /// True if the user agent matches a bot pattern (I-BOT).
    #[must_use]
    pub fn is_bot(&self, user_agent: &str) -> bool {
        let lower = user_agent.to_ascii_lowercase();
        self.bot_patterns
            .iter()
            .any(|pattern| lower.contains(pattern.as_str()))
    }

    /// The counters of heavy-API hits: K2, K3, K1 (G-API).
    #[must_use]
    pub const fn api_limits(&self) -> Option<&[Limit; 3]> {
        self.api_limits.as_ref()
    }

    /// Refuses costs in a unit that no limit counts (B-UNIT). Requests are always counted.
    ///
    /// # Errors
    /// One of the units is not known.
    pub fn knows_units(&self, costs: &Costs) -> Result<(), FieldError> {
        let is_known = |(unit, _): (&str, u64)| {
            let mut limits = self.limits.iter().filter(|limit| limit.is_of_requests());
            unit == QuotaUnit::Requests.name() || limits.any(|limit| limit.def.unit.name() == unit)
        };
        match costs.iter().all(is_known) {
            true => Ok(()),
            false => Err(FieldError::new(
                "costs",
                "names a unit that no limit counts",
            )),
        }
    }

    /// Whether a route, a limit or the table of classes names this class.
    fn knows_class(&self, class: &str) -> bool {
        self.by_class.contains_key(class)
    }

    fn candidates(&self, class: &str) -> impl Iterator<Item = &Limit> {
        let indexes = self.by_class.get(class).unwrap_or(&self.unclassed);
        indexes.iter().map(|index| &self.limits[*index])
    }

    fn throttle_limits(&self) -> impl Iterator<Item = &Limit> {
        self.throttle.iter().map(|index| &self.limits[*index])
    }
}

fn bind_api(api: &crate::guard::ApiPolicy) -> Result<[Limit; 3], crate::limit::SpecError> {
    use crate::limit::{Algorithm, Window};
    let bind = |name: &str, amount: u32| {
        let amount = NonZeroU32::new(amount).unwrap_or(NonZeroU32::MIN);
        let window = Window::Span(api.window);
        let spec = BucketSpec::new(Algorithm::SlidingWheel, amount, window, None)?;
        let mut def = LimitDef::new(name, vec![Dimension::Ip], spec);
        def.on_exceed = OnExceed::Count;
        Ok(Limit::bind(def))
    };
    Ok([
        bind("guard-api-minor", api.minor.limit)?,
        bind("guard-api-moderate", api.moderate.limit)?,
        bind("guard-api-severe", api.severe.limit)?,
    ])
}
