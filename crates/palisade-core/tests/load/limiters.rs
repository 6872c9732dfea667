//! The limiters that are compared: a fixed one, Netflix's gradient2 after its published
//! description, and ours.

use std::num::NonZeroU32;

use palisade_core::adaptive::load::{LoadLimiter, LoadSettings, Priority, RoundTrip};
use palisade_core::time::{Micros, SECOND};

pub trait Limiter {
    fn admit(&mut self, now: Micros) -> bool;
    fn release(&mut self, began: Micros, now: Micros, is_answered: bool);
    fn limit(&self) -> f64;
}

/// A bound that never changes.
pub struct Fixed {
    pub most: u32,
    in_progress: u32,
}

impl Fixed {
    pub const fn new(most: u32) -> Self {
        Self {
            most,
            in_progress: 0,
        }
    }
}

impl Limiter for Fixed {
    fn admit(&mut self, _now: Micros) -> bool {
        let is_in = self.in_progress < self.most;
        self.in_progress += u32::from(is_in);
        is_in
    }

    fn release(&mut self, _began: Micros, _now: Micros, _is_answered: bool) {
        self.in_progress -= 1;
    }

    fn limit(&self) -> f64 {
        f64::from(self.most)
    }
}

/// Netflix's gradient2: the gradient of the mean round trip of a window of one second against an
/// exponential average over 600 windows, with a tolerance of 1.5, a queue of 4 and a smoothing of
/// 0.2.
pub struct Gradient2 {
    limit: f64,
    bounds: (f64, f64),
    in_progress: u32,
    peak: u32,
    window: (u64, u32),
    began: Micros,
    long: f64,
    windows: u32,
}

impl Gradient2 {
    pub fn new(min: u32, max: u32) -> Self {
        Self {
            limit: 20.0,
            bounds: (f64::from(min), f64::from(max)),
            in_progress: 0,
            peak: 0,
            window: (0, 0),
            began: Micros(0),
            long: 0.0,
            windows: 0,
        }
    }

    /// The first ten windows are averaged, the following weighted.
    fn average(&mut self, short: f64) {
        self.windows += 1;
        let weight = match self.windows {
            n @ 1..=10 => 1.0 / f64::from(n),
            _ => 2.0 / 601.0,
        };
        self.long += weight * (short - self.long);
    }

    fn update(&mut self) {
        let (sum, count) = std::mem::take(&mut self.window);
        let peak = std::mem::replace(&mut self.peak, self.in_progress);
        let short = sum as f64 / f64::from(count);
        self.average(short);
        if self.long / short > 2.0 {
            self.long *= 0.95;
        }
        if f64::from(peak) < self.limit / 2.0 {
            return;
        }
        let gradient = (1.5 * self.long / short).clamp(0.5, 1.0);
        let next = self.limit * gradient + 4.0;
        let next = self.limit * 0.8 + next * 0.2;
        self.limit = next.clamp(self.bounds.0, self.bounds.1);
    }
}

impl Limiter for Gradient2 {
    fn admit(&mut self, _now: Micros) -> bool {
        let is_in = f64::from(self.in_progress) < self.limit.floor();
        self.in_progress += u32::from(is_in);
        self.peak = self.peak.max(self.in_progress);
        is_in
    }

    fn release(&mut self, began: Micros, now: Micros, _is_answered: bool) {
        self.in_progress -= 1;
        self.window.0 += now.since(began);
        self.window.1 += 1;
        if now.since(self.began) >= SECOND && self.window.1 >= 10 {
            self.began = now;
            self.update();
        }
    }

    fn limit(&self) -> f64 {
        self.limit
    }
}

/// Ours, with every request in the highest priority.
pub struct Ours(pub LoadLimiter);

impl Ours {
    pub fn new(min: u32, max: u32) -> Self {
        let figure = |figure| NonZeroU32::new(figure).expect("not zero");
        let settings = LoadSettings {
            min: figure(min),
            max: figure(max),
        };
        Self(LoadLimiter::new(settings, 7))
    }
}

impl Limiter for Ours {
    fn admit(&mut self, now: Micros) -> bool {
        self.0.admit(Priority::HIGHEST, now).is_ok()
    }

    fn release(&mut self, began: Micros, now: Micros, is_answered: bool) {
        let end = match is_answered {
            true => RoundTrip::Answered,
            false => RoundTrip::CutShort,
        };
        self.0.release(began, now, end);
    }

    fn limit(&self) -> f64 {
        f64::from(self.0.limit())
    }
}
