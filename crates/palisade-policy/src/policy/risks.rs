//! Warnings of policies that work, but do not do what was meant, or do something questionable.

use std::time::Duration;

use palisade_core::guard::policy::NewCountry;
use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::plan::OnExceed;
use palisade_core::policy::{Accuracy, Dimension, Limit, PolicySet, Scope};

use crate::document::Document;
use crate::document::error::Origin;
use crate::document::tree::{Node, Value, lookup, member_origin};
use crate::geo::GeoSettings;

/// Runs all checks of this module.
pub(crate) fn warn(document: &mut Document<'_>, policy: &PolicySet, geo: &GeoSettings) {
    nothing_is_limited(document, policy);
    codes_are_guarded_as_logins_are(document, policy);
    sends_that_cost_nothing(document, policy);
    never_reached(document, policy);
    refunds_name_no_charge(document, policy);
    forgotten_at_a_restart(document, policy);
    refills_while_reserved(document, policy);
    refused_above_what_is_left(document, policy);
    shared_by_a_country(document, policy);
    counted_without_a_source(document, policy, geo);
    new_countries(document, policy, geo);
    nothing_is_adaptive(document, policy);
}

/// Warns of figures of adaptive limits that nothing uses.
fn nothing_is_adaptive(document: &mut Document<'_>, policy: &PolicySet) {
    let protects = policy.settings.adaptive.load.is_some();
    let unused = [
        ("min", protects, "add `protect = \"upstream\"`"),
        ("max", protects, "add `protect = \"upstream\"`"),
        ("surge", policy.has_under_attack(), UNDER_ATTACK),
        ("surge_min", policy.has_under_attack(), UNDER_ATTACK),
    ];
    for (key, _, hint) in unused.into_iter().filter(|(_, is_used, _)| !is_used) {
        let entry = lookup(&document.root, "adaptive");
        let is_set = entry.is_some_and(|entry| entry.node.member_is_set(key));
        if is_set {
            let message = format!("`adaptive.{key}` has no effect");
            document.warn("adaptive", key, message, hint);
        }
    }
}

const UNDER_ATTACK: &str = "add `under_attack = \"50%\"` to a limit";

/// Warns of enforcement that is switched off, and of a policy without a limit for requests, which
/// refuses every one of them (L-DEFAULT-DENY).
fn nothing_is_limited(document: &mut Document<'_>, policy: &PolicySet) {
    if !policy.enabled {
        document.sink.warn_with(
            &Origin::Env("RATE_LIMIT_ENABLED".into()),
            "enforcement is switched off: everything is allowed",
            "unset `RATE_LIMIT_ENABLED`",
        );
    }
    if !policy.limits().iter().any(Limit::is_of_requests) {
        document.warn(
            "policy",
            "defaults",
            "no limit applies to requests: every one of them is answered with 503",
            "add a `[[limit]]`, or start from the defaults with `defaults = true`",
        );
    }
}

/// Warns of one-time codes that are guarded less strictly than passwords: a code of six digits is
/// easier to guess.
fn codes_are_guarded_as_logins_are(document: &mut Document<'_>, policy: &PolicySet) {
    let guard = &policy.settings.guard;
    let (login, otp) = (&guard.login, &guard.otp);
    if login.enabled && !otp.enabled {
        document.warn(
            "guard.otp",
            "enabled",
            "`guard.otp` is off while `guard.login` is on",
            "a one-time code is easier to guess than a password: guard it as well",
        );
        return;
    }
    for figure in guard.laxer_otp_figures() {
        let (part, key) = figure.rsplit_once('.').unwrap_or(("", figure));
        let table = format!("guard.otp.{part}");
        document.warn(
            table.trim_end_matches('.'),
            key,
            format!("`guard.otp.{figure}` is laxer than `guard.login.{figure}`"),
            "a one-time code is easier to guess than a password: be at least as strict",
        );
    }
}

