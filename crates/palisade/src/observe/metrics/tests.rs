use std::sync::Arc;

use palisade_core::Keyring;
use palisade_core::failure::{Event, Events, Policy};
use palisade_core::policy::PolicySet;
use palisade_core::time::Micros;
use palisade_store::StoreError;

use super::Metrics;
use super::catalogue::{ALL, Kind, MetricDescription};
use crate::engine::{Figures, ModeChange, Observer};
use crate::observe::tests::{SECRET, WatchedEngine, assert_no_canary, canary, id, limit, parts};

/// The contract: exposed name and labels.
const CONTRACT: &[(&str, &[&str])] = &[
    (
        "rate_limiter_requests_total",
        &["scope", "endpoint_class", "decision", "mode"],
    ),
    ("rate_limit_exceeded_total", &["scope", "endpoint_class"]),
    ("rate_limiter_fallback_activations_total", &["reason"]),
    ("rate_limiter_fallback_requests_total", &["result"]),
    ("rate_limit_fallback_allow_total", &[]),
    ("rate_limiter_fallback_recoveries_total", &[]),
    ("rate_limiter_store_queue_depth", &[]),
    ("rate_limiter_refill_seconds", &[]),
    ("rate_limiter_redis_healthy", &[]),
    ("rate_limiter_redis_latency_ms", &[]),
    ("rate_limiter_store_evicted_keys_total", &[]),
    ("rate_limiter_circuit_breaker_state", &["resource"]),
    (
        "rate_limiter_circuit_breaker_transitions_total",
        &["from", "to"],
    ),
    ("rate_limiter_circuit_breaker_rejections_total", &[]),
    ("rate_limiter_degradation_level", &[]),
    ("rate_limiter_policy_cache_size", &[]),
    ("rate_limiter_policy_refresh_failures_total", &[]),
    ("rate_limiter_tracked_keys", &[]),
    ("rate_limiter_evictions_total", &["reason"]),
];

fn events(all: &[Event]) -> Events {
    all.iter().copied().collect()
}

fn bare() -> Metrics {
    Metrics::new(Arc::new(Keyring::new(SECRET, None).unwrap()), 3)
}

fn changed(observer: &dyn Observer, all: &[Event]) {
    observer.failure(&ModeChange {
        policy: Policy::Limits,
        events: &events(all),
        reason: Some(&StoreError::TimedOut),
        at: Micros(0),
    });
}

/// An engine on which everything that can be counted has been counted.
async fn busy() -> WatchedEngine {
    let watched = WatchedEngine::new(parts());
    for path in ["/auth", "/account", "/tenant", "/shadowed", "/nowhere"] {
        watched.check_n(&canary(path), 3).await;
    }
    let observer = watched.engine.observer();
    observer.store_call(Some(2_000), None);
    observer.store_call(Some(100_000), Some(&StoreError::TimedOut));
    observer.not_asked(Policy::Limits);
    observer.refilled(800);
    observer.rebuilt("bucket", 2);
    let all = [Event::Opened, Event::DegradedEntered];
    changed(observer, &all);
    let all = [Event::HalfOpened, Event::Closed, Event::DegradedExited];
    changed(observer, &all);
    watched.events();
    watched
}

fn sample_names(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect()
}

