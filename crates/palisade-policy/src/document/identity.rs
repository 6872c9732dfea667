//! Identities of the members of an array of tables.

use std::collections::BTreeMap;

use super::error::{Sink, shown};
use super::tree::{Node, Table, Value, member_origin};

/// The identity of a member: its name, or method, host, path and conditions of a route.
pub(crate) fn identity(array: &str, item: &Node) -> Option<String> {
    match array {
        "route" => {
            let path = item.member("path")?;
            // A trailing slash of a path is dropped when requests are matched.
            let path = match path.trim_end_matches('/') {
                "" => "/",
                path => path,
            };
            let method = item.member("method").unwrap_or_default();
            let host = item.member("host").unwrap_or_default();
            let host = host.trim_end_matches('.').to_ascii_lowercase();
            let method = method.to_ascii_uppercase();
            Some(format!("{method} {host}{path}{}", conditions(item)))
        }
        _ => item.member(key_of(array)?).map(str::to_owned),
    }
}

/// The conditions of a route on countries and networks, which make it another route.
fn conditions(item: &Node) -> String {
    let keys = ["country", "not_country", "asn", "network_kind"];
    let table = item.as_table();
    let set = keys.iter().filter_map(|key| Some((key, table?.get(*key)?)));
    set.map(|(key, entry)| format!(" {key}={}", words(&entry.node)))
        .collect()
}

fn words(node: &Node) -> String {
    match &node.value {
        Value::Array(items) => items.iter().map(words).collect::<Vec<_>>().join(","),
        Value::Integer(number) => number.to_string(),
        _ => node.as_str().unwrap_or_default().to_owned(),
    }
}

/// The key that names a member.
pub(crate) fn key_of(array: &str) -> Option<&'static str> {
    match array {
        "limit" | "class" | "tier" => Some("name"),
        "client" | "tenant" => Some("id"),
        "api_key" => Some("hash"),
        "route" => Some("path"),
        _ => None,
    }
}

/// Whether the members of an array are about persons or organisations: their names are not shown.
pub(crate) fn names_somebody(array: &str) -> bool {
    matches!(array, "client" | "tenant" | "api_key")
}

/// Reports members of an array with the same identity, without naming it where it
/// is an identifier.
pub(crate) fn duplicates(root: &Table, sink: &mut Sink) {
    for (array, entry) in root {
        let Value::Array(items) = &entry.node.value else {
            continue;
        };
        let Some(key) = key_of(array) else { continue };
        let mut seen = BTreeMap::new();
        for item in items {
            let Some(id) = identity(array, item) else {
                continue;
            };
            let origin = member_origin(item, key);
            if let Some(first) = seen.get(&id) {
                let what = match array.as_str() {
                    "limit" | "class" | "tier" => {
                        format!("duplicate {array} name `{}`", shown(&id))
                    }
                    "route" => "duplicate route: the same `path`, `method` and `host`".to_owned(),
                    _ => format!("duplicate `{array}.{key}`"),
                };
                sink.report_both(&origin, first, what, "keep one of them, or rename one");
            } else {
                seen.insert(id, origin);
            }
        }
    }
}
