//! Descriptions of a policy for people.

use palisade_core::facts::ClientType;
use palisade_core::geo::{Asn, Country, GeoFilter, NetworkKind, UNKNOWN};
use palisade_core::guard::policy::GuardMode;
use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::plan::OnExceed;
use palisade_core::policy::{
    Accuracy, ClassKind, Dimension, EntryMatch, Limit, OnStoreFailure, PolicySet, Standing,
    ValueMatch,
};

/// Formats a rate as a policy file has it: `10/min`.
pub fn rate(spec: &BucketSpec) -> String {
    const UNITS: [(u64, &str); 6] = [
        (604_800_000_000, "week"),
        (86_400_000_000, "day"),
        (3_600_000_000, "h"),
        (60_000_000, "min"),
        (1_000_000, "s"),
        (1_000, "ms"),
    ];
    let window = match spec.window() {
        Window::Month => "month".to_owned(),
        Window::Year => "year".to_owned(),
        Window::Span(span) => UNITS
            .iter()
            .find(|(unit, _)| span.is_multiple_of(*unit))
            .map_or_else(
                || format!("{span}us"),
                |(unit, name)| match span / unit {
                    1 => (*name).to_owned(),
                    count => format!("{count}{name}"),
                },
            ),
    };
    let burst = match spec.algorithm() {
        Algorithm::TokenBucket => format!(", burst {}", spec.capacity()),
        _ => String::new(),
    };
    format!("{}/{window}{burst}", spec.limit())
}

/// The rate of a limit, or words that say it has none.
pub fn figure(limit: &Limit, spec: &BucketSpec) -> String {
    let standing = limit.def.descriptor.as_ref().map(|rule| rule.standing);
    match standing {
        Some(Standing::Denies) => "0: always denies".to_owned(),
        Some(Standing::Admits) => "unlimited".to_owned(),
        Some(Standing::Counted) | None => rate(spec),
    }
}

/// The name of a dimension as a policy file has it.
pub fn dimension(dimension: &Dimension) -> String {
    match dimension {
        Dimension::Ip => "ip".to_owned(),
        Dimension::User => "user".to_owned(),
        Dimension::Org => "org".to_owned(),
        Dimension::Token => "token".to_owned(),
        Dimension::Client => "client".to_owned(),
        Dimension::ApiKey => "api_key".to_owned(),
        Dimension::Account => "account".to_owned(),
        Dimension::Endpoint => "endpoint".to_owned(),
        Dimension::Country => "country".to_owned(),
        Dimension::Asn => "asn".to_owned(),
        Dimension::Descriptor(key) => format!("descriptor:{key}"),
    }
}

/// The owner of the bucket that a request meets, for example `each user`.
pub fn bucket(limit: &Limit) -> String {
    let by: Vec<String> = limit.def.by.iter().map(dimension).collect();
    match (by.is_empty(), limit.def.accuracy) {
        (true, Accuracy::Local) => "one of this node".to_owned(),
        (true, _) => "one for all".to_owned(),
        (false, Accuracy::Local) => format!("each {}, on this node", by.join(" and ")),
        (false, _) => format!("each {}", by.join(" and ")),
    }
}

/// Formats an entry of a descriptor: its key, and the value unless any value matches.
fn entry(entry: &EntryMatch) -> String {
    match &entry.value {
        ValueMatch::Exact(value) => format!("{}={value}", entry.key),
        ValueMatch::Prefix(start) => format!("{}={start}*", entry.key),
        ValueMatch::Any => entry.key.to_string(),
    }
}

