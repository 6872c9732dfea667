//! One limit: its dimensions, its bucket definition, and the name of its buckets.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::companions::{self, Role};
use super::descriptor::{DescriptorRule, Standing};
use crate::adaptive::load::Priority;
use crate::facts::ClientType;
use crate::failure::fallback::Share;
use crate::geo::GeoFilter;
use crate::key::Digest;
use crate::limit::BucketSpec;
use crate::plan::{OnExceed, escape};

/// An identifier that a limit counts by.
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
    /// Country of the address.
    Country,
    /// Network of the address.
    Asn,
    /// An Envoy descriptor entry with this key.
    Descriptor(Box<str>),
}

/// The layer of L-ORDER that a limit belongs to, in that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The global throttle.
    Global,
    /// One bucket for everybody, or for everybody at an endpoint.
    Shared,
    /// By address.
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
    /// Name of the layer in answers and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Shared => "shared",
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
        // Of several dimensions the most specific one decides.
        const ORDER: [(Dimension, Scope); 5] = [
            (Dimension::ApiKey, Scope::ApiKey),
            (Dimension::User, Scope::User),
            (Dimension::Token, Scope::Token),
            (Dimension::Org, Scope::Org),
            (Dimension::Client, Scope::Client),
        ];
        if by.iter().all(|dimension| *dimension == Dimension::Endpoint) {
            return Self::Shared;
        }
        ORDER
            .iter()
            .find(|(dimension, _)| by.contains(dimension))
            .map_or(Self::Ip, |(_, scope)| *scope)
    }
}

/// Where a limit's buckets are counted.
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

/// Behaviour of a limit while the store cannot be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Refuse with 503.
    Closed,
    /// Apply the local fallback of the class.
    #[default]
    Fallback,
    /// Allow behind the anonymous local cap, marked `fail_open`.
    OpenBounded,
}

/// Family of keys that a bucket belongs to (T-KEYS).
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

/// Behaviour of a class while the store is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClassKind {
    /// Local fallback by tenant or address.
    #[default]
    Ordinary,
    /// Local fallback at half of each limit; it cannot be switched off.
    Auth,
    /// Every request is refused.
    Admin,
}

/// Behaviour of a class once an outage is prolonged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenProlonged {
    /// The local fallback goes on for as long as the outage lasts.
    #[default]
    Local,
    /// Every request is refused.
    Closed,
}

/// A class of endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Name of the class in answers, metrics and audits.
    pub name: Arc<str>,
    /// Behaviour while the store is down.
    pub kind: ClassKind,
    /// Behaviour when the store stays down.
    pub prolonged: WhenProlonged,
    /// Priority while requests are shed (AD-LOAD).
    pub priority: Priority,
}

/// The unit that a limit's numbers count (B-UNIT).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum QuotaUnit {
    /// Requests.
    #[default]
    Requests,
    /// Bytes of content: callers state what a request costs.
    ContentBytes,
    /// A unit of the policy's own, such as `tokens` or `usd_micros`. Only decisions that state a
    /// cost in it are counted.
    Named(Arc<str>),
}

impl QuotaUnit {
    /// Name of the unit where costs are stated.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Requests => "requests",
            Self::ContentBytes => "content-bytes",
            Self::Named(name) => name,
        }
    }

    /// True for a unit of the policy's own.
    #[must_use]
    pub const fn is_named(&self) -> bool {
        matches!(self, Self::Named(_))
    }

    /// True for requests and bytes of content, the units that answers need not name.
    #[must_use]
    pub const fn is_usual(&self) -> bool {
        !self.is_named()
    }
}

impl serde::Serialize for QuotaUnit {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Bounds of the line of callers that wait for a slot of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotQueue {
    /// Most callers that wait on a node.
    pub most: u16,
    /// Longest wait, in microseconds.
    pub wait_us: u64,
}

/// Fate of a reservation that nobody has settled at its end (B-EXPIRE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnExpiry {
    /// It counts as used in full.
    #[default]
    Keep,
    /// It is given back.
    Release,
}

