//! Converts descriptors to limits, with the differences.

use std::collections::{BTreeMap, BTreeSet};

use palisade_core::key::SEGMENTS_MAX;
use palisade_core::policy::{EntryMatch, ValueMatch};

use super::overshadowed::{self, Branch};
use super::read::{Descriptor, Domain, RateLimit, Unit};
use crate::import::draft::{By, Draft, Figure, Limit, Part, Subject};
use crate::import::kept::KeptComments;
use crate::import::names::Names;
use crate::import::problem::Problem;

const METRIC: &str = "metrics here are by the limit's name: values of descriptors never appear \
    in them (`detailed_metric` and `value_to_metric` are not needed)";
const NO_SHARE: &str = "`share_threshold` has no effect: the value is not open";
const NO_REPLACE: &str =
    "`replaces` names a limit that this domain does not have, and has no effect";
const DEAD: &str =
    "the original never reaches it: an open value before it takes all it could match";
const DEAD_END: &str = "this stands in for a branch of the original that ends here without a limit";

/// Converts domains to limits, one after the other.
pub(super) struct Converter<'a> {
    draft: &'a mut Draft,
    names: &'a mut Names,
    keep_windows: bool,
    domains: BTreeSet<String>,
    /// Names in this draft by domain and name of the original.
    named: BTreeMap<(String, String), Vec<String>>,
}

/// An entry of the path to a descriptor, and whether its values share one bucket.
#[derive(Clone)]
struct Step {
    entry: EntryMatch,
    shares: bool,
}

/// The position of the conversion.
struct Walk<'a> {
    domain: &'a str,
    kept: KeptComments,
    steps: Vec<Step>,
}

impl<'a> Converter<'a> {
    pub(super) fn new(draft: &'a mut Draft, names: &'a mut Names, keep_windows: bool) -> Self {
        Self {
            draft,
            names,
            keep_windows,
            domains: BTreeSet::new(),
            named: BTreeMap::new(),
        }
    }

    pub(super) fn domain(
        &mut self,
        domain: &Domain,
        mut kept: KeptComments,
    ) -> Result<(), Problem> {
        if !self.domains.insert(domain.name.clone()) {
            let hint = "join the two files: their descriptors would stand beside each other";
            let message = "`domain` stands in another file too";
            return Err(Problem::new(domain.place.clone(), message, hint));
        }
        let head = kept.head();
        self.draft.remark(head);
        let mut walk = Walk {
            domain: &domain.name,
            kept,
            steps: Vec::new(),
        };
        let branches = overshadowed::grow(&domain.descriptors);
        self.level(&branches, &mut walk)?;
        let rest = walk.kept.rest();
        self.draft.remark(rest);
        Ok(())
    }

