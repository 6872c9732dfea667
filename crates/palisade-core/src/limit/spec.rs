//! Definition of one bucket. A value of [`BucketSpec`] is always usable: its limit is not zero,
//! and its window neither zero nor overflowing.

use std::num::NonZeroU64;

use super::{CountsFrom, gcra};
use crate::time::{DAY, Micros};

/// The largest limit, burst or cost (B-UNIT).
pub const FIGURE_MAX: u64 = 1 << 47;

/// The most that a bucket counts: a full one and a debt as deep. As a cost it stands for all that are
/// larger, which no limit admits.
pub const COUNT_MAX: u64 = (1 << 48) - 1;

/// Slots of the time wheel.
pub const WHEEL_SLOTS: u64 = 64;

/// Longest window: 10 years.
const WINDOW_US_MAX: u64 = 3_660 * DAY;

/// The algorithm by which a bucket counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Keeps the exact instants of hits.
    SlidingLog,
    /// Rounds instants up to the end of one of 64 slots.
    SlidingWheel,
    /// Token bucket, computed as a generic cell rate (GCRA).
    TokenBucket,
    /// Counts per aligned window.
    FixedWindow,
}

impl Algorithm {
    /// Name of the algorithm in the policy file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SlidingLog => "sliding-log",
            Self::SlidingWheel => "sliding-wheel",
            Self::TokenBucket => "token-bucket",
            Self::FixedWindow => "fixed-window",
        }
    }

    /// The default for "N per window": exact instants while they are few.
    #[must_use]
    pub const fn default_for(limit: u64) -> Self {
        if limit <= 256 {
            Self::SlidingLog
        } else {
            Self::SlidingWheel
        }
    }
}

/// The time a limit counts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// A span of microseconds; aligned to the epoch for fixed windows.
    Span(u64),
    /// A UTC calendar month (fixed windows only).
    Month,
    /// A UTC calendar year (fixed windows only).
    Year,
}

impl Window {
    /// Label of the window in bucket names (T-KEYS): `w60s`, `w1h`, `w1d`, `w1mo`, `w1y`.
    #[must_use]
    pub fn label(self) -> String {
        const UNITS: [(u64, &str); 3] = [(DAY, "d"), (DAY / 24, "h"), (1_000_000, "s")];
        let span = match self {
            Self::Span(span) => span,
            Self::Month => return "w1mo".to_owned(),
            Self::Year => return "w1y".to_owned(),
        };
        UNITS
            .iter()
            .find(|(unit, _)| span.is_multiple_of(*unit))
            .map_or_else(
                || format!("w{}us", span),
                |(unit, name)| format!("w{}{name}", span / unit),
            )
    }
}

/// The reason why a limit is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The limit or the burst is above [`FIGURE_MAX`].
    #[error("the limit and the burst must be at most {FIGURE_MAX}")]
    FigureTooLarge,
    /// The window is zero.
    #[error("the window must not be zero")]
    ZeroWindow,
    /// The window is longer than ten years.
    #[error("the window must not be longer than 10 years")]
    WindowTooLong,
    /// A calendar month or year makes sense for aligned windows only.
    #[error("a calendar month or year needs the algorithm `fixed-window`")]
    CalendarNeedsFixedWindow,
    /// The time that the burst takes to refill is more than the arithmetic can hold.
    #[error("the burst takes too long to refill; lower `burst` or raise the rate")]
    BurstTooLong,
    /// Tokens of a limit above 2³² come so fast that the arithmetic cannot tell them apart.
    #[error(
        "a token bucket cannot keep a rate as high to within 2 %; use `sliding-wheel` or `fixed-window`"
    )]
    RateTooHigh,
}

/// A validated limit: algorithm, amount and window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BucketSpec {
    algorithm: Algorithm,
    limit: u64,
    window: Window,
    /// Slot length of the wheel, 1 for the log.
    slot_us: u64,
    /// Token bucket: ticks per token, ticks per full burst.
    pub(super) interval_ticks: u64,
    pub(super) tolerance_ticks: u64,
    burst: u64,
}

impl BucketSpec {
    /// A limit of `limit` per `window`. `burst` only matters to token buckets and
    /// defaults to the limit.
    ///
    /// # Errors
    /// See [`SpecError`].
    pub fn new<N: Into<NonZeroU64>>(
        algorithm: Algorithm,
        limit: N,
        window: Window,
        burst: Option<N>,
    ) -> Result<Self, SpecError> {
        Self::of_figures(algorithm, limit.into(), window, burst.map(Into::into))
    }

    fn of_figures(
        algorithm: Algorithm,
        limit: NonZeroU64,
        window: Window,
        burst: Option<NonZeroU64>,
    ) -> Result<Self, SpecError> {
        let span = match window {
            Window::Span(0) => return Err(SpecError::ZeroWindow),
            Window::Span(span) if span > WINDOW_US_MAX => return Err(SpecError::WindowTooLong),
            Window::Span(span) => span,
            Window::Month | Window::Year if algorithm != Algorithm::FixedWindow => {
                return Err(SpecError::CalendarNeedsFixedWindow);
            }
            Window::Month => 31 * DAY,
            Window::Year => 366 * DAY,
        };
        let burst = burst.unwrap_or(limit);
        if limit.max(burst).get() > FIGURE_MAX {
            return Err(SpecError::FigureTooLarge);
        }
        let (interval_ticks, tolerance_ticks) = match algorithm {
            Algorithm::TokenBucket if !gcra::keeps_rate(span, limit) => {
                return Err(SpecError::RateTooHigh);
            }
            Algorithm::TokenBucket => gcra::ticks(span, limit, burst)?,
            // Read only where the state of a token bucket is taken over by another algorithm.
            _ => gcra::ticks(span, limit, limit).unwrap_or((u64::MAX / 3, u64::MAX / 3)),
        };
        let slot_us = match algorithm {
            // Rounded up, so that all slots together cover the window.
            Algorithm::SlidingWheel => span.div_ceil(WHEEL_SLOTS),
            _ => 1,
        };
        Ok(Self {
            algorithm,
            limit: limit.get(),
            window,
            slot_us,
            interval_ticks,
            tolerance_ticks,
            burst: burst.get(),
        })
    }

