//! The policy: validated, immutable, with a revision. [`resolve`] turns facts into
//! a plan.

mod debug;
mod descriptor;
mod domains;
mod resolve;
mod route;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::facts::ClientType;
use crate::key::Digest;
use crate::limit::BucketSpec;
use crate::plan::{OnExceed, escape};
use domains::Domains;

pub use descriptor::{DescriptorRule, EntryMatch, RlsSettings, Standing, ValueMatch};
pub use domains::{Asked, DescriptorPlan, Instead, orgs_of, own_figures, resolve_descriptors};
pub use resolve::{api_key_segment, hash_api_key, keep_guesses, quota_charge, resolve};
pub use route::{PatternError, Route, RouteMatch, Routes};

/// What a limit counts by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// Address prefix.
    Ip,
    /// User (within its organisation).
    User,
    /// Organisation.
    Org,
    /// Token (within its organisation).
    Token,
    /// OAuth client.
    Client,
    /// API key.
    ApiKey,
    /// Guard account.
    Account,
    /// Route.
    Endpoint,
    /// An Envoy descriptor entry with this key.
    Descriptor(Box<str>),
}

/// The layer of L-ORDER that a limit belongs to, in that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The global throttle.
    Global,
    /// By address, or one shared bucket.
    Ip,
    /// By OAuth client.
    Client,
    /// By organisation.
    Org,
    /// By token.
    Token,
    /// By user.
    User,
    /// By API key.
    ApiKey,
    /// By descriptors of an Envoy domain: a request never meets it.
    Descriptor,
}

impl Scope {
    /// As in answers and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Ip => "ip",
            Self::Client => "client",
            Self::Org => "org",
            Self::Token => "token",
            Self::User => "user",
            Self::ApiKey => "api_key",
            Self::Descriptor => "descriptor",
        }
    }

    /// The layer of a limit that counts by `by`.
    #[must_use]
    pub fn of(by: &[Dimension]) -> Self {
        const ORDER: [(Dimension, Scope); 5] = [
            (Dimension::ApiKey, Scope::ApiKey),
            (Dimension::User, Scope::User),
            (Dimension::Token, Scope::Token),
            (Dimension::Org, Scope::Org),
            (Dimension::Client, Scope::Client),
        ];
        ORDER
            .iter()
            .find(|(dimension, _)| by.contains(dimension))
            .map_or(Self::Ip, |(_, scope)| *scope)
    }
}

/// Where a limit's bucket lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accuracy {
    /// In the store, exact over all nodes.
    #[default]
    Exact,
    /// In the store, taken in batches and served locally.
    Leased,
    /// In this process only.
    Local,
}

/// What a limit does while the store cannot be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Refuse with 503.
    Closed,
    /// The class's local fallback.
    #[default]
    Fallback,
    /// Allow behind the anonymous local cap, marked `fail_open`.
    OpenBounded,
}

/// Which family of keys a bucket belongs to (T-KEYS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Family {
    /// Burst limits, `rl:`.
    #[default]
    Limit,
    /// Quotas, `rq:`: durable on every store.
    Quota,
}

impl Family {
    /// The key's first segment.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Limit => "rl",
            Self::Quota => "rq",
        }
    }
}

/// How a class behaves while the store is down (failure table).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClassKind {
    /// Local fallback by tenant or address.
    #[default]
    Ordinary,
    /// Local fallback at half of each limit; it cannot be switched off.
    Auth,
    /// Closed.
    Admin,
}

/// A class of endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name, as in answers, metrics and audits.
    pub name: Arc<str>,
    /// How it behaves while the store is down.
    pub kind: ClassKind,
}

/// What a limit's numbers count, as clients are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QuotaUnit {
    /// Requests.
    #[default]
    Requests,
    /// Bytes of content: callers say what a request costs.
    ContentBytes,
    /// Requests at the same time: callers give back what has ended.
    ConcurrentRequests,
}

impl QuotaUnit {
    /// As in the `qu` parameter of `RateLimit-Policy`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::ContentBytes => "content-bytes",
            Self::ConcurrentRequests => "concurrent-requests",
        }
    }
}

