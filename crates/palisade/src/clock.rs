//! The clocks of a process. No other file reads the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use palisade_core::time::{Clock, Micros, SECOND};

/// Interval, in monotonic microseconds, after which the wall clock is read again.
const ANCHOR_EVERY_US: u64 = SECOND;

/// The two clocks of a machine.
///
/// ```
/// use palisade::core::{Clock, Micros};
/// use palisade::{SystemClock, TimeSource};
///
/// /// A machine that has just been started, and knows what time it is.
/// struct Machine;
///
/// impl TimeSource for Machine {
///     fn monotonic_us(&self) -> u64 {
///         5
///     }
///     fn wall(&self) -> Micros {
///         Micros(1_800_000_000_000_000)
///     }
/// }
///
/// assert_eq!(SystemClock::of(Machine).now(), Micros(1_800_000_000_000_000));
/// ```
pub trait TimeSource: Send + Sync + 'static {
    /// Microseconds since a fixed instant. Never goes back, and stands still while the machine
    /// sleeps.
    fn monotonic_us(&self) -> u64;

    /// The time of day. It may jump in either direction when somebody sets it.
    fn wall(&self) -> Micros;
}

/// The clocks of the operating system.
///
/// [`SystemClock`] uses these unless another source is given.
#[derive(Clone, Copy, Debug)]
pub struct OsTime {
    started: Instant,
}

#[expect(
    clippy::disallowed_methods,
    reason = "time enters here and nowhere else"
)]
impl OsTime {
    fn new() -> Self {
        Self {
            started: Instant::now(),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "time enters here and nowhere else"
)]
impl TimeSource for OsTime {
    fn monotonic_us(&self) -> u64 {
        saturate(self.started.elapsed().as_micros())
    }

