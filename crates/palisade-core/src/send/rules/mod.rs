//! The rules of sends, one file each.

pub mod account;
pub mod destination;
pub mod ip;
pub mod pause;
pub mod range;

use crate::decision::{KeyKind, Outcome};
use crate::guard::Candidate;
use crate::rule::Rule;
use crate::send::policy::{HARD_LEVEL, SOFT_LEVEL};
use crate::time::{Micros, retry_after_seconds};

/// A HARD answer that ends after `wait_us`.
pub(super) fn hard(rule: Rule, key: KeyKind, wait_us: u64) -> Candidate {
    Candidate {
        rule,
        key,
        outcome: Outcome::HardBlock,
        level: Some(HARD_LEVEL),
        retry_after: retry_after_seconds(wait_us),
    }
}

/// A SOFT answer that ends after `wait_us`.
pub(super) fn soft(rule: Rule, key: KeyKind, wait_us: u64) -> Candidate {
    Candidate {
        outcome: Outcome::SoftBlock,
        level: Some(SOFT_LEVEL),
        ..hard(rule, key, wait_us)
    }
}

/// The time until one more fits, if `most` of these instants are within `window`; `None` if one
/// fits now. A figure of zero is switched off.
pub(super) fn wait(
    instants: impl DoubleEndedIterator<Item = Micros>,
    most: u32,
    window: u64,
    now: Micros,
) -> Option<u64> {
    let nth = usize::try_from(most).ok()?.checked_sub(1)?;
    let mut recent = instants.rev().filter(|at| now.since(*at) < window);
    // The newest `most` must become fewer: the oldest of them leaves first.
    let leaves = recent.nth(nth)?;
    Some(leaves.plus(window).since(now))
}
