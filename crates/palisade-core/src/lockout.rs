//! The OWASP lockout of one (username, prefix), shared by every authentication
//! endpoint.

use crate::decision::Challenge;
use crate::facts::FieldError;
use crate::time::{DAY, MINUTE};

/// Most failures that the sliding window may ask for.
pub const WINDOW_MAX: usize = 16;
/// Most failures of a day between two locks.
pub const HARD_MAX: usize = 32;
/// Most lockouts that a challenge may ask for.
pub const LOCKOUTS_MAX: usize = 8;

/// The lockout's figures.
#[derive(Clone, Debug, PartialEq)]
pub struct LockoutPolicy {
    /// Off: nothing is counted and nothing is denied.
    pub enabled: bool,
    /// Failures in `window` after which the next attempt is denied (A-WINDOW).
    pub window_failures: u32,
    /// The sliding window, in microseconds.
    pub window: u64,
    /// Every so many failures in `hard_window` lock (A-HARD).
    pub hard_failures: u32,
    /// The day, in microseconds.
    pub hard_window: u64,
    /// How long a lock lasts, in microseconds.
    pub lock: u64,
    /// Delay after one, two, and three or more consecutive failures (A-BACKOFF).
    pub delays_ms: [u32; 3],
    /// Lockouts in `captcha_window` that ask for a challenge (A-CAPTCHA).
    pub captcha_lockouts: u32,
    /// That window, in microseconds.
    pub captcha_window: u64,
    /// Which challenge.
    pub challenge: Challenge,
}

impl Default for LockoutPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            window_failures: 5,
            window: 15 * MINUTE,
            hard_failures: 10,
            hard_window: DAY,
            lock: 15 * MINUTE,
            delays_ms: [250, 500, 1000],
            captcha_lockouts: 3,
            captcha_window: DAY,
            challenge: Challenge::Captcha,
        }
    }
}

impl LockoutPolicy {
    /// Refuses figures that the record cannot hold.
    ///
    /// # Errors
    /// The field that is out of bounds, and its bounds.
    pub fn validate(&self) -> Result<(), FieldError> {
        let bounded = [
            (self.window_failures, WINDOW_MAX, "lockout.window_failures"),
            (self.hard_failures, HARD_MAX, "lockout.hard_failures"),
            (
                self.captcha_lockouts,
                LOCKOUTS_MAX,
                "lockout.captcha_lockouts",
            ),
        ];
        for (count, max, field) in bounded {
            if count == 0 || count as usize > max {
                return Err(FieldError::new(
                    field,
                    "must be at least 1 and at most 16 (window), 32 (day) or 8 (lockouts)",
                ));
            }
        }
        let times = [
            self.window,
            self.hard_window,
            self.lock,
            self.captcha_window,
        ];
        if times.iter().any(|time| !(1..=30 * DAY).contains(time)) {
            return Err(FieldError::new(
                "lockout.window",
                "times must be above zero and at most 30 days",
            ));
        }
        Ok(())
    }
}
