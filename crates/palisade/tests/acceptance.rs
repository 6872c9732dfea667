//! Checks the claims of `docs/acceptance.md`, and tests the few requirements that no other test
//! covers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine_support::shared::Shared;
use engine_support::{Bench, Model, START, keyring, policy, render, request};
use palisade::core::PolicySet;
use palisade::core::time::{Clock, MINUTE, SECOND};
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::Env;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The rows of all tables: number, requirement and names of its tests.
fn rows() -> Vec<(String, Vec<String>)> {
    let text = fs::read_to_string(root().join("docs/acceptance.md")).unwrap();
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| ---");
    text.lines()
        .filter(is_row)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .filter(|cells: &Vec<&str>| cells.last() != Some(&"test"))
        .map(|cells| {
            let named = cells[cells.len() - 1]
                .split('`')
                .filter(|n| n.contains("::"));
            (cells[0].to_owned(), named.map(str::to_owned).collect())
        })
        .collect()
}

/// Files that may contain a test of this name.
fn files_of(name: &str) -> Vec<PathBuf> {
    let parts: Vec<&str> = name.split("::").collect();
    let (krate, modules) = (parts[0], &parts[1..parts.len() - 1]);
    let home = root().join("crates").join(krate);
    let mut files = vec![
        home.join("tests").join(format!("{}.rs", modules[0])),
        home.join("tests").join(modules[0]).join("main.rs"),
    ];
    for depth in 1..=modules.len() {
        let module = modules[..depth].join("/");
        files.push(home.join("tests").join(format!("{module}.rs")));
        files.push(home.join("src").join(format!("{module}.rs")));
        files.push(home.join("src").join(&module).join("mod.rs"));
    }
    files
}

fn exists(name: &str) -> bool {
    let test = format!("fn {}(", name.rsplit("::").next().unwrap());
    files_of(name)
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .any(|text| text.contains(&test))
}

#[test]
fn every_requirement_names_tests_and_every_test_exists() {
    let rows = rows();
    assert!(rows.len() > 120, "only {} requirements", rows.len());
    let missing: BTreeSet<&String> = rows
        .iter()
        .flat_map(|(_, names)| names)
        .filter(|name| !exists(name))
        .collect();
    assert!(missing.is_empty(), "tests that do not exist: {missing:#?}");
    for (number, names) in &rows {
        assert!(!names.is_empty(), "{number} names no test");
    }
    assert!(!exists("palisade::acceptance::nobody_wrote_this"));
}

#[test]
fn every_numbered_requirement_has_a_row() {
    let numbers: BTreeSet<String> = rows().into_iter().map(|(number, _)| number).collect();
    let named = |prefix: &str, range: std::ops::RangeInclusive<u32>| {
        range.map(|n| format!("{prefix}-{n}")).collect::<Vec<_>>()
    };
    let mut wanted = named("AC", 1..=17);
    wanted.extend(named("FR", 1..=7));
    wanted.extend(["FR-2b".to_owned(), "FR-2c".to_owned()]);
    wanted.extend(named("TR", 0..=5));
    wanted.extend(named("FM", 1..=4));
    wanted.extend((1..=25).map(|n| format!("D{n}")));
    for number in wanted {
        assert!(numbers.contains(&number), "{number}");
    }
}

#[tokio::test]
async fn l_atomic_limits_hold_at_ten_thousand_requests_a_second_over_three_nodes() {
    const LIMIT: usize = 200;
    let text = "[policy]\ndefaults = false\n[[route]]\npath = \"/*\"\nclass = \"read\"\n\
                [[limit]]\nname = \"each\"\nby = [\"ip\"]\nrate = \"200/s\"\n";
    let clock = Arc::new(VirtualClock::at(START));
    let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
    let store = Shared(Arc::new(Model::new(Arc::clone(&time))));
    let node = |_| {
        Engine::new(EngineConfig {
            policy: policy(text, &Env::default()),
            deadline: Duration::from_secs(60),
            ..EngineConfig::new(
                Arc::new(store.clone()),
                PolicySet::empty(),
                keyring(),
                Arc::clone(&time),
            )
        })
    };
    let nodes: Vec<_> = (0..3).map(node).collect();
    let facts = request(r#"{"ip":"203.0.113.1","method":"GET","path":"/"}"#);
    let mut admitted = Vec::new();
    for step in 0..30_000_u64 {
        clock.advance_to(START.plus(step * SECOND / 10_000));
        let node = &nodes[usize::try_from(step % 3).unwrap()];
        if node.check(&facts).await.decision.is_allowed() {
            admitted.push(clock.now());
        }
    }
    assert_eq!(admitted.len(), 3 * LIMIT, "all that is allowed is admitted");
    for slice in admitted.windows(LIMIT + 1) {
        let apart = slice[LIMIT].0 - slice[0].0;
        assert!(apart >= SECOND, "more than {LIMIT} within {apart} µs");
    }
}

#[tokio::test]
async fn a_decision_once_given_does_not_change() {
    let facts = r#"{"ip":"203.0.113.1","method":"POST","path":"/auth/token"}"#;
    let asked = request(facts);
    for asked_before in [0, 10] {
        let bench = Bench::new();
        bench.admitted(facts, asked_before).await;
        // Held while the policy changes, as by a surface that waits for a body and renders the
        // answer late.
        let held = Arc::new(bench.engine.check(&asked).await);
        let told = render(&held);
        bench.engine.reset(&asked).await.unwrap();
        bench.sleep(2 * MINUTE).await;
        let other = "[[limit]]\nname = \"ip-auth\"\nby = [\"ip\"]\n\
                     class = \"auth\"\nrate = \"77/min\"\n";
        bench.engine.set_policy(policy(other, &Env::default()));
        let anew = bench.check(facts).await;
        assert_ne!(anew["headers"], told["headers"], "the policy did change");
        assert_eq!(anew["decision"], "allow");
        assert_eq!(render(&held), told, "asked {asked_before} times before");
    }
}

#[tokio::test]
async fn g_budget_a_trusted_session_gets_one_level_less_and_never_below_the_floor() {
    let stranger = r#"{"ip":"203.0.113.1","account":"a"}"#;
    let trusted = r#"{"ip":"203.0.113.2","account":"a","device":{"fingerprint":"own",
        "confidence":"high","trusted":true}}"#;
    // The failures are so far apart that every score has fallen to zero.
    for (flow, failures, apart, cooldown, levels) in [
        ("login", 20, 60 * MINUTE, 61 * MINUTE, ["L3", "L2"]),
        ("otp", 10, 120 * MINUTE, 121 * MINUTE, ["L4", "L3"]),
    ] {
        let bench = Bench::new();
        let failed = format!("{flow}.failure");
        for _ in 1..failures {
            bench.guard(&failed, stranger).await;
            bench.sleep(apart).await;
        }
        let crossing = bench.guard(&failed, stranger).await;
        assert_eq!(crossing["level"], levels[0], "{flow}: {crossing}");
        bench.sleep(cooldown).await;
        let own = bench.guard(&failed, trusted).await;
        assert_eq!(own["decision"], "soft_block", "{flow}: {own}");
        assert_eq!(own["level"], levels[1], "{flow}: {own}");
    }
}