/// A limit as it is written, before it is bound to a policy.
#[derive(Clone, Debug)]
pub struct LimitDef {
    /// Unique name.
    pub name: String,
    /// Dimensions that it counts by; empty is one shared bucket.
    pub by: Arc<[Dimension]>,
    /// Classes it applies to; empty is all.
    pub classes: Vec<String>,
    /// Operations it applies to; empty is all.
    pub operations: Vec<String>,
    /// Only for clients of this type.
    pub client_type: Option<ClientType>,
    /// Only for requests marked as bots.
    pub bots_only: bool,
    /// Only for addresses of these countries and networks.
    pub geo: Option<Arc<GeoFilter>>,
    /// Part of the global throttle: taken first, answered with 503.
    pub throttle: bool,
    /// Definition of its buckets.
    pub spec: BucketSpec,
    /// Cost of one request.
    pub cost: NonZeroU32,
    /// Where its buckets are counted.
    pub accuracy: Accuracy,
    /// Behaviour when a bucket is full.
    pub on_exceed: OnExceed,
    /// Whether its buckets are charged even if the request is refused, by this limit or another
    /// one: for reports of work that is done (B-OVERDRAFT).
    pub charged_anyway: bool,
    /// Behaviour when the store is down.
    pub on_store_failure: OnStoreFailure,
    /// Burst limit or quota.
    pub family: Family,
    /// Unit of its numbers.
    pub unit: QuotaUnit,
    /// Whether the limit bounds the number of requests in progress: `spec` is then a sliding log
    /// with as many hits as there are slots, whose window is the longest time that a slot lasts
    /// without an extension (B-SLOT).
    pub concurrency: bool,
    /// Who waits for a slot of a full bucket; only of a limit on what is in progress (B-FAIR).
    pub queue: Option<SlotQueue>,
    /// Shares of the limit, in thousandths and ascending, at which operators are told (B-WARN).
    pub warn_at: Vec<u16>,
    /// Share of a bucket, in thousandths, that one caller may hold reserved (B-SHARE).
    pub max_share: Option<u16>,
    /// Fate of unsettled reservations at their end.
    pub on_expiry: OnExpiry,
    /// Share of the limit that is in force while an attack on its class is on (AD-ATTACK).
    pub under_attack: Option<Share>,
    /// Rule for an Envoy domain; a limit with one never applies to HTTP requests.
    pub descriptor: Option<DescriptorRule>,
    /// Set if callers that have passed a challenge are admitted beyond the limit (C-BUYS).
    pub challenge: Option<ChallengeExtra>,
}

/// Admission beyond a limit for callers that have passed a challenge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChallengeExtra {
    /// Most of it per window; the limit once more if left out.
    pub most: Option<NonZeroU32>,
}

impl LimitDef {
    /// A limit with every optional part at its default.
    #[must_use]
    pub fn new(name: &str, by: Vec<Dimension>, spec: BucketSpec) -> Self {
        Self {
            name: name.to_owned(),
            by: by.into(),
            classes: Vec::new(),
            operations: Vec::new(),
            client_type: None,
            bots_only: false,
            geo: None,
            throttle: false,
            spec,
            cost: NonZeroU32::MIN,
            accuracy: Accuracy::Exact,
            on_exceed: OnExceed::Deny,
            charged_anyway: false,
            on_store_failure: OnStoreFailure::Fallback,
            family: Family::Limit,
            unit: QuotaUnit::Requests,
            concurrency: false,
            queue: None,
            warn_at: Vec::new(),
            max_share: None,
            on_expiry: OnExpiry::Keep,
            under_attack: None,
            descriptor: None,
            challenge: None,
        }
    }

