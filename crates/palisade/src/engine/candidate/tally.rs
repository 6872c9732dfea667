//! Counts of the comparison of two policies, in bounded memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::key::{Keyring, Prefix};
use palisade_core::policy::PolicySet;
use palisade_core::time::Micros;
use palisade_store::StoreStats;
use parking_lot::Mutex;
use serde::Serialize;

use super::verdict::{Cause, Comparison};
use super::{CandidateSeen, Subject, shown};
use crate::observe::{log_digest, pseudonym};

/// Most limits and rules that are counted separately; the rest count as `other`.
const CAUSES_MAX: usize = 1000;
/// Number of differences that are kept; only the first ones are.
const FIRST_MAX: usize = 50;

/// Comparison of the candidate policy with the live one. Subjects are shown as digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CandidateReport {
    /// Start of the comparison, RFC 3339: when the candidate or the live policy was last replaced.
    pub since: String,
    /// Revision of the live policy.
    pub live_revision: u64,
    /// Revision of the file when the candidate was read.
    pub candidate_revision: u64,
    /// Number of decisions, by result.
    pub verdicts: ComparisonCounts,
    /// Counts by the limit or rule that refuses, those with most differences first.
    pub causes: Vec<CauseCounts>,
    /// The first decisions that differ.
    pub first: Vec<FirstDifference>,
    /// Buckets and records that the candidate holds.
    pub keys: u64,
    /// New keys that had to share a bucket because the bound was reached. A shared bucket refuses
    /// more than separate ones.
    pub overflowed: u64,
}

/// Number of decisions, by the result of the comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ComparisonCounts {
    /// Both allow, or both refuse for the same cause.
    pub agrees: u64,
    /// Allowed by the live policy, refused by the candidate.
    pub newly_denied: u64,
    /// Refused by the live policy, allowed by the candidate.
    pub newly_allowed: u64,
    /// Refused by both, but differently.
    pub otherwise: u64,
    /// Decided without the store, which says nothing about the policies.
    pub not_compared: u64,
}

impl ComparisonCounts {
    /// Decisions with this verdict.
    #[must_use]
    pub const fn of(&self, verdict: Comparison) -> u64 {
        match verdict {
            Comparison::Agrees => self.agrees,
            Comparison::NewlyDenied => self.newly_denied,
            Comparison::NewlyAllowed => self.newly_allowed,
            Comparison::Otherwise => self.otherwise,
            Comparison::NotCompared => self.not_compared,
        }
    }

    /// Decisions that the candidate would have made otherwise.
    #[must_use]
    pub const fn differ(&self) -> u64 {
        self.newly_denied + self.newly_allowed + self.otherwise
    }
}

/// Requests that one limit or rule refuses under each policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CauseCounts {
    /// Name of the limit, otherwise id of the rule.
    pub name: String,
    /// Refused under the live policy.
    pub live: u64,
    /// Refused under the candidate.
    pub candidate: u64,
    /// Refused under the candidate, allowed by the live policy.
    pub newly_denied: u64,
    /// Refused under the live policy, allowed by the candidate.
    pub newly_allowed: u64,
}

/// One of the first decisions that differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FirstDifference {
    /// Time of the decision, RFC 3339.
    pub at: String,
    /// Kind of difference.
    pub verdict: Comparison,
    /// Class of the request, command of the guard, or domain of the call of Envoy.
    pub asked: String,
    /// Digest of the subject's most personal identifier, as in the audit; otherwise of its address.
    /// Empty for a call of Envoy, because it is not known which of its entries names a person.
    pub subject: String,
    /// Outcome under the live policy.
    pub live: &'static str,
    /// Outcome under the candidate.
    pub candidate: &'static str,
    /// Limit or rule that refuses: in the candidate or, if the candidate newly allows, in the live
    /// policy.
    pub cause: String,
}

/// The counts of one comparison.
pub(super) struct Tally {
    verdicts: [AtomicU64; Comparison::ALL.len()],
    rows: Mutex<Rows>,
}

struct Rows {
    since: Micros,
    live_revision: u64,
    candidate_revision: u64,
    causes: BTreeMap<String, CauseCounts>,
    first: Vec<FirstDifference>,
}

impl Tally {
    pub(super) fn new(live_revision: u64, candidate: &PolicySet, now: Micros) -> Self {
        Self {
            verdicts: std::array::from_fn(|_| AtomicU64::new(0)),
            rows: Mutex::new(Rows {
                since: now,
                live_revision,
                candidate_revision: candidate.revision,
                causes: BTreeMap::new(),
                first: Vec::new(),
            }),
        }
    }

