//! Writes a suggestion as a policy file, with its figures as comments.

use std::fmt::Write;

use palisade_core::policy::PolicySet;
use serde_json::{Value, json};

use super::choose::{Limit, Suggestion};
use super::measure::{Kind, Measurements};

/// Returns the text of the file.
pub(super) fn policy(
    suggestion: &Suggestion,
    measured: &Measurements,
    routes: &PolicySet,
) -> String {
    let mut text = head(suggestion, measured);
    text.push_str("\n[policy]\ndefaults = false\n");
    for route in routes.routes().iter() {
        let _ = write!(text, "\n[[route]]\npath = {}\n", quoted(route.pattern()));
        let method = route.method.as_deref().map(|method| ("method", method));
        let class = route.class.as_deref().map(|class| ("class", class));
        let operation = route.operation.as_deref();
        let operation = operation.map(|operation| ("operation", operation));
        for (key, value) in [method, class, operation].into_iter().flatten() {
            let _ = writeln!(text, "{key} = {}", quoted(value));
        }
        if let Some(host) = &route.host {
            let _ = writeln!(text, "host = {}", quoted(&host.to_string()));
        }
        if let Some(cost) = route.cost {
            let _ = writeln!(text, "cost = {cost}");
        }
        if route.exempt {
            text.push_str("exempt = true\n");
        }
    }
    for limit in &suggestion.limits {
        text.push_str(&block(limit));
    }
    text
}

fn head(suggestion: &Suggestion, measured: &Measurements) -> String {
    let (first, last) = measured.span();
    let mut text = format!(
        "# Suggested by `palisade suggest` from {} requests, {} to {}.\n\
         # Asked for: at most {} of the callers of each kind are refused anything.\n\
         # The same log, run through this policy: {} of {} requests refused.\n",
        measured.events,
        first.to_rfc3339(),
        last.to_rfc3339(),
        suggestion.asked.shown(),
        suggestion.touched.refused,
        suggestion.touched.events,
    );
    for kind in Kind::ALL {
        let callers = measured.callers_of(kind);
        if callers > 0 {
            let touched = suggestion.touched.of(kind);
            let _ = writeln!(
                text,
                "#   by {}: {touched} of {callers} callers touched",
                kind.name()
            );
        }
    }
    if measured.wrong.count > 0 {
        let _ = writeln!(text, "# {} lines could not be used.", measured.wrong.count);
    }
    if measured.unmeasured > 0 {
        let _ = writeln!(
            text,
            "# {} uses by callers beyond `--callers-max` were not measured: raise it.",
            measured.unmeasured
        );
    }
    text.push_str("# Limits of logins (`[guard]`) are not suggested: their defaults stand.\n");
    text
}

fn block(limit: &Limit) -> String {
    let [p50, p90, p99, p999, most] = limit.quantiles;
    let window = limit.window.name();
    let mut text = format!(
        "\n# {} callers, most within 1 {window}: p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p999}, max {most}\n\
         [[limit]]\nname = {}\nby = [\"{}\"]\n",
        limit.callers,
        quoted(&limit.name),
        limit.kind.name(),
    );
    if let Some(class) = &limit.class {
        let _ = writeln!(text, "class = {}", quoted(class));
    }
    let _ = writeln!(text, "rate = \"{}/{window}\"", limit.rate);
    text
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

pub(super) fn as_json(suggestion: &Suggestion, measured: &Measurements) -> Value {
    let (first, last) = measured.span();
    let limits = suggestion.limits.iter().map(|limit| {
        let [p50, p90, p99, p999, most] = limit.quantiles;
        json!({"name": limit.name, "class": limit.class, "by": limit.kind.name(),
            "rate": format!("{}/{}", limit.rate, limit.window.name()), "callers": limit.callers,
            "p50": p50, "p90": p90, "p99": p99, "p99_9": p999, "max": most})
    });
    let kinds = Kind::ALL.into_iter().map(|kind| {
        json!({"by": kind.name(), "callers": measured.callers_of(kind),
            "touched": suggestion.touched.of(kind)})
    });
    json!({"events": measured.events, "from": first.to_rfc3339(), "to": last.to_rfc3339(),
        "deny_at_most": suggestion.asked.shown(), "limits": limits.collect::<Vec<_>>(),
        "proof": {"events": suggestion.touched.events, "refused": suggestion.touched.refused,
            "callers": kinds.collect::<Vec<_>>()},
        "wrong_lines": measured.wrong.count, "unmeasured": measured.unmeasured})
}
