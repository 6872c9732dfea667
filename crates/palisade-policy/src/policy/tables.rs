//! The arrays of tables: routes, classes, limits, clients, API keys, tiers.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use palisade_core::budget::is_unit_name;
use palisade_core::facts::ClientType;
use palisade_core::geo::NetworkKind;
use palisade_core::limit::{Algorithm, FIGURE_MAX};
use palisade_core::policy::{
    Accuracy, ClassKind, Dimension, EntryMatch, Family, HostPattern, OnExpiry, OnStoreFailure,
    Overage, QuotaUnit, ValueMatch, WhenProlonged,
};

use crate::document::decode::{Decode, Problem, Problems, integer, text_of, wrong};
use crate::document::error::nearest;
use crate::document::schema::{Schema, Section};
use crate::document::tree::{Node, Value};
use crate::geo::{AsnName, CountryName};
use crate::policy::outcomes::{
    CookieName, HeaderName, LocationPatterns, LoginFlow, Neither, Outcome, UsernameSource,
};
use crate::policy::spend::SpendTable;
use crate::policy::values::{Figure, MaybeZero, OneOrMany, Percent, Share, Shares};
use crate::{named, section};

section! {
    /// Routes give requests their class and operation. Where several match, the most specific one
    /// that sets a value wins.
    pub(crate) struct RouteTable(Array "route") {
        /// Path, or the start of one followed by `*`.
        path: String;
        /// Method; any if left out.
        method: Option<Method>;
        /// Host, or the end of one after `*.`: `shop.example`, `*.example.com`. Any if left out.
        host: Option<RouteHost>;
        /// Countries that the route is about, such as `["KP"]`; `unknown` is one of them. Any if
        /// left out.
        country: Option<Vec<CountryName>>;
        /// Countries that the route is not about. It is about unknown ones, unless `unknown` is
        /// listed.
        not_country: Option<Vec<CountryName>>;
        /// Networks that the route is about, by number; `unknown` is one of them. Any if left out.
        asn: Option<Vec<AsnName>>;
        /// Kind of network that the route is about: `hosting` is the list of `places.hosting`.
        network_kind: Option<NetworkKind>;
        /// Class of the request; that of a less specific route if left out.
        class: Option<String>;
        /// Operation of the request; that of a less specific route if left out.
        operation: Option<String>;
        /// Scope that the token must have.
        scope: Option<String>;
        /// Whether an API key is required.
        api_key: bool = "false";
        /// Cost of one request in every bucket; that of a less specific route if left out.
        cost: Option<NonZeroU32>;
        /// Whether requests are exempt from limits, for example health checks and static files. The
        /// throttle, the guard and the local caps of an outage still apply.
        exempt: bool = "false";
        /// Source from which the proxy learns the outcome of a login: `status` is the application's
        /// answer.
        outcome: Option<Outcome>;
        /// Flow of the guard that gets the outcome.
        flow: LoginFlow = "login";
        /// Place of the user name in the request: `form:FIELD`, `json:FIELD` (`json:user.name` is a
        /// nested member), `header:NAME` or `basic`.
        username: Option<UsernameSource>;
        /// Statuses that mean a wrong credential.
        failure_status: Vec<u16> = "400,401,403,422";
        /// Statuses that mean a right credential. For a redirect, and for 200 to a form, also set
        /// `success_location`, `success_cookie` or `outcome_header`, because many applications
        /// answer a wrong credential in the same way.
        success_status: Vec<u16> = "200,201,204,302,303";
        /// Target of a redirect after a wrong credential: a path, or the start of one followed by
        /// `*`.
        failure_location: Option<LocationPatterns>;
        /// Target of a redirect after a right credential. If set, no other answer is a success.
        success_location: Option<LocationPatterns>;
        /// Session cookie that the application sets after a right credential. If set, no other
        /// answer is a success.
        success_cookie: Option<CookieName>;
        /// Whether the application recognises nobody by a cookie. A success is then due to the
        /// credential, even if the request carried cookies.
        cookieless: bool = "false";
        /// Response header in which the application says `success` or `failure`. It takes
        /// precedence over every other sign, and is not passed on to the client.
        outcome_header: Option<HeaderName>;
        /// Outcome of an answer below 500 that shows neither success nor failure: `failure`, or
        /// `unknown`, which leaves the attempt open until `pending_ttl` has passed.
        neither: Neither = "failure";
        /// Cookie by which the proxy recognises a device after a success; none if left out.
        device_cookie: Option<CookieName>;
    }
}

