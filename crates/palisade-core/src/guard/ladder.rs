//! State of one key: its running block, its score and the level it has reached (G-LADDER).

use crate::decision::{Level, Outcome};
use crate::rule::Rule;
use crate::time::Micros;

use super::policy::GuardPolicy;

/// Strength of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Yields to a passed challenge.
    Soft,
    /// Holds until it ends.
    Hard,
}

impl Class {
    /// The decision it leads to.
    #[must_use]
    pub const fn outcome(self) -> Outcome {
        match self {
            Self::Soft => Outcome::SoftBlock,
            Self::Hard => Outcome::HardBlock,
        }
    }
}

/// The kind of device whose request led to a block; read by the owner's lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issuer {
    /// A device that the account knows.
    Familiar,
    /// Any other device.
    Stranger,
}

/// Whether a HARD block is remembered as the key's level. A block that must not climb the ladder is
/// not remembered; it pauses decay like any other (G-DECAY).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The block's level is remembered.
    Keep,
    /// The remembered level stays as it was.
    Leave,
}

/// A timed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// SOFT or HARD.
    pub class: Class,
    /// Level of the block.
    pub level: Level,
    /// The rule that issued it.
    pub rule: Rule,
    /// When the block ends.
    pub until: Micros,
    /// Issuer of the block.
    pub issuer: Issuer,
}

/// A block to be placed on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// SOFT or HARD.
    pub class: Class,
    /// Level of the block.
    pub level: Level,
    /// The rule that asks for it.
    pub rule: Rule,
    /// Whether the level is remembered.
    pub memory: Memory,
    /// Issuer of the block.
    pub issuer: Issuer,
}

/// The level of the last remembered HARD block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RememberedBlock {
    /// Level of that block.
    pub level: Level,
    /// The end of that block: quiet intervals count from here.
    pub since: Micros,
}

/// State of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// Points, as of `anchor`.
    pub(super) score: u8,
    /// Start of the decay interval under way.
    pub(super) anchor: Micros,
    /// True if the interval under way is twice as long as usual.
    pub(super) slow: bool,
    /// Decay pauses until this instant.
    pub(super) paused_until: Micros,
    /// Level of the last remembered HARD block.
    pub(super) remembered: Option<RememberedBlock>,
    /// The block on the key, running or over.
    pub(super) block: Option<Block>,
    /// Start of the last HARD block.
    pub(super) last_hard: Option<Micros>,
}

impl KeyState {
    /// The state of a key without history.
    pub(super) const BLANK: Self = Self {
        score: 0,
        anchor: Micros(0),
        slow: false,
        paused_until: Micros(0),
        remembered: None,
        block: None,
        last_hard: None,
    };

    /// The block that binds now.
    #[must_use]
    pub fn running(&self, now: Micros) -> Option<&Block> {
        self.block.as_ref().filter(|block| block.until > now)
    }

    /// The HARD block that binds now.
    #[must_use]
    pub fn hard(&self, now: Micros) -> Option<&Block> {
        self.running(now).filter(|block| block.class == Class::Hard)
    }

    /// The SOFT block that binds now.
    #[must_use]
    pub fn soft(&self, now: Micros) -> Option<&Block> {
        self.running(now).filter(|block| block.class == Class::Soft)
    }

    /// The remembered level at `at`: one less after each quiet interval.
    #[must_use]
    pub fn level(&self, policy: &GuardPolicy, at: Micros) -> Option<Level> {
        let RememberedBlock { level, since } = self.remembered?;
        let mut number = level.number();
        let mut drops_at = since;
        while number > 0 {
            drops_at = drops_at.plus(policy.ladder.forget << (number - 1));
            if at < drops_at {
                break;
            }
            number -= 1;
        }
        Level::from_number(number)
    }

    /// When the remembered level is wholly forgotten.
    pub(super) fn forgotten_at(&self, policy: &GuardPolicy) -> Micros {
        self.remembered.map_or(Micros(0), |kept| {
            // Ln takes 2^(n-1) quiet intervals, and then the levels below it: 2^n - 1 in all.
            let intervals = (1_u64 << kept.level.number()) - 1;
            kept.since
                .plus(policy.ladder.forget.saturating_mul(intervals))
        })
    }

    /// The level of a correlation's block: at least one above the remembered one.
    #[must_use]
    pub fn climb(&self, policy: &GuardPolicy, rule: Level, now: Micros) -> Level {
        self.level(policy, now)
            .map_or(rule, |level| rule.max(level.up()))
    }

    /// True if a block of this strength would replace what runs now.
    #[must_use]
    pub fn gives_way_to(&self, class: Class, level: Level, now: Micros) -> bool {
        match self.running(now) {
            None => true,
            // A running HARD block is never replaced: its end was already announced.
            Some(block) if block.class == Class::Hard => false,
            Some(block) => class == Class::Hard || level > block.level,
        }
    }

