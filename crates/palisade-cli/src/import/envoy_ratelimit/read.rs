//! Reads YAML as descriptors, by the rules of envoyproxy/ratelimit.

use std::rc::Rc;

use crate::import::fields::Fields;
use crate::import::problem::{Place, Problem};
use crate::import::yaml::Node;

/// Most entries of a descriptor in Palisade.
const DEPTH_MAX: usize = 16;

/// One file: a domain and its descriptors.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) descriptors: Vec<Descriptor>,
}

#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) line: usize,
    pub(super) place: Place,
    pub(super) key: String,
    pub(super) value: Option<String>,
    pub(super) limit: Option<RateLimit>,
    pub(super) shadow: bool,
    pub(super) share: bool,
    pub(super) metric: bool,
    pub(super) nested: Vec<Descriptor>,
}

#[derive(Clone, Debug)]
pub(super) struct RateLimit {
    pub(super) name: Option<String>,
    pub(super) replaces: Vec<String>,
    /// Rate and unit; `None` is unlimited.
    pub(super) figure: Option<(u32, Unit)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    fn parse(text: &str) -> Option<Self> {
        Some(match text.to_ascii_lowercase().as_str() {
            "second" => Self::Second,
            "minute" => Self::Minute,
            "hour" => Self::Hour,
            "day" => Self::Day,
            "week" => Self::Week,
            "month" => Self::Month,
            "year" => Self::Year,
            _ => return None,
        })
    }
}

impl Domain {
    /// Returns the lines on which descriptors begin.
    pub(super) fn lines(&self) -> Vec<usize> {
        let mut lines = Vec::new();
        add_lines(&self.descriptors, &mut lines);
        lines
    }
}

fn add_lines(descriptors: &[Descriptor], lines: &mut Vec<usize>) {
    for descriptor in descriptors {
        lines.push(descriptor.line);
        add_lines(&descriptor.nested, lines);
    }
}

/// Reads a file's domain.
pub(super) fn domain(file: &Rc<str>, root: &Node, problems: &mut Vec<Problem>) -> Option<Domain> {
    let mut fields = Fields::of(file, root, "the file", problems)?;
    let place = fields.place();
    let name = fields.text("domain", problems).unwrap_or_default();
    if name.is_empty() {
        let hint = "add `domain: NAME`, as Envoy sends it";
        problems.push(Problem::new(place.clone(), "`domain` is missing", hint));
    }
    let items = fields.list("descriptors", problems);
    fields.finish("`domain`, `descriptors`", problems);
    let mut reader = Reader { file, problems };
    Some(Domain {
        name: name.to_owned(),
        place,
        descriptors: reader.descriptors(items, 1),
    })
}

