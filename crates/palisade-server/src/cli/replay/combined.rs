//! Access logs in the combined and common formats:
//! `ADDRESS - USER [TIME] "METHOD TARGET VERSION" STATUS BYTES "REFERER" "AGENT"`.

use palisade::cases::{Event, Operation};
use palisade::wire::RawRequest;
use palisade_core::Micros;

/// The event of a line; `None` if the line is no request.
///
/// Servers write a line when a request has ended, so that times may go back a
/// little: such a request counts at `not_before`.
pub(super) fn parse(line: &str, not_before: Option<Micros>) -> Option<Event> {
    let (address, rest) = line.split_once(' ')?;
    let (before, rest) = rest.split_once('[')?;
    let (time, rest) = rest.split_once(']')?;
    let user = before.split_whitespace().nth(1).filter(|user| *user != "-");
    let mut quoted = Quoted(rest);
    let request = quoted.next()?;
    let mut words = request.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let agent = quoted.nth(1).filter(|agent| *agent != "-");
    let at = timestamp(time)?;
    let facts = RawRequest {
        ip: Some(address.into()),
        method: Some(method.into()),
        path: Some(target.into()),
        user: user.map(Into::into),
        user_agent: agent.map(Into::into),
        ..RawRequest::default()
    };
    let facts = facts.into_facts().ok()?;
    Some(Event {
        at: not_before.map_or(at, |earliest| at.max(earliest)),
        operation: Operation::Request(Box::new(facts)),
        expect: None,
    })
}

/// The texts in quotes, one after the other; `\"` does not end one.
struct Quoted<'a>(&'a str);

impl<'a> Iterator for Quoted<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let start = self.0.find('"')? + 1;
        let rest = &self.0[start..];
        let mut escaped = false;
        let end = rest.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })?;
        self.0 = &rest[end + 1..];
        Some(&rest[..end])
    }
}

/// `10/Oct/2000:13:55:36 -0700`.
fn timestamp(text: &str) -> Option<Micros> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (moment, zone) = text.split_once(' ')?;
    let (date, time) = moment.split_once(':')?;
    let mut parts = date.split('/');
    let (day, month, year) = (parts.next()?, parts.next()?, parts.next()?);
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let (hours, minutes) = zone.split_at_checked(3)?;
    Micros::parse_rfc3339(&format!("{year}-{month:02}-{day}T{time}{hours}:{minutes}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"203.0.113.9 - bob [10/Oct/2026:13:55:36 +0200] "GET /a?b=1 HTTP/1.1" 200 17 "https://example.com/\"x\"" "Mozilla/5.0 (X11) \"quoted\"""#;

    fn facts(event: &Event) -> &palisade_core::RequestFacts {
        match &event.operation {
            Operation::Request(facts) => facts,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_line_becomes_a_request() {
        let event = parse(LINE, None).unwrap();
        assert_eq!(event.at.to_rfc3339(), "2026-10-10T11:55:36.000Z");
        let facts = facts(&event);
        assert_eq!(facts.ip.to_string(), "203.0.113.9");
        assert_eq!((&*facts.method, &*facts.path), ("GET", "/a"));
        assert_eq!(facts.user.as_ref().unwrap().as_str(), "bob");
        assert!(facts.user_agent.as_ref().unwrap().contains("quoted"));
    }

    #[test]
    fn the_common_format_has_no_agent() {
        let line = r#"2001:db8::1 - - [10/Oct/2026:13:55:36 +0000] "POST /x HTTP/1.0" 404 -"#;
        let event = parse(line, None).unwrap();
        assert!(facts(&event).user_agent.is_none() && facts(&event).user.is_none());
    }

    #[test]
    fn times_never_go_back() {
        let later = Micros(u64::MAX / 2);
        assert_eq!(parse(LINE, Some(later)).unwrap().at, later);
    }

    #[test]
    fn what_is_no_request_is_left_out() {
        for line in [
            "",
            "nonsense",
            r#"203.0.113.9 - - [10/Oct/2026:13:55:36 +0000] "-" 400 0 "-" "-""#,
            r#"203.0.113.9 - - [yesterday] "GET / HTTP/1.1" 200 1"#,
            r#"203.0.113.9 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1"#,
            r#"not-an-address - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 200 1"#,
            "203.0.113.9 - - [10/Oct/2026:13:55:36 +é0] \"GET / HTTP/1.1\" 200 1",
        ] {
            assert!(parse(line, None).is_none(), "{line}");
        }
    }
}
