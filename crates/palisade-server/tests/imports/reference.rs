//! envoyproxy/ratelimit as its documentation describes it: a tree of descriptors, fixed
//! windows aligned to the epoch, every descriptor of a call counted whatever the others say.

use std::collections::{BTreeMap, BTreeSet};

use super::replayed::Descriptor;

/// A descriptor of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) key: &'static str,
    pub(crate) value: Option<&'static str>,
    pub(crate) limit: Option<Limit>,
    pub(crate) shadow: bool,
    pub(crate) share: bool,
    pub(crate) nested: Vec<Node>,
}

#[derive(Clone, Debug)]
pub(crate) struct Limit {
    /// Requests and unit; `None` is unlimited.
    pub(crate) figure: Option<(u32, Unit)>,
    pub(crate) name: Option<&'static str>,
    pub(crate) replaces: Vec<&'static str>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    pub(crate) name: &'static str,
    pub(crate) seconds: u64,
}

pub(crate) const UNITS: [Unit; 7] = [
    Unit {
        name: "second",
        seconds: 1,
    },
    Unit {
        name: "minute",
        seconds: 60,
    },
    Unit {
        name: "hour",
        seconds: 3_600,
    },
    Unit {
        name: "day",
        seconds: 86_400,
    },
    Unit {
        name: "week",
        seconds: 7 * 86_400,
    },
    Unit {
        name: "month",
        seconds: 30 * 86_400,
    },
    Unit {
        name: "year",
        seconds: 365 * 86_400,
    },
];

/// The file that says the same.
pub(crate) fn yaml(nodes: &[Node]) -> String {
    let mut text = String::from("domain: d\ndescriptors:\n");
    write(nodes, 1, &mut text);
    text
}

fn write(nodes: &[Node], depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    for node in nodes {
        text.push_str(&format!("{indent}- key: {}\n", node.key));
        let mut line = |words: String| text.push_str(&format!("{indent}  {words}\n"));
        if let Some(value) = node.value {
            line(format!("value: \"{value}\""));
        }
        if node.shadow {
            line("shadow_mode: true".to_owned());
        }
        if node.share {
            line("share_threshold: true".to_owned());
        }
        if let Some(limit) = &node.limit {
            line(format!("rate_limit: {}", flow(limit)));
        }
        if !node.nested.is_empty() {
            line("descriptors:".to_owned());
            write(&node.nested, depth + 1, text);
        }
    }
}

fn flow(limit: &Limit) -> String {
    let mut words = match limit.figure {
        None => vec!["unlimited: true".to_owned()],
        Some((count, unit)) => vec![
            format!("unit: {}", unit.name),
            format!("requests_per_unit: {count}"),
        ],
    };
    words.extend(limit.name.map(|name| format!("name: {name}")));
    if !limit.replaces.is_empty() {
        let names: Vec<String> = limit
            .replaces
            .iter()
            .map(|n| format!("{{name: {n}}}"))
            .collect();
        words.push(format!("replaces: [{}]", names.join(", ")));
    }
    format!("{{{}}}", words.join(", "))
}

/// What it has counted.
#[derive(Default)]
pub(crate) struct Service {
    counters: BTreeMap<(Vec<String>, u64), u32>,
}

struct Found<'a> {
    node: &'a Node,
    limit: &'a Limit,
    bucket: Vec<String>,
}

impl Service {
    /// Whether the call is over a limit.
    pub(crate) fn is_over(&mut self, nodes: &[Node], call: &[Descriptor], seconds: u64) -> bool {
        let found: Vec<Option<Found<'_>>> = call.iter().map(|one| find(nodes, one)).collect();
        let replaced: BTreeSet<&str> = found
            .iter()
            .flatten()
            .flat_map(|found| found.limit.replaces.iter().copied())
            .collect();
        let mut over = false;
        for found in found.into_iter().flatten() {
            let is_replaced = found.limit.name.is_some_and(|name| replaced.contains(name));
            let Some((count, unit)) = found.limit.figure.filter(|_| !is_replaced) else {
                continue;
            };
            let window = seconds / unit.seconds;
            let counter = self.counters.entry((found.bucket, window)).or_default();
            *counter += 1;
            over |= *counter > count && !found.node.shadow;
        }
        over
    }
}

/// One branch down: the exact value, else the first open value in the order of the file,
/// else the key alone; the limit of the last level only.
fn find<'a>(nodes: &'a [Node], descriptor: &Descriptor) -> Option<Found<'a>> {
    let mut level = nodes;
    let mut bucket = Vec::new();
    let mut last = None;
    for (key, value) in descriptor {
        let same_key = || level.iter().filter(|node| node.key == *key);
        let exact = same_key().find(|node| node.value == Some(value));
        let open =
            || same_key().find(|node| open_start(node).is_some_and(|s| value.starts_with(s)));
        let node = exact
            .or_else(open)
            .or_else(|| same_key().find(|node| node.value.is_none()))?;
        let shares = node.share && open_start(node).is_some();
        let counted = if shares {
            node.value.unwrap_or_default()
        } else {
            value
        };
        bucket.push(format!("{key}={counted}"));
        level = &node.nested;
        last = Some(node);
    }
    let node = last?;
    Some(Found {
        node,
        limit: node.limit.as_ref()?,
        bucket,
    })
}

fn open_start(node: &Node) -> Option<&'static str> {
    node.value.and_then(|value| value.strip_suffix('*'))
}