fn labels_of(text: &str, name: &str) -> Vec<String> {
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name}{{")))
        .unwrap_or_else(|| panic!("{name} has no labelled sample"));
    let inside = &line[line.find('{').unwrap() + 1..line.rfind('}').unwrap()];
    inside
        .split(',')
        .map(|pair| pair.split('=').next().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn metrics_of_the_contract_are_exposed_under_their_exact_names_and_labels() {
    let text = busy().await.scrape();
    let names = sample_names(&text);
    for (name, labels) in CONTRACT {
        let described = ALL.iter().find(|metric| metric.name == *name);
        let described: &MetricDescription =
            described.unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(described.labels, *labels, "{name}");
        let sampled = match described.kind {
            Kind::Histogram => format!("{name}_count"),
            Kind::Counter | Kind::Gauge => (*name).to_owned(),
        };
        assert!(names.contains(&&*sampled), "{sampled} is not in\n{text}");
        if !labels.is_empty() {
            assert_eq!(labels_of(&text, name), *labels, "{name}");
        }
    }
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn metrics_of_the_catalogue_are_all_exposed_once() {
    let text = busy().await.scrape();
    for metric in ALL {
        let header = format!("# TYPE {} {}", metric.registered_name(), metric.kind.name());
        assert_eq!(text.matches(&format!("{header}\n")).count(), 1, "{header}");
        assert_eq!(
            metric.kind == Kind::Counter,
            metric.name.ends_with("_total"),
            "{}",
            metric.name
        );
    }
}

/// A counter that is increased under labels without a cell would never be noticed.
#[tokio::test]
async fn metrics_without_labels_have_a_sample_from_the_start() {
    let text = WatchedEngine::new(parts()).scrape();
    let names = sample_names(&text);
    // Only the embedded store's directory is copied by its server, and only `[adaptive]` bounds the
    // requests in progress.
    let of_some = [
        "rate_limiter_last_backup_seconds",
        "rate_limiter_load_limit",
        "rate_limiter_load_in_progress",
    ];
    let of_everybody = ALL.iter().filter(|metric| !of_some.contains(&metric.name));
    for metric in of_everybody.filter(|metric| metric.labels.is_empty()) {
        let sampled = match metric.kind {
            Kind::Histogram => format!("{}_count", metric.name),
            Kind::Counter | Kind::Gauge => metric.name.to_owned(),
        };
        assert!(names.contains(&&*sampled), "{sampled} is not in\n{text}");
    }
}

#[tokio::test]
async fn metrics_count_decisions_by_scope_class_decision_and_mode() {
    let text = busy().await.scrape();
    for line in [
        r#"rate_limiter_requests_total{scope="ip",endpoint_class="auth",decision="allow",mode="normal"} 2"#,
        r#"rate_limiter_requests_total{scope="ip",endpoint_class="auth",decision="deny",mode="normal"} 1"#,
        r#"rate_limit_exceeded_total{scope="user",endpoint_class="account"} 1"#,
        r#"rate_limiter_shadow_exceeded_total{scope="ip",endpoint_class="shadowed"} 2"#,
        r#"rate_limiter_requests_total{scope="none",endpoint_class="none",decision="deny",mode="normal"} 3"#,
        "rate_limiter_default_deny_total 3",
        "rate_limiter_circuit_breaker_rejections_total 1",
        r#"rate_limiter_fallback_activations_total{reason="timeout"} 1"#,
        "rate_limiter_fallback_recoveries_total 1",
        r#"rate_limiter_circuit_breaker_transitions_total{from="closed",to="open"} 1"#,
        r#"rate_limiter_circuit_breaker_state{resource="login"} 0"#,
        "rate_limiter_enabled 1",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line} not in\n{text}");
    }
}

#[tokio::test]
async fn metrics_say_when_a_request_was_last_refused_for_want_of_a_limit() {
    let last = |text: &str| {
        let mut lines = text.lines();
        let name = "rate_limiter_default_deny_last_seconds ";
        let line = lines.find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.parse::<u64>().ok())
    };
    assert_eq!(last(&WatchedEngine::new(parts()).scrape()), Some(0));
    assert!(last(&busy().await.scrape()) > Some(0));
}

#[test]
fn metrics_latency_buckets_are_those_of_the_contract() {
    let metrics = bare();
    metrics.store_call(Some(1_000), None);
    metrics.store_call(Some(600_000), None);
    let text = metrics.render(&Figures::default());
    let bounds: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("rate_limiter_redis_latency_ms_bucket{le=\""))
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert_eq!(
        bounds,
        [
            "1.0", "5.0", "10.0", "25.0", "50.0", "100.0", "250.0", "500.0", "+Inf"
        ]
    );
    assert!(text.contains("rate_limiter_redis_latency_ms_bucket{le=\"1.0\"} 1\n"));
    assert!(text.contains("rate_limiter_redis_latency_ms_bucket{le=\"500.0\"} 1\n"));
    assert!(text.contains("rate_limiter_redis_latency_ms_bucket{le=\"+Inf\"} 2\n"));
    assert!(text.contains("rate_limiter_redis_latency_ms_sum 601.0\n"));
}

#[tokio::test]
async fn metrics_label_no_class_that_only_a_caller_named() {
    let watched = WatchedEngine::new(parts());
    let mut facts = canary("/auth");
    facts.class = id("canary-class");
    watched.check_n(&facts, 2).await;
    let text = watched.scrape();
    assert!(text.contains(r#"endpoint_class="other""#), "{text}");
    assert_no_canary("the metrics", &text);
}

#[test]
fn metrics_have_a_bounded_number_of_classes() {
    let metrics = bare();
    for generation in 0..10 {
        let mut parts = parts();
        parts.limits = (0..50)
            .map(|n| limit(&format!("l{n}"), vec![], &format!("c{generation}-{n}"), 1))
            .collect();
        let policy = PolicySet::new(generation, parts).unwrap();
        metrics.policy_changed(None, &policy, Micros(0));
    }
    assert_eq!(
        metrics.cells.place("ip", "c9-49"),
        metrics.cells.place("ip", "unheard")
    );
    assert_ne!(
        metrics.cells.place("ip", "c0-1"),
        metrics.cells.place("ip", "unheard")
    );
}

#[tokio::test]
async fn metrics_show_the_quota_of_few_organisations_by_digest() {
    let watched = WatchedEngine::new(parts());
    for n in 0..50 {
        let mut facts = canary("/tenant");
        facts.org = id(&format!("canary-org-{n}"));
        watched.check_n(&facts, 1).await;
    }
    let text = watched.scrape();
    let series: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("rate_limiter_org_quota_remaining{"))
        .collect();
    assert_eq!(series.len(), 3, "{series:?}");
    assert!(series.iter().all(|line| line.ends_with("} 1")));
    let label = "rate_limiter_org_quota_remaining{org_id=\"";
    assert!(series.iter().all(|line| line.starts_with(label)));
    assert_no_canary("the metrics", &text);
}

#[tokio::test]
async fn metrics_let_a_busy_organisation_take_the_place_of_a_quiet_one() {
    let watched = WatchedEngine::new(parts());
    for n in 0..3 {
        let mut facts = canary("/tenant");
        facts.org = id(&format!("quiet-{n}"));
        watched.check_n(&facts, 1).await;
    }
    let before = watched.scrape();
    let keyring = Keyring::new(SECRET, None).unwrap();
    let busy = crate::observe::who::log_digest(&keyring, "org", b"busy").hex();
    let busy = &busy[..16];
    assert!(!before.contains(busy));
    let mut facts = canary("/tenant");
    facts.org = id("busy");
    watched.check_n(&facts, 80).await;
    assert!(watched.scrape().contains(busy));
}

#[test]
fn m12_on_redis_a_fallback_says_whether_it_was_late_or_not_there() {
    use palisade_store::StoreError;

    let plain = || Metrics::new(Arc::new(Keyring::new(SECRET, None).unwrap()), 3);
    let gone = StoreError::Unreachable("gone".into());
    let full = StoreError::Exhausted("full".into());
    let reasons = |metrics: &Metrics| {
        [&StoreError::TimedOut, &gone, &full].map(|error| metrics.fallback_reason(Some(error)))
    };
    assert_eq!(
        reasons(&plain().of_redis()),
        ["redis_timeout", "redis_unavailable", "redis_unavailable"]
    );
    assert_eq!(reasons(&plain()), ["timeout", "unreachable", "exhausted"]);
}
