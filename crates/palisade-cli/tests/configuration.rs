//! Every key of the configuration does what its page says, or says that it does not.
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

/// What the page says of a key that nothing reads.
const UNUSED: &str = "Not used yet";

/// Keys that reach the service under another name: what it must mention to use them.
/// The other tables of a policy are checked by the tests of what they mean.
const UNDER_ANOTHER_NAME: [(&str, &str); 23] = [
    ("server.grpc", "ShouldRateLimit"),
    ("server.headers", "settings.headers"),
    ("route.outcome", ".outcomes"),
    ("route.flow", ".outcomes"),
    ("route.username", ".outcomes"),
    ("route.failure_status", ".outcomes"),
    ("route.success_status", ".outcomes"),
    ("route.failure_location", ".outcomes"),
    ("route.success_location", ".outcomes"),
    ("route.success_cookie", ".outcomes"),
    ("route.cookieless", ".outcomes"),
    ("route.outcome_header", ".outcomes"),
    ("route.neither", ".outcomes"),
    ("route.device_cookie", ".outcomes"),
    ("limit.domain", "ShouldRateLimit"),
    ("limit.descriptor", "ShouldRateLimit"),
    ("limit.share", "ShouldRateLimit"),
    ("limit.unlimited", "ShouldRateLimit"),
    ("limit.replaces", "ShouldRateLimit"),
    ("rls.shadow", "ShouldRateLimit"),
    ("rls.count_denied", "ShouldRateLimit"),
    ("rls.refunds", "ShouldRateLimit"),
    ("rls.metadata", "ShouldRateLimit"),
];

/// Tables that the service itself reads, and the name it gives each.
const OF_THE_SERVICE: [(&str, &str); 10] = [
    ("server", "server"),
    ("proxy", "proxy"),
    ("store", "store"),
    ("secrets", "secrets"),
    ("policy", "source"),
    ("admin", "admin"),
    ("audit", "audit"),
    ("repair", "repair"),
    ("log", "log"),
    ("metrics", "metrics"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("config/tests") {
            continue;
        }
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

/// Every key of the reference, which is generated from the declarations.
fn keys() -> BTreeSet<String> {
    rows("")
}

/// Rows of the reference that say so.
fn marked() -> BTreeSet<String> {
    rows(UNUSED)
}

/// Keys whose row says this.
fn rows(saying: &str) -> BTreeSet<String> {
    let page = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let mut table = String::new();
    let mut found = BTreeSet::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## `[") {
            table = heading.replace(['[', ']', '`'], "");
        } else if line.starts_with("| `") && line.contains(saying) {
            let key = line[3..].split('`').next().unwrap();
            found.insert(format!("{table}.{key}"));
        }
    }
    found
}

/// Whether the service reads a key: `config.table.key`, or `table.key` of a
/// borrowed table, however the line is broken.
fn is_read(text: &str, table: &str, key: &str) -> bool {
    let field = format!("{table}.{key}");
    let ends = |at: usize| {
        let next = text[at + field.len()..].chars().next();
        !next.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    text.match_indices(&field).any(|(at, _)| ends(at))
}

#[test]
fn every_key_is_read_or_marked_as_not_used_yet() {
    let mut server = String::new();
    sources(&root().join("crates/palisade-server/src"), &mut server);
    let mut text = server.split_whitespace().collect::<String>();
    // A store is opened from its own table.
    let opening = root().join("crates/palisade-server/src/store.rs");
    let opening = fs::read_to_string(opening).unwrap();
    let opening = opening.split_whitespace().collect::<String>();
    text.push_str(&opening.replace("config.", "store."));
    let mut resolved = String::new();
    sources(&root().join("crates/palisade-policy/src"), &mut resolved);
    let resolved = resolved.split_whitespace().collect::<String>();
    let marked = marked();
    let mut unread = BTreeSet::new();
    for key in keys() {
        let (table, name) = key.rsplit_once('.').unwrap();
        let under = UNDER_ANOTHER_NAME.iter().find(|(other, _)| *other == key);
        let service = OF_THE_SERVICE.iter().find(|(other, _)| *other == table);
        let used = match (under, service) {
            (Some((_, mention)), _) => server.contains(mention),
            (None, Some((_, field))) => {
                let by_policy = |field| table == "policy" && is_read(&resolved, field, name);
                is_read(&text, field, name)
                    || table == "policy" && is_read(&text, "table", name)
                    || by_policy("table")
                    || by_policy("source")
            }
            (None, None) => true,
        };
        if !used {
            unread.insert(key);
        }
    }
    assert_eq!(unread, marked, "left: unread, right: marked as `{UNUSED}`");
}
