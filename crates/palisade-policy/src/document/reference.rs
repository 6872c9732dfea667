//! The configuration reference, written from the declarations themselves.

use std::fmt::Write;

use crate::document::schema::{Key, Schema, Shape};

/// The reference as Markdown.
#[must_use]
pub fn reference(introduction: &str, tables: &[Schema]) -> String {
    let mut page = introduction.to_owned();
    for schema in tables {
        section(&mut page, schema);
    }
    page
}

fn section(page: &mut String, schema: &Schema) {
    let title = match schema.shape {
        Shape::Table | Shape::Inner => format!("[{}]", schema.path),
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
pub fn keys(tables: &[Schema]) -> Vec<String> {
    tables
        .iter()
        .flat_map(|schema| {
            schema
                .keys
                .iter()
                .map(move |key| format!("{}.{}", schema.path, key.name))
        })
        .collect()
}
