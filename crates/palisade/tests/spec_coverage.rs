//! Checks that every rule id has a test named after it, and that every test named like a rule names
//! an existing one.
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

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn rule_ids() -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for entry in fs::read_dir(root().join("spec")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for line in text.lines().filter(|line| line.starts_with("| ")) {
            let cell = line[2..].split('|').next().unwrap().trim();
            let family = cell.split_once('-').map_or("", |(family, _)| family);
            let is_id = (1..=2).contains(&family.len())
                && cell.chars().all(|c| c.is_ascii_uppercase() || c == '-');
            if is_id {
                ids.insert(cell.to_owned());
            }
        }
    }
    ids
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                rust_files(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Names of functions that carry a test attribute, and cases of behaviour tables
/// (`rule: "g_spray_…"` style names count where a test file lists them).
fn test_names() -> BTreeSet<String> {
    let mut files = Vec::new();
    rust_files(&root().join("crates"), &mut files);
    let mut names = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if let Some(rest) = line
                .strip_prefix("fn ")
                .or_else(|| line.strip_prefix("async fn "))
            {
                if is_test {
                    names.insert(rest.split('(').next().unwrap().to_owned());
                }
                is_test = false;
            }
        }
    }
    names
}

fn as_prefix(id: &str) -> String {
    id.to_ascii_lowercase().replace('-', "_")
}

#[test]
fn every_rule_has_a_test_and_every_rule_test_a_rule() {
    let (ids, names) = (rule_ids(), test_names());
    assert!(ids.len() > 60, "only {} rule ids were found", ids.len());
    let starts = |name: &str, prefix: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    };
    let untested: Vec<&String> = ids
        .iter()
        .filter(|id| !names.iter().any(|name| starts(name, &as_prefix(id))))
        .collect();
    assert!(untested.is_empty(), "rules without a test: {untested:?}");
    let families = ["g_", "l_", "t_", "q_", "w_", "i_", "f_", "r_", "ad_"];
    let unknown: Vec<&String> = names
        .iter()
        .filter(|name| families.iter().any(|family| name.starts_with(family)))
        .filter(|name| !ids.iter().any(|id| starts(name, &as_prefix(id))))
        .collect();
    assert!(
        unknown.is_empty(),
        "tests of rules that do not exist: {unknown:?}"
    );
}