section! {
    /// Classes, and their behaviour while the store is unavailable.
    pub(crate) struct ClassTable(Array "class") {
        /// Name of the class.
        name: String;
        /// Behaviour while the store is unavailable: `auth` keeps a share of its limits on each
        /// node (`fallback.auth_percent`), `admin` is closed, `ordinary` has a local cap.
        kind: ClassKind = "ordinary";
        /// Behaviour once the store has been unavailable for
        /// `breaker.availability.prolonged_after`: `local` goes on as before, `closed` answers 503.
        /// `admin` is closed in any case.
        prolonged: WhenProlonged = "local";
        /// Priority while `adaptive.protect` sheds requests: 9 is shed last, with exempt routes, and
        /// 0 first.
        priority: u8 = "5" where "0"..="9";
    }
}

section! {
    /// A limit or a quota.
    pub(crate) struct LimitTable(Array "limit") {
        /// Unique name of the limit, as headers, metrics and audit events show it.
        name: String;
        /// Facts that the limit counts by; `[]` is one bucket shared by all callers.
        by formerly "key", "keys": Option<Vec<Dimension>>;
        /// Classes that the limit applies to; all if left out.
        class formerly "classes": Option<OneOrMany>;
        /// Operations that the limit applies to; all if left out.
        operation: Option<OneOrMany>;
        /// Units per window, for example `100/min`. With `domain`, `0/s` denies everything.
        rate formerly "limit": Option<MaybeZero>;
        /// Counting algorithm. If left out: `fixed-window` for months and years, otherwise
        /// `sliding-log` up to 256 units and `sliding-wheel` above.
        algorithm: Option<Algorithm>;
        /// Burst of a token bucket; the rate's number if left out.
        burst: Option<Figure>;
        /// Cost of one request.
        cost: NonZeroU32 = "1";
        /// `exact` counts over all nodes, `leased` takes tokens from the store in batches, `local`
        /// counts on each node and forgets when the process ends.
        accuracy: Accuracy = "exact";
        /// Whether the limit only reports and never denies.
        shadow: bool = "false";
        /// Whether it may be overdrawn: `true` admits while anything is left and charges the whole
        /// cost, below zero if need be. `always` charges even what is refused, by it or another
        /// limit: for reports of work that is done.
        overdraft: Overdraft = "false";
        /// Answer beyond the limit: `deny`, or `challenge`, which admits callers that have passed a
        /// challenge as long as `challenge_extra` lasts.
        on_exceed: WhenExceeded = "deny";
        /// Units per window beyond the limit for callers that have passed a challenge; as many as
        /// the limit has if left out. Only with `on_exceed = "challenge"`.
        challenge_extra: Option<NonZeroU32>;
        /// Behaviour while the store is unavailable. `open-bounded` is an error for a limit of an
        /// authentication class.
        failure formerly "on_store_failure": OnStoreFailure = "fallback";
        /// `quota` is durable on every store; fixed windows are quotas if left out.
        family: Option<Family>;
        /// Unit of the limit's numbers. A limit with a unit of your own counts only requests that
        /// state their `costs` in it.
        unit: QuotaUnit = "requests";
        /// Most requests in progress at a time, over all nodes, instead of a `rate`. A reservation
        /// holds a slot until it is settled, or until `hold` has passed since it was last extended.
        /// 1 to 1000.
        concurrency: Option<NonZeroU32>;
        /// Time for which a reservation holds its slot unless it is extended. Only with
        /// `concurrency`.
        hold: Option<Duration>;
        /// Most callers of a full bucket that wait for a slot on each node, first come first
        /// served, instead of being refused at once. 1 to 1000. Only with `concurrency` and `wait`.
        queue: Option<NonZeroU32>;
        /// Longest time that a caller waits in the queue: 100ms to 30s. Only with `queue`.
        wait: Option<Duration>;
        /// Shares of the limit at which operators are told, such as `[0.8, 1.0]`: once for
        /// each bucket, share and window, over all nodes.
        warn_at: Option<Shares>;
        /// Share of a bucket that one caller may hold reserved: its user, else its API key, else its
        /// address. What was settled does not count.
        max_share: Option<Share>;
        /// Fate of a reservation that nobody has settled at its end: `keep` counts it as used in
        /// full, `release` gives it back. A bucket gives back at most 1024 at a time, and
        /// refuses further ones. Needs a rolling window.
        on_expiry: OnExpiry = "keep";
        /// Share of the limit, such as `50%`, that is in force while an attack on its class is on.
        under_attack: Option<Percent>;
        /// Applies only to OAuth clients of this type.
        client_type: Option<ClientType>;
        /// Applies only to bots.
        bot: bool = "false";
        /// Applies only to addresses of these countries, such as `["KP"]`; `unknown` is one of
        /// them.
        country: Option<Vec<CountryName>>;
        /// Applies only to addresses of other countries. It applies to unknown ones, unless
        /// `unknown` is listed.
        not_country: Option<Vec<CountryName>>;
        /// Applies only to addresses of these networks, by number; `unknown` is one of them.
        asn: Option<Vec<AsnName>>;
        /// Applies only to networks of this kind: `hosting` is the list of `places.hosting`.
        network_kind: Option<NetworkKind>;
        /// Whether the limit is part of the global throttle, which is charged first and answers
        /// 503.
        throttle: bool = "false";
        /// Envoy domain. A limit with a domain never applies to HTTP requests.
        domain: Option<String>;
        /// Envoy descriptor: entries with a key and a value, or the start of a value followed by
        /// `*`. An entry without a value matches any.
        descriptor: Option<Vec<DescriptorEntry>>;
        /// Whether all values that match an entry with `*` or without a value share one bucket.
        share: bool = "false";
        /// Admits everything, without a `rate`. Only with `domain`.
        unlimited: bool = "false";
        /// Names of limits in the same domain that do not count where this one matches, too.
        replaces: Option<OneOrMany>;
    }
}

