//! AD-LOAD: how many requests may be in progress follows the measured latency.
//!
//! The limit moves along the gradient of the smoothed round trip against its floor, the round trip
//! of an application that is not busy. A round trip above 1.5 times the floor means that
//! requests queue, and the limit falls; otherwise it grows, as long as it is used.

use std::num::NonZeroU32;

use crate::time::{Micros, SECOND};

/// Shortest time between two changes of the limit.
pub const CHANGE_EVERY: u64 = SECOND / 10;
/// Longest time between two changes, however slow the application is.
const CHANGE_EVERY_MAX: u64 = 10 * SECOND;
/// Round trips up to this multiple of the floor are no queue.
const TOLERANCE: f64 = 1.5;
/// Weight of the last interval in the smoothed round trip. It is above the weight of the limit's
/// steps: a limit that reacts faster than its own effect can be seen swings.
const ROUND_TRIP_WEIGHT: f64 = 0.4;
/// Weight of the target in one step of the limit.
const STEP_WEIGHT: f64 = 0.1;
/// Growth of the limit per step until the first queue has been seen.
const START_GROWTH: f64 = 1.25;
/// Weight of an interval in a floor that rises.
const FLOOR_WEIGHT: f64 = 0.1;
/// Share of the limit in percent that each step of priority reserves for the steps above it.
const RESERVED_PER_STEP: u8 = 5;
/// Longest delay that a refused client is asked for, in seconds.
const RETRY_AFTER_MAX: u64 = 5;

/// Priority of a class while requests are shed: 9 is shed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// The priority that is shed first.
    pub const LOWEST: Self = Self(0);
    /// The priority that is shed last: that of exempt routes, such as health checks.
    pub const HIGHEST: Self = Self(9);

    /// A priority from 0 to 9.
    #[must_use]
    pub fn new(step: u8) -> Option<Self> {
        (step <= Self::HIGHEST.0).then_some(Self(step))
    }

    /// The number, from 0 to 9.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Places of `limit` that requests of this priority may take, at least one.
    fn places(self, limit: u32) -> u32 {
        let percent = 100 - (Self::HIGHEST.0 - self.0) * RESERVED_PER_STEP;
        let places = u64::from(limit) * u64::from(percent) / 100;
        u32::try_from(places).unwrap_or(limit).max(1)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(5)
    }
}

/// Bounds of the requests in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSettings {
    /// The limit is never below this. So many at once are no load: while no more are in progress,
    /// the measured round trip is the floor.
    pub min: NonZeroU32,
    /// The limit is never above this.
    pub max: NonZeroU32,
}

/// A request that is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShedRequest {
    /// Seconds after which the client may try again. They are spread, so that clients that were
    /// refused together do not return together.
    pub retry_after: u64,
}

/// End of a request's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundTrip {
    /// The application has answered.
    Answered,
    /// It failed, or the client hung up before. The application would have needed longer: the time
    /// counts only if it is above the smoothed round trip, so that fast errors and impatient
    /// clients do not make a slow application look fast.
    CutShort,
    /// It says nothing: the client was slow to send its request.
    Unmeasured,
}

/// Round trips since the last change.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    sum_us: u64,
    count: u32,
    /// Most requests in progress.
    peak: u32,
}

impl Interval {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a sum of round trips is far below 2^53 µs"
    )]
    fn mean(&self) -> f64 {
        self.sum_us as f64 / f64::from(self.count.max(1))
    }
}

