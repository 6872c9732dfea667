//! Reads access logs in the combined and common formats:
//! `ADDRESS - USER [TIME] "METHOD TARGET VERSION" STATUS BYTES "REFERER" "AGENT"`.

use palisade::cases::Event;
use palisade_core::path::EncodedSlash;

use super::LineError;
use super::logged::{LoggedRequest, clf_time, request_line};

/// Returns the event of a line.
pub(super) fn event(line: &str, slash: EncodedSlash) -> Result<Event, LineError> {
    logged(line)
        .ok_or(LineError::Line("is no line of a combined or common log"))?
        .into_event(slash)
}

fn logged(line: &str) -> Option<LoggedRequest<'_>> {
    let (address, rest) = line.split_once(' ')?;
    let (before, rest) = rest.split_once('[')?;
    let (time, rest) = rest.split_once(']')?;
    let mut quoted = QuotedTexts(rest);
    let (method, target) = request_line(quoted.next()?);
    Some(LoggedRequest {
        at: clf_time(time),
        ip: Some(address),
        method,
        target,
        user: before.split_whitespace().nth(1),
        agent: quoted.nth(1),
        ..LoggedRequest::default()
    })
}

/// Iterates over the texts in quotes; `\"` does not end one.
struct QuotedTexts<'a>(&'a str);

impl<'a> Iterator for QuotedTexts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let start = self.0.find('"')? + 1;
        let rest = &self.0[start..];
        let end = closing_quote(rest)?;
        self.0 = &rest[end + 1..];
        Some(&rest[..end])
    }
}

/// Returns where a quoted text ends.
pub(super) fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

#[cfg(test)]
mod tests {
    use palisade::cases::Operation;

    use super::*;

    const LINE: &str = r#"203.0.113.9 - bob [10/Oct/2026:13:55:36 +0200] "GET /a?b=1 HTTP/1.1" 200 17 "https://example.com/\"x\"" "Mozilla/5.0 (X11) \"quoted\"""#;

    fn read(line: &str) -> Result<Event, LineError> {
        event(line, EncodedSlash::default())
    }

    fn facts(event: &Event) -> &palisade_core::RequestFacts {
        match &event.operation {
            Operation::Request(facts) => facts,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_line_becomes_a_request() {
        let event = read(LINE).unwrap();
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
        let event = read(line).unwrap();
        assert!(facts(&event).user_agent.is_none() && facts(&event).user.is_none());
    }

    #[test]
    fn what_is_no_request_is_left_out_and_not_echoed() {
        for line in [
            "",
            "nonsense",
            r#"203.0.113.9 - - [10/Oct/2026:13:55:36 +0000] "-" 400 0 "-" "-""#,
            r#"203.0.113.9 - - [yesterday] "GET / HTTP/1.1" 200 1"#,
            r#"203.0.113.9 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1"#,
            r#"not-an-address - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 200 1"#,
            "203.0.113.9 - - [10/Oct/2026:13:55:36 +é0] \"GET / HTTP/1.1\" 200 1",
        ] {
            let told = read(line).unwrap_err().to_string();
            assert!(
                !told.contains("203.0") && !told.contains("nonsense"),
                "{told}"
            );
        }
    }
}
