//! Reads routes, classes, limits, clients, keys and tiers into [`PolicyParts`], with every check
//! that needs to see more than one of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;

use palisade_core::adaptive::load::Priority;
use palisade_core::path::EncodedSlash;
use palisade_core::plan::OnExceed;
use palisade_core::policy::{
    ApiKey, Class, ClassKind, HostPattern, LimitDef, PolicyParts, Route, Routes, Settings,
};

use crate::document::error::{Origin, Sink, nearest};
use crate::document::schema::read_array;
use crate::document::tree::{Node, Table, member_origin};
use crate::geo::{Conditions, GeoSettings};
use crate::policy::limits;
use crate::policy::outcomes::{self, Outcomes};
use crate::policy::sections::Bots;
use crate::policy::spend::{self, SpendRoute, Spends};
use crate::policy::tables::{ApiKeyTable, ClassTable, ClientTable, RouteTable, TierTable};

/// The result of reading the arrays of tables.
pub(crate) struct ResolvedTables {
    pub(crate) parts: PolicyParts,
    pub(crate) outcomes: Outcomes,
    pub(crate) spends: Spends,
}

/// Names that limits may refer to.
pub(crate) struct KnownNames<'a> {
    /// Classes that routes assign or that are declared for callers to name.
    pub(crate) classes: BTreeSet<String>,
    /// Operations that routes assign.
    pub(crate) operations: BTreeSet<String>,
    /// Kinds of the declared classes.
    pub(crate) kinds: BTreeMap<String, ClassKind>,
    /// Sources of countries and networks.
    pub(crate) geo: &'a GeoSettings,
}

/// Resolves everything; errors go to the sink.
pub(crate) fn resolve(
    root: &Table,
    default_class: Option<&str>,
    bots: &Bots,
    settings: Settings,
    enabled: bool,
    geo: &GeoSettings,
    sink: &mut Sink,
) -> ResolvedTables {
    let RouteTables {
        mut routes,
        outcomes,
        spends,
        heavy,
    } = routes(root, settings.encoded_slash, geo, sink);
    add_default_class(&mut routes, default_class);
    let classes = classes(root, sink);
    let known = known(&routes, &classes, geo);
    let limits: Vec<LimitDef> = limits::read(root, &known, sink);
    report_heavy_routes(&routes, &heavy, &limits, sink);
    spend::report_uncounted(&spends, &limits, sink);
    let spends = spends.into_iter().map(|(route, _)| route).collect();
    let tiers = tiers(root, sink);
    let patterns = bots
        .patterns
        .iter()
        .map(|pattern| pattern.as_str().to_owned());
    let parts = PolicyParts {
        enabled,
        settings,
        routes,
        classes,
        limits,
        clients: clients(root, sink),
        api_keys: api_keys(root, &tiers, sink),
        tiers: tiers
            .into_iter()
            .map(|tier| (tier.name, tier.quota.0, tier.overage.0))
            .collect(),
        bot_patterns: patterns.collect(),
    };
    ResolvedTables {
        parts,
        outcomes,
        spends: Spends::new(spends),
    }
}

/// The result of reading `[[route]]`.
struct RouteTables {
    routes: Vec<Route>,
    outcomes: Outcomes,
    /// Routes that spend, and where that is written.
    spends: Vec<(SpendRoute, Origin)>,
    /// Routes with a `cost`, and where it is written.
    heavy: Vec<(Route, Origin)>,
}

