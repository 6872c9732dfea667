//! limitador itself beside what is imported from its files: generated limits and calls.
//!
//! It reads the system's clock, so that the calls of a generated case all fall into one
//! window; its end is tried once, in real time.

use std::collections::HashMap;
use std::time::Duration;

use limitador::RateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use super::Scratch;
use super::replayed::{self, Descriptor, denials};

/// The entries that Envoy sends, in their order.
const KEYS: [&str; 3] = ["method", "path", "user"];
const VALUES: [&[&str]; 3] = [
    &["GET", "POST", "PUT"],
    &["/v1/a", "/v1/b", "/v2", "/"],
    &["ann", "bob", ""],
];

/// A condition on one key.
fn condition(key: usize) -> impl Strategy<Value = String> {
    let name = KEYS[key];
    let some: Vec<&str> = VALUES[key]
        .iter()
        .copied()
        .filter(|v| !v.is_empty())
        .collect();
    let value = select(some);
    let form = select(&["==", "!=", "startsWith", "reversed", "dotted"][..]);
    (value, form).prop_map(move |(value, form)| match form {
        "startsWith" => {
            let start = &value[..value.len().min(3)];
            format!("descriptors[0]['{name}'].startsWith('{start}')")
        }
        "reversed" => format!("'{value}' == descriptors[0]['{name}']"),
        "dotted" => format!("descriptors[0].{name} == '{value}'"),
        operator => format!("descriptors[0]['{name}'] {operator} '{value}'"),
    })
}

/// Conditions on some of the keys, each a condition of its own or all in one.
fn conditions() -> impl Strategy<Value = Vec<String>> {
    let of_key = |key| proptest::option::weighted(0.6, condition(key));
    let all = (of_key(0), of_key(1), of_key(2), any::<bool>());
    all.prop_map(|(one, two, three, together)| {
        let given: Vec<String> = [one, two, three].into_iter().flatten().collect();
        match together && !given.is_empty() {
            true => vec![given.join(" && ")],
            false => given,
        }
    })
}

/// One limit as its file has it. JSON is YAML: both sides read the same text.
fn limit() -> impl Strategy<Value = Value> {
    let variables = subsequence(KEYS.to_vec(), 0..=KEYS.len());
    (0_u32..4, conditions(), variables).prop_map(|(max_value, conditions, variables)| {
        let variable = |key: &&str| format!("descriptors[0]['{key}']");
        let variables: Vec<String> = variables.iter().map(variable).collect();
        json!({
            "namespace": "d",
            "max_value": max_value,
            "seconds": 3_600,
            "conditions": conditions,
            "variables": variables,
        })
    })
}

fn descriptor() -> impl Strategy<Value = Descriptor> {
    let values = (select(VALUES[0]), select(VALUES[1]), select(VALUES[2]));
    values.prop_map(|(one, two, three)| KEYS.into_iter().zip([one, two, three]).collect())
}

/// What the import says of limits that it cannot tell apart.
const REFUSED: [&str; 2] = [
    "answer the same descriptors",
    "is in part what another limit counts",
];

/// What the import makes of these limits; `None` if it refuses them, and says why.
fn policy(limits: &str, keeps_windows: bool) -> Option<String> {
    let scratch = Scratch::new();
    let file = scratch.file("limits.yaml", limits);
    let entries = KEYS.join(",");
    let mut args = vec!["limitador", &file, "--entries", &entries];
    args.extend(keeps_windows.then_some("--keep-windows"));
    match scratch.try_import(&args) {
        Err(said) if REFUSED.iter().any(|reason| said.contains(reason)) => None,
        Err(said) => panic!("{said}"),
        Ok((policy, _)) => {
            scratch.cases_hold();
            Some(policy)
        }
    }
}

fn ours(policy: &str, calls: &[(u64, Descriptor)]) -> Vec<bool> {
    let event =
        |(pause, call): &(u64, Descriptor)| (*pause, replayed::call(std::slice::from_ref(call)));
    denials(policy, calls.iter().map(event))
}

/// limitador, as its server asks it.
struct Original(RateLimiter);

impl Original {
    fn of(limits: &str) -> Self {
        let limiter = RateLimiter::new(10_000);
        let limits: Vec<Limit> = serde_json::from_str(limits).unwrap();
        limiter.configure_with(limits).unwrap();
        Self(limiter)
    }

    fn denies(&self, call: &Descriptor) -> bool {
        let entry = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let mut context = Context::default();
        let entries: HashMap<String, String> = call.iter().map(entry).collect();
        context.list_binding("descriptors".to_owned(), vec![entries]);
        let checked = self
            .0
            .check_rate_limited_and_update(&Namespace::from("d"), &context, 1);
        checked.unwrap().limited
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        max_global_rejects: 4_096,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn limits_of_limitador_decide_as_limitador_within_a_window(
        limits in vec(limit(), 1..4),
        calls in vec(descriptor(), 1..60),
        keeps_windows in any::<bool>(),
    ) {
        let limits = Value::Array(limits).to_string();
        let policy = policy(&limits, keeps_windows);
        prop_assume!(policy.is_some());
        let policy = policy.unwrap();
        let original = Original::of(&limits);
        let theirs: Vec<bool> = calls.iter().map(|call| original.denies(call)).collect();
        let calls: Vec<(u64, Descriptor)> = calls.into_iter().map(|call| (0, call)).collect();
        prop_assert_eq!(ours(&policy, &calls), theirs, "{}\n{}", limits, policy);
    }
}

#[test]
fn a_window_of_limitador_is_over_when_its_seconds_are() {
    let limits = json!([{
        "namespace": "d", "max_value": 2, "seconds": 1,
        "conditions": [], "variables": ["descriptors[0]['user']"],
    }])
    .to_string();
    let policy = policy(&limits, false).unwrap();
    let call: Descriptor = vec![("method", "GET"), ("path", "/"), ("user", "ann")];
    let pauses = [0, 0, 0, 1_500, 0, 0];
    let original = Original::of(&limits);
    let theirs = pauses.map(|pause| {
        std::thread::sleep(Duration::from_millis(pause));
        original.denies(&call)
    });
    assert_eq!(theirs, [false, false, true, false, false, true]);
    assert_eq!(
        ours(&policy, &pauses.map(|pause| (pause, call.clone()))),
        theirs
    );
}
