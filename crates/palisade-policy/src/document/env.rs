//! Environment and flags: `PALISADE_SERVER__LISTEN` is `listen` in `[server]`,
//! `PALISADE_LIMIT__IP_AUTH__RATE` is `rate` of the limit `ip-auth`.

use std::collections::BTreeMap;
use std::fmt;

use crate::document::error::{Origin, Sink, nearest};
use crate::document::identity::identity;
use crate::document::schema::{Schema, Shape};
use crate::document::tree::{Entry, Node, Table, Value, set};

const PREFIX: &str = "PALISADE_";
const SEPARATOR: &str = "__";

/// Environment variables, as a value: no code reads those of the process behind the caller's back.
#[derive(Clone, Default)]
pub struct Env(BTreeMap<String, String>);

impl Env {
    /// The process's environment. The one place that reads it; for `main`.
    #[must_use]
    pub fn from_process() -> Self {
        let text = |os: std::ffi::OsString| os.into_string().ok();
        std::env::vars_os()
            .filter_map(|(name, value)| Some((text(name)?, text(value)?)))
            .collect()
    }

    /// The value of a variable.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }
}

impl FromIterator<(String, String)> for Env {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self(variables.into_iter().collect())
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Env {
    fn from(variables: [(&str, &str); N]) -> Self {
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        variables.into_iter().map(own).collect()
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Env({} variables)", self.0.len())
    }
}

/// Values given on the command line; they win over everything else.
#[derive(Clone, Debug, Default)]
pub struct Overrides(Vec<(&'static str, &'static str, String)>);

impl Overrides {
    /// Sets `key` (`table.key`) from `flag`, if it was given.
    #[must_use]
    pub fn with(mut self, flag: &'static str, key: &'static str, value: Option<String>) -> Self {
        self.0.extend(value.map(|value| (flag, key, value)));
        self
    }

    pub(crate) fn apply(&self, root: &mut Table) {
        for (flag, key, value) in &self.0 {
            set(root, key, Node::text(value, Origin::Flag(flag)));
        }
    }
}

/// Overlays the variables on the tree.
pub(crate) fn apply(env: &Env, tables: &[Schema], root: &mut Table, sink: &mut Sink) {
    for (name, value) in &env.0 {
        let Some(path) = name.strip_prefix(PREFIX) else {
            continue;
        };
        // Without the separator the variable is for something else, such as a secret.
        if path.contains(SEPARATOR) {
            let node = Node::text(value, Origin::Env(name.as_str().into()));
            apply_one(name, path, node, tables, root, sink);
        }
    }
}

fn apply_one(
    name: &str,
    path: &str,
    node: Node,
    all: &[Schema],
    root: &mut Table,
    sink: &mut Sink,
) {
    let parts: Vec<&str> = path.split(SEPARATOR).collect();
    let lower = parts
        .iter()
        .map(|part| part.to_ascii_lowercase())
        .collect::<Vec<_>>();
    let array = all
        .iter()
        .find(|schema| schema.shape == Shape::Array && schema.path == lower[0]);
    match (array, parts.as_slice(), lower.as_slice()) {
        (Some(schema), [_, member, _], [_, _, key]) if has_key(schema, key) => {
            set_member(schema, member, key, node, root, sink);
        }
        (Some(schema), ..) => unknown(name, &variables_of_array(schema, root), sink),
        (None, _, [tables @ .., key]) => {
            let table = tables.join(".");
            let found = all
                .iter()
                .any(|schema| schema.path == table && has_key(schema, key));
            if found {
                // `set` is false where the file has no table there, which is reported separately.
                set(root, &format!("{table}.{key}"), node);
            } else {
                unknown(name, &variables_of_tables(all), sink);
            }
        }
        _ => {}
    }
}

fn has_key(schema: &Schema, name: &str) -> bool {
    schema.keys.iter().any(|key| key.name == name)
}

fn set_member(
    schema: &Schema,
    member: &str,
    key: &str,
    node: Node,
    root: &mut Table,
    sink: &mut Sink,
) {
    let origin = node.origin.clone();
    let items = match root.get_mut(schema.path).map(|entry| &mut entry.node.value) {
        Some(Value::Array(items)) => items.as_mut_slice(),
        _ => &mut [],
    };
    let mut matching: Vec<&mut Node> = items
        .iter_mut()
        .filter(|item| member_name(schema.path, item).as_deref() == Some(member))
        .collect();
    match matching.as_mut_slice() {
        [item] => {
            if let Value::Table(table) = &mut item.value {
                table.insert(key.to_owned(), Entry { key: origin, node });
            }
        }
        [] => {
            let Origin::Env(name) = &origin else { return };
            unknown(name, &variables_of_array(schema, root), sink);
        }
        _ => sink.report_with(
            &origin,
            format!(
                "more than one `[[{}]]` has this name in variables",
                schema.path
            ),
            "rename one of them, or set the key in the file",
        ),
    }
}

/// A member's name as it stands in variables: upper case, everything but letters
/// and digits an underscore.
pub(crate) fn member_name(array: &str, item: &Node) -> Option<String> {
    let identity = identity(array, item)?;
    let mut name = String::with_capacity(identity.len());
    for c in identity.chars() {
        let c = if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        };
        // Runs of `_` become one, because two of them separate the parts of a variable.
        if c != '_' || !name.ends_with('_') {
            name.push(c);
        }
    }
    Some(name.trim_matches('_').to_owned())
}

fn variable(path: &str, key: &str) -> String {
    format!("{PREFIX}{}{SEPARATOR}{key}", path.replace('.', SEPARATOR)).to_ascii_uppercase()
}

fn variables_of_tables(all: &[Schema]) -> Vec<String> {
    all.iter()
        .filter(|schema| schema.shape == Shape::Table)
        .flat_map(|schema| {
            schema
                .keys
                .iter()
                .map(move |key| variable(schema.path, key.name))
        })
        .collect()
}

fn variables_of_array(schema: &Schema, root: &Table) -> Vec<String> {
    let items = match root.get(schema.path).map(|entry| &entry.node.value) {
        Some(Value::Array(items)) => items.as_slice(),
        _ => &[],
    };
    items
        .iter()
        .filter_map(|item| member_name(schema.path, item))
        .flat_map(|member| {
            let path = format!("{}.{member}", schema.path);
            schema.keys.iter().map(move |key| variable(&path, key.name))
        })
        .collect()
}

fn unknown(name: &str, known: &[String], sink: &mut Sink) {
    let origin = Origin::Env(name.into());
    // Names are compared without the prefix that all share: with it, everything would look alike.
    let bare = |name: &str| name.trim_start_matches(PREFIX).to_owned();
    let paths: Vec<String> = known.iter().map(|name| bare(name)).collect();
    let hint = match nearest(&bare(name), paths.iter().map(String::as_str)) {
        Some(path) => format!("did you mean `{PREFIX}{path}`?"),
        None => "see the configuration reference for the names of keys".to_owned(),
    };
    sink.report_with(
        &origin,
        format!("`{name}` sets no key of the configuration"),
        hint,
    );
}
