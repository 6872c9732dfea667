//! Checks that every link of the documentation leads somewhere and that every page is on the map.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking and says why"
)]

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// All pages, without those that tools have generated.
fn pages() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = markdown(&root());
    for folder in [
        "docs",
        "spec",
        "clients",
        "deploy",
        "conformance",
        "fuzz",
        "scripts",
    ] {
        let mut folders = vec![root().join(folder)];
        while let Some(folder) = folders.pop() {
            found.extend(markdown(&folder));
            folders.extend(entries(&folder).into_iter().filter(|path| {
                let name = path.file_name().unwrap_or_default();
                path.is_dir() && name != "node_modules" && name != "target"
            }));
        }
    }
    found.sort();
    found
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn markdown(folder: &Path) -> Vec<PathBuf> {
    let is_page = |path: &PathBuf| path.extension().is_some_and(|end| end == "md");
    entries(folder).into_iter().filter(is_page).collect()
}

/// The text without its code, in which brackets have another meaning.
fn prose(text: &str) -> String {
    let mut inside = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside && !line.starts_with("    ") {
            for (index, part) in line.split('`').enumerate() {
                kept.push_str(if index % 2 == 0 { part } else { "code" });
            }
            kept.push('\n');
        }
    }
    kept
}

/// The targets of `[…](target)`.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let after = prose.split("](").skip(1);
    after
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| {
            target
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned()
        })
        .collect()
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

fn has_anchor(page: &Path, wanted: &str) -> bool {
    let text = fs::read_to_string(page).unwrap();
    text.lines()
        .filter(|line| line.starts_with('#'))
        .any(|line| anchor(line.trim_start_matches('#')) == wanted)
}

fn is_elsewhere(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// The problem with a link of this page, if there is one.
fn broken(page: &Path, target: &str) -> Option<String> {
    if is_elsewhere(target) {
        return None;
    }
    let (file, wanted) = target.split_once('#').unwrap_or((target, ""));
    let leads_to = if file.is_empty() {
        page.to_owned()
    } else {
        page.parent().unwrap().join(file)
    };
    let found = leads_to.exists()
        && (wanted.is_empty() || leads_to.extension().is_none() || has_anchor(&leads_to, wanted));
    let name = page.strip_prefix(root()).unwrap().display();
    (!found).then(|| format!("{name}: {target}"))
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    assert!(pages.len() > 10, "the pages were not found");
    let mut all = 0;
    let mut wrong = Vec::new();
    for page in &pages {
        let targets = links(&fs::read_to_string(page).unwrap());
        all += targets.len();
        wrong.extend(targets.iter().filter_map(|target| broken(page, target)));
    }
    assert!(all > 50, "the links were not found");
    assert!(
        wrong.is_empty(),
        "links that lead nowhere:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_page_is_on_the_map() {
    let map = fs::read_to_string(root().join("docs/README.md")).unwrap();
    let targets = links(&map);
    for page in markdown(&root().join("docs")) {
        let name = page.file_name().unwrap().to_str().unwrap().to_owned();
        let leads_to = |target: &String| target.split('#').next() == Some(name.as_str());
        let is_on_it = name == "README.md" || targets.iter().any(leads_to);
        assert!(is_on_it, "`{name}` is not on the map in docs/README.md");
    }
}

/// The text of every source file below a crate's folder.
fn sources(folder: &str) -> String {
    let mut text = String::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                text.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    text
}

/// The texts between `prefix` and the next quote, for every occurrence of `prefix`.
fn quoted<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    let after = text.split(prefix).skip(1);
    after.filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
fn every_rule_error_and_problem_has_a_line_that_says_what_to_do() {
    let page = fs::read_to_string(root().join("docs/errors.md")).unwrap();
    let core = sources("crates/palisade-core/src");
    let rules = core.split_once("rules! {").unwrap().1;
    let rules = rules.split_once("\n}").unwrap().0;
    let names = core.split_once("impl ErrorCode {").unwrap().1;
    let names = names.split_once("\n}").unwrap().0;
    let server = sources("crates/palisade-server/src");
    let mut wanted = quoted(rules, "= \"");
    wanted.extend(quoted(names, "=> \""));
    let kinds = quoted(&server, "\"urn:palisade:problem:");
    let kinds: Vec<String> = kinds
        .iter()
        .map(|kind| format!("urn:palisade:problem:{kind}"))
        .collect();
    wanted.extend(
        kinds
            .iter()
            .map(String::as_str)
            .filter(|kind| !kind.ends_with(':')),
    );
    assert!(
        wanted.len() > 50,
        "the names were not found: {}",
        wanted.len()
    );
    for name in wanted {
        assert!(
            page.contains(&format!("`{name}`")),
            "`{name}` is not in docs/errors.md"
        );
    }
}

#[test]
fn the_checklist_names_alerts_that_are_there() {
    let page = fs::read_to_string(root().join("docs/production.md")).unwrap();
    let alerts = fs::read_to_string(root().join("deploy/prometheus/alerts.yml")).unwrap();
    let named = |text: &str, prefix: &str| -> Vec<String> {
        let after = text.split(prefix).skip(1);
        after
            .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next())
            .map(|name| format!("Palisade{name}"))
            .collect()
    };
    let on_page = named(&page, "`Palisade");
    let loaded = named(&alerts, "alert: Palisade");
    assert!(!on_page.is_empty());
    for alert in &on_page {
        assert!(loaded.contains(alert), "{alert} is no alert");
    }
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page = root().join("docs/README.md");
    let text = "[a](nowhere.md) [b](guard.md#no-such-heading) [c](guard.md#answers)\n\
                `[d](code.md)`\n```\n[e](block.md)\n```\n[f](https://example.com/x)\n";
    let targets = links(text);
    assert_eq!(targets.len(), 4, "{targets:?}");
    let wrong: Vec<_> = targets
        .iter()
        .filter_map(|target| broken(&page, target))
        .collect();
    assert_eq!(
        wrong,
        [
            "docs/README.md: nowhere.md",
            "docs/README.md: guard.md#no-such-heading"
        ]
    );
}

/// The files in the table of one section of ARCHITECTURE.md.
fn trail(text: &str, heading: &str) -> Vec<String> {
    let lines = text.lines().skip_while(|line| *line != heading);
    lines
        .skip_while(|line| !line.starts_with("| `"))
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.split('`').nth(1).unwrap().to_owned())
        .collect()
}

#[test]
fn a_newcomer_follows_a_request_through_fifteen_files() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for heading in ["### One `/v1/check`", "### One `login/failure`"] {
        let files = trail(&text, heading);
        assert!(
            (8..=15).contains(&files.len()),
            "{heading}: {}",
            files.len()
        );
        for file in files {
            let path = root().join("crates").join(&file);
            assert!(path.is_file(), "{heading} names `{file}`");
        }
    }
}
