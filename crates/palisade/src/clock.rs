//! The only file that reads time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use palisade_core::time::{Clock, Micros};

/// Wall time at the start of the process, monotonic from there: a stepped system
/// clock changes nothing that is running (F-CLOCK).
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
    started_at: Micros,
}

#[expect(
    clippy::disallowed_methods,
    reason = "time enters here and nowhere else"
)]
impl SystemClock {
    /// Starts the clock.
    #[must_use]
    pub fn new() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            started: Instant::now(),
            started_at: Micros(saturate(since_epoch.as_micros())),
        }
    }

    fn elapsed_us(self) -> u64 {
        saturate(self.started.elapsed().as_micros())
    }
}

fn saturate(micros: u128) -> u64 {
    u64::try_from(micros).unwrap_or(u64::MAX)
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        self.started_at.plus(self.elapsed_us())
    }
}

/// A clock that moves only when it is told to: for tests, policy cases and replay.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// A clock that stands at `at`.
    #[must_use]
    pub const fn at(at: Micros) -> Self {
        Self(AtomicU64::new(at.0))
    }

    /// Moves to `at`; never back.
    pub fn advance_to(&self, at: Micros) {
        self.0.fetch_max(at.0, Ordering::SeqCst);
    }

    /// Moves on by `us` microseconds.
    pub fn advance(&self, us: u64) {
        self.0.fetch_add(us, Ordering::SeqCst);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Micros {
        Micros(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_clock_never_goes_back() {
        let clock = VirtualClock::at(Micros(5));
        clock.advance_to(Micros(3));
        assert_eq!(clock.now(), Micros(5));
        clock.advance_to(Micros(9));
        assert_eq!(clock.now(), Micros(9));
    }

    #[test]
    fn the_system_clock_is_near_the_present_and_monotonic() {
        let clock = SystemClock::new();
        let (a, b) = (clock.now(), clock.now());
        assert!(a <= b && a > Micros(1_700_000_000_000_000));
    }
}