    /// The definition of what is admitted beyond this limit after a challenge, in buckets of its
    /// own.
    fn beyond(&self) -> Self {
        Self {
            name: format!("{}+challenge", self.name),
            // Whatever the accuracy of the limit, more than this must never be bought.
            accuracy: match self.accuracy {
                Accuracy::Local => Accuracy::Local,
                Accuracy::Exact | Accuracy::Leased => Accuracy::Exact,
            },
            warn_at: Vec::new(),
            max_share: None,
            under_attack: None,
            challenge: None,
            ..self.clone()
        }
    }

    /// The share of a spec of this limit, its own or a tenant's, that is in force while an attack is
    /// on.
    pub(super) fn tightened(&self, spec: &BucketSpec) -> Option<BucketSpec> {
        Some(self.under_attack?.of_spec(spec, self.cost.get().into()))
    }

    /// The class that bucket names contain: the only one that the limit applies to.
    pub(super) fn only_class(&self) -> Option<&str> {
        match self.classes.as_slice() {
            [class] => Some(class),
            _ => None,
        }
    }

    /// The window as bucket names contain it, after the unit if it is one of the policy's own:
    /// usage in one unit never counts in another (B-UNIT).
    pub(super) fn window_label(&self) -> String {
        let window = self.spec.window().label();
        match &self.unit {
            QuotaUnit::Requests | QuotaUnit::ContentBytes if self.concurrency => {
                format!("slots:{window}")
            }
            QuotaUnit::Requests | QuotaUnit::ContentBytes => window,
            QuotaUnit::Named(unit) => format!("unit:{}:{window}", escape(unit)),
        }
    }
}

/// A limit of a policy, ready to be charged.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Unique name.
    pub name: Arc<str>,
    /// The definition.
    pub def: LimitDef,
    /// Layer that the limit belongs to.
    pub scope: Scope,
    /// Burst limit or quota.
    pub family: Family,
    /// The share of `def.spec` that is in force while an attack is on (AD-ATTACK).
    pub tightened: Option<BucketSpec>,
    /// Digest of the name and window, used in bucket ids.
    pub digest: Digest,
    /// `:class:…:name:…:w60s`, the end of its keys in shared stores.
    pub key_suffix: Box<str>,
    /// Quantity that its buckets count.
    pub role: Role,
    /// The limits on what is held reserved of its buckets (B-SHARE, B-EXPIRE).
    pub companions: Box<[Self]>,
    /// The limit of what is admitted beyond this one after a challenge (C-BUYS).
    pub beyond: Option<Box<Limit>>,
}

impl Limit {
    /// Prepares a definition for charging: finds its layer, and computes the fixed part of its
    /// bucket names.
    #[must_use]
    pub fn bind(def: LimitDef) -> Self {
        let scope = if def.throttle {
            Scope::Global
        } else if def.descriptor.is_some() {
            Scope::Descriptor
        } else {
            Scope::of(&def.by)
        };
        // A limit on several classes counts them in one bucket, so its key names none.
        let class = def
            .only_class()
            .map_or_else(String::new, |class| format!(":class:{}", escape(class)));
        let window = def.window_label();
        let companions = companions::of(&def, scope);
        let beyond = def.challenge.map(|_| Box::new(Self::bind(def.beyond())));
        Self {
            name: def.name.as_str().into(),
            beyond,
            scope,
            family: def.family,
            tightened: def.tightened(&def.spec),
            digest: name_digest(&def.name, &window),
            key_suffix: format!("{class}:name:{}:{window}", escape(&def.name)).into(),
            role: Role::Usage,
            companions,
            def,
        }
    }

    /// The window in microseconds, if the limit counts what requests take of a unit of the policy's
    /// own: a reservation must not be held for longer, or it would outlive its charge (B-BOUND).
    #[must_use]
    pub fn unit_window_us(&self) -> Option<u64> {
        let is_bound =
            self.role == Role::Usage && self.is_of_requests() && self.def.unit.is_named();
        is_bound.then(|| self.def.spec.window_us())
    }

    /// Whether what a reservation takes of the limit's buckets leaves them at the reservation's
    /// end, even if nobody settles it.
    #[must_use]
    pub fn ends_with_reservations(&self) -> bool {
        self.role != Role::Usage || self.def.on_expiry == OnExpiry::Release
    }

