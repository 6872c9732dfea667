//! Checks that the material for operators fits what the code exposes: the tables of the
//! documentation, the dashboard's queries, the alert rules.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade::observe::audit::{EventKind, Priority, Severity};
use palisade::observe::metrics::catalogue::{self, Kind, MetricDescription};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The rows of the table whose header starts with this line.
fn rows(text: &str, header: &str) -> Vec<String> {
    let lines = text.lines().skip_while(|line| *line != header);
    let rows: Vec<String> = lines
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(str::to_owned)
        .collect();
    assert!(!rows.is_empty(), "no table `{header}`");
    rows
}

fn metric_row(metric: &MetricDescription) -> String {
    let labels: Vec<String> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
    let (name, kind, help) = (metric.name, metric.kind.name(), metric.help);
    format!("| `{name}` | {kind} | {} | {help} |", labels.join(", "))
}

fn event_row(kind: EventKind) -> String {
    let severity = match kind.severity() {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    };
    let priority = match kind.priority() {
        Priority::Ordinary => "ordinary",
        Priority::Security => "security",
    };
    format!("| `{}` | {severity} | {priority} |", kind.name())
}

#[test]
fn documentation_lists_every_metric_as_the_code_describes_it() {
    let text = read("docs/metrics-and-audit.md");
    let documented = rows(&text, "| metric | type | labels | meaning |");
    let described: Vec<String> = catalogue::ALL.iter().map(metric_row).collect();
    assert_eq!(documented, described);
}

#[test]
fn documentation_lists_every_audit_event_as_the_code_describes_it() {
    let text = read("docs/metrics-and-audit.md");
    let documented = rows(&text, "| event | severity | kept | when |");
    assert_eq!(documented.len(), EventKind::ALL.len());
    for (row, kind) in documented.iter().zip(EventKind::ALL) {
        let start = event_row(*kind);
        let meaning = row.strip_prefix(&start).unwrap_or_else(|| panic!("{row}"));
        assert!(meaning.len() > 10, "{row}");
    }
}

/// The words in backticks in a cell.
fn words(cell: &str) -> Vec<String> {
    let words = cell.split('`').skip(1).step_by(2);
    words.map(str::to_owned).collect()
}

fn first_cell(row: &str) -> &str {
    row.split('|').nth(1).unwrap().trim()
}

#[test]
fn documentation_says_what_the_values_of_every_label_are_and_says_it_once() {
    let text = read("docs/metrics-and-audit.md");
    let rows = rows(&text, "| label | values |");
    let cells: Vec<&str> = rows.iter().map(|row| first_cell(row)).collect();
    let mut once = BTreeSet::new();
    assert!(cells.iter().all(|cell| once.insert(cell)), "{cells:?}");
    let documented: BTreeSet<String> = cells.iter().flat_map(|cell| words(cell)).collect();
    for metric in catalogue::ALL {
        for label in metric.labels {
            let name = metric.name;
            assert!(documented.contains(*label), "`{label}` of {name}");
        }
    }
}

/// The first quoted word behind each occurrence of `mark`.
fn quoted(text: &str, mark: &str) -> BTreeSet<String> {
    let behind = text.split(mark).skip(1);
    let words = behind.filter_map(|rest| rest.split('"').nth(1));
    words.map(str::to_owned).collect()
}

#[test]
fn documentation_lists_every_event_that_is_logged() {
    let text = read("docs/metrics-and-audit.md");
    let rows = rows(&text, "| event | level | when |");
    let documented: BTreeSet<String> = rows.iter().flat_map(|row| words(first_cell(row))).collect();
    let code = read("crates/palisade/src/observe/log.rs");
    let (_, changes) = code.split_once("const fn line_of").unwrap();
    let mut logged = quoted(&code, "event = ");
    logged.extend(quoted(changes, "=> Line("));
    assert!(logged.len() > 15, "{logged:?}");
    assert_eq!(documented, logged);
}

/// Names that a query may use: counters, gauges, and the parts of a histogram.
fn series() -> BTreeSet<String> {
    let of = |metric: &MetricDescription| match metric.kind {
        Kind::Counter | Kind::Gauge => vec![metric.name.to_owned()],
        Kind::Histogram => ["bucket", "sum", "count"]
            .map(|part| format!("{}_{part}", metric.name))
            .into(),
    };
    catalogue::ALL.iter().flat_map(of).collect()
}

fn metric_names(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("rate_limit"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn dashboard_asks_only_for_metrics_that_exist() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("deploy/grafana/palisade.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut queries = String::new();
    for panel in panels {
        for target in panel["targets"].as_array().unwrap() {
            queries.push_str(target["expr"].as_str().unwrap());
            queries.push('\n');
        }
    }
    let unknown: Vec<_> = metric_names(&queries)
        .difference(&series())
        .cloned()
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    for wanted in [
        "rate_limiter_fallback_activations_total",
        "rate_limiter_fallback_requests_total",
        "rate_limiter_redis_latency_ms_bucket",
        "rate_limiter_circuit_breaker_state",
    ] {
        assert!(queries.contains(wanted), "no panel shows {wanted}");
    }
}

#[test]
fn alerts_ask_only_for_metrics_that_exist() {
    let rules = read("deploy/prometheus/alerts.yml");
    let unknown: Vec<_> = metric_names(&rules)
        .difference(&series())
        .cloned()
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

fn promtool(arguments: &[&str]) {
    let run = Command::new("promtool")
        .args(arguments)
        .current_dir(root().join("deploy/prometheus"))
        .output();
    let output = run.unwrap_or_else(|error| {
        panic!("promtool cannot be started ({error}): install the Debian package `prometheus`")
    });
    let told = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}{failed}");
}

#[test]
fn alert_rules_are_valid_and_fire_when_they_should() {
    promtool(&["check", "rules", "alerts.yml"]);
    promtool(&[
        "test",
        "rules",
        "alerts_test.yml",
        "alerts_of_days_test.yml",
    ]);
}
