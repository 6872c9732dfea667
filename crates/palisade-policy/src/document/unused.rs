//! Keys that are declared and have no effect yet: an operator who sets one is warned.

use super::error::{Origin, Sink};
use super::schema::{Key, Schema, Shape};
use super::tree::{Entry, Table, Value, lookup};

/// Marker in the description of such a key, which the reference shows too.
pub(super) const UNUSED: &str = "Not used yet";

/// Whether a key has no effect yet.
pub(crate) fn is_unused(key: &Key) -> bool {
    key.doc.join(" ").contains(UNUSED)
}

/// Warns of every key that is set and has no effect yet.
pub(super) fn warn(root: &Table, tables: &[Schema], sink: &mut Sink) {
    for schema in tables {
        match (schema.shape, lookup(root, schema.path)) {
            (Shape::Inner, _) | (_, None) => {}
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

#[cfg(test)]
mod tests {
    use crate::document::schema::Section;
    use crate::document::{Document, Env, Input, Overrides};

    crate::section! {
        /// A kettle.
        struct Kettle(Table "kettle") {
            /// Temperature that it heats to, in degrees.
            degrees: u8 = "100" where "40"..="100";
            /// Whether it whistles. Not used yet: it has no pipe.
            whistles: bool = "false";
        }
    }

    fn warnings(text: &str) -> Vec<String> {
        let (env, flags) = (Env::default(), Overrides::default());
        let input = Input {
            path: None,
            text,
            env: &env,
            flags: &flags,
            geo: &[],
        };
        let tables = [Kettle::SCHEMA];
        let mut document = Document::parse(input, &tables).unwrap();
        document.lay_over();
        let kettle = document.table::<Kettle>();
        let (_, warnings) = document.finish_with_warnings(kettle).unwrap();
        warnings.into_iter().map(|one| one.message).collect()
    }

    #[test]
    fn who_sets_a_key_without_effect_hears_of_it_and_nobody_else_does() {
        assert_eq!(warnings("[kettle]\ndegrees = 50\n"), [""; 0]);
        let warned = warnings("[kettle]\nwhistles = true\n");
        assert_eq!(warned, ["`kettle.whistles` has no effect yet"]);
    }
}
