//! Limits of Envoy domains: what their descriptors mean, and whether they fit each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use palisade_core::key::SEGMENTS_MAX;
use palisade_core::policy::{DescriptorRule, Dimension, LimitDef, Standing, ValueMatch};

use crate::document::error::{Origin, Sink, nearest};
use crate::document::tree::{Node, member_origin};
use crate::policy::limits::Checker;
use crate::policy::tables::{DescriptorEntry, LimitTable};

/// Most entries of a descriptor (R-IDS).
const ENTRIES_MAX: usize = 16;

/// Returns the limit's rule for descriptors; `None` without a domain.
pub(super) fn rule(table: &LimitTable, standing: Standing) -> Option<DescriptorRule> {
    let replaces = table.replaces.iter().flat_map(|list| &list.0);
    Some(DescriptorRule {
        domain: table.domain.as_deref()?.into(),
        entries: entries(table).iter().map(|entry| entry.0.clone()).collect(),
        standing,
        replaces: replaces.map(|name| name.as_str().into()).collect(),
    })
}

fn entries(table: &LimitTable) -> &[DescriptorEntry] {
    table.descriptor.as_deref().unwrap_or_default()
}

fn is_open(entry: &DescriptorEntry) -> bool {
    entry.0.value.is_open()
}

impl Checker<'_> {
    /// Checks keys that only mean something with a domain, and those that a domain needs.
    pub(super) fn descriptor(&mut self, table: &LimitTable) {
        if table.domain.is_none() {
            let set = [
                ("descriptor", table.descriptor.is_some()),
                ("share", table.share),
                ("replaces", table.replaces.is_some()),
            ];
            for (key, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
                self.refuse(key, "needs `domain`", "add `domain = …`");
            }
            return;
        }
        let entries = entries(table);
        if entries.is_empty() {
            let hint = "add `descriptor = [{ key = … }]`: the limit would never match";
            self.refuse("domain", "needs `descriptor`", hint);
        }
        if entries.len() > ENTRIES_MAX {
            let problem = format!("has more than {ENTRIES_MAX} entries");
            self.refuse("descriptor", &problem, "no call may have as many");
        }
        if table.share && !entries.iter().any(is_open) {
            let hint = "leave it out: every entry has a value of its own";
            self.refuse("share", "only means something where a value is open", hint);
        }
        if table.share && table.by.is_some() {
            let hint = "leave one of them out: `share` is one bucket for all values";
            self.refuse("share", "and `by` exclude each other", hint);
        }
    }

    /// Without `by`, each value of every open entry gets a bucket of its own, unless `share` is
    /// set.
    pub(super) fn open_entries(&mut self, table: &LimitTable) -> Option<Vec<Dimension>> {
        let open = entries(table).iter().filter(|entry| is_open(entry));
        let by: Vec<Dimension> = open
            .map(|entry| Dimension::Descriptor(entry.0.key.clone()))
            .collect();
        match by.len() {
            _ if table.share => Some(Vec::new()),
            0..=SEGMENTS_MAX => Some(by),
            _ => {
                let problem = format!("has more than {SEGMENTS_MAX} entries with an open value");
                let hint = "name those that count with `by`, or set `share = true`";
                self.refuse("descriptor", &problem, hint);
                None
            }
        }
    }

    pub(super) fn descriptor_dimensions(
        &mut self,
        by: &[Dimension],
        table: &LimitTable,
    ) -> Option<Vec<Dimension>> {
        let known = |one: &Dimension| match one {
            Dimension::Descriptor(key) => entries(table).iter().any(|entry| entry.0.key == *key),
            _ => false,
        };
        if by.iter().all(known) && by.len() <= SEGMENTS_MAX {
            return Some(by.to_vec());
        }
        let hint = "name keys of `descriptor` as `descriptor:KEY`, or leave `by` out";
        self.refuse(
            "by",
            "can never match: an Envoy request has descriptors only",
            hint,
        );
        None
    }
}

