//! Keys that are declared and have no effect yet: who sets one should hear of it.

use super::error::{Origin, Sink};
use super::schema::{Key, Schema, Shape};
use super::tree::{Entry, Table, Value, lookup};

/// What the description of such a key says, and the reference with it.
pub(super) const UNUSED: &str = "Not used yet";

/// Whether a key has no effect yet.
pub(crate) fn is_unused(key: &Key) -> bool {
    key.doc.join(" ").contains(UNUSED)
}

/// Warns of every one that is set.
pub(super) fn warn(root: &Table, tables: &[Schema], sink: &mut Sink) {
    for schema in tables {
        match (schema.shape, lookup(root, schema.path)) {
            (_, None) => {}
            (Shape::Table, Some(entry)) => warn_table(schema, entry.node.as_table(), sink),
            (Shape::Array, Some(entry)) => {
                if let Value::Array(items) = &entry.node.value {
                    for item in items {
                        warn_table(schema, item.as_table(), sink);
                    }
                }
            }
        }
    }
}

fn warn_table(schema: &Schema, table: Option<&Table>, sink: &mut Sink) {
    for key in schema.keys.iter().filter(|key| is_unused(key)) {
        let entry = table.and_then(|table| table.get(key.name));
        if let Some(entry) = entry.filter(|entry| is_written(entry)) {
            let message = format!("`{}.{}` has no effect yet", schema.path, key.name);
            sink.warn_with(&entry.key, message, "leave it out until it has");
        }
    }
}

fn is_written(entry: &Entry) -> bool {
    !matches!(entry.key, Origin::Builtin(_) | Origin::Nowhere)
}
