//! Scores that fall with time, computed lazily from an anchor (G-DECAY).

use crate::time::Micros;

use super::ladder::KeyState;
use super::policy::{GuardPolicy, SCORE_MAX};

impl KeyState {
    /// The score at `now`.
    #[must_use]
    pub fn score(&self, policy: &GuardPolicy, interval: u64, now: Micros) -> u8 {
        let mut settled = self.clone();
        settled.settle(policy, interval, now);
        settled.score
    }

    /// The instants after `now` at which the score falls by a point, the last one to zero.
    pub(super) fn falls<'a>(
        &self,
        policy: &'a GuardPolicy,
        interval: u64,
        now: Micros,
    ) -> impl Iterator<Item = Micros> + use<'a> {
        let mut state = self.clone();
        state.settle(policy, interval, now);
        std::iter::from_fn(move || {
            let due = (state.score > 0).then(|| state.due(interval))?;
            state.settle(policy, interval, due);
            Some(due)
        })
    }

    /// End of the interval that is under way.
    fn due(&self, interval: u64) -> Micros {
        self.anchor.plus(interval << u8::from(self.slow))
    }

    /// Subtracts the points whose intervals are over. A partial interval stays under way, and keeps
    /// the length that it started with.
    pub(super) fn settle(&mut self, policy: &GuardPolicy, interval: u64, now: Micros) {
        // One interval at a time, without a division: a point less may mean another length for the
        // next.
        while self.score > 0 {
            let due = self.due(interval);
            if due > now {
                return;
            }
            self.score -= 1;
            self.anchor = due;
            self.slow = self.is_slow(policy, due);
        }
        if self.score == 0 {
            self.anchor = Micros(0);
            self.slow = false;
        }
    }

    /// Adds points; from zero the first interval starts with them.
    pub(super) fn add(&mut self, policy: &GuardPolicy, interval: u64, points: u8, now: Micros) {
        self.settle(policy, interval, now);
        if self.score == 0 {
            // In a pause, decay begins at its end.
            self.anchor = now.max(self.paused_until);
            self.slow = self.is_slow(policy, now);
        }
        self.score = self.score.saturating_add(points).min(SCORE_MAX);
    }

    /// Notes a HARD block. From the second one within the window on, decay pauses for a while: the
    /// interval under way becomes that much longer.
    pub(super) fn note_hard_block(&mut self, policy: &GuardPolicy, now: Micros) {
        let again = self
            .last_hard
            .is_some_and(|at| now.since(at) < policy.decay.pause_window);
        self.last_hard = Some(now);
        if !again {
            return;
        }
        let until = now.plus(policy.decay.pause);
        // Only the time that no earlier pause covers makes the interval longer.
        let longer = until.since(self.paused_until.max(now));
        self.paused_until = self.paused_until.max(until);
        if self.score > 0 {
            self.anchor = self.anchor.plus(longer);
        }
    }

    /// Latest instant at which the score can still be above zero, if every interval is a slow one.
    pub(super) fn score_gone_at(&self, interval: u64) -> Micros {
        if self.score == 0 {
            return Micros(0);
        }
        let slowest = interval.saturating_mul(2 * u64::from(self.score));
        self.anchor.plus(slowest)
    }

    fn is_slow(&self, policy: &GuardPolicy, at: Micros) -> bool {
        self.level(policy, at)
            .is_some_and(|level| level >= policy.decay.slow_from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Level;
    use crate::guard::ladder::{Class, Issuer, Memory, Order};
    use crate::rule::Rule;
    use crate::time::{DAY, MINUTE};

    const TEN: u64 = 10 * MINUTE;

    fn hard(level: Level) -> Order {
        Order {
            class: Class::Hard,
            level,
            rule: Rule::G_THRESHOLD,
            memory: Memory::Keep,
            issuer: Issuer::Stranger,
        }
    }

    fn at(minutes: u64) -> Micros {
        Micros(DAY).plus(minutes * MINUTE)
    }

    #[test]
    fn g_decay_one_point_per_interval_and_a_partial_one_is_kept() {
        let policy = GuardPolicy::default();
        let mut key = KeyState::default();
        key.add(&policy, TEN, 3, at(0));
        assert_eq!(key.score(&policy, TEN, Micros(at(10).0 - 1)), 3);
        assert_eq!(key.score(&policy, TEN, at(10)), 2);
        key.add(&policy, TEN, 3, at(19));
        assert_eq!(key.score(&policy, TEN, at(19)), 5);
        assert_eq!(key.score(&policy, TEN, at(20)), 4);
        assert_eq!(key.score(&policy, TEN, at(60)), 0);
        key.settle(&policy, TEN, at(65));
        key.add(&policy, TEN, 1, at(65));
        assert_eq!(key.score(&policy, TEN, Micros(at(75).0 - 1)), 1);
        assert_eq!(key.score(&policy, TEN, at(75)), 0);
    }

    #[test]
    fn g_decay_an_interval_started_at_level_two_is_twice_as_long() {
        let policy = GuardPolicy::default();
        let mut key = KeyState::default();
        key.add(&policy, TEN, 9, at(0));
        key.place(&policy, TEN, hard(Level::L2), at(1));
        assert_eq!(
            key.score(&policy, TEN, at(10)),
            8,
            "started before the block"
        );
        assert_eq!(key.score(&policy, TEN, at(29)), 8, "started under level 2");
        assert_eq!(key.score(&policy, TEN, at(30)), 7);
        assert_eq!(
            key.score(&policy, TEN, at(40)),
            6,
            "level 1 since minute 22"
        );
    }

    #[test]
    fn g_decay_pauses_from_the_second_hard_block_of_a_day() {
        let policy = GuardPolicy::default();
        let mut key = KeyState::default();
        key.add(&policy, TEN, 9, at(0));
        key.place(&policy, TEN, hard(Level::L1), at(2));
        assert_eq!(key.score(&policy, TEN, at(10)), 8);
        key.place(&policy, TEN, hard(Level::L1), at(14));
        assert_eq!(key.score(&policy, TEN, at(29)), 8);
        assert_eq!(key.score(&policy, TEN, at(30)), 7);
        key.place(&policy, TEN, hard(Level::L1), at(19));
        assert_eq!(
            key.score(&policy, TEN, at(34)),
            8,
            "five minutes more, not ten"
        );
        assert_eq!(key.score(&policy, TEN, at(35)), 7);
    }

    #[test]
    fn g_decay_pauses_for_blocks_that_leave_no_level_as_well() {
        let policy = GuardPolicy::default();
        let mut key = KeyState::default();
        let unremembered = Order {
            memory: Memory::Leave,
            ..hard(Level::L2)
        };
        key.add(&policy, TEN, 9, at(0));
        key.place(&policy, TEN, unremembered, at(2));
        key.place(&policy, TEN, unremembered, at(6));
        assert_eq!(key.level(&policy, at(6)), None);
        assert_eq!(key.score(&policy, TEN, at(19)), 9);
        assert_eq!(key.score(&policy, TEN, at(20)), 8);
    }

    #[test]
    fn a_score_never_exceeds_its_maximum() {
        let policy = GuardPolicy::default();
        let mut key = KeyState::default();
        for _ in 0..40 {
            key.add(&policy, TEN, 200, at(0));
        }
        assert_eq!(key.score(&policy, TEN, at(0)), SCORE_MAX);
    }

    #[test]
    fn settling_early_or_late_gives_the_same_score() {
        let policy = GuardPolicy::default();
        let mut eager = KeyState::default();
        eager.add(&policy, TEN, 12, at(0));
        eager.place(&policy, TEN, hard(Level::L3), at(0));
        let lazy = eager.clone();
        for minute in 0..400 {
            eager.prune(&policy, TEN, at(minute));
            assert_eq!(
                eager.score(&policy, TEN, at(minute)),
                lazy.score(&policy, TEN, at(minute))
            );
        }
    }

    crate::scenarios::scenarios! {
        #[test]
        fn g_decay_takes_a_point_off_the_account_every_ten_minutes() proves "G-DECAY" {"
            0      fail d=d1           => allow
            20m    fail d=d1           => allow
            29m    fail d=d1           => soft L1 15s
            49m59s check d=d1          => allow
        "}
    }
}
