//! Writes a draft as a policy file.

use std::collections::BTreeMap;
use std::fmt::Write;

use palisade_core::policy::{EntryMatch, ValueMatch};

use super::draft::{By, Draft, Figure, Limit, Part, Subject};

/// Returns the text of the policy file.
pub(super) fn policy(draft: &Draft) -> String {
    let mut text = format!(
        "# Made by `palisade import` of {}.\n",
        comment(&draft.source)
    );
    text.push_str("# What differs from the original stands at the end.\n\n");
    text.push_str(&draft.settings);
    for part in &draft.parts {
        text.push('\n');
        match part {
            Part::Remark(comments) => text.push_str(&comment_lines(comments)),
            Part::LeftOut(comments, place, why) => {
                text.push_str(&comment_lines(comments));
                let _ = writeln!(text, "# left out ({place}): {}", comment(why));
            }
            Part::Limit(one) => text.push_str(&limit(one)),
        }
    }
    text.push_str("\n# Differences from the original\n#\n");
    for line in differences(draft) {
        let _ = writeln!(text, "# - {}", comment(&line));
    }
    text
}

/// Differences, each difference once with the limits it concerns.
pub(super) fn differences(draft: &Draft) -> Vec<String> {
    let mut order = Vec::new();
    let mut named: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for limit in draft.limits() {
        for difference in &limit.differences {
            let names = named.entry(difference).or_insert_with(|| {
                order.push(difference.as_str());
                Vec::new()
            });
            names.push(format!("`{}` ({})", limit.name, limit.place));
        }
    }
    let general = draft.general.iter().map(|line| format!("all: {line}"));
    let each = order
        .iter()
        .map(|text| format!("{}: {text}", named[text].join(", ")));
    general.chain(each).collect()
}

/// Parts that are not in the policy, each with its place in the original and why.
pub(super) fn left_out(draft: &Draft) -> impl Iterator<Item = String> {
    draft.parts.iter().filter_map(|part| match part {
        Part::LeftOut(_, place, why) => Some(format!("left out: {place}: {why}")),
        _ => None,
    })
}

fn limit(limit: &Limit) -> String {
    let mut text = comment_lines(&limit.comments);
    let _ = writeln!(text, "[[limit]]\nname = {}", quoted(&limit.name));
    text.push_str(&subject(&limit.subject));
    text.push_str(&figure(&limit.figure));
    if limit.shadow {
        text.push_str("shadow = true\n");
    }
    if !limit.replaces.is_empty() {
        let _ = writeln!(text, "replaces = {}", list(&limit.replaces));
    }
    text
}

fn subject(subject: &Subject) -> String {
    match subject {
        Subject::Descriptor {
            domain,
            entries,
            by,
        } => {
            let entries: Vec<String> = entries.iter().map(entry).collect();
            let by = match by {
                By::Each => String::new(),
                By::Share => "share = true\n".to_owned(),
                By::Only(keys) => {
                    let keys: Vec<String> =
                        keys.iter().map(|key| format!("descriptor:{key}")).collect();
                    format!("by = {}\n", list(&keys))
                }
            };
            let domain = quoted(domain);
            format!(
                "domain = {domain}\ndescriptor = [{}]\n{by}",
                entries.join(", ")
            )
        }
        Subject::Requests { classes, by, .. } => {
            let class = match classes.as_slice() {
                [] => String::new(),
                classes => format!("class = {}\n", list(classes)),
            };
            format!("by = {}\n{class}", list(by))
        }
    }
}

fn figure(figure: &Figure) -> String {
    match figure {
        Figure::Admits => "unlimited = true\n".to_owned(),
        Figure::Denies => "rate = \"0/s\"\n".to_owned(),
        Figure::Window {
            count,
            window,
            fixed: true,
        } => format!(
            // A fixed window would be a quota by default.
            "rate = \"{count}/{window}\"\nalgorithm = \"fixed-window\"\nfamily = \"limit\"\n"
        ),
        Figure::Window { count, window, .. } => format!("rate = \"{count}/{window}\"\n"),
        Figure::Bucket { rate, burst } => {
            format!("rate = \"{rate}\"\nalgorithm = \"token-bucket\"\nburst = {burst}\n")
        }
    }
}

fn entry(entry: &EntryMatch) -> String {
    let key = quoted(&entry.key);
    match &entry.value {
        ValueMatch::Any => format!("{{ key = {key} }}"),
        ValueMatch::Exact(value) => format!("{{ key = {key}, value = {} }}", quoted(value)),
        ValueMatch::Prefix(start) => {
            format!(
                "{{ key = {key}, value = {} }}",
                quoted(&format!("{start}*"))
            )
        }
    }
}

fn list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| quoted(item)).collect();
    format!("[{}]", items.join(", "))
}

/// Returns a TOML string.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns the text as one line, without control characters.
fn comment(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

fn comment_lines(lines: &[String]) -> String {
    let lines = lines.iter().map(|line| comment(line));
    lines
        .map(|line| format!("# {line}").trim_end().to_owned() + "\n")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_quoted_so_that_toml_reads_it_back() {
        assert_eq!(quoted("a\"b\\c\n\u{7f}"), "\"a\\\"b\\\\c\\u000A\\u007F\"");
        assert_eq!(comment("one\ntwo"), "one two");
    }
}