/// Reports limits of a domain with the same pattern, and references that lead nowhere.
pub(super) fn check(limits: &[(LimitDef, &Node)], sink: &mut Sink) {
    let mut seen = BTreeMap::new();
    for (limit, item) in limits {
        let Some(rule) = &limit.descriptor else {
            continue;
        };
        let same = (&rule.domain, pattern(rule));
        if let Some(other) = seen.insert(same, &limit.name) {
            let message =
                format!("`limit.descriptor` is the same as that of `{other}`, in the same domain");
            let hint = "one limit answers a descriptor: keep one of them";
            sink.report_with(&member_origin(item, "descriptor"), message, hint);
        }
        for name in &rule.replaces {
            replaced(limit, rule, name, limits, item, sink);
        }
    }
    for circle in circles(limits) {
        sink.report_with(&circle.origin, circle.message, circle.hint);
    }
}

/// A limit whose `replaces` leads back to it, directly or by way of others.
struct Circle {
    origin: Origin,
    message: String,
    hint: String,
}

/// Finds each limit of each circle, with its own place: a call that matches all limits of a circle
/// is limited by none of them.
fn circles(limits: &[(LimitDef, &Node)]) -> Vec<Circle> {
    let replaces = limits.iter().filter_map(|(limit, _)| {
        let rule = limit.descriptor.as_ref()?;
        let names: Vec<&str> = rule.replaces.iter().map(|name| &**name).collect();
        Some((limit.name.as_str(), names))
    });
    let replaces: BTreeMap<&str, Vec<&str>> = replaces.collect();
    let circle = |(limit, item): &(LimitDef, &Node)| {
        let way = way_back(&limit.name, &replaces)?;
        let others: Vec<String> = way.iter().map(|name| format!("`{name}`")).collect();
        let others = others.join(" → ");
        Some(Circle {
            origin: member_origin(item, "replaces"),
            message: format!(
                "`limit.replaces` of `{name}` leads back to it ({others} → `{name}`): a call \
                 that matches all of them is limited by none",
                name = limit.name
            ),
            hint: "take one of them out of `replaces`: the limit that is to count is replaced \
                   by nobody"
                .to_owned(),
        })
    };
    limits.iter().filter_map(circle).collect()
}

/// The shortest chain of `replaces` from a limit back to itself, without its last step.
fn way_back<'a>(name: &'a str, replaces: &BTreeMap<&'a str, Vec<&'a str>>) -> Option<Vec<&'a str>> {
    let mut seen = BTreeSet::new();
    let mut ways = VecDeque::from([vec![name]]);
    while let Some(way) = ways.pop_front() {
        let next = way.last().and_then(|last| replaces.get(last));
        for one in next.into_iter().flatten() {
            // `check` reports a limit that replaces itself, as a name that is no other limit.
            if *one == name && way.len() > 1 {
                return Some(way);
            }
            if *one != name && seen.insert(*one) {
                ways.push_back([way.as_slice(), &[*one]].concat());
            }
        }
    }
    None
}

/// Entries in a form that can be compared.
fn pattern(rule: &DescriptorRule) -> Vec<(&str, u8, &str)> {
    rule.entries
        .iter()
        .map(|entry| match &entry.value {
            ValueMatch::Exact(value) => (&*entry.key, 0, &**value),
            ValueMatch::Prefix(value) => (&*entry.key, 1, &**value),
            ValueMatch::Any => (&*entry.key, 2, ""),
        })
        .collect()
}

fn replaced(
    limit: &LimitDef,
    rule: &DescriptorRule,
    name: &str,
    limits: &[(LimitDef, &Node)],
    item: &Node,
    sink: &mut Sink,
) {
    let of_domain = |other: &LimitDef| {
        let same = |other: &DescriptorRule| other.domain == rule.domain;
        other.descriptor.as_ref().is_some_and(same) && other.name != limit.name
    };
    let names = || {
        let others = limits.iter().map(|(other, _)| other);
        others
            .filter(|other| of_domain(other))
            .map(|other| other.name.as_str())
    };
    if names().any(|other| other == name) {
        return;
    }
    let hint = match nearest(name, names()) {
        Some(close) => format!("did you mean `{close}`?"),
        None => "name another limit with the same `domain`".to_owned(),
    };
    let message = "`limit.replaces` names no other limit of its domain";
    sink.report_with(&member_origin(item, "replaces"), message, hint);
}