/// A limit on requests in progress that follows their round trips.
///
/// ```
/// use palisade_core::adaptive::load::{LoadLimiter, LoadSettings, Priority, RoundTrip};
/// use palisade_core::time::Micros;
///
/// let two = std::num::NonZeroU32::MIN.saturating_add(1);
/// let mut limiter = LoadLimiter::new(LoadSettings { min: two, max: two }, 1);
/// let now = Micros(0);
/// assert!(limiter.admit(Priority::HIGHEST, now).is_ok());
/// assert!(limiter.admit(Priority::HIGHEST, now).is_ok());
/// assert!(limiter.admit(Priority::HIGHEST, now).is_err());
/// limiter.release(now, now.plus(5_000), RoundTrip::Answered);
/// assert!(limiter.admit(Priority::HIGHEST, now).is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct LoadLimiter {
    settings: LoadSettings,
    limit: f64,
    in_progress: u32,
    interval: Interval,
    changed_at: Option<Micros>,
    /// Smoothed round trip in microseconds; 0 before the first.
    smoothed: f64,
    /// Long-run minimum of the smoothed round trip; 0 before the first.
    floor: f64,
    /// No queue has been seen since the limit was last at its minimum.
    is_starting: bool,
    spread: u64,
}

impl LoadLimiter {
    /// A limiter that starts at its minimum. `seed` decides how the delays of refused clients are
    /// spread.
    #[must_use]
    pub fn new(settings: LoadSettings, seed: u64) -> Self {
        Self {
            settings,
            limit: f64::from(settings.min.get()),
            in_progress: 0,
            interval: Interval::default(),
            changed_at: None,
            smoothed: 0.0,
            floor: 0.0,
            is_starting: true,
            spread: seed,
        }
    }

    /// Puts other bounds in force. What was learned stays.
    pub fn reconfigure(&mut self, settings: LoadSettings) {
        self.settings = settings;
        self.bound();
    }

    /// Requests that may be in progress.
    #[must_use]
    pub fn limit(&self) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the limit lies between two u32"
        )]
        let limit = self.limit as u32;
        limit
    }

    /// Requests that are in progress.
    #[must_use]
    pub const fn in_progress(&self) -> u32 {
        self.in_progress
    }

    /// The smoothed round trip and its floor, in microseconds. Zero before the first.
    #[must_use]
    pub const fn round_trips(&self) -> (f64, f64) {
        (self.smoothed, self.floor)
    }

    /// Takes a place for a request.
    ///
    /// # Errors
    /// The places of its priority are taken. At least one place is open to every priority.
    pub fn admit(&mut self, priority: Priority, now: Micros) -> Result<(), ShedRequest> {
        self.foresee(priority)?;
        self.in_progress += 1;
        self.interval.peak = self.interval.peak.max(self.in_progress);
        self.changed_at.get_or_insert(now);
        Ok(())
    }

    /// Finds out whether a request would get a place now, and takes none.
    ///
    /// # Errors
    /// As [`LoadLimiter::admit`].
    pub fn foresee(&mut self, priority: Priority) -> Result<(), ShedRequest> {
        match self.in_progress < priority.places(self.limit()) {
            true => Ok(()),
            false => Err(self.shed()),
        }
    }

    /// Gives a place back that was taken at `began`.
    pub fn release(&mut self, began: Micros, now: Micros, end: RoundTrip) {
        self.in_progress = self.in_progress.saturating_sub(1);
        let took = now.since(began);
        #[expect(
            clippy::cast_precision_loss,
            reason = "a round trip is far below 2^53 µs"
        )]
        let is_told = match end {
            RoundTrip::Answered => true,
            RoundTrip::CutShort => took as f64 > self.smoothed,
            RoundTrip::Unmeasured => false,
        };
        if is_told {
            self.interval.sum_us = self.interval.sum_us.saturating_add(took);
            self.interval.count = self.interval.count.saturating_add(1);
        }
        if self.is_due(now) {
            self.change(now);
        }
    }

    /// A change shows in the round trips after one of them: where they are long, the limit waits
    /// for it.
    fn is_due(&self, now: Micros) -> bool {
        let Some(changed_at) = self.changed_at else {
            return false;
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bounded below"
        )]
        let round_trip = self.smoothed.min(1e9) as u64;
        let every = round_trip.clamp(CHANGE_EVERY, CHANGE_EVERY_MAX);
        self.interval.count > 0 && now.since(changed_at) >= every
    }

    fn change(&mut self, now: Micros) {
        let interval = std::mem::take(&mut self.interval);
        self.interval.peak = self.in_progress;
        self.changed_at = Some(now);
        self.smoothed = weighted(self.smoothed, interval.mean(), ROUND_TRIP_WEIGHT);
        self.learn_floor(interval.peak);
        let gradient = (TOLERANCE * self.floor / self.smoothed.max(1.0)).clamp(0.5, 1.0);
        self.step(gradient, interval.peak);
        self.bound();
    }

    /// The floor falls with any round trip. It rises only while no more than the minimum is in
    /// progress: under load it would follow the queue that it is to reveal.
    fn learn_floor(&mut self, peak: u32) {
        let is_idle = peak <= self.settings.min.get();
        if self.floor == 0.0 || self.smoothed < self.floor {
            self.floor = self.smoothed;
        } else if is_idle {
            self.floor = weighted(self.floor, self.smoothed, FLOOR_WEIGHT);
        }
    }

    fn step(&mut self, gradient: f64, peak: u32) {
        let has_queue = gradient < 1.0;
        self.is_starting &= !has_queue;
        // A limit that is not reached says nothing about a higher one.
        if !has_queue && f64::from(peak) < self.limit / 2.0 {
            return;
        }
        if self.is_starting {
            self.limit *= START_GROWTH;
            return;
        }
        // The headroom lets the limit grow where nothing queues, and stand where little does.
        let target = self.limit * gradient + self.limit.sqrt();
        self.limit += STEP_WEIGHT * (target - self.limit);
    }

    fn bound(&mut self) {
        let (min, max) = (self.settings.min.get(), self.settings.max.get());
        let (min, max) = (f64::from(min), f64::from(max.max(min)));
        if self.limit <= min {
            self.is_starting = true;
        }
        self.limit = self.limit.clamp(min, max);
    }

    /// The refusal of a request, with a delay of 1 to 5 seconds.
    fn shed(&mut self) -> ShedRequest {
        self.spread = self.spread.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.spread;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ShedRequest {
            retry_after: 1 + (mixed ^ (mixed >> 31)) % RETRY_AFTER_MAX,
        }
    }
}