    /// Starts the comparison from zero, because one of the policies was replaced.
    pub(super) fn start_anew(&self, live_revision: u64, candidate: &PolicySet, now: Micros) {
        let mut rows = self.rows.lock();
        let fresh = Self::new(live_revision, candidate, now);
        *rows = fresh.rows.into_inner();
        for cell in &self.verdicts {
            cell.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a decision. If both policies allow, which is nearly always so, this is a single
    /// atomic addition.
    pub(super) fn count(&self, keyring: &Keyring, seen: &CandidateSeen<'_>) {
        if let Some(cell) = self.verdicts.get(seen.verdict as usize) {
            cell.fetch_add(1, Ordering::Relaxed);
        }
        let compared = seen.verdict != Comparison::NotCompared;
        let refused = !seen.live.is_allowed() || !seen.candidate.is_allowed();
        if compared && refused {
            self.rows.lock().count(keyring, seen);
        }
    }

    pub(super) fn report(&self, stats: &StoreStats) -> CandidateReport {
        let read = |verdict: Comparison| {
            let cell = self.verdicts.get(verdict as usize);
            cell.map_or(0, |cell| cell.load(Ordering::Relaxed))
        };
        let rows = self.rows.lock();
        let mut causes: Vec<CauseCounts> = rows.causes.values().cloned().collect();
        causes.sort_by_key(|row| std::cmp::Reverse(row.newly_denied + row.newly_allowed));
        CandidateReport {
            since: shown(rows.since),
            live_revision: rows.live_revision,
            candidate_revision: rows.candidate_revision,
            verdicts: ComparisonCounts {
                agrees: read(Comparison::Agrees),
                newly_denied: read(Comparison::NewlyDenied),
                newly_allowed: read(Comparison::NewlyAllowed),
                otherwise: read(Comparison::Otherwise),
                not_compared: read(Comparison::NotCompared),
            },
            causes,
            first: rows.first.clone(),
            keys: stats.tracked_keys,
            overflowed: stats.overflowed,
        }
    }
}

impl Rows {
    fn count(&mut self, keyring: &Keyring, seen: &CandidateSeen<'_>) {
        if !seen.live.is_allowed() {
            let row = self.row(&Cause::of(seen.live));
            row.live += 1;
            row.newly_allowed += u64::from(seen.verdict == Comparison::NewlyAllowed);
        }
        if !seen.candidate.is_allowed() {
            let row = self.row(&Cause::of(seen.candidate));
            row.candidate += 1;
            row.newly_denied += u64::from(seen.verdict == Comparison::NewlyDenied);
        }
        if seen.verdict.differs() && self.first.len() < FIRST_MAX {
            self.first.push(difference(keyring, seen));
        }
    }

    fn row(&mut self, cause: &Cause) -> &mut CauseCounts {
        let known = self.causes.contains_key(cause.name());
        let name = match known || self.causes.len() < CAUSES_MAX {
            true => cause.name(),
            false => "other",
        };
        let row = self.causes.entry(name.to_owned()).or_default();
        if row.name.is_empty() {
            name.clone_into(&mut row.name);
        }
        row
    }
}

fn difference(keyring: &Keyring, seen: &CandidateSeen<'_>) -> FirstDifference {
    let (asked, ip) = match seen.subject {
        Subject::Request(facts) => {
            let class = seen.live.class.as_deref().unwrap_or("none");
            // A caller may send any text as its class: only names from the policy are shown.
            let known = facts.class.is_none();
            let class = if known { class } else { "of the caller" };
            (class.to_owned(), facts.address())
        }
        Subject::Guard(op, facts) => (op.name().to_owned(), Some(facts.ip)),
        Subject::Descriptors(..) => {
            let domain = seen.live.class.as_deref().unwrap_or("none");
            (format!("rls {domain}"), None)
        }
    };
    let address = || Some(log_digest(keyring, "ip", Prefix::of(ip?).bytes()));
    let subject = pseudonym(keyring, seen.subject).or_else(address);
    FirstDifference {
        at: shown(seen.live.at),
        verdict: seen.verdict,
        asked,
        subject: subject.map(palisade_core::Digest::hex).unwrap_or_default(),
        live: seen.live.outcome.name(),
        candidate: seen.candidate.outcome.name(),
        cause: Cause::of(seen.refusing()).to_string(),
    }
}