/// What a limit is written as, before it is bound to a policy.
#[derive(Clone, Debug)]
pub struct LimitDef {
    /// Unique name.
    pub name: String,
    /// What it counts by; empty is one shared bucket.
    pub by: Vec<Dimension>,
    /// Classes it applies to; empty is all.
    pub classes: Vec<String>,
    /// Operations it applies to; empty is all.
    pub operations: Vec<String>,
    /// Only for clients of this type.
    pub client_type: Option<ClientType>,
    /// Only for requests marked as bots.
    pub bots_only: bool,
    /// Part of the global throttle: taken first, answered with 503.
    pub throttle: bool,
    /// What it allows.
    pub spec: BucketSpec,
    /// What one request costs.
    pub cost: NonZeroU32,
    /// Where its bucket lives.
    pub accuracy: Accuracy,
    /// What happens when it is full.
    pub on_exceed: OnExceed,
    /// What happens when the store is down.
    pub on_store_failure: OnStoreFailure,
    /// Burst limit or quota.
    pub family: Family,
    /// What its numbers count.
    pub unit: QuotaUnit,
    /// What it answers an Envoy domain; such a limit never applies to HTTP requests.
    pub descriptor: Option<DescriptorRule>,
}

impl LimitDef {
    /// A limit with every optional part at its default.
    #[must_use]
    pub fn new(name: &str, by: Vec<Dimension>, spec: BucketSpec) -> Self {
        Self {
            name: name.to_owned(),
            by,
            classes: Vec::new(),
            operations: Vec::new(),
            client_type: None,
            bots_only: false,
            throttle: false,
            spec,
            cost: NonZeroU32::MIN,
            accuracy: Accuracy::Exact,
            on_exceed: OnExceed::Deny,
            on_store_failure: OnStoreFailure::Fallback,
            family: Family::Limit,
            unit: QuotaUnit::Requests,
            descriptor: None,
        }
    }
}

/// A limit of a policy, ready to be charged.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Unique name.
    pub name: Arc<str>,
    /// What was written.
    pub def: LimitDef,
    /// Its layer.
    pub scope: Scope,
    /// Burst limit or quota.
    pub family: Family,
    /// Stands for the name and window in bucket ids.
    pub digest: Digest,
    /// `:class:…:name:…:w60s`, the end of its keys in shared stores.
    pub key_suffix: Box<str>,
}

impl Limit {
    /// Makes a definition chargeable.
    #[must_use]
    pub fn bind(def: LimitDef) -> Self {
        let scope = if def.throttle {
            Scope::Global
        } else if def.descriptor.is_some() {
            Scope::Descriptor
        } else {
            Scope::of(&def.by)
        };
        let class = match def.classes.as_slice() {
            [class] => format!(":class:{}", escape(class)),
            _ => String::new(),
        };
        let window = def.spec.window().label();
        Self {
            name: def.name.as_str().into(),
            scope,
            family: def.family,
            digest: name_digest(&def.name, &window),
            key_suffix: format!("{class}:name:{}:{window}", escape(&def.name)).into(),
            def,
        }
    }

    /// Whether it applies to requests, and not to descriptors of a domain.
    #[must_use]
    pub const fn is_of_requests(&self) -> bool {
        self.def.descriptor.is_none()
    }

    /// Whether it admits nothing at all (R-ZERO).
    #[must_use]
    pub fn denies_all(&self) -> bool {
        let rule = self.def.descriptor.as_ref();
        rule.is_some_and(|rule| rule.standing == Standing::Denies)
    }

    /// The same limit with a figure that a call has brought along. Its buckets are named
    /// after the figure: another one leaves them as they are (R-OVERRIDE).
    pub(crate) fn with_figure(&self, spec: BucketSpec) -> Self {
        let window = spec.window().label();
        let figure = format!("{}#{}", self.name, spec.limit());
        Self {
            digest: name_digest(&figure, &window),
            key_suffix: format!(":name:{}:q{}:{window}", escape(&self.name), spec.limit()).into(),
            def: LimitDef {
                spec,
                ..self.def.clone()
            },
            ..self.clone()
        }
    }

    /// Whether it counts requests of any class and operation.
    pub(crate) fn covers_everything(&self) -> bool {
        self.def.classes.is_empty() && self.def.operations.is_empty()
    }

