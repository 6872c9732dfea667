//! Turns a request of an access log into an event.

use std::borrow::Cow;

use palisade::cases::{CaseError, Event, Operation};
use palisade::wire::{RawRequest, WireError};
use palisade_core::Micros;
use palisade_core::path::EncodedSlash;

use super::LineError;

/// One logged request, each part as written in the line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoggedRequest<'a> {
    pub(super) at: Option<Micros>,
    pub(super) ip: Option<&'a str>,
    pub(super) method: Option<&'a str>,
    pub(super) target: Option<&'a str>,
    pub(super) user: Option<&'a str>,
    pub(super) org: Option<&'a str>,
    pub(super) token: Option<&'a str>,
    pub(super) api_key: Option<&'a str>,
    pub(super) agent: Option<&'a str>,
}

impl<'a> LoggedRequest<'a> {
    pub(super) fn into_event(self, slash: EncodedSlash) -> Result<Event, LineError> {
        let at = self.at.ok_or(LineError::Line("its time cannot be read"))?;
        let text = |text: Option<&'a str>| {
            let said = text.filter(|text| !text.is_empty() && *text != "-");
            said.map(Cow::Borrowed)
        };
        let raw = RawRequest {
            ip: text(self.ip),
            method: text(self.method),
            path: text(self.target),
            user: text(self.user),
            org: text(self.org),
            token: text(self.token),
            api_key: text(self.api_key),
            user_agent: text(self.agent),
            ..RawRequest::default()
        };
        let facts = raw.into_facts_of(slash);
        let facts = facts.map_err(|error| CaseError::Wire(WireError::Field(error)))?;
        Ok(Event {
            at,
            operation: Operation::Request(Box::new(facts)),
            challenge: None,
            expect: None,
        })
    }
}

/// Returns the method and target of a request line such as `GET /a HTTP/1.1`.
pub(super) fn request_line(text: &str) -> (Option<&str>, Option<&str>) {
    let mut words = text.split(' ');
    (words.next(), words.next())
}

/// Returns the instant of a date and time of day in a log; `ahead` is how far its zone is ahead of
/// UTC, in seconds.
pub(super) fn instant(date: [u32; 3], time: [u32; 3], ahead: i64) -> Option<Micros> {
    let [year, month, day] = date;
    let [hour, minute, second] = time;
    let is_sane = (1970..10_000).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        // 60 is a leap second.
        && second < 61;
    if !is_sane {
        return None;
    }
    let seconds = days_since_epoch(year, month, day) * 86_400
        + i64::from(hour * 3600 + minute * 60 + second)
        - ahead;
    let seconds = u64::try_from(seconds).ok()?;
    Some(Micros(seconds * palisade_core::time::SECOND))
}

/// Returns the days since 1970-01-01, by the count of leap days in years that begin in March.
fn days_since_epoch(year: u32, month: u32, day: u32) -> i64 {
    let year = i64::from(year) - i64::from(month <= 2);
    let month = i64::from((month + 9) % 12);
    let day_of_year = (153 * month + 2) / 5 + i64::from(day) - 1;
    let leap_days = year / 4 - year / 100 + year / 400;
    // 719,468 days lie between 1 March of the year 0 and 1970-01-01.
    year * 365 + leap_days + day_of_year - 719_468
}

/// Parses a time such as `10/Oct/2000:13:55:36 -0700`.
pub(super) fn clf_time(text: &str) -> Option<Micros> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u32>().ok();
    let month = MONTHS
        .iter()
        .position(|name| text.get(3..6) == Some(*name))?;
    let date = [
        number(7, 11)?,
        u32::try_from(month).ok()? + 1,
        number(0, 2)?,
    ];
    let time = [number(12, 14)?, number(15, 17)?, number(18, 20)?];
    let zone = i64::from(number(22, 24)? * 3600 + number(24, 26)? * 60);
    let ahead = match text.get(20..22)? {
        " +" => zone,
        " -" => -zone,
        _ => return None,
    };
    (text.len() == 26).then(|| instant(date, time, ahead))?
}

/// Parses a time such as `1700000000.123`, in seconds since the epoch.
pub(super) fn unix_time(text: &str) -> Option<Micros> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let seconds: u64 = whole.parse().ok()?;
    let is_plain = part.len() <= 6 && part.bytes().all(|b| b.is_ascii_digit());
    let micros: u64 = if part.is_empty() {
        0
    } else {
        part.parse().ok()?
    };
    let scale = 10_u64.pow(u32::try_from(6 - part.len().min(6)).ok()?);
    let at = seconds.checked_mul(palisade_core::time::SECOND)?;
    is_plain.then_some(Micros(at + micros * scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_logs_write_them() {
        let shown = |at: Option<Micros>| at.map(Micros::to_rfc3339);
        let cases = [
            ("10/Oct/2026:13:55:36 +0200", "2026-10-10T11:55:36.000Z"),
            ("29/Feb/2024:00:00:00 -0730", "2024-02-29T07:30:00.000Z"),
            ("31/Dec/1999:23:59:59 +0000", "1999-12-31T23:59:59.000Z"),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(clf_time(text)).as_deref(), Some(expected));
            assert_eq!(Micros::parse_rfc3339(expected), clf_time(text));
        }
        for text in [
            "",
            "yesterday",
            "10/Oct/2026:13:55:36 +é0",
            "10/Okt/2026:13:55:36 +0000",
        ] {
            assert_eq!(clf_time(text), None, "{text}");
        }
        assert_eq!(
            unix_time("1700000000.25"),
            Some(Micros(1_700_000_000_250_000))
        );
        assert_eq!(unix_time("1700000000"), Some(Micros(1_700_000_000_000_000)));
        assert_eq!(unix_time("-1"), None);
    }
}