section! {
    /// Settings of the rate-limit service for Envoy, for limits with a `domain`.
    pub(crate) struct RlsTable(Table "rls") {
        /// Whether all limits with a `domain` only report and never deny.
        shadow: bool = "false";
        /// Whether descriptors that admit are charged even if another one denies. Otherwise
        /// descriptors are charged only if all of them admit.
        count_denied: bool = "false";
        /// Whether negative hits are given back. They name no charge. If the window has already
        /// forgotten the charge, the use of other callers is given back, and more than the limit is
        /// admitted.
        refunds: bool = "false";
        /// Whether answers carry the names of limits, the rules, the mode and the policy revision
        /// as metadata.
        metadata: bool = "false";
        /// Key of the descriptor entry that names an organisation. Limits that count by this entry
        /// use a tenant's own rates.
        org_key: Option<String>;
    }
}

section! {
    /// Reservations: amounts that are reserved before work begins and corrected when it has ended.
    pub(crate) struct ReservationsTable(Table "reservations") {
        /// Longest duration of a reservation, extensions included. A request that the proxy or a
        /// layer holds is cut off then.
        max_hold: Duration = "10min" where "1s"..="1day";
    }
}

section! {
    /// Limits that follow what is measured. They add to the other limits and are never laxer.
    pub(crate) struct AdaptiveTable(Table "adaptive") {
        /// Part that is protected by a bound on the requests in progress: `upstream` is the application behind the
        /// proxy, or behind a layer of the library. Nothing if left out.
        protect: Option<ProtectedPart>;
        /// Least requests in progress that the bound falls to. So many at once must be no load for
        /// the application: while no more are in progress, its latency counts as that of an idle one.
        min: NonZeroU32 = "8" where "1"..="100000";
        /// Most requests in progress that the bound grows to.
        max: NonZeroU32 = "1000" where "1"..="100000";
        /// Multiple of the usual refusals or failures of a minute that is an attack, for limits with
        /// `under_attack`.
        surge: NonZeroU32 = "5" where "2"..="100";
        /// Refusals or failures of a minute below which nothing is an attack.
        surge_min: NonZeroU32 = "100" where "50"..="1000000";
    }
}

