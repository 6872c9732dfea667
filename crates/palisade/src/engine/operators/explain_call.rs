//! Explains, descriptor by descriptor, why a call of Envoy is or is not over its limits now.

use palisade_core::decision::Mode;
use palisade_core::facts::DescriptorFacts;
use palisade_core::rule::Rule;
use palisade_core::time::{SECOND, retry_after_seconds};
use serde::Serialize;

use super::super::Engine;
use super::super::limits::{DescriptorAnswer, DescriptorStatus, DescriptorVerdict};
use super::explain::{Explanation, Finding, of_reason};

/// State of one descriptor's bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CalledBucket {
    /// Position of the descriptor in the call, from 1.
    pub descriptor: usize,
    /// Name of the limit.
    pub name: String,
    /// Hits used.
    pub used: u64,
    /// Size of the limit, in hits.
    pub limit: u64,
    /// Hits left.
    pub remaining: u64,
    /// Whole seconds until the whole limit is available again.
    pub reset: u64,
}

impl Engine {
    /// Explains what a call with these facts would meet. Nothing is counted.
    pub async fn explain_call(&self, facts: &DescriptorFacts<'_>) -> Explanation {
        let answer = self.see_descriptors(facts).await;
        let mode = answer.decision.mode;
        let mut findings: Vec<Finding> = answer
            .statuses
            .iter()
            .enumerate()
            .map(|(index, status)| of_status(index + 1, status, mode))
            .collect();
        findings.extend(of_the_whole(&answer));
        Explanation::of(findings)
    }
}

/// Findings that belong to no single descriptor: the store is unavailable, or a cap of an outage is
/// reached.
fn of_the_whole(answer: &DescriptorAnswer) -> impl Iterator<Item = Finding> {
    const OF_STATUSES: [Rule; 3] = [Rule::R_DOMAIN, Rule::R_ZERO, Rule::L_COST];
    let reasons = answer.decision.reasons.iter();
    let others = reasons.filter(|reason| !OF_STATUSES.contains(&reason.rule));
    others.map(of_reason)
}

fn of_status(number: usize, status: &DescriptorStatus, mode: Mode) -> Finding {
    let which = format!("descriptor {number}");
    let Some(name) = &status.limit else {
        return Finding::harmless(format!("{which}: no limit counts it"));
    };
    let Some(figure) = status.figure else {
        return Finding::harmless(format!("{which}: `{name}` admits everything"));
    };
    let limit = figure.amount;
    let Some(bucket) = bucket(number, name, limit, status) else {
        return unread(&which, name, limit, status, mode);
    };
    let stands = match status.remaining {
        0 => format!("`{name}` is used up, {} of {limit}", bucket.used),
        left => format!("`{name}` has {left} of {limit} left"),
    };
    let again = again(&bucket);
    let mut finding = match status.verdict {
        DescriptorVerdict::Denied if limit == 0 => {
            denied(Rule::R_ZERO, &format!("{which}, `{name}`"), status)
        }
        DescriptorVerdict::Denied => {
            denied(Rule::R_DOMAIN, &format!("{which}, {stands}{again}"), status)
        }
        DescriptorVerdict::WouldDeny => {
            Finding::harmless(format!("{which}: {stands}, and only reports{again}"))
        }
        DescriptorVerdict::Admitted | DescriptorVerdict::NotRefunded => {
            Finding::harmless(format!("{which}: {stands}{again}"))
        }
    };
    finding.bucket = Some(bucket);
    finding
}

/// A finding about a bucket that was not read, because the hits exceed the whole limit or because
/// the store is unavailable.
fn unread(which: &str, name: &str, limit: u64, status: &DescriptorStatus, mode: Mode) -> Finding {
    if status.verdict == DescriptorVerdict::Denied && mode == Mode::Normal {
        let words = format!("{which} asks for more hits than `{name}` ever admits, {limit}");
        return denied(Rule::L_COST, &words, status);
    }
    Finding::harmless(format!(
        "{which}: `{name}` allows {limit}; what is used is not known now"
    ))
}

fn denied(rule: Rule, words: &str, status: &DescriptorStatus) -> Finding {
    Finding::denial(rule, words, status.retry_us.map(retry_after_seconds))
}

fn bucket(
    descriptor: usize,
    name: &str,
    limit: u64,
    status: &DescriptorStatus,
) -> Option<CalledBucket> {
    Some(CalledBucket {
        descriptor,
        name: name.to_owned(),
        used: status.used?,
        limit,
        remaining: status.remaining,
        reset: status.reset_us?.div_ceil(SECOND),
    })
}

/// Tells in words when the whole limit is free again; empty for an unused bucket.
fn again(bucket: &CalledBucket) -> String {
    match bucket.used {
        0 => String::new(),
        _ => format!("; all of it is free again in {} s", bucket.reset),
    }
}
