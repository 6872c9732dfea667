//! Usual counts of a minute, by hour of the week.

use crate::time::{DAY, HOUR, MINUTE};

/// Time from the first minute until the hours of the week are trusted.
const WEEKS_NEEDED: u64 = 14 * DAY / MINUTE;
const HOUR_MINUTES: u64 = HOUR / MINUTE;
const HOURS_OF_DAY: usize = 24;
const HOURS_OF_WEEK: usize = 168;
/// An hour of which fewer minutes were seen says nothing.
const MINUTES_MIN: usize = 30;
/// Weight of the last hour in its slot.
const WEIGHT: f32 = 0.3;
/// An hour counts as at most this multiple of its slot, so that one day moves a baseline little.
const RISE_MAX: f32 = 3.0;
/// Lowest count that [`RISE_MAX`] is a multiple of.
const RISE_FROM: f32 = 10.0;

/// Counts of the minutes of one hour of the day or week.
type Slot = Option<f32>;

/// Usual count of a minute: an exponentially weighted mean of the medians of past hours. A peak
/// that is shorter than half an hour moves no median.
#[derive(Clone, Debug)]
pub struct Baseline {
    of_day: [Slot; HOURS_OF_DAY],
    of_week: [Slot; HOURS_OF_WEEK],
    /// The first minute since the epoch that was noted.
    first: Option<u64>,
    hour: u64,
    /// Counts of the minutes of `hour`.
    minutes: Vec<u32>,
}

impl Default for Baseline {
    fn default() -> Self {
        Self {
            of_day: [None; HOURS_OF_DAY],
            of_week: [None; HOURS_OF_WEEK],
            first: None,
            hour: 0,
            minutes: Vec::new(),
        }
    }
}

impl Baseline {
    /// Notes the count of a minute that is over. Minutes are numbered since the epoch and come in
    /// their order.
    pub fn note(&mut self, minute: u64, count: u32) {
        self.begin(minute);
        self.minutes.push(count);
    }

    /// Passes over a minute whose count is not usual: one of an attack.
    pub fn pass_over(&mut self, minute: u64) {
        self.begin(minute);
    }

    fn begin(&mut self, minute: u64) {
        self.first.get_or_insert(minute);
        let hour = minute / HOUR_MINUTES;
        if hour != self.hour {
            self.end_hour();
            self.hour = hour;
        }
    }

    fn end_hour(&mut self) {
        let mut minutes = std::mem::take(&mut self.minutes);
        if minutes.len() < MINUTES_MIN {
            return;
        }
        minutes.sort_unstable();
        #[expect(
            clippy::cast_precision_loss,
            reason = "a mean needs no more than 24 bits"
        )]
        let median = minutes
            .get(minutes.len() / 2)
            .map_or(0.0, |one| *one as f32);
        let (day, week) = slots(self.hour);
        let slots = [self.of_day.get_mut(day), self.of_week.get_mut(week)];
        for slot in slots.into_iter().flatten() {
            *slot = Some(moved(*slot, median));
        }
    }

    /// The usual count of this minute, or `None` if its hour of the day has never been seen, as on
    /// the first day. By hour of the day
    /// until two weeks have been seen, then by hour of the week.
    #[must_use]
    pub fn usual(&self, minute: u64) -> Option<u32> {
        let seen = minute.saturating_sub(self.first?);
        let (day, week) = slots(minute / HOUR_MINUTES);
        let of_day = self.of_day.get(day).copied().flatten();
        let of_week = self.of_week.get(week).copied().flatten();
        let slot = match seen >= WEEKS_NEEDED {
            true => of_week.or(of_day),
            false => of_day,
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a mean of counts is no less than zero, and the cast saturates"
        )]
        slot.map(|mean| mean.ceil() as u32)
    }
}

fn moved(slot: Slot, median: f32) -> f32 {
    let Some(mean) = slot else { return median };
    let most = mean.max(RISE_FROM) * RISE_MAX;
    mean + WEIGHT * (median.min(most) - mean)
}

/// The slots of an hour since the epoch.
fn slots(hour: u64) -> (usize, usize) {
    let index = |slots: usize| {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the remainder is below the number of slots"
        )]
        let index = (hour % slots as u64) as usize;
        index
    };
    (index(HOURS_OF_DAY), index(HOURS_OF_WEEK))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 20_000 * DAY / MINUTE;
    const DAY_MINUTES: u64 = DAY / MINUTE;

    /// Notes `days` of days in which the hour after noon has `busy` a minute and others `calm`.
    fn days(baseline: &mut Baseline, from: u64, days: u64, calm: u32, busy: u32) -> u64 {
        let end = from + days * DAY_MINUTES;
        for minute in from..end {
            let is_busy = minute / HOUR_MINUTES % 24 == 12;
            baseline.note(minute, if is_busy { busy } else { calm });
        }
        end
    }

    #[test]
    fn ad_attack_the_first_day_has_no_baseline_and_then_it_is_that_of_the_hour() {
        let mut baseline = Baseline::default();
        days(&mut baseline, START, 1, 20, 200);
        assert_eq!(baseline.usual(START + DAY_MINUTES - 1), None);
        let tomorrow = days(&mut baseline, START + DAY_MINUTES, 1, 20, 200);
        assert_eq!(baseline.usual(tomorrow), Some(20));
        assert_eq!(baseline.usual(tomorrow + 12 * HOUR_MINUTES), Some(200));
    }

    #[test]
    fn ad_attack_a_weekday_is_known_from_the_third_week_on() {
        let mut baseline = Baseline::default();
        let mut at = START;
        for week in 0..3 {
            for day in 0..7 {
                let is_weekend = day >= 5;
                let figure = if is_weekend { 10 } else { 100 };
                if (week, day) == (1, 6) {
                    let usual = baseline.usual(at).unwrap();
                    assert!(usual > 30, "by hour of the day: {usual}");
                }
                if (week, day) == (2, 5) {
                    assert_eq!(baseline.usual(at), Some(10), "a weekend");
                }
                at = days(&mut baseline, at, 1, figure, figure);
            }
        }
        assert_eq!(baseline.usual(at), Some(100), "a weekday again");
    }

    #[test]
    fn ad_attack_a_single_peak_does_not_move_the_baseline() {
        let mut baseline = Baseline::default();
        let mut at = days(&mut baseline, START, 3, 20, 20);
        let before = baseline.usual(at);
        for minute in at..at + HOUR_MINUTES {
            let is_peak = minute % HOUR_MINUTES < 25;
            baseline.note(minute, if is_peak { 100_000 } else { 20 });
        }
        at += HOUR_MINUTES;
        baseline.note(at, 20);
        assert_eq!(baseline.usual(at + 23 * HOUR_MINUTES), before, "25 minutes");
        for minute in at + 1..at + HOUR_MINUTES {
            baseline.note(minute, 100_000);
        }
        baseline.note(at + HOUR_MINUTES, 20);
        let usual = baseline.usual(at + DAY_MINUTES).unwrap();
        assert!((21..=32).contains(&usual), "a whole hour, once: {usual}");
    }
}
