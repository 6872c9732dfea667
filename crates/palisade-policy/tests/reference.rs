//! The committed reference is the one that the declarations give.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::path::Path;

#[test]
fn the_reference_is_generated_from_the_declarations() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let generated = palisade_policy::reference();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "docs/configuration.md is not up to date; run\n  UPDATE=1 cargo test -p palisade-policy --test reference"
    );
}

#[test]
fn every_key_is_in_the_reference() {
    let page = palisade_policy::reference();
    let keys = palisade_policy::keys();
    assert!(keys.len() > 200, "{} keys", keys.len());
    for key in keys {
        let (table, name) = key.rsplit_once('.').unwrap();
        let plain = page.split_once(&format!("\n## `[{table}]`\n"));
        let array = page.split_once(&format!("\n## `[[{table}]]`\n"));
        let (_, rest) = plain.or(array).unwrap_or_else(|| panic!("{table}"));
        let section = rest.split("\n## ").next().unwrap();
        assert!(section.contains(&format!("\n| `{name}` | ")), "{key}");
    }
}
