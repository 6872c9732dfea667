//! The committed reference page is up to date with the declarations.
use std::path::Path;

use palisade_policy::document::reference::{keys, reference};

use crate::config::reference::INTRODUCTION;
use crate::config::sections::schemas;

fn page() -> String {
    reference(INTRODUCTION, &schemas())
}

#[test]
fn the_reference_is_generated_from_the_declarations() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let generated = page();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "docs/configuration.md is not up to date; run\n  UPDATE=1 cargo test -p palisade-server --lib reference"
    );
}

#[test]
fn every_key_is_in_the_reference() {
    let page = page();
    let keys = keys(&schemas());
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
