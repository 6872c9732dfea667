//! Limits that replace each other. In the original a call that matches all of them is limited by
//! none; here such a policy is refused.

use std::collections::{BTreeMap, BTreeSet};

use crate::import::draft::Draft;
use crate::import::problem::Problem;

const MESSAGE: &str = "`replaces` leads from this limit back to it: a call that matches all on \
    the way would be limited by none";
const HINT: &str = "take one of them out of `replaces`";

/// Reports each limit of a circle, and removes the names that close the circle from its `replaces`.
/// If the draft is used all the same, all limits of the circle count.
pub(super) fn open(draft: &mut Draft) {
    let replaces = draft.limits().map(|limit| {
        let names = limit.replaces.iter().cloned().collect();
        (limit.name.clone(), names)
    });
    let replaces: BTreeMap<String, BTreeSet<String>> = replaces.collect();
    let mut problems = Vec::new();
    for limit in draft.limits_mut() {
        let before = limit.replaces.len();
        let name = limit.name.clone();
        limit
            .replaces
            .retain(|other| !leads_to(other, &name, &replaces));
        if limit.replaces.len() < before {
            problems.push(Problem::new(limit.place.clone(), MESSAGE, HINT));
        }
    }
    draft.unsupported.extend(problems);
}

fn leads_to(from: &str, to: &str, replaces: &BTreeMap<String, BTreeSet<String>>) -> bool {
    let mut seen = BTreeSet::new();
    let mut left = vec![from];
    while let Some(one) = left.pop() {
        if one == to {
            return true;
        }
        if seen.insert(one) {
            let next = replaces.get(one).into_iter().flatten();
            left.extend(next.map(String::as_str));
        }
    }
    false
}