    /// True if a bucket that counted by `other` may count by this one and keep what was used: both
    /// have the same window, and the state stays of one kind.
    #[must_use]
    pub fn can_stand_in_for(&self, other: &Self) -> bool {
        let kind = |algorithm| match algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingWheel => Algorithm::SlidingLog,
            other => other,
        };
        self.window == other.window && kind(self.algorithm) == kind(other.algorithm)
    }

    /// The spec by which the bucket takes charges that no limit bounds. A log keeps every instant; as
    /// a wheel, whose hits it keeps as its own, it keeps 65 at most.
    #[must_use]
    pub fn for_unbounded_charges(&self) -> Self {
        let amount = NonZeroU64::new(self.limit);
        match (self.algorithm, amount) {
            (Algorithm::SlidingLog, Some(amount)) => {
                Self::new(Algorithm::SlidingWheel, amount, self.window, None).unwrap_or(*self)
            }
            _ => *self,
        }
    }

    /// The algorithm by which the bucket counts.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The configured amount per window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// The most that can be used at one instant: the burst of a token bucket,
    /// the limit of every other.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket => self.burst,
            _ => self.limit,
        }
    }

    /// The window's length in microseconds (31 days for a calendar month, 366 for a year).
    #[must_use]
    pub const fn window_us(&self) -> u64 {
        match self.window {
            Window::Span(span) => span,
            Window::Month => 31 * DAY,
            Window::Year => 366 * DAY,
        }
    }

    /// Longest time for which a use is remembered, in microseconds: the window, or the time in
    /// which a token bucket refills from empty.
    #[must_use]
    pub const fn memory_us(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket => self.tolerance_ticks / gcra::TICKS_PER_MICRO,
            _ => self.window_us(),
        }
    }

    /// The longest that a request can have to wait, in microseconds, if no use lies in the
    /// future: on a token bucket until the deepest debt is worked off and the burst refilled.
    #[must_use]
    pub const fn longest_wait_us(&self) -> u64 {
        let debt_us = match self.algorithm {
            Algorithm::TokenBucket => self.window_us(),
            _ => 0,
        };
        self.memory_us()
            .saturating_add(debt_us)
            .saturating_add(self.slot_us)
    }

    /// Tokens by which a token bucket can be overdrawn: one window's rate (B-BOUND). Other algorithms
    /// forget a debt with its window, however deep it is.
    #[must_use]
    pub const fn deepest_debt(&self) -> Option<u64> {
        match self.algorithm {
            Algorithm::TokenBucket => Some(gcra::deepest_debt(self)),
            _ => None,
        }
    }

    /// Slot length in microseconds: an instant is held until the end of its slot.
    #[must_use]
    pub const fn slot_us(&self) -> u64 {
        self.slot_us
    }

    /// Ticks (2⁻¹² µs) per token and per full burst of a token bucket.
    #[must_use]
    pub const fn gcra_ticks(&self) -> (u64, u64) {
        (self.interval_ticks, self.tolerance_ticks)
    }

    /// The instant as it is stored: the last one of its slot.
    #[must_use]
    pub const fn slot_instant(&self, now: Micros) -> Micros {
        Micros((now.0 - now.0 % self.slot_us).saturating_add(self.slot_us - 1))
    }

    /// Instant at which a bucket of hits keeps a charge of now that counts `from` there.
    ///
    /// A hold is kept at its exact instant, so that it ends neither early nor late; what was used
    /// earlier shares the slots of other hits.
    #[must_use]
    pub const fn hit_instant(&self, now: Micros, from: CountsFrom) -> Micros {
        match from {
            CountsFrom::Now => self.slot_instant(now),
            CountsFrom::Ago(us) => now.minus(us),
            CountsFrom::Instant(at) if at.0 < now.0 => self.slot_instant(at),
            CountsFrom::Instant(_) => self.slot_instant(now),
        }
    }

    /// Instant by which a charge of `now` that counts `from` there is given back.
    #[must_use]
    pub const fn counted_at(&self, now: Micros, from: CountsFrom) -> Micros {
        let has_hits = matches!(
            self.algorithm,
            Algorithm::SlidingLog | Algorithm::SlidingWheel
        );
        match from {
            CountsFrom::Ago(us) if has_hits => now.minus(us),
            CountsFrom::Instant(at) if has_hits && at.0 < now.0 => at,
            _ => now,
        }
    }

    /// First instant of the aligned window that `now` is in.
    #[must_use]
    pub fn window_start(&self, now: Micros) -> Micros {
        match self.window {
            Window::Span(span) => Micros(now.0 - now.0 % span),
            Window::Month => now.month_bounds().0,
            Window::Year => now.year_bounds().0,
        }
    }

    /// First instant after the aligned window that starts at `start`.
    #[must_use]
    pub fn window_end(&self, start: Micros) -> Micros {
        match self.window {
            Window::Span(span) => start.plus(span),
            Window::Month => start.month_bounds().1,
            Window::Year => start.year_bounds().1,
        }
    }
}