fn routes(root: &Table, slash: EncodedSlash, geo: &GeoSettings, sink: &mut Sink) -> RouteTables {
    let mut routes = Vec::new();
    let mut outcomes = Vec::new();
    let mut spends = Vec::new();
    let mut heavy = Vec::new();
    for (table, item) in read_array::<RouteTable>(root, sink) {
        let mut route = match Route::new(&table.path) {
            Ok(route) => route,
            Err(error) => {
                let message = format!("`route.path`: {error}");
                sink.report(&member_origin(item, "path"), message);
                continue;
            }
        };
        if route.needs_literal_slash() && slash != EncodedSlash::Literal {
            let message = "`route.path`: the path can never match: an escaped slash is only \
                part of a path with `identity.encoded_slash = \"literal\"`";
            sink.report(&member_origin(item, "path"), message.to_owned());
        }
        route.method = table.method.as_ref().map(|method| method.0.as_str().into());
        route.host = table.host.as_ref().map(|host| host.0.clone());
        let conditions = conditions(&table);
        route.geo = conditions.filter(("route", item), geo, sink);
        report_conditional_checks(&table, &conditions, item, sink);
        route.cost = table.cost;
        route.exempt = table.exempt;
        // Reported here and not by the schema, which sees one key at a time.
        report_idle_exemption(&table, item, sink);
        route.class = table.class.as_deref().map(Into::into);
        route.operation = table.operation.as_deref().map(Into::into);
        route.scope = table.scope.as_deref().map(Into::into);
        route.api_key_required = table.api_key;
        if let Some(outcome) = outcomes::read(&table, &route, item, sink) {
            outcomes.push(outcome);
        }
        if let Some(spend) = spend::read(&table, &route, item, sink) {
            spends.push((spend, member_origin(item, "spend")));
        }
        if route.cost.is_some() {
            heavy.push((route.clone(), member_origin(item, "cost")));
        }
        routes.push(route);
    }
    RouteTables {
        routes,
        outcomes: Outcomes::new(outcomes),
        spends,
        heavy,
    }
}

/// Reports keys that do not go with `exempt`: an exempt route has no limits, so that guesses at
/// what such a key protects would be unlimited.
fn report_idle_exemption(table: &RouteTable, item: &Node, sink: &mut Sink) {
    if !table.exempt {
        return;
    }
    let keys = [
        ("scope", table.scope.is_some()),
        ("api_key", table.api_key),
        ("outcome", table.outcome.is_some()),
        ("cost", table.cost.is_some()),
    ];
    for (key, _) in keys.into_iter().filter(|(_, is_set)| *is_set) {
        sink.report_with(
            &member_origin(item, "exempt"),
            format!("`route.exempt` does not go with `route.{key}`"),
            "leave one of them out: an exempt route has no limits",
        );
    }
}

fn conditions(table: &RouteTable) -> Conditions<'_> {
    Conditions {
        country: table.country.as_deref(),
        not_country: table.not_country.as_deref(),
        asn: table.asn.as_deref(),
        network_kind: table.network_kind,
    }
}

/// Reports keys that do not go with a condition on country or network: what they protect would be
/// open to everybody else.
fn report_conditional_checks(
    table: &RouteTable,
    conditions: &Conditions<'_>,
    item: &Node,
    sink: &mut Sink,
) {
    let mut conditions = conditions.keys().into_iter();
    let Some((condition, _)) = conditions.find(|(_, is_set)| *is_set) else {
        return;
    };
    let keys = [
        ("scope", table.scope.is_some()),
        ("api_key", table.api_key),
        ("outcome", table.outcome.is_some()),
        ("spend", item.member_is_set("spend")),
    ];
    for (key, _) in keys.into_iter().filter(|(_, is_set)| *is_set) {
        sink.report_with(
            &member_origin(item, key),
            format!("`route.{key}` does not go with `route.{condition}`"),
            "set it for every address, and use another route for what depends on the country",
        );
    }
}

