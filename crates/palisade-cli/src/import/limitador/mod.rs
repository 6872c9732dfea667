//! `palisade import limitador`: reads limitador's limits file.

mod condition;
mod convert;
mod read;

use std::rc::Rc;

use super::draft::Draft;
use super::kept::KeptComments;
use super::problem::Problem;
use super::yaml;

const GENERAL: [&str; 3] = [
    "limitador looks at one descriptor of a call by its number; here each descriptor of a call \
     is looked at",
    "limitador applies every limit that matches; here the most specific limit of a descriptor \
     answers, and limits that could both answer one are refused by this import",
    "limitador counts a call in one limit though another denies it; here a denied call charges \
     none",
];

/// Converts a limits file to a draft. `entries` are the keys that Envoy sends, in order; if it is
/// empty, each limit names its own.
pub(super) fn import(
    file: &Rc<str>,
    text: &str,
    entries: &[String],
    keep_windows: bool,
) -> Result<Draft, Vec<Problem>> {
    let document = yaml::parse(file, text).map_err(|problem| vec![problem])?;
    let mut problems = Vec::new();
    let mut draft = Draft {
        source: "limitador".to_owned(),
        general: GENERAL.map(str::to_owned).to_vec(),
        ..Draft::default()
    };
    let limits = read::limits(file, &document.root, &mut draft.unsupported, &mut problems);
    let lines = limits.iter().map(|limit| limit.line).collect();
    let mut kept = KeptComments::new(document.comments, lines);
    draft.remark(kept.head());
    if let Err(problem) = convert::limits(&mut draft, &limits, entries, keep_windows, &mut kept) {
        problems.push(problem);
    }
    draft.remark(kept.rest());
    if problems.is_empty() {
        Ok(draft)
    } else {
        Err(problems)
    }
}
