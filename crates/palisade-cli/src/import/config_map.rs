//! Files inside a Kubernetes ConfigMap, where most of these configurations are kept.

use std::rc::Rc;

use super::yaml::{self, Entry, Node, Value};

/// Returns the files of a ConfigMap in the order of the map, or the file itself if it is no
/// ConfigMap. Line numbers are those of the outer file, so that a message leads to the right line.
pub(super) fn opened(file: (Rc<str>, String)) -> Vec<(Rc<str>, String)> {
    let (name, text) = &file;
    let inner = yaml::parse(name, text)
        .ok()
        .and_then(|document| data(&document.root));
    match inner {
        Some(inner) => inner
            .into_iter()
            .map(|(line, inner)| {
                let above = "\n".repeat(first_line(text, line, &inner));
                (Rc::clone(name), above + &inner)
            })
            .collect(),
        None => vec![file],
    }
}

/// Returns the texts of `data` and the lines of their keys.
fn data(root: &Node) -> Option<Vec<(usize, String)>> {
    let entries = entries(root)?;
    let of = |name: &str| entries.iter().find(|entry| entry.key == name);
    let kind = of("kind").map(|entry| &entry.node.value);
    if kind != Some(&Value::Scalar("ConfigMap".to_owned())) {
        return None;
    }
    let files = entries_of(of("data"))?.iter();
    let texts = files.filter_map(|entry| match &entry.node.value {
        Value::Scalar(text) => Some((entry.line, text.clone())),
        _ => None,
    });
    Some(texts.collect())
}

fn entries_of(entry: Option<&Entry>) -> Option<&[Entry]> {
    entries(&entry?.node)
}

fn entries(node: &Node) -> Option<&[Entry]> {
    match &node.value {
        Value::Map(entries) => Some(entries),
        _ => None,
    }
}

/// Returns how many lines of the outer file are above the first line of the text that begins below
/// line `key`.
fn first_line(outer: &str, key: usize, inner: &str) -> usize {
    let first = inner.lines().next().unwrap_or_default().trim();
    let below = outer.lines().enumerate().skip(key);
    let mut found = below.filter(|(_, line)| line.trim() == first);
    found.next().map_or(key, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_config_map_keep_their_lines() {
        let outer = "apiVersion: v1\nkind: ConfigMap\ndata:\n  a.yaml: |\n\n    domain: a\n    x: 1\n  b.yaml: |\n    domain: b\n";
        let files = opened((Rc::from("cm.yaml"), outer.to_owned()));
        let lines: Vec<usize> = files
            .iter()
            .map(|(_, text)| text.lines().position(|line| line.starts_with("domain")))
            .map(|at| at.unwrap() + 1)
            .collect();
        assert_eq!(lines, [6, 9]);
        let plain = (Rc::from("f.yaml"), "domain: d\n".to_owned());
        assert_eq!(opened(plain.clone()), [plain]);
    }
}
