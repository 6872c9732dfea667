//! Blocks on a command's own keys: asked for by rules, placed at the end.

use crate::decision::{KeyKind, Level, Outcome};
use crate::rule::Rule;
use crate::time::retry_after_seconds;

use super::account::Kin;
use super::aggregate::Candidate;
use super::evaluate::aggregate;
use super::ladder::{Class, Issuer, KeyState, Memory, Order};
use super::policy::GuardPolicy;
use super::steps::{Steps, Trace};

impl Steps<'_> {
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

    /// Asks for a block on one of the command's own keys. It is placed at the end:
    /// of several on one key the strongest. False if what runs there stands.
    pub(super) fn order(
        &mut self,
        key: KeyKind,
        class: Class,
        level: Level,
        rule: Rule,
        memory: Memory,
    ) -> bool {
        let stands = |state: &KeyState| !state.gives_way_to(class, level, self.now);
        if self.state(key).is_some_and(stands) {
            return false;
        }
        let issuer = if self.known {
            Issuer::Familiar
        } else {
            Issuer::Stranger
        };
        let order = Order {
            class,
            level,
            rule,
            memory,
            issuer,
        };
        self.orders.push((key, order));
        let binds = !matches!(key, KeyKind::K1 | KeyKind::K2) || self.network_binds();
        if binds {
            let candidate = self.candidate(key, class, level, rule);
            self.trace.candidates.push(candidate);
        }
        true
    }

    /// Places the orders and notes whether a SOFT block was issued.
    pub(super) fn finish(mut self) -> Trace {
        let orders = std::mem::take(&mut self.orders);
        for key in [
            KeyKind::K4,
            KeyKind::K5,
            KeyKind::Device,
            KeyKind::K1,
            KeyKind::K2,
        ] {
            let on_key = orders.iter().filter(|(ordered, _)| *ordered == key);
            let strongest = on_key.rev().max_by_key(|(_, o)| (o.class, o.level));
            if let Some((_, order)) = strongest {
                self.place(key, *order);
            }
        }
        let answer = aggregate(self.policy, self.trace.candidates.clone());
        if self.soft_issued && answer.outcome == Outcome::SoftBlock {
            self.account.soft_blocks.push(self.now);
            self.trace.changed.account = true;
        }
        self.trace
    }

    fn place(&mut self, key: KeyKind, order: Order) {
        let (policy, now) = (self.policy, self.now);
        let interval = interval(policy, key);
        if let Some(state) = self.state_for_change(key) {
            state.place(policy, interval, order, now);
        }
        let soft = order.class == Class::Soft;
        self.soft_issued |= soft && matches!(key, KeyKind::K4 | KeyKind::K5);
        let candidate = self.candidate(key, order.class, order.level, order.rule);
        self.trace.issued.push(candidate);
    }

    /// The memory of one of the command's own keys.
    pub(super) fn state(&self, key: KeyKind) -> Option<&KeyState> {
        match key {
            KeyKind::K1 => Some(&self.network.key),
            KeyKind::K2 => self.network.agent(&self.signals.user_agent),
            KeyKind::K4 => Some(&self.account.key),
            KeyKind::K5 => {
                let found = self.fingerprint?;
                Some(&self.account.device(&found.digest)?.key)
            }
            KeyKind::Device => self.device_key(),
            KeyKind::K3 | KeyKind::Lockout => None,
        }
    }

    /// The same, to be changed; K2's and a familiar K5's entry is made if need be.
    pub(super) fn state_for_change(&mut self, key: KeyKind) -> Option<&mut KeyState> {
        match key {
            KeyKind::K1 => {
                self.trace.changed.network = true;
                Some(&mut self.network.key)
            }
            KeyKind::K2 => {
                self.trace.changed.network = true;
                let agent = &self.signals.user_agent;
                Some(&mut self.network.enter_agent(agent, self.now).key)
            }
            KeyKind::K4 => {
                self.trace.changed.account = true;
                Some(&mut self.account.key)
            }
            KeyKind::K5 => {
                self.trace.changed.account = true;
                let who = self.fingerprint?.digest;
                let exists = self.account.device(&who).is_some();
                let kin = if self.known {
                    Kin::Familiar
                } else {
                    Kin::Stranger
                };
                if !self.known && !exists {
                    return None;
                }
                Some(&mut self.account.enter(&who, kin, self.now)?.key)
            }
            KeyKind::Device => {
                self.trace.changed.device = true;
                Some(&mut self.device.key)
            }
            KeyKind::K3 | KeyKind::Lockout => None,
        }
    }
}

/// The decay interval of a key.
pub(super) const fn interval(policy: &GuardPolicy, key: KeyKind) -> u64 {
    match key {
        KeyKind::K1 | KeyKind::K2 => policy.decay.network,
        KeyKind::K3 | KeyKind::K5 | KeyKind::Device => policy.decay.device,
        KeyKind::K4 | KeyKind::Lockout => policy.decay.account,
    }
}