    fn applies_to(&self, class: &str, operation: Option<&str>) -> bool {
        let matches = |filter: &[String], value: Option<&str>| {
            filter.is_empty() || value.is_some_and(|value| filter.iter().any(|f| f == value))
        };
        self.is_of_requests()
            && matches(&self.def.classes, Some(class))
            && matches(&self.def.operations, operation)
    }
}

/// Names and windows are no secret: a fixed key is enough to spread them.
fn name_digest(name: &str, window: &str) -> Digest {
    use siphasher::sip128::{Hasher128, SipHasher24};
    use std::hash::Hasher;
    let mut hasher = SipHasher24::new_with_key(b"palisade limit/1");
    hasher.write(&(name.len() as u64).to_le_bytes());
    hasher.write(name.as_bytes());
    hasher.write(window.as_bytes());
    Digest(hasher.finish128().as_u128())
}

/// What happens to an API key beyond its quota, and what it costs.
#[derive(Clone, Debug, PartialEq)]
pub enum Overage {
    /// Denied.
    Blocked,
    /// Allowed, counted, and billed elsewhere at this price a request.
    Priced(f64),
}

/// A tier of API-key quotas.
#[derive(Clone, Debug)]
pub struct Tier {
    /// Its name.
    pub name: Arc<str>,
    /// Monthly quota; `None` is unlimited.
    pub quota: Option<NonZeroU32>,
    /// Beyond it.
    pub overage: Overage,
    /// The bound quota limit of this tier.
    pub limit: Limit,
}

/// A registered API key; only its hash is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Tier name.
    pub tier: Arc<str>,
    /// Scopes; `None` covers every route.
    pub scopes: Option<Vec<String>>,
}

impl ApiKey {
    /// Whether it may use a route that needs this scope.
    #[must_use]
    pub fn covers(&self, needed: &str) -> bool {
        let scopes = self.scopes.as_ref();
        scopes.is_none_or(|scopes| scopes.iter().any(|scope| scope == needed))
    }
}

/// A tenant's own figures, from the policy source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantPolicy {
    /// Version, as the source states it.
    pub version: u64,
    limits: Box<[(Arc<str>, BucketSpec)]>,
}

impl TenantPolicy {
    /// A policy with these limits in place of the ones of the same name.
    #[must_use]
    pub fn new(version: u64, limits: impl IntoIterator<Item = (Arc<str>, BucketSpec)>) -> Self {
        Self {
            version,
            limits: limits.into_iter().collect(),
        }
    }

    /// Limits that differ, with their names.
    #[must_use]
    pub const fn limits(&self) -> &[(Arc<str>, BucketSpec)] {
        &self.limits
    }

    /// What stands in for a limit. A policy that changed meanwhile may count over
    /// another window, under another key: the tenant's figure waits until it was
    /// checked against it.
    #[must_use]
    pub fn spec(&self, limit: &Limit) -> Option<&BucketSpec> {
        let (_, spec) = self.limits.iter().find(|(name, _)| *name == limit.name)?;
        spec.can_stand_in_for(&limit.def.spec).then_some(spec)
    }
}

/// Figures beside the limits.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The guard.
    pub guard: crate::guard::GuardPolicy,
    /// The OWASP lockout.
    pub lockout: crate::lockout::LockoutPolicy,
    /// What limits fall back to while the store is down.
    pub fallback: crate::failure::FallbackPolicy,
    /// The breaker of limits and quotas.
    pub availability: crate::failure::AvailabilitySettings,
    /// Links in bodies.
    pub urls: crate::bodies::Urls,
    /// Header families.
    pub headers: crate::headers::HeaderFamilies,
    /// What an escaped slash in a path is (I-PATH).
    pub encoded_slash: crate::path::EncodedSlash,
    /// How limits of Envoy domains answer.
    pub rls: RlsSettings,
}