struct Reader<'a> {
    file: &'a Rc<str>,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn refuse(&mut self, place: &Place, message: &str, hint: &str) {
        self.problems
            .push(Problem::new(place.clone(), message, hint));
    }

    fn descriptors(&mut self, items: &[Node], depth: usize) -> Vec<Descriptor> {
        let mut read: Vec<Descriptor> = Vec::with_capacity(items.len());
        for item in items {
            let Some(descriptor) = self.descriptor(item, depth) else {
                continue;
            };
            let is_same = |other: &Descriptor| {
                (&other.key, &other.value) == (&descriptor.key, &descriptor.value)
            };
            if read.iter().any(is_same) {
                let hint = "keep one of them: the original refuses the file too";
                self.refuse(
                    &descriptor.place,
                    "the same `key` and `value` stand there twice",
                    hint,
                );
            }
            read.push(descriptor);
        }
        read
    }

    fn descriptor(&mut self, item: &Node, depth: usize) -> Option<Descriptor> {
        let mut fields = Fields::of(self.file, item, "a descriptor", self.problems)?;
        let place = fields.place();
        let key = fields
            .text("key", self.problems)
            .unwrap_or_default()
            .to_owned();
        if key.is_empty() {
            self.refuse(&place, "`key` is missing", "add `key: NAME`");
        }
        if key.ends_with('*') {
            let hint = "write one descriptor for each key: only values can be open";
            self.refuse(&place, "`key` ends in `*`", hint);
        }
        let value = fields.text("value", self.problems);
        let value = value.filter(|value| !value.is_empty()).map(str::to_owned);
        self.check_value(&place, value.as_deref());
        if depth > DEPTH_MAX {
            let hint = "no call may have as many entries";
            self.refuse(&place, "descriptors are nested more than 16 deep", hint);
            return None;
        }
        let limit = fields.take("rate_limit");
        let limit = limit.and_then(|entry| self.rate_limit(&entry.node));
        let shadow = fields.flag("shadow_mode", self.problems);
        let share = fields.flag("share_threshold", self.problems);
        let detailed = fields.flag("detailed_metric", self.problems);
        let to_metric = fields.flag("value_to_metric", self.problems);
        if fields.flag("quota_mode", self.problems) {
            let hint = "leave the limit out, or set `shadow_mode` and read its verdict";
            self.refuse(&place, "`quota_mode` has no counterpart", hint);
        }
        let nested = fields.list("descriptors", self.problems);
        let nested = self.descriptors(nested, depth + 1);
        fields.finish(KNOWN, self.problems);
        Some(Descriptor {
            line: item.line,
            place,
            key,
            value,
            limit,
            shadow,
            share,
            metric: detailed || to_metric,
            nested,
        })
    }

    fn check_value(&mut self, place: &Place, value: Option<&str>) {
        let stars = value.map_or(0, |value| value.matches('*').count());
        let open = value.is_some_and(|value| value.ends_with('*'));
        if stars > usize::from(open) {
            let hint =
                "only the end of a value can be open: the original takes another `*` as it is";
            self.refuse(place, "`value` has a `*` before its end", hint);
        }
    }

    fn rate_limit(&mut self, node: &Node) -> Option<RateLimit> {
        let mut fields = Fields::of(self.file, node, "`rate_limit`", self.problems)?;
        let place = fields.place();
        let name = fields.text("name", self.problems).map(str::to_owned);
        let unlimited = fields.flag("unlimited", self.problems);
        let unit = fields.text("unit", self.problems);
        let count = fields
            .number("requests_per_unit", self.problems)
            .unwrap_or(0);
        let replaces = fields.list("replaces", self.problems);
        fields.finish(
            "`name`, `replaces`, `requests_per_unit`, `unit`, `unlimited`",
            self.problems,
        );
        let replaces = self.replaces(replaces, name.as_deref());
        let figure = match (unlimited, unit.map(Unit::parse)) {
            (true, None) => None,
            (true, Some(_)) => {
                let hint = "keep one of them: the original refuses the file too";
                self.refuse(&place, "`unlimited` and `unit` exclude each other", hint);
                None
            }
            (false, Some(Some(unit))) => Some((count, unit)),
            (false, _) => {
                let hint = "write `second`, `minute`, `hour`, `day`, `week`, `month` or `year`";
                self.refuse(&place, "`unit` is missing or unknown", hint);
                None
            }
        };
        Some(RateLimit {
            name,
            replaces,
            figure,
        })
    }

    fn replaces(&mut self, items: &[Node], own: Option<&str>) -> Vec<String> {
        let mut names = Vec::new();
        for item in items {
            let Some(mut fields) =
                Fields::of(self.file, item, "an item of `replaces`", self.problems)
            else {
                continue;
            };
            let place = fields.place();
            let name = fields.text("name", self.problems);
            fields.finish("`name`", self.problems);
            match name {
                Some(name) if Some(name) == own => {
                    let hint = "name another limit: the original refuses the file too";
                    self.refuse(&place, "a limit replaces itself", hint);
                }
                Some(name) => names.push(name.to_owned()),
                None => self.refuse(
                    &place,
                    "`name` is missing",
                    "name the limit that is replaced",
                ),
            }
        }
        names
    }
}

const KNOWN: &str = "`key`, `value`, `rate_limit`, `descriptors`, `shadow_mode`, \
    `share_threshold`, `detailed_metric`, `value_to_metric`";
