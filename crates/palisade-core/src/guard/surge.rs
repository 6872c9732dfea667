//! A surge of failures over all accounts and networks. It reveals a spray that no key can see,
//! because the spray uses every network, device and account only once.

use crate::time::{MINUTE, Micros};

/// Fewer failures in a minute than this are never a surge.
pub const FAILURES_MIN: u32 = 100;
/// A surge has this many times the failures of an average minute of the last hour.
pub const FACTOR: u32 = 5;
/// Minutes after which a surge that goes on is reported again.
const TOLD_AGAIN_AFTER: u64 = 10;
const MINUTES: usize = 60;
/// Parts of a minute that are counted separately: the last minute slides by one of them.
const PARTS: usize = 12;
const PART: u64 = MINUTE / PARTS as u64;

/// Failures of one flow on this node: the last minute in parts, the hour before it in
/// minutes.
#[derive(Clone, Debug)]
pub struct FailureRate {
    part: u64,
    parts: [u32; PARTS],
    minute: u64,
    minutes: [u32; MINUTES],
    told: Option<u64>,
}

impl Default for FailureRate {
    fn default() -> Self {
        Self {
            part: 0,
            parts: [0; PARTS],
            minute: 0,
            minutes: [0; MINUTES],
            told: None,
        }
    }
}

impl FailureRate {
    /// Counts a failure. Returns the failures of the last minute if they are a surge that has not
    /// been reported yet.
    pub fn fail(&mut self, now: Micros) -> Option<u32> {
        self.roll(now);
        add(&mut self.parts, self.part);
        add(&mut self.minutes, self.minute);
        let last_minute = self
            .parts
            .iter()
            .fold(0, |sum, n| u32::saturating_add(sum, *n));
        let silent = self
            .told
            .is_some_and(|told| self.minute - told < TOLD_AGAIN_AFTER);
        if silent || last_minute < FAILURES_MIN.max(self.usual().saturating_mul(FACTOR)) {
            return None;
        }
        self.told = Some(self.minute);
        Some(last_minute)
    }

    /// Failures of an average minute of the last hour. The minute under way and the one before it
    /// are left out, because a surge may have filled them.
    fn usual(&self) -> u32 {
        let recent =
            [self.minute, self.minute.wrapping_sub(1)].map(|minute| index(minute, MINUTES));
        let others = self.minutes.iter().enumerate();
        let sum: u64 = others
            .filter(|(index, _)| !recent.contains(index))
            .map(|(_, count)| u64::from(*count))
            .sum();
        u32::try_from(sum.div_ceil(MINUTES as u64 - 2)).unwrap_or(u32::MAX)
    }

    /// Clears the counts of the time that has passed; a clock that steps back changes nothing.
    fn roll(&mut self, now: Micros) {
        let (part, minute) = (now.0 / PART, now.0 / MINUTE);
        forget(&mut self.parts, self.part, part);
        forget(&mut self.minutes, self.minute, minute);
        self.part = self.part.max(part);
        self.minute = self.minute.max(minute);
    }
}

const fn index(slot: u64, slots: usize) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is below the number of slots"
    )]
    let index = (slot % slots as u64) as usize;
    index
}

fn add(slots: &mut [u32], slot: u64) {
    let index = index(slot, slots.len());
    if let Some(count) = slots.get_mut(index) {
        *count = count.saturating_add(1);
    }
}

fn forget(slots: &mut [u32], from: u64, to: u64) {
    // After a long silence each slot is cleared once, however many minutes have passed.
    let gone = to.saturating_sub(from).min(slots.len() as u64);
    for slot in 1..=gone {
        let index = index(from.wrapping_add(slot), slots.len());
        if let Some(count) = slots.get_mut(index) {
            *count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{DAY, HOUR, SECOND};

    const NOON: Micros = Micros(20_000 * DAY + DAY / 2);

    /// Spreads failures evenly over `time`; returns the instant of the first surge that was
    /// reported.
    fn failing(rate: &mut FailureRate, from: Micros, time: u64, count: u64) -> Option<u64> {
        (0..count).find_map(|n| {
            let after = time / count * n;
            rate.fail(from.plus(after)).map(|_| after)
        })
    }

    #[test]
    fn g_surge_a_spray_over_a_thousand_networks_is_seen_within_a_minute() {
        let mut rate = FailureRate::default();
        let quiet = failing(&mut rate, NOON, 2 * HOUR, 2 * 60 * 15);
        assert_eq!(quiet, None, "fifteen wrong passwords a minute are usual");
        let seen = failing(&mut rate, NOON.plus(2 * HOUR), MINUTE, 1000);
        assert!(seen.is_some_and(|after| after < MINUTE), "{seen:?}");
    }

    #[test]
    fn g_surge_what_is_usual_is_none_and_a_surge_is_told_once() {
        let mut rate = FailureRate::default();
        failing(&mut rate, NOON, 2 * HOUR, 2 * 60 * 90);
        let later = NOON.plus(2 * HOUR);
        assert_eq!(failing(&mut rate, later, MINUTE, 300), None, "three times");
        let again = later.plus(30 * MINUTE);
        assert!(failing(&mut rate, again, MINUTE, 900).is_some());
        assert_eq!(failing(&mut rate, again.plus(MINUTE), MINUTE, 900), None);
        let much_later = again.plus(2 * HOUR);
        assert!(failing(&mut rate, much_later, MINUTE, 900).is_some());
    }

    #[test]
    fn g_surge_a_clock_that_jumps_neither_panics_nor_invents_one() {
        let mut rate = FailureRate::default();
        for at in [NOON, Micros(0), Micros(u64::MAX), NOON.plus(SECOND)] {
            assert_eq!(rate.fail(at), None);
        }
    }
}
