//! Unknown keys, and values of a shape that no key accepts.

use crate::document::error::{Sink, nearest, shown};
use crate::document::schema::{Schema, Shape};
use crate::document::tree::{Entry, Node, Table, Value};

/// Most members of an array of tables.
const MEMBERS_MAX: usize = 100_000;

/// Reports every key that no section declares.
pub(crate) fn check(root: &Table, all: &[Schema], sink: &mut Sink) {
    check_table("", root, all, sink);
}

fn check_table(path: &str, table: &Table, all: &[Schema], sink: &mut Sink) {
    let own = all.iter().find(|schema| schema.path == path);
    for (name, entry) in table {
        if sink.is_full() {
            return;
        }
        let inner = join(path, name);
        let is_key = own.is_some_and(|schema| schema.keys.iter().any(|key| key.name == name));
        if is_key {
            continue;
        }
        if is_table(&inner, all) {
            check_shape(&inner, entry, all, sink);
        } else {
            unknown(path, name, entry, all, sink);
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn is_table(path: &str, all: &[Schema]) -> bool {
    all.iter().any(|schema| {
        let rest = schema.path.strip_prefix(path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

fn check_shape(path: &str, entry: &Entry, all: &[Schema], sink: &mut Sink) {
    let array = all
        .iter()
        .any(|schema| schema.path == path && schema.shape == Shape::Array);
    match (array, &entry.node.value) {
        (false, Value::Table(table)) => check_table(path, table, all, sink),
        (true, Value::Array(items)) if items.iter().all(|item| item.as_table().is_some()) => {
            check_members(path, items, all, sink);
        }
        (true, _) => sink.report_with(
            &entry.key,
            format!("`{path}` must be an array of tables"),
            format!("write `[[{path}]]`, once for each"),
        ),
        (false, _) => sink.report_with(
            &entry.key,
            format!("`{path}` must be a table"),
            format!("write `[{path}]`"),
        ),
    }
}

fn check_members(path: &str, items: &[Node], all: &[Schema], sink: &mut Sink) {
    if let Some(extra) = items.get(MEMBERS_MAX) {
        let message = format!("`[[{path}]]` may stand at most {MEMBERS_MAX} times");
        sink.report(&extra.origin, message);
    }
    for item in items {
        if let Some(table) = item.as_table() {
            check_table(path, table, all, sink);
        }
    }
}

fn unknown(path: &str, name: &str, entry: &Entry, all: &[Schema], sink: &mut Sink) {
    let full = join(path, name);
    let where_ = if path.is_empty() {
        "at the top level".to_owned()
    } else {
        format!("in `{path}`")
    };
    let message = format!("unknown key `{}` {where_}", shown(name));
    let own = all.iter().filter(|schema| schema.path == path);
    let mut keys = own.flat_map(|schema| schema.keys);
    if let Some(new) = keys.find(|key| key.formerly.contains(&name)) {
        let new = join(path, new.name);
        let message = format!("`{}` is now called `{new}`", shown(&full));
        return sink.report_with(&entry.key, message, "rename the key");
    }
    let siblings = siblings(path, all);
    if let Some(close) = nearest(name, siblings.iter().map(String::as_str)) {
        return sink.report_with(&entry.key, message, format!("did you mean `{close}`?"));
    }
    let home = all
        .iter()
        .find(|schema| schema.keys.iter().any(|key| key.name == name));
    match home {
        Some(schema) => {
            let table = match schema.shape {
                Shape::Table | Shape::Inner => format!("[{}]", schema.path),
                Shape::Array => format!("[[{}]]", schema.path),
            };
            sink.report_with(&entry.key, message, format!("it belongs in `{table}`"));
        }
        None => {
            let known = siblings.join("`, `");
            sink.report_with(&entry.key, message, format!("known here: `{known}`"));
        }
    }
}

/// Keys and tables that may stand at a path.
fn siblings(path: &str, all: &[Schema]) -> Vec<String> {
    let mut names: Vec<String> = all
        .iter()
        .filter(|schema| schema.path == path)
        .flat_map(|schema| schema.keys.iter().map(|key| key.name.to_owned()))
        .collect();
    let prefix = if path.is_empty() {
        String::new()
    } else {
        format!("{path}.")
    };
    for schema in all {
        if let Some(rest) = schema.path.strip_prefix(&prefix) {
            let head = rest.split('.').next().unwrap_or_default().to_owned();
            if !head.is_empty() && !names.contains(&head) {
                names.push(head);
            }
        }
    }
    names
}
