//! Examinations that need the running server.

use palisade::SystemClock;
use palisade_core::time::{Clock, DAY, HOUR, SECOND};
use palisade_policy::Env;
use palisade_server::config::{Config, StoreUrl};
use palisade_server::serve::{GivenSecrets, Secrets};
use serde_json::Value;

use super::super::operate::Server;
use super::figures::{Figures, label};
use super::finding::{Findings, Weight};

/// Percentage from which a bound is near, and from which it is reached.
const NEAR_PERCENT: u64 = 80;
const FULL_PERCENT: u64 = 95;
/// Days after which a copy is too old. A copy a day is the rule: one may fail, two may not.
const STALE_DAYS: u64 = 2;

/// Examines the server's health and its metrics.
pub(super) fn examine(server: &Server, config: Option<(&Config, &Env)>, found: &mut Findings) {
    let health = match server.text("/health/dependencies") {
        Ok((status, text)) if status.is_success() => text,
        Ok(_) => {
            let todo = "set PALISADE_ADMIN_TOKEN, or pass --token-file: the token of `[admin]`, its viewer token, or `server.caller_token`";
            found.add(
                "server",
                Weight::Warning,
                "it refuses to say how it is",
                todo,
            );
            return;
        }
        Err(failure) => {
            let message = format!(
                "{}: checks that need the running server were skipped",
                failure.message()
            );
            found.add("server", Weight::Warning, message, failure.hint());
            return;
        }
    };
    dependencies(&serde_json::from_str(&health).unwrap_or_default(), found);
    let Ok((status, text)) = server.text("/metrics") else {
        return;
    };
    if status.is_success() {
        let figures = Figures::new(&text);
        counters(&figures, found);
        bounds(&figures, found);
        let now = SystemClock::new().now().0 / SECOND;
        uncovered(&figures, now, found);
        copies(&figures, now, found);
        idle_limits(&figures, now, found);
        if let Some((config, env)) = config {
            secret(&figures, config, env, found);
        }
    }
}

