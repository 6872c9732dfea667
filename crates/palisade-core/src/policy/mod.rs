//! The policy: validated, immutable, with a revision. [`resolve`] turns facts into
//! a plan.

mod companions;
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
use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use crate::adaptive::AdaptiveSettings;
use crate::adaptive::load::Priority;
use crate::budget::Costs;
use crate::facts::{ClientType, FieldError, GuardFacts, RequestFacts};
use crate::geo::{DatabaseState, Geo, GeoFacts, GeoLookup};
use crate::limit::BucketSpec;
use crate::plan::OnExceed;
use domains::Domains;
use tiers::bind_tiers;

pub use companions::{Role, UNSETTLED_MAX};
pub use descriptor::{DescriptorRule, EntryMatch, RlsSettings, Standing, ValueMatch};
pub use domains::{
    DescriptorPlan, DescriptorTreatment, Instead, orgs_of, own_figures, resolve_descriptors,
};
pub use host::{HOST_BYTES_MAX, Host, HostPattern};
pub use limits::{
    Accuracy, ChallengeExtra, Class, ClassKind, Dimension, Family, Limit, LimitDef, OnExpiry,
    OnStoreFailure, QuotaUnit, Scope, SlotQueue, WhenProlonged,
};
pub use registered::{KeyRegistration, Origin, RegisteredCredentials};
pub use reservations::ReservationSettings;
pub use resolve::{
    api_key_segment, asn_segment, country_segment, hash_api_key, keep_guesses, load_class,
    quota_charge, resolve, resolve_without_exemption, weight_in,
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
    /// Challenges.
    pub challenge: crate::challenge::ChallengeSettings,
    /// `[adaptive]`: limits that follow what is measured.
    pub adaptive: AdaptiveSettings,
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
    classes: HashMap<Arc<str>, Class>,
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
    /// Finds countries and networks by address.
    geo: Option<Arc<dyn GeoLookup>>,
    /// True if some limit or route asks for countries or networks.
    asks_for_geo: bool,
    /// True if some limit has thresholds.
    has_thresholds: bool,
    /// Some limit is on what is in progress.
    has_slots: bool,
    /// True if some limit has a queue for its slots.
    has_queues: bool,
    shortest_unit_window_us: u64,
    /// True if some limit is tightened by an attack.
    has_under_attack: bool,
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
        let spend = parts.settings.guard.send.spend.as_ref();
        let budgets = spend.map_or_else(Vec::new, |spend| spend.limits());
        let limits = parts.limits.into_iter().chain(budgets);
        let mut limits: Vec<Limit> = limits.map(Limit::bind).collect();
        limits.sort_by_key(|limit| limit.scope);
        let tiers = bind_tiers(parts.tiers)?;
        let api_limits = bind_api(&parts.settings.guard.api)?;
        let classes: HashMap<_, _> = parts
            .classes
            .into_iter()
            .map(|class| (Arc::clone(&class.name), class))
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
            geo: None,
            asks_for_geo: false,
            has_thresholds: false,
            has_slots: false,
            has_queues: false,
            shortest_unit_window_us: u64::MAX,
            has_under_attack: false,
            api_limits: None,
        }
    }

    fn index(&mut self) {
        self.domains = Domains::of(&self.limits);
        self.asks_for_agents = self.limits.iter().any(|limit| limit.def.bots_only);
        self.asks_for_geo = self.routes.has_geo() || self.limits.iter().any(Limit::asks_for_geo);
        self.has_thresholds = self.limits.iter().any(|one| !one.def.warn_at.is_empty());
        self.has_queues = self.limits.iter().any(|limit| limit.def.queue.is_some());
        let windows = self.limits.iter().filter_map(Limit::unit_window_us);
        self.shortest_unit_window_us = windows.min().unwrap_or(u64::MAX);
        self.has_slots = self.limits.iter().any(|limit| limit.def.concurrency);
        self.has_under_attack = self.limits.iter().any(|limit| limit.tightened.is_some());
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
            .map_or_else(ClassKind::default, |class| class.kind)
    }

    /// Returns the behaviour of a class when the store stays down.
    #[must_use]
    pub fn when_prolonged(&self, class: &str) -> WhenProlonged {
        self.classes
            .get(class)
            .map_or_else(WhenProlonged::default, |class| class.prolonged)
    }

    /// Priority of a class while requests are shed (AD-LOAD).
    #[must_use]
    pub fn priority(&self, class: &str) -> Priority {
        self.classes
            .get(class)
            .map_or_else(Priority::default, |class| class.priority)
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

    /// Returns this policy with a source of countries and networks.
    #[must_use]
    pub fn with_geo(self, geo: Option<Arc<dyn GeoLookup>>) -> Self {
        Self { geo, ..self }
    }

    /// True if some limit or route asks for the country or network of requests.
    #[must_use]
    pub const fn asks_for_geo(&self) -> bool {
        self.asks_for_geo
    }

    /// State of each database of countries and networks.
    #[must_use]
    pub fn geo_databases(&self) -> Vec<DatabaseState> {
        let geo = self.geo.as_ref();
        geo.map(|geo| geo.databases()).unwrap_or_default()
    }

    /// Country and network of a request.
    #[must_use]
    pub fn geo_of(&self, facts: &RequestFacts) -> Geo {
        facts.geo.look_up(facts.address(), self.geo.as_deref())
    }

    /// Country and network of an address of which nothing else is known.
    #[must_use]
    pub fn geo_of_address(&self, ip: Option<IpAddr>) -> Geo {
        GeoFacts::default().look_up(ip, self.geo.as_deref())
    }

    /// Country and network of a guard command.
    #[must_use]
    pub fn geo_of_command(&self, facts: &GuardFacts) -> Geo {
        facts.geo.look_up(Some(facts.ip), self.geo.as_deref())
    }

    /// The routes that apply to a request, combined. Its country is looked up only if some route
    /// asks for one.
    #[must_use]
    #[inline]
    pub fn route_of(&self, facts: &RequestFacts) -> RouteMatch<'_> {
        let (host, routes) = (facts.host.as_ref(), &self.routes);
        match routes.has_geo() {
            false => routes.find(&facts.method, host, &facts.path),
            true => routes.find_at(&facts.method, host, &facts.path, self.geo_of(facts)),
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

    /// The shortest window, in microseconds, of the limits that count a unit of the policy's own: no
    /// reservation needs to be looked at that is held for less (B-BOUND).
    #[must_use]
    pub const fn shortest_unit_window_us(&self) -> u64 {
        self.shortest_unit_window_us
    }

    /// True if some limit has a share that is in force while an attack is on (AD-ATTACK).
    #[must_use]
    pub const fn has_under_attack(&self) -> bool {
        self.has_under_attack
    }

    /// True if attacks on this class are looked for: one of its limits is tightened by them.
    #[must_use]
    pub fn is_watched(&self, class: &str) -> bool {
        let mut limits = self.candidates(class);
        self.has_under_attack && limits.any(|limit| limit.tightened.is_some())
    }

    /// Classes in which attacks are looked for, by name.
    pub fn watched_classes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_class.keys().filter(|class| self.is_watched(class))
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
    #[must_use]
    pub fn knows_class(&self, class: &str) -> bool {
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
