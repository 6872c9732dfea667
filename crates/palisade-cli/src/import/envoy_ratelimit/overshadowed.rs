//! Descriptors that the original never reaches, and limits that it never falls back to.
//!
//! The original walks down one branch: at each level the exact value, else the first open value
//! that matches, else the key alone. It does not come back if that branch ends without a limit.
//! Here the most specific limit of the whole descriptor answers. Where the two would differ, a
//! limit that admits everything is added for the branch that ends.

use palisade_core::policy::{EntryMatch, ValueMatch};

use super::read::Descriptor;

/// A descriptor among its siblings.
pub(super) struct Branch<'a> {
    pub(super) descriptor: &'a Descriptor,
    pub(super) value: ValueMatch,
    pub(super) nested: Vec<Branch<'a>>,
    /// True if an open value before it matches everything that it could match.
    pub(super) is_dead: bool,
}

/// Returns all branches of a level.
pub(super) fn grow(descriptors: &[Descriptor]) -> Vec<Branch<'_>> {
    let branches = descriptors.iter().enumerate();
    branches
        .map(|(at, descriptor)| Branch {
            descriptor,
            value: value_match(descriptor.value.as_deref()),
            nested: grow(&descriptor.nested),
            is_dead: is_dead(descriptors, at),
        })
        .collect()
}

fn value_match(value: Option<&str>) -> ValueMatch {
    match (value, value.and_then(open_start)) {
        (None, _) | (_, Some("")) => ValueMatch::Any,
        (_, Some(start)) => ValueMatch::Prefix(start.into()),
        (Some(value), None) => ValueMatch::Exact(value.into()),
    }
}

fn open_start(value: &str) -> Option<&str> {
    value.strip_suffix('*')
}

/// True if an earlier sibling matches everything first. Open values are tried in the order of the
/// file, the key alone after all of them.
fn is_dead(siblings: &[Descriptor], at: usize) -> bool {
    let this = &siblings[at];
    let (before, start) = match this.value.as_deref() {
        None => (siblings, ""),
        Some(value) => match open_start(value) {
            Some(start) => (&siblings[..at], start),
            None => return false,
        },
    };
    before.iter().any(|other| {
        let other_start = other.value.as_deref().and_then(open_start);
        other.key == this.key && other_start.is_some_and(|other| start.starts_with(other))
    })
}

impl Branch<'_> {
    /// Returns the entries below this one that lead to a limit.
    fn paths(&self) -> Vec<Vec<EntryMatch>> {
        let own = self.descriptor.limit.iter().map(|_| Vec::new());
        let alive = self.nested.iter().filter(|branch| !branch.is_dead);
        let deeper = alive.flat_map(|branch| {
            let paths = branch.paths().into_iter();
            paths.map(|mut path| {
                path.insert(0, branch.entry());
                path
            })
        });
        own.chain(deeper).collect()
    }

    pub(super) fn entry(&self) -> EntryMatch {
        EntryMatch {
            key: self.descriptor.key.as_str().into(),
            value: self.value.clone(),
        }
    }

    /// True if the original tries `other` only where this branch does not match.
    fn stands_before(&self, other: &Self) -> bool {
        other.descriptor.key == self.descriptor.key
            && !other.is_dead
            && other.value.specificity() < self.value.specificity()
            && holds(&other.value, &self.value)
    }
}

/// Returns the keys of descriptors below `branch` for which the original finds no limit there,
/// though one of its siblings has one.
pub(super) fn dead_ends(siblings: &[Branch<'_>], branch: &Branch<'_>) -> Vec<Vec<Box<str>>> {
    let own = branch.paths();
    let mut ends: Vec<Vec<Box<str>>> = Vec::new();
    for other in siblings.iter().filter(|other| branch.stands_before(other)) {
        for path in other.paths() {
            let keys: Vec<Box<str>> = path.iter().map(|entry| entry.key.clone()).collect();
            if !own.iter().any(|own| covers(own, &path)) && !ends.contains(&keys) {
                ends.push(keys);
            }
        }
    }
    ends
}

/// True if `path` matches everything that `other` matches.
fn covers(path: &[EntryMatch], other: &[EntryMatch]) -> bool {
    path.len() == other.len()
        && path
            .iter()
            .zip(other)
            .all(|(one, other)| one.key == other.key && holds(&one.value, &other.value))
}

fn holds(wide: &ValueMatch, narrow: &ValueMatch) -> bool {
    match (wide, narrow) {
        (ValueMatch::Any, _) => true,
        (wide, ValueMatch::Exact(value)) => wide.matches(value),
        (ValueMatch::Prefix(wide), ValueMatch::Prefix(narrow)) => narrow.starts_with(&**wide),
        _ => false,
    }
}
