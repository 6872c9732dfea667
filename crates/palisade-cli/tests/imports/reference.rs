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

/// The line of the file that each descriptor begins on.
pub(crate) fn lines(nodes: &[Node]) -> BTreeMap<*const Node, usize> {
    // `domain:` and `descriptors:` stand before the first.
    let mut lines = BTreeMap::new();
    number(nodes, 1, &mut 3, &mut lines);
    lines
}

fn number(
    nodes: &[Node],
    depth: usize,
    next: &mut usize,
    lines: &mut BTreeMap<*const Node, usize>,
) {
    for node in nodes {
        lines.insert(std::ptr::from_ref(node), *next);
        let alone = Node {
            nested: Vec::new(),
            ..node.clone()
        };
        let mut text = String::new();
        write(&[alone], depth, &mut text);
        // A descriptor with others below it has one line more, which says so.
        *next += text.lines().count() + usize::from(!node.nested.is_empty());
        number(&node.nested, depth + 1, next, lines);
    }
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

/// What an import has said to be different.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    /// Limits whose windows slide, by the line of their descriptor.
    sliding: BTreeSet<usize>,
    /// A denied call charges nothing.
    charges_none: bool,
}

impl Announced {
    /// What stands at the end of the policy that was made.
    pub(crate) fn in_policy(policy: &str) -> Self {
        let mut announced = Self::default();
        let differences = policy.lines().filter_map(|line| line.strip_prefix("# - "));
        for difference in differences {
            if difference.starts_with("all: the original charges all descriptors") {
                announced.charges_none = true;
            }
            if let Some((limits, _)) = difference.split_once("): the original counts in fixed") {
                let places = limits.split('(').skip(1);
                let line = |place: &str| {
                    let place = place.split(')').next().unwrap();
                    place.rsplit(':').next().unwrap().parse::<usize>().unwrap()
                };
                announced.sliding.extend(places.map(line));
            }
        }
        announced
    }
}

/// The original with the differences that were announced, and no other.
pub(crate) struct Changed<'a> {
    pub(crate) nodes: &'a [Node],
    pub(crate) announced: Announced,
    lines: BTreeMap<*const Node, usize>,
    /// When each bucket was charged, in milliseconds.
    hits: BTreeMap<Vec<String>, Vec<u64>>,
}

impl<'a> Changed<'a> {
    pub(crate) fn new(nodes: &'a [Node], announced: Announced) -> Self {
        Self {
            nodes,
            announced,
            lines: lines(nodes),
            hits: BTreeMap::new(),
        }
    }

    /// Whether the call is over a limit.
    pub(crate) fn is_over(&mut self, call: &[Descriptor], millis: u64) -> bool {
        let before = self.announced.charges_none.then(|| self.hits.clone());
        let mut over = false;
        for (found, (count, unit)) in counted(self.nodes, call) {
            let slides = self.announced.sliding.contains(&self.line(found.node));
            let hits = self.hits.entry(found.bucket).or_default();
            let counts = |hit: &&u64| match slides {
                true => millis - **hit < unit.seconds * 1_000,
                false => *hit / 1_000 / unit.seconds == millis / 1_000 / unit.seconds,
            };
            let used = hits.iter().filter(counts).count();
            hits.push(millis);
            over |= used >= usize::try_from(count).unwrap() && !found.node.shadow;
        }
        if over && let Some(before) = before {
            self.hits = before;
        }
        over
    }

    fn line(&self, node: &Node) -> usize {
        self.lines[&std::ptr::from_ref(node)]
    }
}

/// What a call is counted by, descriptor by descriptor, with the figure of each.
fn counted<'a>(nodes: &'a [Node], call: &[Descriptor]) -> Vec<(Found<'a>, (u32, Unit))> {
    let found: Vec<Option<Found<'_>>> = call.iter().map(|one| find(nodes, one)).collect();
    let replaced: BTreeSet<&str> = found
        .iter()
        .flatten()
        .flat_map(|found| found.limit.replaces.iter().copied())
        .collect();
    let figure = |found: Found<'a>| {
        let is_replaced = found.limit.name.is_some_and(|name| replaced.contains(name));
        let figure = found.limit.figure.filter(|_| !is_replaced)?;
        Some((found, figure))
    };
    found.into_iter().flatten().filter_map(figure).collect()
}

struct Found<'a> {
    node: &'a Node,
    limit: &'a Limit,
    bucket: Vec<String>,
}

impl Service {
    /// Whether the call is over a limit.
    pub(crate) fn is_over(&mut self, nodes: &[Node], call: &[Descriptor], seconds: u64) -> bool {
        let mut over = false;
        for (found, (count, unit)) in counted(nodes, call) {
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
