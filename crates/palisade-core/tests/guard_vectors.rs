//! The guard's policy cases, on the pure functions.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod support;

use std::fs;
use std::path::Path;

use palisade_core::facts::GuardOp;
use palisade_core::guard::Answer;
use palisade_core::time::Micros;
use serde_json::{Value, json};

use support::{World, facts_of};

/// The members of an answer that a case may expect.
fn members(answer: &Answer) -> Value {
    let decision = answer.decision(Micros(0));
    json!({
        "decision": decision.outcome.name(),
        "level": decision.level,
        "retry_after": decision.retry_after,
        "rule": decision.rule,
        "status": decision.status,
        "error": decision.error,
        "delay_ms": decision.delay_ms,
        "challenge": decision.challenge,
        "mode": decision.mode,
        "rules": decision.reasons.iter().map(|reason| reason.rule.id()).collect::<Vec<_>>(),
    })
}

fn mismatch(expected: &Value, answer: &Answer) -> Option<String> {
    let actual = members(answer);
    let differs = |name: &String, value: &Value| match name.as_str() {
        "rules" => {
            let found = actual["rules"].as_array().unwrap();
            value
                .as_array()
                .unwrap()
                .iter()
                .any(|rule| !found.contains(rule))
        }
        _ => actual[name] != *value,
    };
    expected
        .as_object()?
        .iter()
        .any(|(name, value)| differs(name, value))
        .then(|| format!("expected {expected}, got {actual}"))
}

fn run(path: &Path) -> Vec<String> {
    let mut world = World::default();
    let text = fs::read_to_string(path).unwrap();
    let mut mismatches = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        let op = GuardOp::from_name(line["op"].as_str().unwrap()).unwrap();
        let now = Micros::parse_rfc3339(line["at"].as_str().unwrap()).unwrap();
        let answer = world.apply(op, &facts_of(&line), now).answer;
        if let Some(text) = mismatch(&line["expect"], &answer) {
            mismatches.push(format!("{}:{}: {text}", path.display(), number + 1));
        }
    }
    mismatches
}

#[test]
fn every_guard_case_gets_the_expected_answer() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let mut cases: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("guard-") || name.starts_with("lockout-")
        })
        .collect();
    cases.sort();
    assert!(cases.len() >= 50, "the cases are there");
    let mismatches: Vec<String> = cases.iter().flat_map(|path| run(path)).collect();
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}