/// S-SPEND: warns of a price of zero, which no budget counts.
fn sends_that_cost_nothing(document: &mut Document<'_>, policy: &PolicySet) {
    let Some(spend) = &policy.settings.guard.send.spend else {
        return;
    };
    if spend.price == 0 || spend.prices.iter().any(|(_, price)| *price == 0) {
        document.warn(
            "guard.otp.send",
            "price",
            "`guard.otp.send.price` has a price of zero: no budget counts such sends",
            "write what the gateway charges, rounded up",
        );
    }
}

/// L-GIVE-BACK: warns of refunds, because Envoy's negative hits do not say when the hits were
/// taken.
fn refunds_name_no_charge(document: &mut Document<'_>, policy: &PolicySet) {
    if policy.settings.rls.refunds {
        document.warn(
            "rls",
            "refunds",
            "`rls.refunds` may give back what others have used: more is admitted than the limit",
            "leave it off unless every request ends within the window it is charged to",
        );
    }
}

/// Warns of a limit that is never reached, because another one is always full first.
fn never_reached(document: &mut Document<'_>, policy: &PolicySet) {
    let limits = policy.limits();
    for limit in limits {
        let Some(first) = limits.iter().find(|other| is_full_first(other, limit)) else {
            continue;
        };
        let Some(origin) = written(document, &limit.name, "rate") else {
            continue;
        };
        let message = format!(
            "`limit.rate` of `{}` is never reached: `{}` counts the same and is full first",
            limit.name, first.name
        );
        let hint = "raise the one over the longer time, or leave this one out";
        document.sink.warn_with(&origin, message, hint);
    }
}

/// From this length on a window outlives a crash of the embedded store (L-DURABLE).
const LONG: Duration = Duration::from_secs(10 * 60);

/// Warns of a limit over a long time that is counted in the process only.
fn forgotten_at_a_restart(document: &mut Document<'_>, policy: &PolicySet) {
    let is_forgotten =
        |limit: &&Limit| limit.def.accuracy == Accuracy::Local && length(&limit.def.spec) >= LONG;
    for limit in policy.limits().iter().filter(is_forgotten) {
        let Some(origin) = written(document, &limit.name, "accuracy") else {
            continue;
        };
        let message = format!(
            "`limit.accuracy` of `{}` is `local`: what was used is forgotten at every restart",
            limit.name
        );
        let hint = "over ten minutes and longer count with `accuracy = \"exact\"` or `\"leased\"`";
        document.sink.warn_with(&origin, message, hint);
    }
}

/// B-TOKEN-BUCKET: warns that a reserved cost does not come back whole from a bucket that refills.
fn refills_while_reserved(document: &mut Document<'_>, policy: &PolicySet) {
    let refills = |limit: &&Limit| {
        limit.def.unit.is_named() && limit.def.spec.algorithm() == Algorithm::TokenBucket
    };
    for limit in policy.limits().iter().filter(refills) {
        let key = ["burst", "algorithm"]
            .into_iter()
            .find_map(|key| written(document, &limit.name, key));
        let Some(origin) = key else { continue };
        let message = format!(
            "`{}` is a token bucket: of what is reserved and not used only what cannot have \
             refilled comes back",
            limit.name
        );
        let hint = "count units other than requests over a window: leave out `burst`";
        document.sink.warn_with(&origin, message, hint);
    }
}

/// B-OVERDRAFT: Envoy says what a call has used in a unit of the policy's own when it has ended, and
/// reserves nothing before. A limit that refuses such a report forgets what was used.
fn refused_above_what_is_left(document: &mut Document<'_>, policy: &PolicySet) {
    let refuses = |limit: &&Limit| {
        let def = &limit.def;
        def.descriptor.is_some() && def.unit.is_named() && def.on_exceed == OnExceed::Deny
    };
    for limit in policy.limits().iter().filter(refuses) {
        let Some(origin) = written(document, &limit.name, "unit") else {
            continue;
        };
        let message = format!(
            "`{}` counts {} of an Envoy domain and refuses reports of more than is left",
            limit.name,
            limit.def.unit.name()
        );
        let hint = "set `overdraft = \"always\"`, and report with `apply_on_stream_done`";
        document.sink.warn_with(&origin, message, hint);
    }
}