section! {
    /// A registered OAuth client.
    pub(crate) struct ClientTable(Array "client") {
        /// The client's `client_id`.
        id: String;
        /// `confidential` if the client can keep a secret, otherwise `public`.
        kind as "type": ClientType;
    }
}

section! {
    /// A registered API key. Only its hash is written here.
    pub(crate) struct ApiKeyTable(Array "api_key") {
        /// SHA-256 of the key, in hexadecimal.
        hash: KeyHash;
        /// Tier of the key.
        tier: String;
        /// Scopes that the key covers; all if left out.
        scopes: Option<Vec<String>>;
    }
}

section! {
    /// A tier of API-key quotas.
    pub(crate) struct TierTable(Array "tier") {
        /// Name of the tier.
        name: String;
        /// Requests per calendar month, or `unlimited`.
        quota: Quota;
        /// Price of a request beyond the quota, or `blocked`.
        overage: OverageChoice = "blocked";
    }
}

section! {
    /// A tenant's own limits, where `policy.source` is `file`.
    pub(crate) struct TenantTable(Array "tenant") {
        /// Id of the organisation.
        id: String;
        /// Rates by the name of a limit that counts by organisation, user or token: `{ org-burst =
        /// "12000/min" }`, or `{ smooth = { rate = "20/s", burst = 50 } }`.
        limits: TenantLimits;
    }
}

pub(crate) fn schemas() -> [Schema; 11] {
    [
        RouteTable::SCHEMA,
        SpendTable::SCHEMA,
        ClassTable::SCHEMA,
        LimitTable::SCHEMA,
        RlsTable::SCHEMA,
        ReservationsTable::SCHEMA,
        AdaptiveTable::SCHEMA,
        ClientTable::SCHEMA,
        ApiKeyTable::SCHEMA,
        TierTable::SCHEMA,
        TenantTable::SCHEMA,
    ]
}

named!(WhenProlonged {
    "local" => Self::Local,
    "closed" => Self::Closed,
});

/// The part that [`AdaptiveTable`] protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtectedPart {
    /// The application behind this process.
    Upstream,
}

named!(ProtectedPart {
    "upstream" => Self::Upstream,
});

named!(ClassKind {
    "auth" => Self::Auth,
    "admin" => Self::Admin,
    "ordinary" => Self::Ordinary,
});

named!(Algorithm {
    "sliding-log" => Self::SlidingLog,
    "sliding-wheel" => Self::SlidingWheel,
    "token-bucket" => Self::TokenBucket,
    "fixed-window" => Self::FixedWindow,
});

impl Decode for QuotaUnit {
    fn kind() -> String {
        "`requests`, `content-bytes`, or a name of your own".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        match text_of(node)? {
            "requests" => Ok(Self::Requests),
            "content-bytes" => Ok(Self::ContentBytes),
            "concurrent-requests" => Err(vec![
                Problem::new("counts nothing that is in progress").hint(
                    "write `concurrency = 8` and `hold = \"30s\"` instead of `rate` and `unit`",
                ),
            ]),
            name if is_unit_name(name) => Ok(Self::Named(name.into())),
            _ => Err(vec![
                Problem::new("must be a lower-case letter, then letters, digits, `-` and `_`")
                    .hint("for example `tokens` or `usd_micros`"),
            ]),
        }
    }
}

named!(OnExpiry {
    "keep" => Self::Keep,
    "release" => Self::Release,
});

named!(Accuracy {
    "exact" => Self::Exact,
    "leased" => Self::Leased,
    "local" => Self::Local,
});

/// Whether a limit may be overdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdraft {
    /// No.
    Never,
    /// While anything is left.
    WhileAnyLeft,
    /// Also by what is refused.
    Always,
}