fn dependencies(health: &Value, found: &mut Findings) {
    let state = |name: &str| {
        health[name]["state"]
            .as_str()
            .unwrap_or("unknown")
            .to_owned()
    };
    for (name, what) in [("store", "the store"), ("policy", "the policy source")] {
        match state(name).as_str() {
            "up" => found.well("server", format!("{what} is up")),
            other => found.add(
                "server",
                if other == "slow" { Weight::Warning } else { Weight::Error },
                format!("for the server {what} is {other}"),
                "`palisade status` says since when and why; docs/failure-modes.md goes through it step by step",
            ),
        }
    }
    let places = health["places"].as_array().into_iter().flatten();
    for place in places.filter(|place| place["state"] != "up") {
        found.add(
            "server",
            Weight::Warning,
            format!(
                "the file of `places.{}` cannot be used ({}): the one before it stays in use",
                text(&place["database"]),
                text(&place["last_error"]),
            ),
            "fetch the database again; its log line says which file it is (docs/places.md)",
        );
    }
    let modes = health["modes"].as_array().into_iter().flatten();
    for mode in modes.filter(|mode| mode[1] != "normal") {
        found.add(
            "server",
            Weight::Error,
            format!(
                "`{}` is decided in mode `{}`",
                text(&mode[0]),
                text(&mode[1])
            ),
            "it goes back by itself once the store has answered for a while",
        );
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

/// Examines counters that should be zero. A counter says that something happened since the start,
/// not that it happens now: only a problem that still holds is an error.
fn counters(figures: &Figures<'_>, found: &mut Findings) {
    let mut beyond_zero = |name: &str, weight, message: &str, todo: &str| {
        if let Some(count) = figures.sum(name).filter(|count| *count > 0) {
            let message = message.replace("{}", &count.to_string());
            found.add("server", weight, message, todo);
        }
    };
    beyond_zero(
        "rate_limiter_audit_dropped_total",
        Weight::Warning,
        "since the start {} audit events were lost",
        "look at the disk or database of `[audit]`; raise `audit.buffer_max`",
    );
    beyond_zero(
        "rate_limiter_journal_failing",
        Weight::Error,
        "the data directory cannot be written: counters will not survive a crash",
        "make room on its disk, and look at its owner and mode",
    );
    beyond_zero(
        "rate_limiter_store_evicted_keys_total",
        Weight::Error,
        "since the start the store has dropped {} keys by itself: limits and blocks were forgotten",
        "give Redis more memory, and set its `maxmemory-policy` to `noeviction`",
    );
    beyond_zero(
        "rate_limiter_overflowed_keys_total",
        Weight::Warning,
        "since the start {} new keys had to share one bucket",
        "raise `store.keys_max`, or count by something that fewer can choose",
    );
    beyond_zero(
        "rate_limiter_guard_unnamed_total",
        Weight::Warning,
        "since the start {} logins were reported without `username`: no lockout counts them",
        "send `username` with check, failure and success; docs/guard.md",
    );
    beyond_zero(
        "rate_limiter_guard_only_successes",
        Weight::Warning,
        "the last 50 logins all succeeded, by more than ten names: wrong passwords may be counted as right ones",
        "run `palisade doctor --login PATH`; docs/proxy.md says how a success is told",
    );
    if figures.sum("rate_limiter_enabled") == Some(0) {
        let todo = "set RATE_LIMIT_ENABLED to true and restart, once the emergency is over";
        found.add("server", Weight::Error, "the kill switch is on", todo);
    }
}

/// Examines requests that no limit covers: an error while they come, a note once they no longer do.
fn uncovered(figures: &Figures<'_>, now: u64, found: &mut Findings) {
    let count = figures.sum("rate_limiter_default_deny_total");
    let Some(count) = count.filter(|count| *count > 0) else {
        return;
    };
    let last = figures.sum("rate_limiter_default_deny_last_seconds");
    let (weight, when) = match last.map(|at| now.saturating_sub(at)) {
        Some(ago) if ago < HOUR / SECOND => (Weight::Error, ", the last within the last hour"),
        Some(_) => (Weight::Note, ", none in the last hour"),
        None => (Weight::Warning, ""),
    };
    let message = format!(
        "since the start {count} requests were refused because no limit is configured for them{when}"
    );
    let todo = "give every class a limit; the audit event `default_deny` names the class";
    found.add("server", weight, message, todo);
}

fn bounds(figures: &Figures<'_>, found: &mut Findings) {
    let Some(used) = figures.sum("rate_limiter_keys_used_percent") else {
        return;
    };
    let message = format!("{used} % of the keys that this process may hold are in use");
    let todo = "raise `store.keys_max` if the machine has memory for it, or move to a shared store";
    if used >= FULL_PERCENT {
        found.add("keys", Weight::Error, message, todo);
    } else if used >= NEAR_PERCENT {
        found.add("keys", Weight::Warning, message, todo);
    } else {
        found.well("keys", message);
    }
}

/// Examines the age of the last copy. Only a server on the embedded store reports it.
fn copies(figures: &Figures<'_>, now: u64, found: &mut Findings) {
    let Some(at) = figures.sum("rate_limiter_last_backup_seconds") else {
        return;
    };
    let days = now.saturating_sub(at) / (DAY / SECOND);
    let todo = "run `palisade backup` every day from a timer; docs/operations.md";
    if at == 0 {
        let message = "the embedded store has never been copied by `palisade backup`";
        found.add("copies", Weight::Note, message, todo);
    } else if days >= STALE_DAYS {
        let message = format!("the last copy of the embedded store is {days} days old");
        found.add("copies", Weight::Warning, message, todo);
    } else {
        found.well("copies", "the last one is less than two days old");
    }
}

/// Finds limits that no request has met for an hour: such a limit protects nothing, and its route,
/// class or scope may be wrong.
fn idle_limits(figures: &Figures<'_>, now: u64, found: &mut Findings) {
    let all = figures.all("rate_limiter_limit_last_matched_seconds");
    let idle: Vec<&str> = all
        .filter(|(_, at)| now.saturating_sub(*at) >= HOUR / SECOND)
        .filter_map(|(labels, _)| label(labels, "limit"))
        .collect();
    if idle.is_empty() {
        found.well("limits", "each was met within the last hour, or is new");
        return;
    }
    found.add(
        "limits",
        Weight::Note,
        format!(
            "not met by any request in the last hour: {}",
            idle.join(", ")
        ),
        "`palisade policy --path P --method M` says which limits a request meets",
    );
}

/// Compares the server's secret with the configured one: nodes with different secrets count apart.
fn secret(figures: &Figures<'_>, config: &Config, env: &Env, found: &mut Findings) {
    let directory = match &config.store.url {
        StoreUrl::Embedded(directory) => Some(directory.as_path()),
        _ => None,
    };
    let known = GivenSecrets::read(config, env)
        .and_then(|given| Secrets::known(given, directory))
        .and_then(|secrets| secrets.keyring());
    let shown = figures.all("rate_limiter_info").next();
    let shown = shown.and_then(|(labels, _)| label(labels, "secret"));
    let (Ok(known), Some(shown)) = (known, shown) else {
        return;
    };
    match known.fingerprints().current.hex().starts_with(shown) {
        true => found.well("secret", "the server's is the one configured here"),
        false => found.add(
            "secret",
            Weight::Error,
            "the server counts under another secret than is configured here",
            "give all nodes the same one, and restart those that differ",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Findings {
        let mut found = Findings::default();
        let figures = Figures::new(text);
        counters(&figures, &mut found);
        bounds(&figures, &mut found);
        uncovered(&figures, 10_000, &mut found);
        copies(&figures, 1_000_000, &mut found);
        idle_limits(&figures, 10_000, &mut found);
        found
    }

    #[test]
    fn a_quiet_server_gives_no_findings() {
        let text = "rate_limiter_enabled 1\nrate_limiter_keys_used_percent 12\n\
            rate_limiter_audit_dropped_total{kind=\"security\"} 0\n\
            rate_limiter_last_backup_seconds 900000\n\
            rate_limiter_limit_last_matched_seconds{limit=\"a\"} 6401\n";
        assert!(found(text).list.iter().all(|one| one.weight == Weight::Ok));
    }

    #[test]
    fn what_should_not_be_is_found_with_what_to_do() {
        let text = "rate_limiter_enabled 0\nrate_limiter_keys_used_percent 96\n\
            rate_limiter_default_deny_total 2\nrate_limiter_journal_failing 1\n\
            rate_limiter_audit_dropped_total{kind=\"security\"} 1\n\
            rate_limiter_overflowed_keys_total 4\n\
            rate_limiter_last_backup_seconds 827200\n\
            rate_limiter_guard_unnamed_total{flow=\"login\"} 3\n\
            rate_limiter_guard_only_successes{flow=\"login\"} 1\n\
            rate_limiter_limit_last_matched_seconds{limit=\"dead\"} 6400\n\
            rate_limiter_limit_last_matched_seconds{limit=\"met\"} 9999\n";
        let found = found(text);
        assert_eq!(found.list.len(), 10);
        assert!(
            found
                .list
                .iter()
                .any(|one| one.todo.contains("doctor --login"))
        );
        assert!(found.list.iter().all(|one| !one.todo.is_empty()));
        let last = found.list.last().unwrap();
        assert!(last.message.ends_with(": dead"), "{}", last.message);
        assert!(found.list.iter().any(|one| one.message.contains("96 %")));
        let weight = |words: &str| {
            let mut all = found.list.iter();
            let found = all.find(|one| one.message.contains(words));
            found.map(|one| one.weight)
        };
        let lost = "since the start 1 audit events";
        assert_eq!(weight(lost), Some(Weight::Warning));
        assert_eq!(weight("cannot be written"), Some(Weight::Error));
        assert!(
            found
                .list
                .iter()
                .any(|one| one.message.contains("is 2 days old"))
        );
    }

    #[test]
    fn a_store_that_was_never_copied_is_worth_a_note() {
        let found = found("rate_limiter_last_backup_seconds 0\n");
        let copies = found.list.iter().find(|one| one.about == "copies").unwrap();
        assert_eq!(copies.weight, Weight::Note);
        assert!(!copies.todo.is_empty());
    }

    #[test]
    fn a_request_that_no_limit_covers_is_an_error_for_an_hour() {
        let weight = |last: &str| {
            let text = format!("rate_limiter_default_deny_total 2\n{last}");
            let list = found(&text).list;
            let one = list.iter().find(|one| one.message.contains("no limit"));
            one.map(|one| one.weight)
        };
        let at = |second: u64| format!("rate_limiter_default_deny_last_seconds {second}\n");
        assert_eq!(weight(&at(6_401)), Some(Weight::Error));
        assert_eq!(weight(&at(6_400)), Some(Weight::Note));
        assert_eq!(weight(""), Some(Weight::Warning));
        assert!(
            found("rate_limiter_default_deny_total 0\n")
                .list
                .iter()
                .all(|one| !one.message.contains("no limit"))
        );
    }
}
