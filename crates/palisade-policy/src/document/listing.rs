//! All settings that follow from a document, each with its place.

use super::error::{Place, Placer};
use super::schema::{Key, Schema, Shape};
use super::tree::{Node, Table, Value, lookup};

/// A key of a table, with its value and place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// `table.key`.
    pub key: String,
    /// The value as it would stand in the file; `…` if it may be a secret.
    pub value: Option<String>,
    /// Where the value was written; nowhere if it is the default.
    pub place: Place,
}

/// All keys of tables, in the order of the reference.
pub(super) fn of(root: &Table, tables: &[Schema], placer: &Placer<'_>) -> Vec<Figure> {
    let tables = tables.iter().filter(|table| table.shape == Shape::Table);
    tables
        .flat_map(|table| table.keys.iter().map(move |key| (table, key)))
        .map(|(table, key)| figure(root, table, key, placer))
        .collect()
}

fn figure(root: &Table, table: &Schema, key: &Key, placer: &Placer<'_>) -> Figure {
    let path = format!("{}.{}", table.path, key.name);
    let entry = lookup(root, &path);
    let value = match entry {
        Some(_) if key.private => Some("…".to_owned()),
        Some(entry) => Some(written(&entry.node, key)),
        None => key.default.map(|text| (key.show)(text)),
    };
    Figure {
        key: path,
        value,
        place: entry.map_or(Place::Nowhere, |entry| placer.place(&entry.node.origin)),
    }
}

fn written(node: &Node, key: &Key) -> String {
    match &node.value {
        Value::Text(text) => (key.show)(text),
        Value::String(text) => format!("\"{text}\""),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(flag) => flag.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| written(item, key)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Table(_) | Value::Other => "…".to_owned(),
    }
}