impl Decode for Overdraft {
    fn kind() -> String {
        "`true`, `false` or `always`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        if node.as_str() == Some("always") {
            return Ok(Self::Always);
        }
        match bool::decode(node) {
            Ok(true) => Ok(Self::WhileAnyLeft),
            Ok(false) => Ok(Self::Never),
            Err(_) => wrong("must be `true`, `false` or `\"always\"`"),
        }
    }

    fn show(text: &str) -> String {
        text.to_owned()
    }
}

/// Answer of a limit that is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenExceeded {
    /// A refusal.
    Deny,
    /// A challenge, after which more is admitted.
    Challenge,
}

named!(WhenExceeded {
    "deny" => Self::Deny,
    "challenge" => Self::Challenge,
});

named!(OnStoreFailure {
    "closed" => Self::Closed,
    "fallback" => Self::Fallback,
    "open-bounded" => Self::OpenBounded,
});

named!(Family {
    "limit" => Self::Limit,
    "quota" => Self::Quota,
});

named!(ClientType {
    "confidential" => Self::Confidential,
    "public" => Self::Public,
});

/// An upper-case method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Method(pub(crate) String);

impl Decode for Method {
    fn kind() -> String {
        "method".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        if text
            .bytes()
            .all(|byte| byte.is_ascii_alphabetic() || byte == b'-')
        {
            Ok(Self(text.to_ascii_uppercase()))
        } else {
            Err(vec![
                Problem::new("must be a single HTTP method").hint("leave it out for any method"),
            ])
        }
    }
}

/// The hosts of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteHost(pub(crate) HostPattern);

impl Decode for RouteHost {
    fn kind() -> String {
        "host".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        HostPattern::parse(text_of(node)?).map(Self).ok_or_else(|| {
            vec![
                Problem::new("must be a host name without a port")
                    .hint("for example `shop.example`, or `*.example.com` for all below it"),
            ]
        })
    }
}

impl Decode for Dimension {
    fn kind() -> String {
        "`ip`, `user`, `org`, `token`, `client`, `api_key`, `account`, `endpoint`, `country`, `asn`, `descriptor:KEY`"
            .into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        match text.strip_prefix("descriptor:") {
            Some("") => wrong("must name a descriptor key after `descriptor:`"),
            Some(key) => Ok(Self::Descriptor(key.into())),
            None => plain_dimension(text),
        }
    }
}

/// The dimensions that are a single word.
const PLAIN: [(&str, Dimension); 10] = [
    ("ip", Dimension::Ip),
    ("user", Dimension::User),
    ("org", Dimension::Org),
    ("token", Dimension::Token),
    ("client", Dimension::Client),
    ("api_key", Dimension::ApiKey),
    ("account", Dimension::Account),
    ("endpoint", Dimension::Endpoint),
    ("country", Dimension::Country),
    ("asn", Dimension::Asn),
];

/// Names that others have for them.
const OTHER_WORDS: [(&str, &str); 14] = [
    ("address", "ip"),
    ("ip_address", "ip"),
    ("remote_address", "ip"),
    ("tenant", "org"),
    ("organisation", "org"),
    ("organization", "org"),
    ("key", "api_key"),
    ("username", "account"),
    ("path", "endpoint"),
    ("route", "endpoint"),
    ("descriptor", "descriptor:KEY"),
    ("region", "country"),
    ("network", "asn"),
    ("autonomous_system", "asn"),
];

fn plain_dimension(text: &str) -> Result<Dimension, Problems> {
    let mut known = PLAIN.into_iter();
    if let Some((_, dimension)) = known.find(|(name, _)| *name == text) {
        return Ok(dimension);
    }
    let problem = Problem::new(format!("must be one of {}", Dimension::kind()));
    let other = || {
        let word = nearest(text, OTHER_WORDS.map(|(word, _)| word))?;
        let mut words = OTHER_WORDS.into_iter();
        words
            .find(|(other, _)| *other == word)
            .map(|(_, name)| name)
    };
    let meant = nearest(text, PLAIN.map(|(name, _)| name)).or_else(other);
    Err(vec![match meant {
        Some(name) => problem.hint(format!("did you mean `{name}`?")),
        None => problem,
    }])
}

