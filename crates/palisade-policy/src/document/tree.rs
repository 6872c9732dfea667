//! The configuration as a tree in which every node knows where it was written.
//! File, environment and flags become one tree before anything is decoded, so that
//! all errors are found at once and each names its own place.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::identity;
use crate::document::error::{Origin, Sink};

/// A value and where it was written.
#[derive(Clone, Debug)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where the value was written.
    pub origin: Origin,
}

/// A TOML value, or text without a type of its own.
#[derive(Clone, Debug)]
pub enum Value {
    /// From a variable, a flag or the schema's default: the decoder decides.
    Text(String),
    /// A string.
    String(String),
    /// A whole number.
    Integer(i128),
    /// Any other number.
    Float(f64),
    /// `true` or `false`.
    Boolean(bool),
    /// A list, or an array of tables.
    Array(Vec<Node>),
    /// A table.
    Table(Table),
    /// A date, or a number that fits no type: no key takes one.
    Other,
}

/// A table: names in order, each with the origin of the name itself.
pub type Table = BTreeMap<String, Entry>;

/// A key of a table.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where the name was written.
    pub key: Origin,
    /// The value of the key.
    pub node: Node,
}

impl Node {
    pub(crate) fn text(text: &str, origin: Origin) -> Self {
        Self {
            value: Value::Text(text.to_owned()),
            origin,
        }
    }

    pub(crate) fn as_table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Text of the node, if it is a text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) | Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// Whether a table has this member.
    pub(crate) fn member_is_set(&self, key: &str) -> bool {
        self.as_table().is_some_and(|table| table.contains_key(key))
    }

    /// Whether a table has one of these members.
    pub(crate) fn has_any(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.member_is_set(key))
    }

    /// A string member of a table.
    pub(crate) fn member(&self, key: &str) -> Option<&str> {
        self.as_table()?.get(key)?.node.as_str()
    }
}

/// Parses TOML. Syntax errors go to the sink; what could be read is returned.
pub(crate) fn parse(
    text: &str,
    origin: fn(std::ops::Range<usize>) -> Origin,
    sink: &mut Sink,
) -> Table {
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = error.span().map_or(Origin::Nowhere, origin);
        let message = error.message().lines().next().unwrap_or_default();
        if let Some(first) = error.span().and_then(|span| written_before(text, &span)) {
            let hint = "a key stands once in its table: keep one of them";
            sink.report_both(&at, &origin(first), "this key is written twice", hint);
            continue;
        }
        sink.report_with(
            &at,
            format!("this is not TOML: {message}"),
            "correct the syntax: text stands in quotes, lists in brackets, a table starts with [name]",
        );
    }
    table(document.into_inner(), origin)
}

/// Where the key at `span` was written before, in the same table.
fn written_before(text: &str, span: &std::ops::Range<usize>) -> Option<std::ops::Range<usize>> {
    let key = text.get(span.clone())?;
    // All syntax errors have a span: only one that is a key can mean a repeated key.
    let is_key = !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_alphanumeric() || "_-.\"'".contains(c));
    let above = text.get(..span.start).filter(|_| is_key)?;
    // A key may be repeated in another table, so the search starts at the nearest table header.
    let table = above.rfind("\n[").map_or(0, |at| at + 1);
    let mut at = table;
    for line in above[table..].split_inclusive('\n') {
        let name = line.split('=').next().unwrap_or_default();
        if line.contains('=') && name.trim() == key {
            let start = at + (name.len() - name.trim_start().len());
            return Some(start..start + key.len());
        }
        at += line.len();
    }
    None
}

fn table(from: DeTable<'_>, origin: fn(std::ops::Range<usize>) -> Origin) -> Table {
    from.into_iter()
        .map(|(key, value)| {
            let entry = Entry {
                key: origin(key.span()),
                node: node(value, origin),
            };
            (key.into_inner().into_owned(), entry)
        })
        .collect()
}

