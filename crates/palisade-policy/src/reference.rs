//! The configuration reference, written from the declarations themselves.

use std::fmt::Write;

use crate::schema::{Key, Schema, Shape};
use crate::sections::schemas;

const INTRODUCTION: &str = "\
# Configuration

<!-- Generated from the declarations in crates/palisade-policy. Do not edit:
     UPDATE=1 cargo test -p palisade-policy --test reference -->

One TOML file, every key of which can also be set by the environment. Flags win over the
environment, the environment over the file, the file over the embedded default policy.

- `PALISADE_SERVER__LISTEN` is `listen` in `[server]`: two underscores between the parts.
- `PALISADE_LIMIT__IP_AUTH__RATE` is `rate` of the `[[limit]]` named `ip-auth`: everything but
  letters and digits becomes an underscore. A route is named by method and path:
  `PALISADE_ROUTE__POST_VC_ISSUE__CLASS`. Lists are separated by commas.
- `RATE_LIMIT_ENABLED=false` switches all enforcement off.
- `POLICY_CACHE_TTL` is `cache_ttl` in `[policy]`, in milliseconds.

A duration is a number and a unit: `ms`, `s`, `min`, `h`, `day`. A rate is `N/window`, where the
window is a unit, a number and a unit (`5/15min`), or `month`, a calendar month in UTC.
Underscores may group digits: `1_000_000/day`.

An unknown key, a duplicate name or a limit that can never match is an error; `palisade check`
shows all of them at once. The constants of the guard's own breaker and of its degraded mode are
fixed and have no key.

With `defaults = true` a `[[limit]]`, `[[class]]`, `[[tier]]` or `[[route]]` (same path and method)
of the file replaces the one of the embedded policy as a whole.
";

/// The reference as Markdown.
#[must_use]
pub fn reference() -> String {
    let mut page = INTRODUCTION.to_owned();
    for schema in schemas() {
        section(&mut page, &schema);
    }
    page
}

fn section(page: &mut String, schema: &Schema) {
    let title = match schema.shape {
        Shape::Table => format!("[{}]", schema.path),
        Shape::Array => format!("[[{}]]", schema.path),
    };
    let _ = write!(page, "\n## `{title}`\n\n{}\n\n", sentence(schema.doc));
    page.push_str("| key | type | default | meaning |\n| --- | --- | --- | --- |\n");
    for key in schema.keys {
        row(page, key);
    }
}

fn row(page: &mut String, key: &Key) {
    let default = match key.default {
        Some(text) => format!("`{}`", (key.show)(text)),
        None if key.is_required() => "required".to_owned(),
        None => "–".to_owned(),
    };
    let bounds = key
        .bounds
        .map(|(min, max)| format!(" {min} to {max}."))
        .unwrap_or_default();
    let _ = writeln!(
        page,
        "| `{}` | {} | {default} | {}{bounds} |",
        key.name,
        (key.kind)(),
        sentence(key.doc),
    );
}

fn sentence(doc: &[&str]) -> String {
    let lines: Vec<&str> = doc.iter().map(|line| line.trim()).collect();
    lines.join(" ").trim().to_owned()
}

/// Every key as `table.key`.
#[must_use]
pub fn keys() -> Vec<String> {
    schemas()
        .flat_map(|schema| {
            schema
                .keys
                .iter()
                .map(move |key| format!("{}.{}", schema.path, key.name))
        })
        .collect()
}
