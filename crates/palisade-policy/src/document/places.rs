//! Where every key was written, kept after the document is gone.

use std::collections::BTreeMap;

use super::error::{Place, Sources};
use super::identity::{identity, names_somebody};
use super::tree::{Node, Table, Value};

/// The places of all keys, as `table.key`, and `array.member.key` for members that have
/// a name which is no identifier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(BTreeMap<String, Place>);

impl Places {
    pub(crate) fn of(root: &Table, sources: &Sources<'_>) -> Self {
        let placer = sources.placer();
        let mut found = BTreeMap::new();
        let mut place = |path: String, node: &Node| {
            found.insert(path, placer.place(&node.origin));
        };
        for (name, entry) in root {
            match &entry.node.value {
                Value::Array(members) if !names_somebody(name) => {
                    for member in members {
                        if let Some(id) = identity(name, member) {
                            walk(&format!("{name}.{id}"), member, &mut place);
                        }
                    }
                }
                Value::Array(_) => {}
                _ => walk(name, &entry.node, &mut place),
            }
        }
        Self(found)
    }

    /// Where a key was written; nowhere if it has its default.
    #[must_use]
    pub fn of_key(&self, path: &str) -> Place {
        self.0.get(path).cloned().unwrap_or(Place::Nowhere)
    }
}

fn walk(path: &str, node: &Node, place: &mut impl FnMut(String, &Node)) {
    place(path.to_owned(), node);
    for (key, entry) in node.as_table().into_iter().flatten() {
        walk(&format!("{path}.{key}"), &entry.node, place);
    }
}
