//! Instants and calendar arithmetic. Nothing here reads a clock.

use ::time::format_description::well_known::Rfc3339;
use ::time::{Date, Month, OffsetDateTime};
use serde::{Deserialize, Serialize};

/// Microseconds in one second.
pub const SECOND: u64 = 1_000_000;
/// Microseconds in one minute.
pub const MINUTE: u64 = 60 * SECOND;
/// Microseconds in one hour.
pub const HOUR: u64 = 60 * MINUTE;
/// Microseconds in one day.
pub const DAY: u64 = 24 * HOUR;

/// An instant: microseconds since the Unix epoch.
///
/// Microseconds because every store can hold them exactly: a Lua number is a
/// double, and a nanosecond count no longer fits one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Micros(pub u64);

impl Micros {
    /// The instant `us` microseconds later; saturates at the end of time.
    #[must_use]
    pub const fn plus(self, us: u64) -> Self {
        Self(self.0.saturating_add(us))
    }

    /// The instant `us` microseconds earlier; saturates at the epoch.
    #[must_use]
    pub const fn minus(self, us: u64) -> Self {
        Self(self.0.saturating_sub(us))
    }

    /// Microseconds from `earlier` to here, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Microseconds from `other` to here, negative if `other` is later.
    #[must_use]
    pub const fn ahead_of(self, other: Self) -> i64 {
        self.0.wrapping_sub(other.0).cast_signed()
    }

    /// The instant `us` microseconds later or, if negative, earlier.
    #[must_use]
    pub const fn moved(self, us: i64) -> Self {
        Self(self.0.saturating_add_signed(us))
    }

    /// Unix seconds, rounded up: a client that waits until then has waited long enough.
    #[must_use]
    pub const fn unix_seconds_ceil(self) -> u64 {
        self.0.div_ceil(SECOND)
    }

    /// Parses an RFC 3339 timestamp; `None` if it is malformed or before the epoch.
    #[must_use]
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        u64::try_from(at.unix_timestamp_nanos() / 1_000)
            .ok()
            .map(Self)
    }

    /// RFC 3339 in UTC with milliseconds, the form every answer and log line uses.
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        let Some(at) = self.to_datetime() else {
            return "9999-12-31T23:59:59.999Z".to_owned();
        };
        // Digit by digit: `format!` costs a denial, which writes two of these, more than
        // deciding it does.
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let parts = [
            (0..4, u16::try_from(at.year()).unwrap_or(0)),
            (5..7, u8::from(at.month()).into()),
            (8..10, at.day().into()),
            (11..13, at.hour().into()),
            (14..16, at.minute().into()),
            (17..19, at.second().into()),
            (20..23, at.millisecond()),
        ];
        for (place, mut number) in parts {
            for digit in text[place].iter_mut().rev() {
                *digit += (number % 10) as u8;
                number /= 10;
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    fn to_datetime(self) -> Option<OffsetDateTime> {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000).ok()
    }

    /// The first instant of this UTC calendar month and of the next one.
    ///
    /// Past the last representable month the bounds degrade to 31-day windows, so
    /// the arithmetic stays total.
    #[must_use]
    pub fn month_bounds(self) -> (Self, Self) {
        self.month_bounds_checked().unwrap_or_else(|| {
            let start = self.0 - self.0 % (31 * DAY);
            (Self(start), Self(start).plus(31 * DAY))
        })
    }

    /// The first instant of this UTC calendar year and of the next one. Past the last
    /// representable year they degrade to windows of 366 days.
    #[must_use]
    pub fn year_bounds(self) -> (Self, Self) {
        self.year_bounds_checked().unwrap_or_else(|| {
            let start = self.0 - self.0 % (366 * DAY);
            (Self(start), Self(start).plus(366 * DAY))
        })
    }

    fn year_bounds_checked(self) -> Option<(Self, Self)> {
        let year = self.to_datetime()?.year();
        let next = year.checked_add(1)?;
        Some((
            first_of(year, Month::January)?,
            first_of(next, Month::January)?,
        ))
    }

    fn month_bounds_checked(self) -> Option<(Self, Self)> {
        let date = self.to_datetime()?.date();
        let next = match date.month() {
            Month::December => (date.year().checked_add(1)?, Month::January),
            month => (date.year(), month.next()),
        };
        Some((
            first_of(date.year(), date.month())?,
            first_of(next.0, next.1)?,
        ))
    }
}