/// A policy, whole and checked. Cheap to share; replaced, never changed.
#[derive(Clone)]
pub struct PolicySet {
    /// Grows with every change.
    pub revision: u64,
    /// False is the operator's kill switch.
    pub enabled: bool,
    /// Figures beside the limits.
    pub settings: Settings,
    routes: Routes,
    classes: HashMap<Arc<str>, ClassKind>,
    limits: Vec<Limit>,
    /// In order: of so few names a comparison is shorter than a hash.
    by_class: BTreeMap<Arc<str>, Vec<usize>>,
    unclassed: Vec<usize>,
    throttle: Vec<usize>,
    domains: Domains,
    clients: HashMap<Box<str>, ClientType>,
    api_keys: HashMap<Box<str>, ApiKey>,
    tiers: HashMap<Arc<str>, Tier>,
    bot_patterns: Vec<String>,
    /// Some limit is for bots only.
    asks_for_agents: bool,
    api_limits: Option<[Limit; 3]>,
}

/// The parts of a policy, as a source delivers them.
#[derive(Clone)]
pub struct PolicyParts {
    /// Kill switch off.
    pub enabled: bool,
    /// Figures beside the limits.
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
    pub tiers: Vec<(String, Option<NonZeroU32>, Overage)>,
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
            .map(|c| (c.name, c.kind))
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
            tiers: HashMap::new(),
            bot_patterns: Vec::new(),
            asks_for_agents: false,
            api_limits: None,
        }
    }

    fn index(&mut self) {
        self.domains = Domains::of(&self.limits);
        self.asks_for_agents = self.limits.iter().any(|limit| limit.def.bots_only);
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
            list.sort_unstable();
        }
    }

    /// Every limit, in the order of the layers.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The limit with this name.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&Limit> {
        self.limits.iter().find(|limit| &*limit.name == name)
    }

    /// Names of the Envoy domains that it has limits for.
    pub fn domains(&self) -> impl Iterator<Item = &Arc<str>> {
        self.domains.names()
    }

    /// The routes.
    #[must_use]
    pub const fn routes(&self) -> &Routes {
        &self.routes
    }

    /// How a class behaves while the store is down.
    #[must_use]
    pub fn class_kind(&self, class: &str) -> ClassKind {
        self.classes.get(class).copied().unwrap_or_default()
    }

    /// The registered type of a client; public if it is not registered.
    #[must_use]
    pub fn client_type(&self, id: &str) -> ClientType {
        self.clients.get(id).copied().unwrap_or(ClientType::Public)
    }

    /// The API key with this hash.
    #[must_use]
    pub fn api_key(&self, hash: &str) -> Option<&ApiKey> {
        self.api_keys.get(hash)
    }

    /// Whether any API key is registered: where none is, and no route asks for one, an
    /// application's own header of that name is no concern of ours (I-APIKEY).
    #[must_use]
    pub fn has_api_keys(&self) -> bool {
        !self.api_keys.is_empty()
    }

    /// Every registered API key's hash and registration.
    pub fn api_keys(&self) -> impl Iterator<Item = (&str, &ApiKey)> {
        self.api_keys.iter().map(|(hash, key)| (&**hash, key))
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

    /// True if a limit is for bots only: then it makes a difference which program a client is
    /// (I-BOT).
    #[must_use]
    pub const fn asks_for_agents(&self) -> bool {
        self.asks_for_agents
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

fn bind_tiers(
    tiers: Vec<(String, Option<NonZeroU32>, Overage)>,
) -> Result<HashMap<Arc<str>, Tier>, crate::limit::SpecError> {
    use crate::limit::{Algorithm, Window};
    let mut bound = HashMap::new();
    for (name, quota, overage) in tiers {
        let spec = BucketSpec::new(
            Algorithm::FixedWindow,
            quota.unwrap_or(NonZeroU32::MAX),
            Window::Month,
            None,
        )?;
        // One name for every tier: a change of tier keeps what was used.
        let mut def = LimitDef::new("api-key-quota", vec![Dimension::ApiKey], spec);
        def.family = Family::Quota;
        def.on_exceed = match (quota, &overage) {
            (None, _) | (_, Overage::Priced(_)) => OnExceed::Count,
            (Some(_), Overage::Blocked) => OnExceed::Deny,
        };
        let name: Arc<str> = name.into();
        bound.insert(
            Arc::clone(&name),
            Tier {
                name,
                quota,
                overage,
                limit: Limit::bind(def),
            },
        );
    }
    Ok(bound)
}
