//! Limits that replace each other: of the original, a call that matches them all is limited by
//! none, and a policy here is refused.

use std::collections::{BTreeMap, BTreeSet};

use crate::import::draft::Draft;
use crate::import::problem::Problem;

const MESSAGE: &str = "`replaces` leads from this limit back to it: a call that matches all on \
    the way would be limited by none";
const HINT: &str = "take one of them out of `replaces`";

/// Reports each limit of a circle, and takes what closes it out of the draft: left so, all of
/// them count.
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
