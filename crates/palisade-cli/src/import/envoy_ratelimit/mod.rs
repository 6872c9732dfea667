//! `palisade import envoy-ratelimit`: the YAML of envoyproxy/ratelimit.

mod circles;
mod convert;
mod overshadowed;
mod read;

use std::rc::Rc;

use super::draft::Draft;
use super::kept::KeptComments;
use super::names::Names;
use super::problem::Problem;
use super::yaml;
use convert::Converter;

/// Differences that concern every limit, with sliding and with fixed windows.
const GENERAL: [&str; 4] = [
    "the original counts what it denies too; here a denied call costs the descriptors that \
     deny it nothing, which shows where a call takes more than one hit",
    "if Redis is away the original answers with an error and Envoy's `failure_mode_deny` \
     decides; here `failure` of each limit decides",
    "the original joins key and value with `_`, so that the key `a_b` also matches the key `a` \
     with the value `b`; here keys and values are told apart",
    "the original takes negative hits off the window that is current, whoever's hits they were; \
     here they change nothing unless `[rls] refunds = true`",
];
const SLIDING: &str = "the original charges all descriptors of a call though one denies; here a \
    denied call charges none (`[rls] count_denied = true` charges those that admit)";

/// Converts files that form one configuration to a draft.
pub(super) fn import(
    files: &[(Rc<str>, String)],
    keep_windows: bool,
) -> Result<Draft, Vec<Problem>> {
    let mut draft = Draft {
        source: "envoyproxy/ratelimit".to_owned(),
        general: GENERAL.map(str::to_owned).to_vec(),
        settings: settings(keep_windows),
        ..Draft::default()
    };
    if !keep_windows {
        draft.general.push(SLIDING.to_owned());
    }
    let mut problems = Vec::new();
    let mut domains = Vec::new();
    for (file, text) in files {
        match yaml::parse(file, text) {
            Ok(document) => {
                let read = read::domain(file, &document.root, &mut problems);
                domains.extend(read.map(|domain| (domain, document.comments)));
            }
            Err(problem) => problems.push(problem),
        }
    }
    let mut names = Names::default();
    let mut converter = Converter::new(&mut draft, &mut names, keep_windows);
    for (domain, comments) in domains {
        let kept = KeptComments::new(comments, domain.lines());
        if let Err(problem) = converter.domain(&domain, kept) {
            problems.push(problem);
        }
    }
    converter.finish();
    circles::open(&mut draft);
    if problems.is_empty() {
        Ok(draft)
    } else {
        Err(problems)
    }
}

fn settings(keep_windows: bool) -> String {
    let mut text = String::new();
    if keep_windows {
        text.push_str("[rls]\n# as the original: what admits is charged though another denies\n");
        text.push_str("count_denied = true\n");
    }
    text
}