/// P-BY: warns of a bucket that everybody in a country or network shares.
fn shared_by_a_country(document: &mut Document<'_>, policy: &PolicySet) {
    let is_shared = |limit: &&Limit| {
        let wide = [Dimension::Country, Dimension::Asn, Dimension::Endpoint];
        limit.def.by.iter().all(|one| wide.contains(one)) && limit.scope == Scope::Ip
    };
    for limit in policy.limits().iter().filter(is_shared) {
        let Some(origin) = written(document, &limit.name, "by") else {
            continue;
        };
        let message = format!(
            "`limit.by` of `{}` is one bucket for a whole country or network: one caller can use \
             it up for all others",
            limit.name
        );
        let hint = "to limit each caller of some countries, count by `ip` and set `country = […]`";
        document.sink.warn_with(&origin, message, hint);
    }
}

/// P-BY: warns of a limit that counts by country or network without a source of them.
fn counted_without_a_source(document: &mut Document<'_>, policy: &PolicySet, geo: &GeoSettings) {
    let lacks = |limit: &&Limit| {
        let by = &limit.def.by;
        (by.contains(&Dimension::Country) && !geo.has_countries())
            || (by.contains(&Dimension::Asn) && !geo.has_networks())
    };
    for limit in policy.limits().iter().filter(lacks) {
        let Some(origin) = written(document, &limit.name, "by") else {
            continue;
        };
        let message = format!(
            "`limit.by` of `{}` counts without a source: every address is in the bucket `unknown`",
            limit.name
        );
        let hint = "set `[places] country = …` or `network = …`; otherwise only callers of the \
                    decision API can state them";
        document.sink.warn_with(&origin, message, hint);
    }
}

/// P-GUARD: tells what the rule costs, and that it needs a source of countries.
fn new_countries(document: &mut Document<'_>, policy: &PolicySet, geo: &GeoSettings) {
    if policy.settings.guard.login.new_country == NewCountry::Off {
        return;
    }
    document.warn(
        "guard.login",
        "new_country",
        "`guard.login.new_country`: answers about accounts that exist and others are alike in \
         distribution only (A-UNIFORM)",
        "one answer tells little; who asks about one account from many countries learns whether \
         it has a history",
    );
    if !geo.has_countries() {
        document.warn(
            "guard.login",
            "new_country",
            "`guard.login.new_country` has no source of countries: every login is from `unknown`",
            "set `[places] country = …` or `country_header`, or state `country` in guard calls",
        );
    }
}

/// Whether `other` counts the same requests and allows no more over a longer time.
fn is_full_first(other: &Limit, limit: &Limit) -> bool {
    let (a, b) = (&other.def, &limit.def);
    let same = a.by == b.by
        && a.classes == b.classes
        && a.operations == b.operations
        && a.client_type == b.client_type
        && a.bots_only == b.bots_only
        && a.geo == b.geo
        && a.throttle == b.throttle
        && a.accuracy == b.accuracy
        && a.descriptor == b.descriptor
        && a.on_exceed == b.on_exceed
        && a.unit == b.unit
        && a.concurrency == b.concurrency;
    let per_cost = |spec: &BucketSpec, cost: u32| spec.limit() / u64::from(cost.max(1));
    same && length(&a.spec) > length(&b.spec)
        && per_cost(&a.spec, a.cost.get()) <= per_cost(&b.spec, b.cost.get())
}

fn length(spec: &BucketSpec) -> Duration {
    // The shortest possible lengths: no warning is given where the order is in doubt.
    const MONTH: Duration = Duration::from_secs(28 * 24 * 3600);
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    match spec.window() {
        Window::Span(micros) => Duration::from_micros(micros),
        Window::Month => MONTH,
        Window::Year => YEAR,
    }
}

/// The origin of this member of a limit, if an operator wrote it.
fn written(document: &Document<'_>, name: &str, member: &str) -> Option<Origin> {
    let Value::Array(items) = &lookup(&document.root, "limit")?.node.value else {
        return None;
    };
    let item = items
        .iter()
        .find(|item: &&Node| item.member("name") == Some(name))?;
    let origin = member_origin(item, member);
    (!matches!(origin, Origin::Builtin(_))).then_some(origin)
}
