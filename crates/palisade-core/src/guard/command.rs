//! One command in progress: its records, its device, and what the rules have found so far.

use crate::decision::KeyKind;
use crate::facts::{Attempt, Confidence};
use crate::rule::Rule;
use crate::time::Micros;

use super::evaluate::{Rules, Step};
use super::evaluation::{AddedPoints, Trace};
use super::keys::interval;
use super::ladder::{Issuer, KeyState, Order};
use super::policy::{FlowPolicy, GuardPolicy};
use super::records::account::Kin;
use super::records::budget::BudgetEffect;
use super::records::{Account, Device, Network, Records};
use super::rules::ephemeral::Arrival;
use super::signals::{Fingerprint, Signals, Source};

/// One login or OTP command in progress.
#[derive(Debug)]
pub struct Command<'a> {
    pub(super) rules: &'a Rules,
    pub(super) policy: &'a GuardPolicy,
    pub(super) flow: &'a FlowPolicy,
    pub(super) attempt: Attempt,
    pub(super) signals: &'a Signals,
    pub(super) now: Micros,
    pub(super) account: &'a mut Account,
    pub(super) network: &'a mut Network,
    pub(super) device: &'a mut Device,
    /// The device, if it can be identified.
    pub(super) fingerprint: Option<Fingerprint>,
    /// True if the command comes with a session of this account, issued by us or asserted by the
    /// host.
    pub(super) trusted: bool,
    /// True if the account knows the device.
    pub(super) known: bool,
    /// True if the lockout denies a check, whatever the guard says.
    pub(super) locked_out: bool,
    /// Keys that a score rule has just given points to.
    pub(super) hits: Vec<KeyKind>,
    /// Effect of the failure on the day's budget.
    pub(super) counted: BudgetEffect,
    /// The device's arrival on its account, if it was observed.
    pub(super) arrival: Option<Arrival>,
    /// True if this command found a rotation of devices that had not been counted yet.
    pub(super) episode: bool,
    /// True once a rule has answered for all that follow: no later rule is applied.
    pub(super) ended: bool,
    pub(super) orders: Vec<(KeyKind, Order)>,
    /// True if a budget or recovery answer was given, or a SOFT block on K4 or K5 issued.
    pub(super) soft_issued: bool,
    pub(super) trace: Trace,
}

impl<'a> Command<'a> {
    pub(super) fn new(
        rules: &'a Rules,
        policy: &'a GuardPolicy,
        flow: &'a FlowPolicy,
        attempt: Attempt,
        signals: &'a Signals,
        records: &'a mut Records,
        now: Micros,
    ) -> Self {
        let account = &mut records.account;
        let session = signals
            .session
            .filter(|session| account.has_session(policy, &session.bound, now));
        let of_session = session.map(|session| Fingerprint {
            digest: session.device,
            confidence: Confidence::High,
            source: Source::Session,
        });
        // A session of this account says more about the device than any other id that came along.
        let fingerprint = of_session.or(signals.fingerprint);
        let trusted = session.is_some() || signals.trusted;
        let remembered = fingerprint.is_some_and(|found| account.knows(policy, &found.digest, now));
        Self {
            rules,
            policy,
            flow,
            attempt,
            signals,
            now,
            account,
            network: &mut records.network,
            device: &mut records.device,
            fingerprint,
            trusted,
            known: trusted || signals.known || remembered,
            locked_out: false,
            hits: Vec::new(),
            counted: BudgetEffect::Plain,
            arrival: None,
            episode: false,
            ended: false,
            orders: Vec::new(),
            soft_issued: false,
            trace: Trace::default(),
        }
    }

    /// Applies rules in their order, until one of them ends the evaluation.
    pub(super) fn apply(&mut self, steps: &[Step]) {
        for (_, step) in steps {
            if self.ended {
                return;
            }
            step(self);
        }
    }