    /// Starts the block. `interval` is the key's decay interval.
    pub(super) fn place(&mut self, policy: &GuardPolicy, interval: u64, order: Order, now: Micros) {
        let until = now.plus(policy.duration(order.level));
        if order.class == Class::Hard {
            self.settle(policy, interval, now);
            self.note_hard_block(policy, now);
            if order.memory == Memory::Keep {
                self.remembered = Some(RememberedBlock {
                    level: order.level,
                    since: until,
                });
            }
        }
        self.block = Some(Block {
            class: order.class,
            level: order.level,
            rule: order.rule,
            until,
            issuer: order.issuer,
        });
    }

    /// Ends the running block at once; the score and the remembered level are kept.
    pub(super) fn lift(&mut self, now: Micros) -> bool {
        let lifted = self.running(now).is_some();
        self.block = None;
        lifted
    }

    /// Drops state that no rule can see any more.
    pub(super) fn prune(&mut self, policy: &GuardPolicy, interval: u64, now: Micros) {
        self.settle(policy, interval, now);
        if self.running(now).is_none() {
            self.block = None;
        }
        if self.forgotten_at(policy) <= now {
            self.remembered = None;
        }
        if self
            .last_hard
            .is_some_and(|at| now.since(at) >= policy.decay.pause_window)
        {
            self.last_hard = None;
        }
        if self.paused_until <= now {
            self.paused_until = Micros(0);
        }
    }

    /// True if nothing is remembered.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        *self == Self::BLANK
    }

    /// Instant from which nothing in the state matters any more.
    pub(super) fn expires_at(&self, policy: &GuardPolicy, interval: u64) -> Micros {
        let block = self.block.map_or(Micros(0), |block| block.until);
        let pause = self
            .last_hard
            .map_or(Micros(0), |at| at.plus(policy.decay.pause_window));
        self.score_gone_at(interval)
            .max(block)
            .max(pause)
            .max(self.paused_until)
            .max(self.forgotten_at(policy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{MINUTE, SECOND};

    const TEN: u64 = 10 * MINUTE;

    fn order(class: Class, level: Level) -> Order {
        Order {
            class,
            level,
            rule: Rule::G_THRESHOLD,
            memory: Memory::Keep,
            issuer: Issuer::Stranger,
        }
    }

    #[test]
    fn g_ladder_a_remembered_level_drops_by_one_per_quiet_interval() {
        let policy = GuardPolicy::default();
        let mut key = KeyState::default();
        key.place(&policy, TEN, order(Class::Hard, Level::L3), Micros(0));
        let end = 5 * MINUTE;
        let at = |us| key.level(&policy, Micros(us));
        assert_eq!(at(end + 40 * MINUTE - 1), Some(Level::L3));
        assert_eq!(at(end + 40 * MINUTE), Some(Level::L2));
        assert_eq!(at(end + 60 * MINUTE), Some(Level::L1));
        assert_eq!(at(end + 70 * MINUTE), None);
        assert_eq!(key.forgotten_at(&policy), Micros(end + 70 * MINUTE));
    }

    #[test]
    fn g_threshold_a_running_hard_block_stands_and_a_soft_one_gives_way_upwards() {
        let policy = GuardPolicy::default();
        let mut key = KeyState::default();
        key.place(&policy, TEN, order(Class::Soft, Level::L2), Micros(0));
        let now = Micros(SECOND);
        assert!(!key.gives_way_to(Class::Soft, Level::L2, now));
        assert!(key.gives_way_to(Class::Soft, Level::L3, now));
        assert!(key.gives_way_to(Class::Hard, Level::L1, now));
        key.place(&policy, TEN, order(Class::Hard, Level::L2), now);
        assert!(!key.gives_way_to(Class::Hard, Level::L6, now));
        assert!(key.gives_way_to(Class::Soft, Level::L1, now.plus(MINUTE)));
    }

    #[test]
    fn g_ladder_soft_blocks_and_exempt_rules_leave_the_level_alone() {
        let policy = GuardPolicy::default();
        let mut key = KeyState::default();
        key.place(&policy, TEN, order(Class::Soft, Level::L3), Micros(0));
        assert_eq!(key.level(&policy, Micros(0)), None);
        let exempt = Order {
            memory: Memory::Leave,
            ..order(Class::Hard, Level::L4)
        };
        key.place(&policy, TEN, exempt, Micros(0));
        assert_eq!(key.level(&policy, Micros(0)), None);
        assert_eq!(key.climb(&policy, Level::L2, Micros(0)), Level::L2);
    }

    crate::scenarios::scenarios! {
        #[test]
        fn g_ladder_gives_each_level_its_time() proves "G-LADDER" {"
            0 x2/1s fail d=d1          => *
            16s    check d=d1          => allow
            20s    fail d=d1           => hard L2 60s
            79s    check d=d1          => hard L2 1s
            80s    check d=d1          => allow
            81s    fail d=d1           => hard L3 300s
        "}
    }
}
