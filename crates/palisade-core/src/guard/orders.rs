//! Blocks on a command's own keys: rules order them, and they are placed once all rules have run.

use crate::decision::{KeyKind, Level};
use crate::facts::Attempt;
use crate::rule::Rule;
use crate::time::retry_after_seconds;

use super::aggregate::Candidate;
use super::command::Command;
use super::evaluation::Trace;
use super::keys::interval;
use super::ladder::{Class, KeyState, Memory, Order};
use super::records::account::SoftIssue;
use super::rules::pending;

impl Command<'_> {
    pub(super) fn candidate(
        &self,
        key: KeyKind,
        class: Class,
        level: Level,
        rule: Rule,
    ) -> Candidate {
        Candidate {
            rule,
            key,
            outcome: class.outcome(),
            level: Some(level),
            retry_after: retry_after_seconds(self.policy.duration(level)),
        }
    }

    /// Orders a block on one of the command's own keys. Blocks are placed at the end, of several on
    /// one key only the strongest. False if the block that runs on the key stays.
    pub(super) fn order(
        &mut self,
        key: KeyKind,
        class: Class,
        level: Level,
        rule: Rule,
        memory: Memory,
    ) -> bool {
        if class == Class::Soft && self.frees_itself() {
            return false;
        }
        let stands = |state: &KeyState| !state.gives_way_to(class, level, self.now);
        if self.state(key).is_some_and(stands) {
            return false;
        }
        let issuer = self.issuer();
        let order = Order {
            class,
            level,
            rule,
            memory,
            issuer,
        };
        self.orders.push((key, order));
        // A block that does not bind this command is ordered all the same: it binds others.
        if self.is_bound(key, issuer) {
            let candidate = self.candidate(key, class, level, rule);
            self.trace.candidates.push(candidate);
        }
        true
    }

    /// Whether the command frees itself from SOFT blocks that it would cause: on a check, these
    /// yield to a passed challenge like running ones.
    fn frees_itself(&self) -> bool {
        self.attempt == Attempt::Check && self.signals.challenge_passed
    }

    /// Gives a SOFT answer that is not stored as a block.
    pub(super) fn soft_answer(&mut self, rule: Rule, level: Level) {
        let candidate = self.candidate(KeyKind::Account, Class::Soft, level, rule);
        self.trace.candidates.push(candidate);
        self.trace.issued.push(candidate);
        self.soft_issued = true;
    }

    /// Places the ordered blocks and returns everything that the rules produced.
    pub(super) fn finish(mut self) -> Trace {
        let orders = std::mem::take(&mut self.orders);
        // Of the blocks that one request causes on a key, only the highest is issued and
        // remembered: one step of the ladder per request.
        for key in [
            KeyKind::Account,
            KeyKind::AccountDevice,
            KeyKind::Device,
            KeyKind::Prefix,
            KeyKind::PrefixAgent,
        ] {
            let on_key = orders.iter().filter(|(ordered, _)| *ordered == key);
            // `max_by_key` returns the last of equal orders: reversed, the earliest rule's order
            // wins.
            let strongest = on_key.rev().max_by_key(|(_, o)| (o.class, o.level));
            if let Some((_, order)) = strongest {
                self.place(key, *order);
            }
        }
        self.trace.reservation = pending::reservation(&self);
        self.trace.soft_issue = self.soft_issued.then(|| SoftIssue {
            at: self.now,
            issuer: self.issuer(),
        });
        self.trace
    }

    fn place(&mut self, key: KeyKind, order: Order) {
        let (policy, now) = (self.policy, self.now);
        if let Some(state) = self.state_for_change(key) {
            state.place(policy, interval(policy, key), order, now);
        }
        let soft = order.class == Class::Soft;
        self.soft_issued |= soft && matches!(key, KeyKind::Account | KeyKind::AccountDevice);
        let candidate = self.candidate(key, order.class, order.level, order.rule);
        self.trace.issued.push(candidate);
    }
}