fn node(from: Spanned<DeValue<'_>>, origin: fn(std::ops::Range<usize>) -> Origin) -> Node {
    let at = origin(from.span());
    let value = match from.into_inner() {
        DeValue::String(text) => Value::String(text.into_owned()),
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map_or(Value::Other, Value::Integer),
        DeValue::Float(number) => number.as_str().parse().map_or(Value::Other, Value::Float),
        DeValue::Boolean(flag) => Value::Boolean(flag),
        // Not an error yet: the decoder of the key reports it, in the words of that key.
        DeValue::Datetime(_) => Value::Other,
        DeValue::Array(items) => {
            Value::Array(items.into_iter().map(|item| node(item, origin)).collect())
        }
        DeValue::Table(members) => Value::Table(table(members, origin)),
    };
    Node { value, origin: at }
}

/// The node at a dotted path, with the origin of its key.
pub(crate) fn lookup<'t>(root: &'t Table, path: &str) -> Option<&'t Entry> {
    let (head, rest) = match path.split_once('.') {
        Some((head, rest)) => (head, Some(rest)),
        None => (path, None),
    };
    let entry = root.get(head)?;
    match rest {
        None => Some(entry),
        Some(rest) => lookup(entry.node.as_table()?, rest),
    }
}

/// Sets the node at a dotted path, creating tables on the way. False if something
/// on the way is not a table.
pub(crate) fn set(root: &mut Table, path: &str, node: Node) -> bool {
    let origin = node.origin.clone();
    match path.split_once('.') {
        None => {
            let entry = Entry { key: origin, node };
            root.insert(path.to_owned(), entry);
            true
        }
        Some((head, rest)) => {
            let entry = root.entry(head.to_owned()).or_insert_with(|| Entry {
                key: origin.clone(),
                node: Node {
                    value: Value::Table(Table::new()),
                    origin,
                },
            });
            match &mut entry.node.value {
                Value::Table(inner) => set(inner, rest, node),
                _ => false,
            }
        }
    }
}

/// Overlays `over` on `base`: tables merge, a member of an array of tables replaces the one with
/// the same identity, everything else is replaced.
pub(crate) fn merge(base: &mut Table, over: Table) {
    for (name, entry) in over {
        match base.get_mut(&name) {
            Some(old) => merge_entry(&name, old, entry),
            None => {
                base.insert(name, entry);
            }
        }
    }
}

fn merge_entry(name: &str, old: &mut Entry, new: Entry) {
    match (&mut old.node.value, new.node.value) {
        (Value::Table(inner), Value::Table(over)) => {
            merge(inner, over);
            old.key = new.key;
            old.node.origin = new.node.origin;
        }
        (Value::Array(members), Value::Array(over)) if identity::key_of(name).is_some() => {
            let replaced: Vec<String> = over
                .iter()
                .filter_map(|member| identity::identity(name, member))
                .collect();
            // A member is replaced whole: keys that the new one leaves out do not come from the
            // old one.
            members.retain(|member| {
                let id = identity::identity(name, member);
                // A member without an identity cannot be replaced: it stays.
                id.is_none_or(|id| !replaced.contains(&id))
            });
            members.extend(over);
        }
        (_, value) => {
            *old = Entry {
                key: new.key,
                node: Node {
                    value,
                    origin: new.node.origin,
                },
            };
        }
    }
}

/// Where a member's key is, or the member itself.
pub(crate) fn member_origin(item: &Node, key: &str) -> Origin {
    item.as_table()
        .and_then(|table| table.get(key))
        .map_or_else(|| item.origin.clone(), |entry| entry.node.origin.clone())
}

/// The origin of a key, or of the table it should be in.
pub(crate) fn origin_of(root: &Table, table: &str, key: &str) -> Origin {
    lookup(root, &format!("{table}.{key}"))
        .map(|entry| entry.node.origin.clone())
        .or_else(|| lookup(root, table).map(|entry| entry.key.clone()))
        .unwrap_or(Origin::Nowhere)
}