    /// True unless a rule frees this command from the block.
    pub(super) fn is_bound(&self, key: KeyKind, issuer: Issuer) -> bool {
        let mut exemptions = self.rules.exemptions.iter();
        !exemptions.any(|(_, frees)| frees(self, key, issuer))
    }

    /// True if the correlation sets observe the command: only devices that their account does not
    /// know are observed.
    pub(super) const fn is_observed(&self) -> bool {
        !self.known
    }

    /// Whether blocks that this command leads to are issued by a familiar device or by a stranger.
    pub(super) const fn issuer(&self) -> Issuer {
        if self.known {
            Issuer::Familiar
        } else {
            Issuer::Stranger
        }
    }

    /// Adds a failure's points to one of its keys; false if the command has no such key.
    pub(super) fn points(&mut self, rule: Rule, key: KeyKind, points: u8) -> bool {
        let (policy, now) = (self.policy, self.now);
        let Some(state) = self.state_for_change(key) else {
            return false;
        };
        state.add(policy, interval(policy, key), points, now);
        self.trace.scored.push(AddedPoints { rule, key, points });
        true
    }

    /// The score of one of the command's own keys.
    pub(super) fn score(&self, key: KeyKind) -> u8 {
        let interval = interval(self.policy, key);
        self.state(key)
            .map_or(0, |state| state.score(self.policy, interval, self.now))
    }

    /// The state of the fingerprint itself; `None` if the command's device is another one. With a
    /// session, the record belongs to the weaker fingerprint that came along. It says nothing about
    /// the session's device, which is trusted and never observed.
    pub(super) fn device_key(&self) -> Option<&KeyState> {
        let found = self.fingerprint?;
        let told = self.signals.fingerprint?;
        (found.digest == told.digest).then_some(&self.device.key)
    }

    /// The state of one of the command's own keys.
    pub(super) fn state(&self, key: KeyKind) -> Option<&KeyState> {
        match key {
            KeyKind::Prefix => Some(&self.network.key),
            KeyKind::PrefixAgent => self.network.agent(&self.signals.user_agent),
            KeyKind::Account => Some(&self.account.key),
            KeyKind::AccountDevice => {
                let found = self.fingerprint?;
                Some(&self.account.device(&found.digest)?.key)
            }
            KeyKind::Device => self.device_key(),
            KeyKind::PrefixDevice | KeyKind::Lockout | KeyKind::Destination | KeyKind::Range => {
                None
            }
        }
    }

    /// Returns the state of one of the command's own keys, to be changed. Creates the entry of the
    /// user agent or of a familiar device if need be, but not that of a stranger: only `ephemeral`
    /// gives it a place.
    pub(super) fn state_for_change(&mut self, key: KeyKind) -> Option<&mut KeyState> {
        match key {
            KeyKind::Prefix => {
                self.trace.changed.network = true;
                Some(&mut self.network.key)
            }
            KeyKind::PrefixAgent => {
                self.trace.changed.network = true;
                let agent = &self.signals.user_agent;
                Some(&mut self.network.enter_agent(agent, self.now).key)
            }
            KeyKind::Account => {
                self.trace.changed.account = true;
                Some(&mut self.account.key)
            }
            KeyKind::AccountDevice => self.device_entry_for_change(),
            KeyKind::Device => {
                self.trace.changed.device = true;
                Some(&mut self.device.key)
            }
            KeyKind::PrefixDevice | KeyKind::Lockout | KeyKind::Destination | KeyKind::Range => {
                None
            }
        }
    }

    fn device_entry_for_change(&mut self) -> Option<&mut KeyState> {
        self.trace.changed.account = true;
        let who = self.fingerprint?.digest;
        let kin = match self.known {
            true => Kin::Familiar,
            false => Kin::Stranger,
        };
        // Only G-EPHEMERAL gives strangers a place: their failures must not.
        if !self.known && self.account.device(&who).is_none() {
            return None;
        }
        Some(&mut self.account.enter(&who, kin, self.now)?.key)
    }
}
