//! Callers that were known before an attack began: they keep the whole of a limit of which they used
//! less than half.

use std::collections::HashMap;

use crate::key::Digest;
use crate::time::{DAY, HOUR, Micros};

/// Age from which a caller is known.
pub const KNOWN_AFTER: u64 = DAY;
/// Most callers that one history remembers.
pub const CALLERS_MAX: usize = 4_096;
/// Shortest time between two searches for callers that are gone.
const SWEEP_EVERY: u64 = HOUR / 60;

/// Past use of one bucket by its caller.
#[derive(Clone, Copy, Debug)]
struct Caller {
    first: Micros,
    last: Micros,
    hour: u64,
    /// Highest share of the limit that was used in `hour` and in the hour before it, in thousandths.
    peaks: [u16; 2],
}

impl Caller {
    fn roll(&mut self, hour: u64) {
        match hour.saturating_sub(self.hour) {
            0 => {}
            1 => self.peaks = [0, self.peaks[0]],
            _ => self.peaks = [0, 0],
        }
        self.hour = self.hour.max(hour);
    }
}

/// Share of a limit that callers have used, by the bucket that counts them. Bounded: while it is full
/// of callers that are still seen, a new one is not remembered, and so stays unknown.
#[derive(Clone, Debug, Default)]
pub struct CallerHistory {
    callers: HashMap<Digest, Caller>,
    swept: Micros,
}

impl CallerHistory {
    /// Notes that a caller has used so much of its limit.
    pub fn note(&mut self, bucket: Digest, used: u64, limit: u64, now: Micros) {
        if self.callers.len() >= CALLERS_MAX && !self.callers.contains_key(&bucket) {
            self.sweep(now);
            if self.callers.len() >= CALLERS_MAX {
                return;
            }
        }
        let hour = now.0 / HOUR;
        let caller = self.callers.entry(bucket).or_insert(Caller {
            first: now,
            last: now,
            hour,
            peaks: [0, 0],
        });
        // A caller that was gone for a day is a new one.
        if now.since(caller.last) >= KNOWN_AFTER {
            caller.first = now;
        }
        caller.last = caller.last.max(now);
        caller.roll(hour);
        let share = used.saturating_mul(1_000) / limit.max(1);
        let share = u16::try_from(share).unwrap_or(u16::MAX);
        caller.peaks[0] = caller.peaks[0].max(share);
    }

    /// True if the caller was first seen a day before `at`, has been seen in the day before it, and
    /// used less than half of its limit in the hour before it.
    #[must_use]
    pub fn is_moderate(&self, bucket: Digest, at: Micros) -> bool {
        let Some(caller) = self.callers.get(&bucket) else {
            return false;
        };
        let mut caller = *caller;
        caller.roll(at.0 / HOUR);
        at.since(caller.first) >= KNOWN_AFTER
            && at.since(caller.last) < KNOWN_AFTER
            && caller.peaks.iter().all(|share| *share < 500)
    }

    /// Number of callers that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.callers.len()
    }

    /// True if nobody is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }

    fn sweep(&mut self, now: Micros) {
        if now.since(self.swept) < SWEEP_EVERY {
            return;
        }
        self.swept = now;
        self.callers
            .retain(|_, caller| now.since(caller.last) < KNOWN_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Micros = Micros(20_000 * DAY + DAY / 2);
    const BUCKET: Digest = Digest(7);

    /// Uses `used` of 100 once an hour for `hours`.
    fn using(history: &mut CallerHistory, from: Micros, hours: u64, used: u64) -> Micros {
        for hour in 0..hours {
            history.note(BUCKET, used, 100, from.plus(hour * HOUR));
        }
        from.plus(hours * HOUR)
    }

    #[test]
    fn ad_attack_a_caller_is_moderate_after_a_day_below_half_of_its_limit() {
        let mut history = CallerHistory::default();
        let at = using(&mut history, NOON, 24, 49);
        assert!(!history.is_moderate(BUCKET, at.minus(1)), "not yet a day");
        assert!(history.is_moderate(BUCKET, at));
        assert!(!history.is_moderate(Digest(8), at), "a stranger");
        history.note(BUCKET, 50, 100, at);
        assert!(!history.is_moderate(BUCKET, at.plus(HOUR)), "half of it");
        assert!(history.is_moderate(BUCKET, at.plus(2 * HOUR)), "long ago");
        assert!(!history.is_moderate(BUCKET, at.plus(DAY)), "gone for a day");
    }

    #[test]
    fn ad_attack_strangers_do_not_push_out_the_callers_that_are_remembered() {
        let mut history = CallerHistory::default();
        using(&mut history, NOON, 24, 1);
        let late = NOON.plus(24 * HOUR);
        for stranger in 0..2 * CALLERS_MAX as u128 {
            history.note(Digest(1 << 64 | stranger), 1, 100, late);
        }
        assert_eq!(history.len(), CALLERS_MAX);
        assert!(history.is_moderate(BUCKET, late));
        let next = late.plus(DAY);
        history.note(Digest(9), 1, 100, next);
        assert_eq!(history.len(), 1, "the others are gone for a day");
    }
}