/// The requests that a limit applies to.
pub fn applies_to(limit: &Limit) -> String {
    let def = &limit.def;
    let mut parts = Vec::new();
    if let Some(rule) = &def.descriptor {
        let entries: Vec<String> = rule.entries.iter().map(entry).collect();
        parts.push(format!("domain {}: {}", rule.domain, entries.join(", ")));
    }
    if def.throttle {
        parts.push("everything, first".to_owned());
    }
    if !def.classes.is_empty() {
        parts.push(format!("class {}", def.classes.join(", ")));
    }
    if !def.operations.is_empty() {
        parts.push(format!("operation {}", def.operations.join(", ")));
    }
    if let Some(kind) = def.client_type {
        let kind = match kind {
            ClientType::Public => "public",
            ClientType::Confidential => "confidential",
        };
        parts.push(format!("{kind} clients"));
    }
    if def.bots_only {
        parts.push("bots".to_owned());
    }
    if let Some(filter) = &def.geo {
        parts.extend(places(filter));
    }
    match def.on_exceed {
        OnExceed::Report => parts.push("only reported".to_owned()),
        OnExceed::Overdraft => parts.push("may be overdrawn".to_owned()),
        OnExceed::Deny | OnExceed::Count => {}
    }
    match parts.is_empty() {
        true => "everything".to_owned(),
        false => parts.join("; "),
    }
}

/// The conditions of a limit on country and network.
fn places(filter: &GeoFilter) -> Vec<String> {
    let countries = |list: &[Option<Country>]| {
        let named =
            |one: &Option<Country>| one.map_or_else(|| UNKNOWN.to_owned(), |one| one.to_string());
        list.iter().map(named).collect::<Vec<_>>().join(", ")
    };
    let networks = |list: &[Option<Asn>]| {
        let named = |one: &Option<Asn>| {
            one.map_or_else(|| UNKNOWN.to_owned(), |one| one.number().to_string())
        };
        list.iter().map(named).collect::<Vec<_>>().join(", ")
    };
    let parts = [
        (!filter.countries.is_empty()).then(|| format!("country {}", countries(&filter.countries))),
        (!filter.not_countries.is_empty())
            .then(|| format!("country not {}", countries(&filter.not_countries))),
        (!filter.asns.is_empty()).then(|| format!("network {}", networks(&filter.asns))),
        filter
            .of_kind
            .as_ref()
            .map(|_| format!("{} networks", NetworkKind::Hosting.name())),
    ];
    parts.into_iter().flatten().collect()
}

/// The behaviour of a limit while the store is down.
pub const fn failure(limit: &Limit) -> &'static str {
    match limit.def.on_store_failure {
        OnStoreFailure::Closed => "closed",
        OnStoreFailure::Fallback => "fallback",
        OnStoreFailure::OpenBounded => "open-bounded",
    }
}

/// The behaviour of a class while the store is down.
pub const fn class(kind: ClassKind) -> &'static str {
    match kind {
        ClassKind::Auth => "halved on each node while the store is down",
        ClassKind::Admin => "closed while the store is down",
        ClassKind::Ordinary => "capped on each node while the store is down",
    }
}

/// The guard in one line.
pub fn guard(policy: &PolicySet) -> String {
    let guard = &policy.settings.guard;
    let state = |enabled: bool, mode: GuardMode| match (enabled, mode) {
        (false, _) => "off",
        (true, GuardMode::Enforce) => "enforced",
        (true, GuardMode::Shadow) => "in shadow",
    };
    format!(
        "login {}, one-time codes {}, heavy API {}",
        state(guard.login.enabled, guard.login.mode),
        state(guard.otp.enabled, guard.otp.mode),
        state(guard.api.enabled, guard.api.mode),
    )
}

/// The limits on every address, in one line.
pub fn addresses(policy: &PolicySet) -> String {
    let of_addresses = |limit: &&Limit| {
        let def = &limit.def;
        let of_everybody = !def.bots_only && def.client_type.is_none() && def.operations.is_empty();
        limit.is_of_requests() && of_everybody && *def.by == [Dimension::Ip]
    };
    let each: Vec<String> = policy
        .limits()
        .iter()
        .filter(of_addresses)
        .map(|limit| match limit.def.classes.as_slice() {
            [] => rate(&limit.def.spec),
            classes => format!("{} {}", rate(&limit.def.spec), classes.join("+")),
        })
        .collect();
    match each.is_empty() {
        true => "no limit of its own".to_owned(),
        false => each.join(", "),
    }
}