    fn level(&mut self, branches: &[Branch<'_>], walk: &mut Walk<'_>) -> Result<(), Problem> {
        for branch in branches {
            if branch.is_dead {
                self.leave_out(branch.descriptor, walk);
                continue;
            }
            walk.steps.push(step(branch));
            self.limit(branch.descriptor, walk)?;
            self.level(&branch.nested, walk)?;
            for keys in overshadowed::dead_ends(branches, branch) {
                self.dead_end(branch.descriptor, &keys, walk)?;
            }
            walk.steps.pop();
        }
        Ok(())
    }

    fn leave_out(&mut self, descriptor: &Descriptor, walk: &mut Walk<'_>) {
        let comments = walk.kept.of_item(last_line(descriptor));
        let place = descriptor.place.clone();
        let part = Part::LeftOut(comments, place, DEAD.to_owned());
        self.draft.parts.push(part);
    }

    fn limit(&mut self, descriptor: &Descriptor, walk: &mut Walk<'_>) -> Result<(), Problem> {
        let Some(limit) = &descriptor.limit else {
            return Ok(());
        };
        let by = match by(&walk.steps) {
            Ok(by) => by,
            Err((message, hint)) => {
                let problem = Problem::new(descriptor.place.clone(), message, hint);
                self.draft.unsupported.push(problem);
                return Ok(());
            }
        };
        let wanted = limit.name.clone().unwrap_or_else(|| keys_of(walk));
        let name = self.names.unique(&wanted);
        if let Some(original) = &limit.name {
            let key = (walk.domain.to_owned(), original.clone());
            self.named.entry(key).or_default().push(name.clone());
        }
        self.draft.limit(Limit {
            comments: walk.kept.of_item(descriptor.line),
            differences: differences(descriptor, limit, self.keep_windows),
            place: descriptor.place.clone(),
            name,
            subject: Subject::Descriptor {
                domain: walk.domain.to_owned(),
                entries: walk.steps.iter().map(|step| step.entry.clone()).collect(),
                by,
            },
            figure: figure(limit, self.keep_windows),
            shadow: descriptor.shadow,
            replaces: limit.replaces.clone(),
        })
    }

    fn dead_end(
        &mut self,
        descriptor: &Descriptor,
        keys: &[Box<str>],
        walk: &mut Walk<'_>,
    ) -> Result<(), Problem> {
        let any = keys.iter().map(|key| EntryMatch {
            key: key.clone(),
            value: ValueMatch::Any,
        });
        let own = walk.steps.iter().map(|step| step.entry.clone());
        let entries: Vec<EntryMatch> = own.chain(any).collect();
        let is_open = entries.iter().any(|entry| entry.value.is_open());
        let name = self.names.unique(&format!("{}.free", keys_of(walk)));
        self.draft.limit(Limit {
            comments: walk.kept.of_item(descriptor.line),
            differences: vec![DEAD_END.to_owned()],
            place: descriptor.place.clone(),
            name,
            subject: Subject::Descriptor {
                domain: walk.domain.to_owned(),
                entries,
                by: if is_open { By::Share } else { By::Each },
            },
            figure: Figure::Admits,
            shadow: false,
            replaces: Vec::new(),
        })
    }

    /// Replaces the names in `replaces` by the names that the limits have here.
    pub(super) fn finish(self) {
        for limit in self.draft.limits_mut() {
            let Subject::Descriptor { domain, .. } = &limit.subject else {
                continue;
            };
            let mut here = Vec::new();
            for original in std::mem::take(&mut limit.replaces) {
                match self.named.get(&(domain.clone(), original)) {
                    Some(names) => here.extend(names.iter().cloned()),
                    None => limit.differences.push(NO_REPLACE.to_owned()),
                }
            }
            here.retain(|name| *name != limit.name);
            limit.replaces = here;
        }
    }
}

fn step(branch: &Branch<'_>) -> Step {
    Step {
        entry: branch.entry(),
        shares: branch.descriptor.share && is_wildcard(branch.descriptor),
    }
}

fn is_wildcard(descriptor: &Descriptor) -> bool {
    let value = descriptor.value.as_deref();
    value.is_some_and(|value| value.ends_with('*'))
}

fn last_line(descriptor: &Descriptor) -> usize {
    let nested = descriptor.nested.iter().map(last_line);
    nested.fold(descriptor.line, usize::max)
}

/// Returns a name that shows no value.
fn keys_of(walk: &Walk<'_>) -> String {
    let keys = walk.steps.iter().map(|step| &*step.entry.key);
    let keys: Vec<&str> = std::iter::once(walk.domain).chain(keys).collect();
    keys.join(".")
}

fn by(steps: &[Step]) -> Result<By, (String, &'static str)> {
    let open = || steps.iter().filter(|step| step.entry.value.is_open());
    let apart: Vec<String> = open()
        .filter(|step| !step.shares)
        .map(|step| step.entry.key.to_string())
        .collect();
    if apart.len() > SEGMENTS_MAX {
        let message = format!("more than {SEGMENTS_MAX} entries without a value are told apart");
        return Err((message, "give some of them a value, or `share_threshold`"));
    }
    if apart.len() == open().count() {
        return Ok(By::Each);
    }
    if apart.is_empty() {
        return Ok(By::Share);
    }
    let is_twice = |key: &String| steps.iter().filter(|step| *step.entry.key == **key).count() > 1;
    if apart.iter().any(is_twice) {
        let message = "`share_threshold` on one of several entries with the same key".to_owned();
        return Err((message, "give the entries keys of their own"));
    }
    Ok(By::Only(apart))
}

fn figure(limit: &RateLimit, keep_windows: bool) -> Figure {
    match limit.figure {
        None => Figure::Admits,
        Some((0, _)) => Figure::Denies,
        Some((count, unit)) => Figure::Window {
            count,
            window: window(unit).to_owned(),
            fixed: keep_windows,
        },
    }
}

const fn window(unit: Unit) -> &'static str {
    match unit {
        Unit::Second => "s",
        Unit::Minute => "min",
        Unit::Hour => "h",
        Unit::Day => "day",
        Unit::Week => "week",
        Unit::Month => "30day",
        Unit::Year => "365day",
    }
}

fn differences(descriptor: &Descriptor, limit: &RateLimit, keep_windows: bool) -> Vec<String> {
    let mut found = Vec::new();
    if let Some((count @ 1.., unit)) = limit.figure {
        found.extend(window_differences(count, unit, keep_windows));
    }
    if descriptor.metric {
        found.push(METRIC.to_owned());
    }
    if descriptor.share && !is_wildcard(descriptor) {
        found.push(NO_SHARE.to_owned());
    }
    found
}

fn window_differences(count: u32, unit: Unit, keep_windows: bool) -> Vec<String> {
    let (name, length) = match unit {
        Unit::Second => ("a second", None),
        Unit::Minute => ("a minute", None),
        Unit::Hour => ("an hour", None),
        Unit::Day => ("a day", None),
        Unit::Week => ("a week", Some("7 days that begin on a Thursday")),
        Unit::Month => ("a month", Some("30 days counted from 1970-01-01")),
        Unit::Year => ("a year", Some("365 days counted from 1970-01-01")),
    };
    let length = length.map(|length| {
        let calendar = match unit {
            Unit::Month => format!("; `rate = \"{count}/month\"` is one of the calendar"),
            Unit::Year => format!("; `rate = \"{count}/year\"` is one of the calendar"),
            _ => ", not of the calendar".to_owned(),
        };
        format!("{name} of the original is {length}, and so it is here{calendar}")
    });
    let sliding = (!keep_windows).then(|| {
        format!(
            "the original counts in fixed windows of {name}, around whose edge twice the \
             figure passes; here never more than the figure in any window of that length \
             (`--keep-windows` keeps them)"
        )
    });
    length.into_iter().chain(sliding).collect()
}
