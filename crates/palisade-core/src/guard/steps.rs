//! The steps of one login or OTP command that look at its own keys: active blocks,
//! scores, thresholds, budget. The patterns are in `correlation`.

use crate::decision::{KeyKind, Level, Outcome};
use crate::facts::Confidence;
use crate::rule::Rule;
use crate::time::Micros;

use super::account::{Account, Kin, LastFailure};
use super::aggregate::Candidate;
use super::budget::Counted;
use super::device::Device;
use super::evaluate::{Attempt, Changed, Records, Scored};
use super::ladder::{Class, Issuer, KeyState, Memory, Order};
use super::network::Network;
use super::orders::interval;
use super::policy::{BudgetScope, Eligible, FlowPolicy, GuardPolicy};
use super::sets::count_recent;
use super::signals::{Fingerprint, Signals, Source};

/// What the steps found.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub(super) candidates: Vec<Candidate>,
    pub(super) scored: Vec<Scored>,
    pub(super) issued: Vec<Candidate>,
    pub(super) changed: Changed,
}

/// One command under way.
pub(super) struct Steps<'a> {
    pub(super) policy: &'a GuardPolicy,
    pub(super) flow: &'a FlowPolicy,
    pub(super) signals: &'a Signals,
    pub(super) now: Micros,
    pub(super) account: &'a mut Account,
    pub(super) network: &'a mut Network,
    pub(super) device: &'a mut Device,
    pub(super) fingerprint: Option<Fingerprint>,
    trusted: bool,
    pub(super) known: bool,
    pub(super) orders: Vec<(KeyKind, Order)>,
    /// A budget or recovery answer was given, or a SOFT block on K4 or K5 issued.
    pub(super) soft_issued: bool,
    pub(super) trace: Trace,
}

/// Which of a failure's keys got points.
#[derive(Clone, Copy, Default)]
struct Hits {
    account: bool,
    device: bool,
    agent: bool,
}

impl<'a> Steps<'a> {
    pub(super) fn new(
        policy: &'a GuardPolicy,
        flow: &'a FlowPolicy,
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
        let fingerprint = of_session.or(signals.fingerprint);
        let trusted = session.is_some() || signals.trusted;
        let remembered = fingerprint.is_some_and(|found| account.knows(policy, &found.digest, now));
        Self {
            policy,
            flow,
            signals,
            now,
            account,
            network: &mut records.network,
            device: &mut records.device,
            fingerprint,
            trusted,
            known: trusted || signals.known || remembered,
            orders: Vec::new(),
            soft_issued: false,
            trace: Trace::default(),
        }
    }

    /// The HARD block that ends the evaluation, if one binds this command.
    pub(super) fn active_hard(&self, attempt: Attempt) -> Option<Candidate> {
        let now = self.now;
        let found = |key, block: Option<&super::ladder::Block>| {
            block.map(|block| Candidate::running(key, block, now))
        };
        let lane = self.policy.owner_lane && self.trusted;
        let fingerprint = self.fingerprint.map(|found| found.digest);
        let device = fingerprint.and_then(|who| self.account.device(&who));
        let advisory = attempt == Attempt::Success || !self.network_binds();
        let account = self.account.key.hard(now);
        let blocks = [
            found(
                KeyKind::K4,
                account.filter(|block| !lane || block.issuer == Issuer::Familiar),
            ),
            found(KeyKind::K5, device.and_then(|device| device.key.hard(now))),
            found(
                KeyKind::K3,
                fingerprint.and_then(|who| self.network.visitor_block(&who, now)),
            ),
            found(
                KeyKind::Device,
                self.device_key().and_then(|key| key.hard(now)),
            ),
            found(KeyKind::K1, self.network.key.hard(now)).filter(|_| !advisory),
            found(
                KeyKind::K2,
                self.network
                    .agent(&self.signals.user_agent)
                    .and_then(|key| key.hard(now)),
            )
            .filter(|_| !advisory),
        ];
        let mut found = blocks.into_iter().flatten();
        if self.policy.on("G-ORDER") {
            found.next()
        } else {
            found.next_back()
        }
    }

    /// The memory of the fingerprint itself. The record is the one of the weaker
    /// fingerprint that comes with a session, and says nothing of the session's
    /// device, which is trusted and never observed.
    pub(super) fn device_key(&self) -> Option<&KeyState> {
        let found = self.fingerprint?;
        let told = self.signals.fingerprint?;
        (found.digest == told.digest).then_some(&self.device.key)
    }

