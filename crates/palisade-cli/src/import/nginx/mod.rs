//! `palisade import nginx`: `limit_req_zone` and `limit_req`.

mod convert;
mod key;
mod lexer;
mod scope;
mod tree;

use std::path::Path;
use std::rc::Rc;

use palisade_server::failure::Failure;

use super::draft::Draft;
use super::problem::Problem;

/// Reads a file by its path.
pub(super) type ReadFile<'a> = dyn Fn(&Path) -> Result<(Rc<str>, String), Failure> + 'a;

const GENERAL: [&str; 3] = [
    "a zone of nginx belongs to one machine and is lost when it restarts; here the counters are \
     where `[store]` says",
    "nginx refuses with `limit_req_status` (503 unless set); here with 429, `Retry-After` and \
     the limit's headers",
    "an IPv6 client is its /64 here, in nginx each address",
];
/// Every request is charged to something: a path without a limit would be refused.
const SETTINGS: &str = "[policy]\ndefaults = false\n\n# What nginx does not limit is not limited \
    here: a request that no limit covers would be\n# refused.\n[[limit]]\nname = \
    \"not-limited\"\nby = []\nrate = \"4294967295/s\"\nalgorithm = \"token-bucket\"\naccuracy = \
    \"local\"\n";

/// Converts a configuration, with the files that it includes, to a draft.
pub(super) fn import(
    path: &Path,
    main: (Rc<str>, String),
    read: &ReadFile<'_>,
) -> Result<Draft, Vec<Problem>> {
    let mut problems = Vec::new();
    let directives = tree::read(path, main, read, &mut problems);
    let found = scope::find(&directives, &mut problems);
    let mut draft = Draft {
        source: "nginx".to_owned(),
        general: GENERAL.map(str::to_owned).to_vec(),
        settings: SETTINGS.to_owned(),
        ..Draft::default()
    };
    if let Err(problem) = convert::limits(&mut draft, &found) {
        problems.push(problem);
    }
    if problems.is_empty() {
        Ok(draft)
    } else {
        Err(problems)
    }
}
