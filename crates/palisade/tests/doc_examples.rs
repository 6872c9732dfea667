//! Checks that every type which users of the library meet first shows its use in an example that
//! runs, or links to a type that does. The programs of the crate's page, the README and the page
//! about axum compile in a new crate as they are.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking and says why"
)]

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Modules whose every item is meant for users.
const OFFERED_BY: [&str; 2] = ["lib.rs", "tower/mod.rs"];
/// The most important types of modules that offer much more.
const BESIDES: [&str; 6] = [
    "EdgeConfig",
    "Observer",
    "Replayer",
    "RequestAnswer",
    "Tenants",
    "TokenVerifier",
];
/// Types that are defined in other crates, where other types may have the same name.
const ELSEWHERE: [(&str, &str); 1] = [("Verdict", "../../palisade-store/src/memory/limiter.rs")];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// All source lines of the library.
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

/// The types that a module re-exports with `pub use`.
fn offered(module: &str) -> Vec<String> {
    let text = fs::read_to_string(source().join(module)).unwrap();
    let uses = text.split("\npub use ").skip(1);
    // Types of the core are covered by the examples of the engine.
    let uses = uses.filter(|after| !after.starts_with("palisade_core"));
    let names = uses.flat_map(|after| {
        let list = after.split(';').next().unwrap_or_default();
        list.split(|c: char| !c.is_alphanumeric() && c != '_')
    });
    let is_type = |name: &&str| name.starts_with(char::is_uppercase);
    names.filter(is_type).map(str::to_owned).collect()
}

/// The doc comment of a type.
fn documentation(lines: &[String], name: &str) -> Option<String> {
    let elsewhere = ELSEWHERE.iter().find(|(other, _)| *other == name);
    let elsewhere = elsewhere.map(|(_, file)| lines_of(&source().join(file)));
    let lines = elsewhere.as_deref().unwrap_or(lines);
    let is_definition = |line: &String| {
        let mut words = line.trim_start().split([' ', '<', '(', ';', ':']);
        words.next() == Some("pub")
            && matches!(words.next(), Some("struct" | "enum" | "trait" | "type"))
            && words.next() == Some(name)
    };
    let at = lines.iter().position(is_definition)?;
    let above = lines[..at].iter().rev().map(|line| line.trim_start());
    let above = above.take_while(|line| !line.is_empty() && !line.starts_with('}'));
    let said: Vec<&str> = above.filter(|line| line.starts_with("///")).collect();
    Some(said.join("\n"))
}

/// The types that a doc comment links to.
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

fn repository() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// The code blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = fs::read_to_string(repository().join(page)).unwrap();
    let fence = format!("```{language}\n");
    let found = text.split(&fence).skip(1);
    found
        .map(|after| after.split_once("```").unwrap().0.to_owned())
        .collect()
}

/// The programs on the crate's page, without comment signs.
fn crate_page() -> Vec<String> {
    let page = lines_of(&source().join("lib.rs"));
    let page = page.iter().map_while(|line| line.strip_prefix("//!"));
    let page: String = page.fold(String::new(), |page, line| {
        page + line.strip_prefix(' ').unwrap_or(line) + "\n"
    });
    let programs = page.split("```").skip(1).step_by(2);
    programs.map(|block| block.trim().to_owned()).collect()
}

/// The `[dependencies]` that a page shows, with paths of this tree instead of versions.
fn dependencies(page: &str) -> String {
    let tables = blocks(page, "toml");
    let tables = tables
        .iter()
        .filter_map(|table| table.strip_prefix("[dependencies]\n"));
    let shown: String = tables.collect();
    assert!(
        shown.contains("palisade = "),
        "{page} does not say what to depend on"
    );
    let path = format!("path = {:?}", env!("CARGO_MANIFEST_DIR"));
    let here = |line: &str| match line.starts_with("palisade = ") {
        true if line.contains("version = ") => line.replace("version = \"0.1\"", &path),
        true => format!("palisade = {{ {path} }}"),
        false => line.to_owned(),
    };
    shown
        .lines()
        .fold(String::new(), |all, line| all + &here(line) + "\n")
}

/// Checks each program in a new crate with the dependencies that `page` shows. It uses the
/// workspace's lock file and target folder, so that little is compiled twice.
fn compile_as_pasted(page: &str, programs: &[String]) {
    let home = tempfile::tempdir().unwrap();
    let bins = home.path().join("src/bin");
    fs::create_dir_all(&bins).unwrap();
    for (number, program) in programs.iter().enumerate() {
        assert!(!program.contains("\n# "), "a hidden line:\n{program}");
        fs::write(bins.join(format!("pasted_{number}.rs")), program).unwrap();
    }
    let mut manifest = String::from("[package]\nname = \"pasted\"\nedition = \"2024\"\n\n");
    write!(manifest, "[dependencies]\n{}", dependencies(page)).unwrap();
    fs::write(home.path().join("Cargo.toml"), manifest).unwrap();
    fs::copy(
        repository().join("Cargo.lock"),
        home.path().join("Cargo.lock"),
    )
    .unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let checked = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--quiet", "--bins"])
        .current_dir(home.path())
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{page}:\n{said}");
}

#[test]
fn n8_programs_of_the_readme_and_the_crate_page_compile_as_pasted() {
    let mut programs = blocks("README.md", "rust");
    assert!(!programs.is_empty(), "the README has lost its program");
    let of_the_crate = crate_page();
    assert_eq!(of_the_crate.len(), 3, "{of_the_crate:?}");
    programs.extend(of_the_crate);
    compile_as_pasted("README.md", &programs);
}

#[test]
fn n8_programs_of_the_page_about_axum_compile_as_pasted() {
    let programs = blocks("docs/axum.md", "rust");
    assert_eq!(programs.len(), 3, "{programs:?}");
    compile_as_pasted("docs/axum.md", &programs);
}

/// Rows of the table for users of governor whose call of our API the example does not make.
fn missing_rows(page: &str, example: &str) -> Vec<String> {
    let table = page.split_once("| governor | `palisade` |").unwrap().1;
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let ours = rows.map(|row| row.trim_end_matches('|').rsplit(" | ").next().unwrap());
    let calls = ours.filter_map(|cell| cell.trim().strip_prefix('`'));
    let calls = calls.flat_map(|cell| cell.trim_end_matches('`').split("`, `"));
    calls
        .filter(|call| !example.contains(*call))
        .map(str::to_owned)
        .collect()
}

#[test]
fn n8_every_call_in_the_table_for_users_of_governor_is_in_the_example() {
    let page = fs::read_to_string(repository().join("docs/migrate.md")).unwrap();
    let example = source().join("../examples/governor.rs");
    let example = fs::read_to_string(example).unwrap();
    assert_eq!(missing_rows(&page, &example), Vec::<String>::new());
    let misspelt = page.replace("limiter.check_n(key, n)", "limiter.check_many(key, n)");
    assert_eq!(missing_rows(&misspelt, &example).len(), 1);
}
