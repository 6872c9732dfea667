//! Every type that a user of the library touches first shows its use in an example that runs, or
//! names the type whose example does.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking and says why"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// Modules that offer nothing but what users need.
const OFFERED_BY: [&str; 2] = ["lib.rs", "tower/mod.rs"];
/// The first that one meets of modules that offer much more.
const BESIDES: [&str; 6] = [
    "EdgeConfig",
    "Observer",
    "Replayer",
    "RequestAnswer",
    "Tenants",
    "TokenVerifier",
];
/// Types that are written elsewhere; others may be called alike.
const ELSEWHERE: [(&str, &str); 1] = [("Verdict", "../../palisade-store/src/memory/limiter.rs")];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every line of the library.
fn lines() -> Vec<String> {
    let mut folders = vec![source()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.iter().flat_map(|file| lines_of(file)).collect()
}

fn lines_of(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The types that a module offers by `pub use`.
fn offered(module: &str) -> Vec<String> {
    let text = fs::read_to_string(source().join(module)).unwrap();
    let uses = text.split("\npub use ").skip(1);
    let names = uses.flat_map(|after| {
        let list = after.split(';').next().unwrap_or_default();
        list.split(|c: char| !c.is_alphanumeric() && c != '_')
    });
    let is_type = |name: &&str| name.starts_with(char::is_uppercase);
    names.filter(is_type).map(str::to_owned).collect()
}

/// What the documentation says about a type.
fn documentation(lines: &[String], name: &str) -> Option<String> {
    let elsewhere = ELSEWHERE.iter().find(|(other, _)| *other == name);
    let elsewhere = elsewhere.map(|(_, file)| lines_of(&source().join(file)));
    let lines = elsewhere.as_deref().unwrap_or(lines);
    let is_definition = |line: &String| {
        let mut words = line.trim_start().split([' ', '<', '(', ';', ':']);
        words.next() == Some("pub")
            && matches!(words.next(), Some("struct" | "enum" | "trait"))
            && words.next() == Some(name)
    };
    let at = lines.iter().position(is_definition)?;
    let above = lines[..at].iter().rev().map(|line| line.trim_start());
    let above = above.take_while(|line| !line.is_empty() && !line.starts_with('}'));
    let said: Vec<&str> = above.filter(|line| line.starts_with("///")).collect();
    Some(said.join("\n"))
}

/// The types that it names in links.
fn named(documentation: &str) -> impl Iterator<Item = &str> {
    let links = documentation.split("[`").skip(1);
    links.filter_map(|link| Some(link.split_once('`')?.0))
}

#[test]
fn every_type_that_users_touch_shows_its_use() {
    let lines = lines();
    let has_example =
        |name: &str| documentation(&lines, name).is_some_and(|said| said.contains("assert"));
    let mut types: Vec<String> = OFFERED_BY.into_iter().flat_map(offered).collect();
    assert!(types.len() > 20, "{types:?}");
    types.extend(BESIDES.map(str::to_owned));
    types.retain(|name| {
        let said = documentation(&lines, name);
        let said = said.unwrap_or_else(|| panic!("`{name}` is written nowhere"));
        !has_example(name) && !named(&said).any(has_example)
    });
    assert!(types.is_empty(), "without an example: {types:?}");
}