fn weighted(before: f64, now: f64, weight: f64) -> f64 {
    match before == 0.0 {
        true => now,
        false => before + weight * (now - before),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = SECOND / 1000;

    fn limiter(min: u32, max: u32) -> LoadLimiter {
        let figure = |figure| NonZeroU32::new(figure).unwrap();
        let settings = LoadSettings {
            min: figure(min),
            max: figure(max),
        };
        LoadLimiter::new(settings, 1)
    }

    /// Fills the limit and answers every request after `round_trip`, `times` times.
    fn rounds(limiter: &mut LoadLimiter, mut now: Micros, times: u32, round_trip: u64) -> Micros {
        for _ in 0..times {
            let began = now;
            while limiter.admit(Priority::HIGHEST, began).is_ok() {}
            now = now.plus(round_trip);
            for _ in 0..limiter.in_progress() {
                limiter.release(began, now, RoundTrip::Answered);
            }
        }
        now
    }

    #[test]
    fn ad_load_lower_priorities_are_shed_earlier() {
        let mut limiter = limiter(100, 100);
        let mut taken = Vec::new();
        for step in 0..=9 {
            let priority = Priority::new(step).unwrap();
            while limiter.admit(priority, Micros(0)).is_ok() {}
            taken.push(limiter.in_progress());
        }
        assert_eq!(taken, [55, 60, 65, 70, 75, 80, 85, 90, 95, 100]);
        assert_eq!(Priority::new(10), None);
    }

    #[test]
    fn ad_load_one_place_is_open_to_every_priority() {
        let mut limiter = limiter(1, 1);
        assert!(limiter.admit(Priority::LOWEST, Micros(0)).is_ok());
        assert!(limiter.admit(Priority::HIGHEST, Micros(0)).is_err());
    }

    #[test]
    fn ad_load_refused_clients_are_spread_over_five_seconds_and_alike_in_every_run() {
        let delays = |seed: u64| {
            let mut limiter = limiter(1, 1);
            limiter.spread = seed;
            let _ = limiter.admit(Priority::HIGHEST, Micros(0));
            let mut shed = || limiter.admit(Priority::HIGHEST, Micros(0)).unwrap_err();
            (0..1_000).map(|_| shed().retry_after).collect::<Vec<_>>()
        };
        let all = delays(1);
        for seconds in 1..=5 {
            let share = all.iter().filter(|one| **one == seconds).count();
            assert!((140..260).contains(&share), "{seconds}: {share}");
        }
        assert_eq!((all.iter().min(), all.iter().max()), (Some(&1), Some(&5)));
        assert_eq!(all, delays(1));
        assert_ne!(all, delays(2));
    }

    #[test]
    fn ad_load_changes_once_in_a_tenth_of_a_second_and_once_in_a_round_trip() {
        let mut limiter = limiter(10, 1_000);
        let now = rounds(&mut limiter, Micros(0), 9, 10 * MS);
        assert_eq!(limiter.limit(), 10);
        let now = rounds(&mut limiter, now, 1, 10 * MS);
        assert_eq!(limiter.limit(), 12, "after a tenth of a second");
        let now = rounds(&mut limiter, now, 2, 2_000 * MS);
        let limit = limiter.limit();
        rounds(&mut limiter, now, 1, 500 * MS);
        assert_eq!(
            limiter.limit(),
            limit,
            "the round trip is above half a second"
        );
    }

    #[test]
    fn ad_load_stays_between_its_bounds() {
        let mut limiter = limiter(10, 50);
        let now = rounds(&mut limiter, Micros(0), 500, 10 * MS);
        assert_eq!(limiter.limit(), 50);
        rounds(&mut limiter, now, 500, 400 * MS);
        assert!((10..=50).contains(&limiter.limit()));
    }

    #[test]
    fn ad_load_a_limit_that_is_not_reached_does_not_grow() {
        let mut limiter = limiter(10, 1_000);
        let mut now = Micros(0);
        for _ in 0..1_000 {
            limiter.admit(Priority::HIGHEST, now).unwrap();
            let began = now;
            now = now.plus(10 * MS);
            limiter.release(began, now, RoundTrip::Answered);
        }
        assert_eq!(limiter.limit(), 10);
    }

    #[test]
    fn ad_load_fast_errors_and_slow_clients_do_not_change_the_latency() {
        let mut limiter = limiter(10, 1_000);
        let mut now = rounds(&mut limiter, Micros(0), 20, 10 * MS);
        let before = limiter.round_trips();
        let quick = [(RoundTrip::CutShort, MS), (RoundTrip::Unmeasured, SECOND)];
        for (end, took) in quick.repeat(50) {
            let began = now;
            limiter.admit(Priority::HIGHEST, now).unwrap();
            now = now.plus(took);
            limiter.release(began, now, end);
        }
        assert_eq!(limiter.round_trips(), before);
        limiter.admit(Priority::HIGHEST, now).unwrap();
        limiter.release(now, now.plus(SECOND), RoundTrip::CutShort);
        assert!(
            limiter.round_trips().0 > before.0,
            "it took longer than usual"
        );
    }

    #[test]
    fn ad_load_an_application_that_has_become_slower_is_learned_at_the_minimum() {
        let mut limiter = limiter(10, 1_000);
        let now = rounds(&mut limiter, Micros(0), 100, 10 * MS);
        rounds(&mut limiter, now, 1_000, 100 * MS);
        let (_, floor) = limiter.round_trips();
        assert!(floor > 60.0 * 1_000.0, "{floor}");
        assert!(limiter.limit() > 100, "{}", limiter.limit());
    }
}