    fn wall(&self) -> Micros {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        Micros(saturate(since_epoch.unwrap_or_default().as_micros()))
    }
}

fn saturate(micros: u128) -> u64 {
    u64::try_from(micros).unwrap_or(u64::MAX)
}

/// A monotonic clock that is anchored to the wall clock again every second (F-CLOCK).
///
/// [`Clock::now`] never goes back: it follows a wall clock that is ahead of it, as after
/// a suspend, and otherwise runs on. [`Clock::wall`] follows it in both directions.
///
/// ```
/// use palisade::SystemClock;
/// use palisade::core::Clock;
///
/// let clock = SystemClock::new();
/// let (before, after) = (clock.now(), clock.now());
/// assert!(before <= after);
/// ```
#[derive(Debug)]
pub struct SystemClock<T = OsTime> {
    source: T,
    /// Offset from the monotonic time to `now`, in microseconds. Only grows.
    now_ahead_us: AtomicU64,
    /// Offset from the monotonic time to `wall`, in microseconds. May shrink.
    wall_ahead_us: AtomicU64,
    /// Monotonic time at which the wall clock was last read.
    anchored_us: AtomicU64,
}

impl SystemClock {
    /// Starts the clock.
    #[must_use]
    pub fn new() -> Self {
        Self::of(OsTime::new())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: TimeSource> SystemClock<T> {
    /// A clock that reads `source`.
    #[must_use]
    pub fn of(source: T) -> Self {
        let clock = Self {
            now_ahead_us: AtomicU64::new(0),
            wall_ahead_us: AtomicU64::new(0),
            anchored_us: AtomicU64::new(source.monotonic_us()),
            source,
        };
        clock.anchor();
        clock
    }

    /// Returns the monotonic time, after reading the wall clock if that is due.
    fn elapsed_us(&self) -> u64 {
        let elapsed = self.source.monotonic_us();
        let last = self.anchored_us.load(Ordering::Relaxed);
        if elapsed.saturating_sub(last) >= ANCHOR_EVERY_US {
            self.anchor_once(last, elapsed);
        }
        elapsed
    }

    /// Anchors the clock unless another thread does: one thread reads the wall clock, the others go
    /// on with the last offset.
    #[cold]
    fn anchor_once(&self, last: u64, elapsed: u64) {
        let exchanged =
            self.anchored_us
                .compare_exchange(last, elapsed, Ordering::Relaxed, Ordering::Relaxed);
        if exchanged.is_ok() {
            self.anchor();
        }
    }

    /// Reads the wall clock before the monotonic one: a thread that is suspended between the two
    /// finds the offset too small, and `now` never runs ahead of the time.
    fn anchor(&self) {
        let wall = self.source.wall();
        let ahead = wall.0.saturating_sub(self.source.monotonic_us());
        self.wall_ahead_us.store(ahead, Ordering::Relaxed);
        self.now_ahead_us.fetch_max(ahead, Ordering::Relaxed);
    }
}

impl<T: TimeSource> Clock for SystemClock<T> {
    fn now(&self) -> Micros {
        let elapsed = self.elapsed_us();
        Micros(self.now_ahead_us.load(Ordering::Relaxed)).plus(elapsed)
    }

    fn wall(&self) -> Micros {
        let elapsed = self.elapsed_us();
        Micros(self.wall_ahead_us.load(Ordering::Relaxed)).plus(elapsed)
    }
}

/// A clock that moves only on request: for tests, policy cases and replay.
///
/// ```
/// use palisade::VirtualClock;
/// use palisade::core::{Clock, Micros};
///
/// let clock = VirtualClock::at(Micros(5_000_000));
/// clock.advance(1_000_000);
/// assert_eq!(clock.now(), Micros(6_000_000));
/// clock.advance_to(Micros(0));
/// assert_eq!(clock.now(), Micros(6_000_000), "it never goes back");
/// ```
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
    use std::sync::Arc;

    use palisade_core::time::HOUR;

    use super::*;

    #[test]
    fn a_virtual_clock_never_goes_back() {
        let clock = VirtualClock::at(Micros(5));
        clock.advance_to(Micros(3));
        assert_eq!(clock.now(), Micros(5));
        clock.advance_to(Micros(9));
        assert_eq!(clock.now(), Micros(9));
    }

    /// A machine whose clocks are set by hand.
    #[derive(Default)]
    struct Machine {
        monotonic_us: AtomicU64,
        wall: AtomicU64,
    }

    impl Machine {
        fn at(wall: u64) -> Arc<Self> {
            let machine = Self::default();
            machine.wall.store(wall, Ordering::Relaxed);
            Arc::new(machine)
        }

        fn runs(&self, us: u64) {
            self.monotonic_us.fetch_add(us, Ordering::Relaxed);
            self.wall.fetch_add(us, Ordering::Relaxed);
        }
    }

    impl TimeSource for Arc<Machine> {
        fn monotonic_us(&self) -> u64 {
            self.monotonic_us.load(Ordering::Relaxed)
        }

        fn wall(&self) -> Micros {
            Micros(self.wall.load(Ordering::Relaxed))
        }
    }

    const START: u64 = 1_000 * HOUR;

    #[test]
    fn f_clock_a_suspend_is_noticed_within_a_second() {
        let machine = Machine::at(START);
        let clock = SystemClock::of(Arc::clone(&machine));
        machine.runs(5 * SECOND);
        assert_eq!(clock.now(), Micros(START + 5 * SECOND));
        machine.wall.fetch_add(8 * HOUR, Ordering::Relaxed);
        machine.runs(SECOND);
        let woken = Micros(START + 8 * HOUR + 6 * SECOND);
        assert_eq!((clock.now(), clock.wall()), (woken, woken));
    }

    #[test]
    fn f_clock_a_clock_that_was_behind_at_the_start_is_followed() {
        let machine = Machine::at(0);
        let clock = SystemClock::of(Arc::clone(&machine));
        machine.runs(3 * SECOND);
        machine.wall.store(START, Ordering::Relaxed);
        machine.runs(SECOND);
        assert_eq!(clock.wall(), Micros(START + SECOND));
        assert_eq!(clock.now(), Micros(START + SECOND));
    }

    #[test]
    fn f_clock_a_clock_that_was_ahead_at_the_start_is_corrected_and_now_does_not_go_back() {
        let machine = Machine::at(START + HOUR);
        let clock = SystemClock::of(Arc::clone(&machine));
        machine.runs(2 * SECOND);
        let before = clock.now();
        machine.wall.store(START, Ordering::Relaxed);
        machine.runs(SECOND);
        assert_eq!(clock.now(), before.plus(SECOND));
        assert_eq!(clock.wall(), Micros(START + SECOND));
    }

    #[test]
    fn f_clock_between_two_looks_a_jump_is_not_seen() {
        let machine = Machine::at(START);
        let clock = SystemClock::of(Arc::clone(&machine));
        machine.wall.fetch_add(HOUR, Ordering::Relaxed);
        machine.runs(SECOND - 1);
        assert_eq!(clock.now(), Micros(START + SECOND - 1));
        machine.runs(1);
        assert_eq!(clock.now(), Micros(START + HOUR + SECOND));
    }

    #[test]
    fn the_system_clock_is_near_the_present_and_monotonic() {
        let clock = SystemClock::new();
        let (a, b) = (clock.now(), clock.now());
        assert!(a <= b && a > Micros(1_700_000_000_000_000));
    }
}