/// Refuses a route on which every request would be refused, because its weight exceeds what a limit
/// holds (L-COST).
fn report_heavy_routes(
    routes: &[Route],
    heavy: &[(Route, Origin)],
    limits: &[LimitDef],
    sink: &mut Sink,
) {
    let all = Routes::new(routes.to_vec());
    for (route, origin) in heavy {
        let host = route.host.as_ref().map(HostPattern::example);
        // A route without a method matches every method; `POST` stands for them all.
        let method = route.method.as_deref().unwrap_or("POST");
        let path = route.pattern().trim_end_matches('*');
        let found = all.find(method, host.as_ref(), path);
        let cost = u64::from(route.cost.map_or(1, NonZeroU32::get));
        let covers = |filter: &[String], value: Option<&Arc<str>>| {
            filter.is_empty()
                || value.is_some_and(|value| filter.iter().any(|one| **one == **value))
        };
        let refuses = |limit: &&LimitDef| {
            // Only limits that certainly apply to every request of the route: one that depends on
            // the caller refuses some of them, and that may be intended.
            let of_everybody =
                limit.client_type.is_none() && !limit.bots_only && limit.geo.is_none();
            of_everybody
                && covers(&limit.classes, found.class)
                && covers(&limit.operations, found.operation)
                && limit.descriptor.is_none()
                && !limit.throttle
                && !limit.concurrency
                && limit.unit.is_usual()
                && limit.on_exceed == OnExceed::Deny
                && u64::from(limit.cost.get()) * cost > limit.spec.capacity()
        };
        if let Some(limit) = limits.iter().find(refuses) {
            let message = format!(
                "`route.cost` is more than `{}` ever holds: no request is admitted",
                limit.name
            );
            sink.report_with(origin, message, "lower the cost, or raise that limit");
        }
    }
}

/// Adds the default class as the class of the least specific route.
fn add_default_class(routes: &mut Vec<Route>, class: Option<&str>) {
    let Some(class) = class else { return };
    let everything = routes
        .iter_mut()
        .find(|route| route.pattern() == "/*" && route.method.is_none() && route.host.is_none());
    match everything {
        Some(route) => {
            route.class.get_or_insert_with(|| class.into());
        }
        None => routes.extend(Route::new("/*").map(|mut route| {
            route.class = Some(class.into());
            route
        })),
    }
}

fn classes(root: &Table, sink: &mut Sink) -> Vec<Class> {
    read_array::<ClassTable>(root, sink)
        .into_iter()
        .map(|(class, _)| Class {
            name: class.name.into(),
            kind: class.kind,
            prolonged: class.prolonged,
            // The table's bounds are those of a priority.
            priority: Priority::new(class.priority).unwrap_or_default(),
        })
        .collect()
}

fn known<'a>(routes: &[Route], classes: &[Class], geo: &'a GeoSettings) -> KnownNames<'a> {
    let assigned = routes.iter().filter_map(|route| route.class.as_deref());
    let declared = classes.iter().map(|class| &*class.name);
    let operations = routes.iter().filter_map(|route| route.operation.as_deref());
    KnownNames {
        classes: assigned.chain(declared).map(str::to_owned).collect(),
        operations: operations.map(str::to_owned).collect(),
        kinds: classes
            .iter()
            .map(|class| (class.name.to_string(), class.kind))
            .collect(),
        geo,
    }
}

fn clients(root: &Table, sink: &mut Sink) -> HashMap<Box<str>, palisade_core::facts::ClientType> {
    read_array::<ClientTable>(root, sink)
        .into_iter()
        .map(|(client, _)| (client.id.into_boxed_str(), client.kind))
        .collect()
}

fn tiers(root: &Table, sink: &mut Sink) -> Vec<TierTable> {
    read_array::<TierTable>(root, sink)
        .into_iter()
        .map(|(tier, _)| tier)
        .collect()
}

fn api_keys(root: &Table, tiers: &[TierTable], sink: &mut Sink) -> HashMap<Box<str>, ApiKey> {
    let names = || tiers.iter().map(|tier| tier.name.as_str());
    let mut keys = HashMap::new();
    for (key, item) in read_array::<ApiKeyTable>(root, sink) {
        if !names().any(|name| name == key.tier) {
            let hint = match nearest(&key.tier, names()) {
                Some(name) => format!("did you mean `{name}`?"),
                None => "add a `[[tier]]` with that name".to_owned(),
            };
            let message = "`api_key.tier` is no tier of this policy";
            sink.report_with(&member_origin(item, "tier"), message, hint);
        }
        let registered = ApiKey {
            tier: key.tier.into(),
            scopes: key.scopes,
            usage_of: None,
        };
        keys.insert(key.hash.0.into_boxed_str(), registered);
    }
    keys
}