    /// K1 and K2 never bind a trusted session device (G-ADVISORY).
    pub(super) fn network_binds(&self) -> bool {
        !self.trusted || !self.policy.on("G-ADVISORY")
    }

    pub(super) fn check(&mut self) {
        if let Some(block) = self.active_hard(Attempt::Check) {
            self.trace.candidates.push(block);
            return;
        }
        self.running_soft();
        self.observe();
        let answers = self.flow.budget.scope == BudgetScope::FailuresAndChecks;
        if answers && self.trace.candidates.is_empty() && !self.signals.challenge_passed {
            self.budget_answer();
        }
    }

    pub(super) fn failure(&mut self) {
        let block = self.active_hard(Attempt::Failure);
        let hits = self.score();
        let counted = self.count();
        self.trace.changed.account = true;
        if let Some(block) = block {
            self.trace.candidates.push(block);
            return;
        }
        self.thresholds(hits);
        self.running_soft();
        self.observe();
        if counted == Counted::Recovered {
            self.recovery_answer();
        }
        self.equilibrium();
        self.budget_answer();
    }

    /// A success under a HARD block, or that the lockout denies, changes nothing.
    pub(super) fn void(&mut self) {
        let block = self.active_hard(Attempt::Success);
        self.trace.candidates.extend(block);
    }

    /// The device becomes known; it and its account leave the sets.
    pub(super) fn success(&mut self) {
        let who = self.fingerprint.map(|found| found.digest);
        if let Some(found) = self.fingerprint {
            let proves = found.confidence >= Confidence::Medium;
            if proves
                && let Some(entry) = self.account.enter(&found.digest, Kin::Familiar, self.now)
            {
                entry.known = true;
                self.trace.changed.account = true;
            }
            self.trace.changed.account |= self.account.recent.remove(&found.digest);
            if self.device_key().is_some() {
                self.trace.changed.device |= self.device.leave(&self.signals.prefix);
            }
        }
        if let Some(account) = &self.signals.account {
            self.trace.changed.network |= self.network.leave(account, who.as_ref());
        }
        if !self.policy.on("G-OWNER") {
            self.budget_answer();
        }
    }

    /// Points of a failure; they are added whatever block is running.
    fn score(&mut self) -> Hits {
        let scores = &self.flow.scores;
        let mut hits = Hits::default();
        match self.fingerprint {
            None => {
                hits.agent = self.points(Rule::G_SCORE_MISSING, KeyKind::K2, scores.missing);
                if self.repeats_missing() {
                    let rule = Rule::G_SCORE_REPEAT_MISSING;
                    hits.account = self.points(rule, KeyKind::K4, scores.repeat_missing);
                }
            }
            Some(_) if self.known => {
                hits.device = self.points(Rule::G_SCORE_KNOWN, KeyKind::K5, scores.known);
            }
            Some(_) => {
                hits.account = self.points(Rule::G_SCORE_NEW, KeyKind::K4, scores.new);
            }
        }
        hits
    }

    fn repeats_missing(&self) -> bool {
        let window = self.flow.scores.repeat_missing_window;
        self.account
            .last_failure
            .is_some_and(|last| last.missing && self.now.since(last.at) <= window)
    }

    pub(super) fn points(&mut self, rule: Rule, key: KeyKind, points: u8) -> bool {
        if !self.policy.on(rule.id()) {
            return false;
        }
        let (policy, now) = (self.policy, self.now);
        let interval = interval(policy, key);
        let Some(state) = self.state_for_change(key) else {
            return false;
        };
        state.add(policy, interval, points, now);
        self.trace.scored.push(Scored { rule, key, points });
        true
    }

    /// Counts a failure for the marker, the micro-cap and the budget.
    fn count(&mut self) -> Counted {
        let eligible = self.is_eligible();
        self.account.last_failure = Some(LastFailure {
            at: self.now,
            missing: self.fingerprint.is_none(),
        });
        if !eligible {
            return Counted::Plain;
        }
        let budget = &self.flow.budget;
        let strong = self
            .fingerprint
            .is_some_and(|found| found.confidence == Confidence::High);
        let recovers =
            budget.recovery.is_some() && (strong || self.known) && self.policy.on("G-RECOVERY");
        self.account
            .budget
            .add(self.policy, budget, recovers, self.now)
    }

    /// Whether the budget counts this failure (G-BUDGET-ELIGIBLE).
    fn is_eligible(&mut self) -> bool {
        let budget = &self.flow.budget;
        let now = self.now;
        let familiar = self.fingerprint.filter(|_| self.known);
        let Some(found) = familiar else { return true };
        let beyond = self
            .account
            .enter(&found.digest, Kin::Familiar, now)
            .is_none_or(|entry| {
                let before = count_recent(&entry.failures, budget.epoch, now);
                entry.failures.push(now);
                before >= budget.micro_cap as usize
            });
        beyond || budget.eligible == Eligible::Every || !self.policy.on("G-BUDGET-ELIGIBLE")
    }

