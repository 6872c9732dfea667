//! Environment and flags: `PALISADE_SERVER__LISTEN` is `listen` in `[server]`,
//! `PALISADE_LIMIT__IP_AUTH__RATE` is `rate` of the limit `ip-auth`.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Origin, Sink, nearest};
use crate::identity::identity;
use crate::schema::{Schema, Shape};
use crate::sections::schemas;
use crate::tree::{Entry, Node, Table, Value, set};

const PREFIX: &str = "PALISADE_";
const SEPARATOR: &str = "__";
/// The operator's kill switch.
const KILL_SWITCH: &str = "RATE_LIMIT_ENABLED";
/// The cache's time to live, in milliseconds.
const CACHE_TTL: &str = "POLICY_CACHE_TTL";

/// Environment variables, as a value: nothing reads the process's own ones behind
/// the caller's back.
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

/// What the command line says; it wins over everything else.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--listen`.
    pub listen: Option<String>,
    /// `--grpc`.
    pub grpc: Option<String>,
    /// `--admin`.
    pub admin: Option<String>,
    /// `--store`.
    pub store: Option<String>,
    /// `--upstream`.
    pub upstream: Option<String>,
    /// `--proxy`.
    pub proxy: Option<String>,
}

impl Overrides {
    pub(crate) fn apply(&self, root: &mut Table) {
        let flags = [
            (&self.listen, "server.listen", "--listen"),
            (&self.grpc, "server.grpc", "--grpc"),
            (&self.admin, "server.admin", "--admin"),
            (&self.store, "store.url", "--store"),
            (&self.upstream, "proxy.upstream", "--upstream"),
            (&self.proxy, "proxy.listen", "--proxy"),
        ];
        for (value, path, flag) in flags {
            if let Some(value) = value {
                set(root, path, Node::text(value, Origin::Flag(flag)));
            }
        }
    }
}

/// False if the operator has switched enforcement off.
pub(crate) fn enabled(env: &Env, sink: &mut Sink) -> bool {
    let Some(text) = env.get(KILL_SWITCH) else {
        return true;
    };
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => true,
        "false" | "0" => false,
        _ => {
            sink.report_with(
                &Origin::Env(KILL_SWITCH.into()),
                format!("`{KILL_SWITCH}` must be `true` or `false`"),
                "`false` switches all enforcement off",
            );
            true
        }
    }
}

/// Lays the variables upon the tree.
pub(crate) fn apply(env: &Env, root: &mut Table, sink: &mut Sink) {
    if let Some(text) = env.get(CACHE_TTL) {
        let value = format!("{}ms", text.trim());
        set(
            root,
            "policy.cache_ttl",
            Node::text(&value, Origin::Env(CACHE_TTL.into())),
        );
    }
    for (name, value) in &env.0 {
        let Some(path) = name.strip_prefix(PREFIX) else {
            continue;
        };
        // Without the separator it is somebody else's, such as a secret's own variable.
        if path.contains(SEPARATOR) {
            apply_one(name, path, value, root, sink);
        }
    }
}

fn apply_one(name: &str, path: &str, value: &str, root: &mut Table, sink: &mut Sink) {
    let node = Node::text(value, Origin::Env(name.into()));
    let parts: Vec<&str> = path.split(SEPARATOR).collect();
    let lower = parts
        .iter()
        .map(|part| part.to_ascii_lowercase())
        .collect::<Vec<_>>();
    let array = schemas().find(|schema| schema.shape == Shape::Array && schema.path == lower[0]);
    match (array, parts.as_slice(), lower.as_slice()) {
        (Some(schema), [_, member, _], [_, _, key]) if has_key(&schema, key) => {
            set_member(&schema, member, key, node, root, sink);
        }
        (Some(schema), ..) => unknown(name, &variables_of_array(&schema, root), sink),
        (None, _, [tables @ .., key]) => {
            let table = tables.join(".");
            let found = schemas().any(|schema| schema.path == table && has_key(&schema, key));
            if found {
                // False where the file has no table there, which is reported by itself.
                set(root, &format!("{table}.{key}"), node);
            } else {
                unknown(name, &variables_of_tables(), sink);
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
        if c != '_' || !name.ends_with('_') {
            name.push(c);
        }
    }
    Some(name.trim_matches('_').to_owned())
}

fn variable(path: &str, key: &str) -> String {
    format!("{PREFIX}{}{SEPARATOR}{key}", path.replace('.', SEPARATOR)).to_ascii_uppercase()
}

fn variables_of_tables() -> Vec<String> {
    schemas()
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
    // The prefix that all share would make everything look alike.
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
