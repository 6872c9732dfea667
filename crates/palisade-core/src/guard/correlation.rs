//! Patterns over several requests. Only devices that their account does not know
//! are observed.

use crate::decision::KeyKind;
use crate::facts::Confidence;
use crate::key::Rotating;
use crate::rule::Rule;

use super::account::Kin;
use super::ladder::{Class, Issuer, KeyState, Memory, Order};
use super::orders::interval;
use super::sets::{Reach, Sight, keep_recent};
use super::steps::Steps;
use crate::decision::Level;

/// How an unknown device arrived on its account.
struct Arrival {
    /// Members of the rotation's window before it.
    before: usize,
    /// Whether it is new in that window.
    sight: Sight,
    /// It was never seen before, as far as the record reaches.
    newcomer: bool,
}

impl Steps<'_> {
    pub(super) fn observe(&mut self) {
        if !self.is_observed() {
            return;
        }
        self.spray();
        if let Some(found) = self.fingerprint {
            let who = found.digest;
            let arrival = self.arrive(&who);
            self.rotation(&who, &arrival);
            self.churn(&who);
            self.dilution(found.confidence);
            self.flood(&arrival);
        }
    }

    /// G-SPRAY: many accounts from one prefix.
    fn spray(&mut self) {
        let (policy, now) = (&self.flow.correlation, self.now);
        let Some(account) = self.signals.account else {
            return;
        };
        self.trace.changed.network = true;
        let window = policy.spray.window;
        self.network
            .accounts
            .0
            .retain(|member| now.since(member.last) < window);
        if self.network.accounts.see(&account, window, now, now) == Sight::Again {
            return;
        }
        let metric = self.network.accounts.live(window, now);
        let watch = &mut self.network.spray_watch;
        let reach = Reach::of(
            metric,
            policy.spray.threshold,
            watch,
            policy.watch_window,
            now,
        );
        let score = self
            .network
            .key
            .score(self.policy, self.policy.decay.network, now);
        let base = if score >= self.flow.thresholds.spray_severe {
            policy.spray.level.max(Level::L3)
        } else {
            policy.spray.level
        };
        if self.hard(Rule::G_SPRAY, KeyKind::K1, base, reach) {
            let points = self.flow.scores.spray;
            self.points(Rule::G_SCORE_SPRAY, KeyKind::K1, points);
        }
    }

    /// Notes an unknown device on its account, with an entry unless there are too
    /// many new ones (G-EPHEMERAL).
    fn arrive(&mut self, who: &Rotating) -> Arrival {
        let (policy, now) = (&self.flow.correlation, self.now);
        self.trace.changed.account = true;
        self.account.prune_recent(self.flow, now);
        let newcomer = self.account.recent.get(who).is_none() && self.account.device(who).is_none();
        let window = policy.rotation.window;
        let before = self.account.recent.live(window, now);
        let long_ago = now.minus(policy.flood.window.max(policy.new_window));
        let first = if newcomer { now } else { long_ago };
        let sight = self.account.recent.see(who, window, first, now);
        let fits_prefix = self.network.visit(policy, who, now);
        let new = self.account.recent.recent(policy.new_window, now);
        let fits_account = new <= policy.new_per_account as usize;
        let exists = self.account.device(who).is_some();
        if exists || (fits_account && fits_prefix) || !self.policy.on("G-EPHEMERAL") {
            self.account.enter(who, Kin::Stranger, now);
        }
        Arrival {
            before,
            sight,
            newcomer,
        }
    }

    /// G-ROTATION: many devices on one account, and its repetition.
    fn rotation(&mut self, who: &Rotating, arrival: &Arrival) {
        let (policy, now) = (&self.flow.correlation, self.now);
        self.account.end_rotation_below(arrival.before);
        if arrival.sight == Sight::Again {
            return;
        }
        let metric = self.account.recent.live(policy.rotation.window, now);
        let watch = &mut self.account.rotation_watch;
        let threshold = policy.rotation.threshold;
        let reach = Reach::of(metric, threshold, watch, policy.watch_window, now);
        if !self.hard(Rule::G_ROTATION, KeyKind::K5, policy.rotation.level, reach) {
            return;
        }
        self.block_other_devices(who, policy.rotation.level);
        let counted = self.account.rotating > 0;
        self.account.rotating = u8::try_from(metric.min(threshold as usize)).unwrap_or(u8::MAX);
        if !counted {
            self.episode();
        }
    }

    /// The same block on every other device of the rotation.
    fn block_other_devices(&mut self, who: &Rotating, level: Level) {
        let (guard, now) = (self.policy, self.now);
        let window = self.flow.correlation.rotation.window;
        let members = &self.account.recent.0;
        let others = members
            .iter()
            .filter(|member| now.since(member.last) < window && !member.who.is(who));
        for member in others {
            let entry = self.account.devices.iter_mut().find(|d| d.is(member.who));
            let Some(device) = entry.filter(|d| !d.known) else {
                continue;
            };
            let level = device.key.climb(guard, level, now);
            if device.key.gives_way_to(Class::Hard, level, now) {
                let order = Order {
                    class: Class::Hard,
                    level,
                    rule: Rule::G_ROTATION,
                    memory: Memory::Keep,
                    issuer: Issuer::Stranger,
                };
                let interval = interval(guard, KeyKind::K5);
                device.key.place(guard, interval, order, now);
            }
        }
    }

    /// G-ROTATION-REPEAT: an episode counts once, until the metric has fallen.
    fn episode(&mut self) {
        let policy = &self.flow.correlation.rotation_repeat;
        self.account.episodes.push(self.now);
        let kept = policy.threshold as usize;
        keep_recent(&mut self.account.episodes, policy.window, kept, self.now);
        if self.account.episodes.len() >= kept && self.policy.on("G-ROTATION-REPEAT") {
            let rule = Rule::G_ROTATION_REPEAT;
            self.order(KeyKind::K4, Class::Hard, policy.level, rule, Memory::Leave);
        }
    }

    /// G-CHURN: a prefix and user agent that keep changing fingerprints.
    fn churn(&mut self, who: &Rotating) {
        let policy = &self.flow.correlation;
        let agent = self.network.enter_agent(&self.signals.user_agent, self.now);
        let reach = agent.see(policy, who, self.now);
        self.hard(Rule::G_CHURN, KeyKind::K2, policy.churn.level, reach);
    }

    /// G-DILUTION: one fingerprint on many prefixes.
    fn dilution(&mut self, confidence: Confidence) {
        let policy = &self.flow.correlation;
        let before = self.device.clone();
        let spread = self.device.see(policy, &self.signals.prefix, self.now);
        self.trace.changed.device |= before != *self.device;
        let level = policy.dilution.level;
        if confidence == Confidence::Low {
            self.hard(Rule::G_DILUTION, KeyKind::K2, level, spread.reach);
        } else if spread.confirmed {
            self.hard(Rule::G_DILUTION, KeyKind::Device, level, spread.reach);
        }
    }

    /// G-FLOOD: many devices first seen on one account.
    fn flood(&mut self, arrival: &Arrival) {
        let (policy, now) = (&self.flow.correlation, self.now);
        if !arrival.newcomer {
            return;
        }
        let metric = self.account.recent.recent(policy.flood.window, now);
        let threshold = policy.flood.threshold;
        let watch = &mut self.account.flood_watch;
        let reach = Reach::of(metric, threshold, watch, policy.watch_window, now);
        if metric > threshold as usize {
            self.hard(Rule::G_FLOOD, KeyKind::K5, policy.flood_device_level, reach);
        } else {
            self.issue(
                Rule::G_FLOOD,
                KeyKind::K4,
                Class::Soft,
                policy.flood.level,
                reach,
            );
        }
    }

    /// A HARD block by a pattern: at least one level above the remembered one.
    fn hard(&mut self, rule: Rule, key: KeyKind, level: Level, reach: Reach) -> bool {
        let climb = |state: &KeyState| state.climb(self.policy, level, self.now);
        let level = self.state(key).map_or(level, climb);
        self.issue(rule, key, Class::Hard, level, reach)
    }

    fn issue(
        &mut self,
        rule: Rule,
        key: KeyKind,
        class: Class,
        level: Level,
        reach: Reach,
    ) -> bool {
        let watched = reach == Reach::Watched;
        if reach == Reach::Below
            || !self.policy.on(rule.id())
            || (watched && !self.policy.on("G-WATCH"))
        {
            return false;
        }
        let ordered = self.order(key, class, level, rule, Memory::Keep);
        if ordered && watched {
            let candidate = self.candidate(key, class, level, Rule::G_WATCH);
            self.trace.candidates.push(candidate);
        }
        ordered
    }
}