    /// G-THRESHOLD on the keys that just got points.
    fn thresholds(&mut self, hits: Hits) {
        if !self.policy.on("G-THRESHOLD") {
            return;
        }
        for (hit, key) in [(hits.account, KeyKind::K4), (hits.device, KeyKind::K5)] {
            let Some(state) = self.state(key).filter(|_| hit) else {
                continue;
            };
            if let Some((class, level)) = self.account_band(state, key) {
                self.order(key, class, level, Rule::G_THRESHOLD, Memory::Keep);
            }
        }
        if hits.agent
            && let Some(level) = self.agent_band()
        {
            self.order(
                KeyKind::K2,
                Class::Soft,
                level,
                Rule::G_THRESHOLD,
                Memory::Keep,
            );
        }
    }

    fn account_band(&self, state: &KeyState, key: KeyKind) -> Option<(Class, Level)> {
        let bands = &self.flow.thresholds;
        let score = state.score(self.policy, interval(self.policy, key), self.now);
        if score >= bands.severe {
            let level = match state.level(self.policy, self.now) {
                Some(level) if level >= Level::L3 => level.up(),
                _ => Level::L3,
            };
            Some((Class::Hard, level))
        } else if score >= bands.hard {
            Some((Class::Hard, Level::L2))
        } else if score >= bands.soft {
            Some((Class::Soft, Level::L1))
        } else {
            None
        }
    }

    fn agent_band(&self) -> Option<Level> {
        let bands = &self.flow.thresholds;
        let state = self.state(KeyKind::K2)?;
        let score = state.score(self.policy, interval(self.policy, KeyKind::K2), self.now);
        match score {
            score if score >= bands.severe => Some(Level::L3),
            score if score >= bands.hard => Some(Level::L2),
            score if score >= bands.soft => Some(Level::L1),
            _ => None,
        }
    }

    /// Running SOFT blocks that bind and were not just replaced.
    fn running_soft(&mut self) {
        if self.signals.challenge_passed {
            return;
        }
        let agent = self.fingerprint.is_none() && self.network_binds();
        for key in [KeyKind::K4, KeyKind::K5, KeyKind::K2] {
            let replaced = self.orders.iter().any(|(ordered, _)| *ordered == key);
            if replaced || (key == KeyKind::K2 && !agent) {
                continue;
            }
            let block = self.state(key).and_then(|state| state.soft(self.now));
            let running = block.map(|block| Candidate::running(key, block, self.now));
            self.trace.candidates.extend(running);
        }
    }

    fn equilibrium(&mut self) {
        let policy = &self.flow.equilibrium;
        let issued = count_recent(&self.account.soft_blocks, policy.window, self.now);
        if issued >= policy.soft_blocks as usize && self.policy.on("G-EQUILIBRIUM") {
            let rule = Rule::G_EQUILIBRIUM;
            self.order(KeyKind::K4, Class::Hard, policy.level, rule, Memory::Leave);
        }
    }

    fn recovery_answer(&mut self) {
        if let Some(level) = self.flow.budget.recovery {
            self.soft_answer(Rule::G_RECOVERY, level);
        }
    }

    /// The budget's answer: once per cooldown, and never beside a HARD candidate.
    fn budget_answer(&mut self) {
        let budget = &self.flow.budget;
        let hard = |candidate: &Candidate| candidate.outcome == Outcome::HardBlock;
        if !self.account.budget.may_answer(budget, self.now)
            || self.trace.candidates.iter().any(hard)
            || !self.policy.on("G-BUDGET")
        {
            return;
        }
        let level = if self.trusted {
            budget.level.down().max(budget.trusted_floor)
        } else {
            budget.level
        };
        self.soft_answer(Rule::G_BUDGET, level);
        self.account.budget.answer(self.now);
        self.trace.changed.account = true;
    }

    /// An answer that is not stored as a block.
    fn soft_answer(&mut self, rule: Rule, level: Level) {
        let candidate = self.candidate(KeyKind::K4, Class::Soft, level, rule);
        self.trace.candidates.push(candidate);
        self.trace.issued.push(candidate);
        self.soft_issued = true;
    }

    /// True if the command is one that the sets observe.
    pub(super) const fn is_observed(&self) -> bool {
        !self.known
    }
}