/// An entry of an Envoy descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorEntry(pub(crate) EntryMatch);

impl Decode for DescriptorEntry {
    fn kind() -> String {
        "`{ key = …, value = … }`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        const SHAPE: &str = "must have entries such as { key = \"remote_address\" } or { key = \"generic_key\", value = \"slow\" }";
        let Some(table) = node.as_table() else {
            return wrong(SHAPE);
        };
        let known = table.keys().all(|key| key == "key" || key == "value");
        let Some(key) = table.get("key").filter(|_| known) else {
            return wrong(SHAPE);
        };
        Ok(Self(EntryMatch {
            key: String::decode(&key.node)?.into(),
            value: match table.get("value") {
                Some(value) => value_match(&value.node)?,
                None => ValueMatch::Any,
            },
        }))
    }
}

fn value_match(node: &Node) -> Result<ValueMatch, Problems> {
    let text = text_of(node)?;
    match text.split_once('*') {
        None => Ok(ValueMatch::Exact(text.into())),
        Some(("", "")) => Ok(ValueMatch::Any),
        Some((prefix, "")) => Ok(ValueMatch::Prefix(prefix.into())),
        Some(_) => Err(vec![
            Problem::new("has a value with `*` before its end")
                .hint("only the end of a value may be open: \"/api/*\""),
        ]),
    }
}

/// 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(pub(crate) String);

impl Decode for KeyHash {
    const PRIVATE: bool = true;

    fn kind() -> String {
        "SHA-256 in hexadecimal".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let text = text_of(node)?;
        if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(vec![
                Problem::new("must be 64 hexadecimal digits, the hash and not the key")
                    .hint("`palisade quota hash` prints it"),
            ])
        }
    }
}

/// A monthly quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota(pub(crate) Option<NonZeroU64>);

impl Decode for Quota {
    fn kind() -> String {
        "integer or `unlimited`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        if node.as_str() == Some("unlimited") {
            return Ok(Self(None));
        }
        match integer(node).and_then(Figure::of) {
            Some(quota) => Ok(Self(Some(quota.0))),
            None => wrong(format!("must be 1 to {FIGURE_MAX} or `unlimited`")),
        }
    }
}

/// Treatment of requests beyond a quota.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OverageChoice(pub(crate) Overage);

impl Decode for OverageChoice {
    fn kind() -> String {
        "price or `blocked`".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        let price = match &node.value {
            Value::Float(price) => Some(*price),
            #[expect(clippy::cast_precision_loss, reason = "a price is bounded below")]
            Value::Integer(price) => Some(*price as f64),
            Value::Text(text) | Value::String(text) if text == "blocked" => {
                return Ok(Self(Overage::Blocked));
            }
            Value::Text(text) => text.trim().parse().ok(),
            _ => None,
        };
        match price {
            Some(price) if (0.0..=1_000_000.0).contains(&price) => Ok(Self(Overage::Priced(price))),
            _ => wrong("must be a price from 0 to 1000000 or `blocked`"),
        }
    }
}

/// Overrides as they are written in a document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TenantLimits(pub(crate) serde_json::Map<String, serde_json::Value>);

impl Decode for TenantLimits {
    const PRIVATE: bool = true;

    fn kind() -> String {
        "table of rates".into()
    }

    fn decode(node: &Node) -> Result<Self, Problems> {
        match json(node) {
            serde_json::Value::Object(limits) => Ok(Self(limits)),
            _ => wrong("must map names of limits to rates"),
        }
    }
}

fn json(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::Text(text) | Value::String(text) => text.as_str().into(),
        Value::Integer(number) => {
            u64::try_from(*number).map_or(serde_json::Value::Null, Into::into)
        }
        Value::Table(table) => table
            .iter()
            .map(|(name, entry)| (name.clone(), json(&entry.node)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        _ => serde_json::Value::Null,
    }
}