    /// Returns the key whose change makes the limit forget what was used of `before`, the limit of
    /// the same name in another policy; `None` if it goes on counting. Another window, family or
    /// class gives the buckets other names, and a limit that this process counts alone has no
    /// buckets in the store.
    #[must_use]
    pub fn starts_anew_by(&self, before: &Self) -> Option<&'static str> {
        let (now, old) = (&self.def, &before.def);
        let is_local = |def: &LimitDef| def.accuracy == Accuracy::Local;
        let changes = [
            ("by", now.by != old.by),
            ("class", now.only_class() != old.only_class()),
            ("accuracy", is_local(now) != is_local(old)),
            ("concurrency", now.concurrency != old.concurrency),
            ("rate", now.spec.window() != old.spec.window()),
            ("algorithm", self.family != before.family),
            ("unit", self.digest != before.digest),
        ];
        let mut changes = changes.into_iter();
        changes.find_map(|(key, has_changed)| has_changed.then_some(key))
    }

    /// Definition of the bucket of what is admitted beyond this limit, where `spec` is in force for
    /// the caller: as much again, or as much as the policy says.
    #[must_use]
    pub fn spec_beyond(&self, spec: &BucketSpec) -> Option<BucketSpec> {
        match self.def.challenge?.most {
            None => Some(*spec),
            Some(most) => BucketSpec::new(spec.algorithm(), most, spec.window(), None).ok(),
        }
    }

    /// Whether the limit applies to requests, and not to descriptors of a domain.
    #[must_use]
    pub const fn is_of_requests(&self) -> bool {
        self.def.descriptor.is_none()
    }

    /// Whether the limit depends on the country or network of a request.
    #[must_use]
    pub fn asks_for_geo(&self) -> bool {
        let by = &self.def.by;
        self.def.geo.is_some() || by.contains(&Dimension::Country) || by.contains(&Dimension::Asn)
    }

    /// Whether the limit admits nothing at all (R-ZERO).
    #[must_use]
    pub fn denies_all(&self) -> bool {
        let rule = self.def.descriptor.as_ref();
        rule.is_some_and(|rule| rule.standing == Standing::Denies)
    }

    /// Returns this limit with the `spec` that a call carries. Its buckets are named after the
    /// amount, so that calls with another amount do not touch them (R-OVERRIDE).
    pub(crate) fn with_figure(&self, spec: BucketSpec) -> Self {
        let def = LimitDef {
            spec,
            ..self.def.clone()
        };
        let window = def.window_label();
        let figure = format!("{}#{}", self.name, spec.limit());
        Self {
            digest: name_digest(&figure, &window),
            key_suffix: format!(":name:{}:q{}:{window}", escape(&self.name), spec.limit()).into(),
            def,
            ..self.clone()
        }
    }

    /// Whether the limit counts requests of any class and operation.
    pub(crate) fn covers_everything(&self) -> bool {
        self.def.classes.is_empty() && self.def.operations.is_empty()
    }

    pub(super) fn applies_to(&self, class: &str, operation: Option<&str>) -> bool {
        let matches = |filter: &[String], value: Option<&str>| {
            filter.is_empty() || value.is_some_and(|value| filter.iter().any(|f| f == value))
        };
        self.is_of_requests()
            && matches(&self.def.classes, Some(class))
            && matches(&self.def.operations, operation)
    }
}

/// Digest of a limit's name and window. They are no secret: a fixed key suffices to spread them.
pub(super) fn name_digest(name: &str, window: &str) -> Digest {
    use siphasher::sip128::{Hasher128, SipHasher24};
    use std::hash::Hasher;
    let mut hasher = SipHasher24::new_with_key(b"palisade limit/1");
    hasher.write(&(name.len() as u64).to_le_bytes());
    hasher.write(name.as_bytes());
    hasher.write(window.as_bytes());
    Digest(hasher.finish128().as_u128())
}