fn first_of(year: i32, month: Month) -> Option<Micros> {
    let date = Date::from_calendar_date(year, month, 1).ok()?;
    let seconds = date.midnight().assume_utc().unix_timestamp();
    u64::try_from(seconds).ok()?.checked_mul(SECOND).map(Micros)
}

/// A wait in whole seconds as a client sees it: rounded up, at least one.
#[must_use]
pub const fn retry_after_seconds(wait_us: u64) -> u64 {
    let seconds = wait_us.div_ceil(SECOND);
    if seconds == 0 { 1 } else { seconds }
}

/// Source of instants. The core defines the shape; only the engine's `clock.rs` implements it by
/// reading time.
pub trait Clock: Send + Sync + 'static {
    /// The current instant. Never goes back within a process.
    fn now(&self) -> Micros;

    /// The time of day, to judge instants that others have set (a token's end). It may
    /// go back when the machine's clock is set.
    fn wall(&self) -> Micros {
        self.now()
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Micros {
        (**self).now()
    }

    fn wall(&self) -> Micros {
        (**self).wall()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Micros {
        Micros::parse_rfc3339(text).unwrap()
    }

    #[test]
    fn month_bounds_follow_the_calendar_and_leap_years() {
        let cases = [
            (
                "2026-02-14T12:00:00Z",
                "2026-02-01T00:00:00Z",
                "2026-03-01T00:00:00Z",
            ),
            (
                "2028-02-29T23:59:59.999Z",
                "2028-02-01T00:00:00Z",
                "2028-03-01T00:00:00Z",
            ),
            (
                "2026-12-31T23:59:59Z",
                "2026-12-01T00:00:00Z",
                "2027-01-01T00:00:00Z",
            ),
            (
                "2026-04-01T00:00:00Z",
                "2026-04-01T00:00:00Z",
                "2026-05-01T00:00:00Z",
            ),
            (
                "2100-02-28T00:00:00Z",
                "2100-02-01T00:00:00Z",
                "2100-03-01T00:00:00Z",
            ),
        ];
        for (now, start, end) in cases {
            assert_eq!(at(now).month_bounds(), (at(start), at(end)), "{now}");
        }
    }

    #[test]
    fn year_bounds_follow_the_calendar_and_leap_years() {
        for (now, start, end) in [
            (
                "2028-12-31T23:59:59.999Z",
                "2028-01-01T00:00:00Z",
                "2029-01-01T00:00:00Z",
            ),
            (
                "2027-01-01T00:00:00Z",
                "2027-01-01T00:00:00Z",
                "2028-01-01T00:00:00Z",
            ),
        ] {
            assert_eq!(at(now).year_bounds(), (at(start), at(end)), "{now}");
        }
    }

    #[test]
    fn month_and_year_bounds_are_total() {
        for micros in [0, 1, u64::MAX / 2, u64::MAX] {
            let (start, end) = Micros(micros).year_bounds();
            assert!(start.0 <= micros && micros <= end.0);
            let (start, end) = Micros(micros).month_bounds();
            assert!(start.0 <= micros && micros <= end.0);
        }
    }

    #[test]
    fn retry_after_rounds_up_and_is_at_least_one() {
        assert_eq!(retry_after_seconds(0), 1);
        assert_eq!(retry_after_seconds(1), 1);
        assert_eq!(retry_after_seconds(SECOND), 1);
        assert_eq!(retry_after_seconds(SECOND + 1), 2);
    }

    #[test]
    fn rfc3339_round_trips_with_milliseconds() {
        let text = "2026-01-01T00:00:01.250Z";
        assert_eq!(at(text).to_rfc3339(), text);
        assert_eq!(Micros::parse_rfc3339("yesterday"), None);
        assert_eq!(Micros::parse_rfc3339("1969-12-31T23:59:59Z"), None);
    }
}
