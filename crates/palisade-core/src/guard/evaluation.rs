//! The result of one command.

use crate::decision::{KeyKind, Outcome};
use crate::rule::Rule;
use crate::time::Micros;

use super::aggregate::{Answer, Candidate};
use super::evaluate::Policies;
use super::policy::FlowPolicy;
use super::records::Records;
use super::records::account::SoftIssue;
use super::records::pending::PendingAttempt;
use super::signals::Signals;

/// Records that must be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangedRecords {
    /// True if the account's record must be written.
    pub account: bool,
    /// True if the network's record must be written.
    pub network: bool,
    /// True if the device's record must be written.
    pub device: bool,
    /// True if the lockout's record must be written.
    pub lockout: bool,
}

impl ChangedRecords {
    /// True if anything must be written.
    #[must_use]
    pub const fn any(self) -> bool {
        self.account || self.network || self.device || self.lockout
    }
}

/// Points that a failure added; for explanations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddedPoints {
    /// The rule.
    pub rule: Rule,
    /// The key that got the points.
    pub key: KeyKind,
    /// Points that were added.
    pub points: u8,
}

/// Everything that the rules produced for one command.
#[derive(Debug, Default)]
pub struct Trace {
    pub(super) candidates: Vec<Candidate>,
    pub(super) scored: Vec<AddedPoints>,
    pub(super) issued: Vec<Candidate>,
    pub(super) changed: ChangedRecords,
    /// The pending attempt that a check reserves if the answer is ALLOW.
    pub(super) reservation: Option<PendingAttempt>,
    /// The issue that is remembered for G-EQUILIBRIUM if the answer is SOFT.
    pub(super) soft_issue: Option<SoftIssue>,
}

/// The result of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// The records after the command.
    pub records: Records,
    /// Records that must be written.
    pub changed: ChangedRecords,
    /// The answer.
    pub answer: Answer,
    /// Points that were added.
    pub scored: Vec<AddedPoints>,
    /// Blocks and answers that were issued now, for the audit.
    pub issued: Vec<Candidate>,
    /// True if the name has just been locked out; audited as `auth.lockout`.
    pub locked: bool,
    /// True if the answer is the one that the same request was given before (G-ONCE).
    pub replayed: bool,
}

impl Evaluation {
    /// The result of a repeated request: nothing changes.
    pub(super) const fn replayed(records: Records, answer: Answer) -> Self {
        Self {
            records,
            changed: ChangedRecords {
                account: false,
                network: false,
                device: false,
                lockout: false,
            },
            answer,
            scored: Vec::new(),
            issued: Vec::new(),
            locked: false,
            replayed: true,
        }
    }

    /// G-EQUILIBRIUM: counts a SOFT block as issued if it is the answer that the request got; not
    /// if the lockout's answer was stricter.
    pub(super) fn note_issue(&mut self, issue: Option<SoftIssue>) {
        if let Some(issue) = issue.filter(|_| self.answer.outcome == Outcome::SoftBlock) {
            self.records.account.soft_blocks.push(issue);
            self.changed.account = true;
        }
    }

    /// G-PENDING: notes an attempt that is let through as pending until its outcome is reported.
    pub(super) fn reserve(
        &mut self,
        attempt: Option<PendingAttempt>,
        flow: Option<&FlowPolicy>,
        signals: &Signals,
    ) {
        let allowed = self.answer.outcome == Outcome::Allow;
        let reserved = attempt.zip(signals.attempt_id).filter(|_| allowed);
        if let (Some((attempt, id)), Some(flow)) = (reserved, flow) {
            let pending = &mut self.records.account.pending;
            pending.open(&id, attempt, flow.pending_ttl);
            self.changed.account = true;
        }
    }

    /// Remembers the request (G-ONCE), and removes what has expired from the records.
    pub(super) fn close(
        &mut self,
        policies: Policies<'_>,
        flow: Option<&FlowPolicy>,
        signals: &Signals,
        now: Micros,
    ) {
        let guard = policies.guard;
        // A command that changes nothing need not be remembered: neither does its retry.
        let request = signals.request.as_ref().filter(|_| self.changed.any());
        if let Some(request) = request {
            self.records.account.once.note(request, &self.answer, now);
            self.changed.account = true;
        }
        if self.changed.lockout {
            self.records.lockout.prune(policies.lockout, now);
        }
        let Some(flow) = flow else { return };
        if self.changed.account {
            self.records.account.prune(guard, flow, now);
        }
        if self.changed.network {
            self.records.network.prune(guard, &flow.correlation, now);
        }
        if self.changed.device {
            self.records.device.prune(guard, &flow.correlation, now);
        }
    }
}
