//! Formats of recordings, and the reader of their lines.

use std::str::FromStr;

use palisade::cases::{Event, parse_event_of};
use palisade_core::Micros;
use palisade_core::path::EncodedSlash;
use palisade_server::config::Config;

use super::pattern::Pattern;
use super::{LineError, audit, combined, envoy};

/// The format of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Detected from the first line.
    Auto,
    /// One JSON object a line, as `palisade test` reads them.
    Jsonl,
    /// The combined or common format of Apache and nginx.
    Combined,
    /// Envoy's JSON access log.
    Envoy,
    /// Our own audit log.
    Audit,
    /// A pattern of nginx's `log_format`.
    Pattern(Pattern),
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "auto" => Self::Auto,
            "jsonl" => Self::Jsonl,
            "combined" | "common" => Self::Combined,
            "envoy" => Self::Envoy,
            "audit" => Self::Audit,
            pattern if pattern.contains('$') => Self::Pattern(Pattern::compile(pattern)?),
            _ => {
                return Err(
                    "write auto, jsonl, combined, common, envoy, audit, or a pattern with variables such as `$remote_addr`"
                        .to_owned(),
                );
            }
        })
    }
}

impl Format {
    /// Returns the format that the first line has.
    fn of_line(line: &str) -> Self {
        let member = |name: &str| line.contains(&format!("\"{name}\""));
        if !line.trim_start().starts_with('{') {
            Self::Combined
        } else if member("op") && member("at") && !member("severity") {
            Self::Jsonl
        } else if member("event") && member("severity") {
            Self::Audit
        } else if member("at") {
            Self::Jsonl
        } else {
            Self::Envoy
        }
    }
}

/// The identity that a header of an access log states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    User,
    Org,
    Token,
    ApiKey,
}

/// Names of the identity headers in the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Names([(String, Meaning); 4]);

impl Names {
    pub(crate) fn of(config: &Config) -> Self {
        let identity = &config.identity;
        let name = |header: &http::HeaderName| header.as_str().to_owned();
        Self([
            (name(&identity.user_header.0), Meaning::User),
            (name(&identity.org_header.0), Meaning::Org),
            (name(&identity.token_header.0), Meaning::Token),
            (name(&identity.api_key_header.0), Meaning::ApiKey),
        ])
    }

    pub(super) fn meaning(&self, header: &str) -> Option<Meaning> {
        let mut all = self.0.iter();
        let found = all.find(|(name, _)| name.eq_ignore_ascii_case(header));
        found.map(|(_, meaning)| *meaning)
    }
}

impl Default for Names {
    fn default() -> Self {
        let name = |name: &str| name.to_owned();
        Self([
            (name("x-palisade-user"), Meaning::User),
            (name("x-palisade-org"), Meaning::Org),
            (name("x-palisade-token"), Meaning::Token),
            (name("x-api-key"), Meaning::ApiKey),
        ])
    }
}

/// Reads the lines of one recording.
pub(super) struct Reader {
    format: Format,
    names: Names,
    slash: EncodedSlash,
    /// Time of the last line.
    last_at: Option<Micros>,
}

impl Reader {
    pub(super) const fn new(format: Format, names: Names, slash: EncodedSlash) -> Self {
        Self {
            format,
            names,
            slash,
            last_at: None,
        }
    }

    /// Returns the event of a line; `None` if it reports no decision.
    pub(super) fn event(&mut self, line: &str) -> Result<Option<Event>, LineError> {
        if self.format == Format::Auto {
            self.format = Format::of_line(line);
        }
        let mut event = match &self.format {
            Format::Auto | Format::Jsonl => return Ok(Some(parse_event_of(line, self.slash)?)),
            Format::Combined => combined::event(line, self.slash)?,
            Format::Envoy => envoy::event(line, self.slash)?,
            Format::Pattern(pattern) => pattern.event(line, &self.names, self.slash)?,
            Format::Audit => match audit::event(line)? {
                Some(event) => event,
                None => return Ok(None),
            },
        };
        // Servers write a line when a request has ended, so times go back a little.
        event.at = self.last_at.map_or(event.at, |last| event.at.max(last));
        self.last_at = Some(event.at);
        Ok(Some(event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_known_by_its_first_line() {
        let cases = [
            (
                r#"{"at":"2026-01-01T00:00:00Z","op":"request"}"#,
                Format::Jsonl,
            ),
            (
                r#"{"event":"guard.block","severity":"info","at":"x","op":"login.check"}"#,
                Format::Audit,
            ),
            (r#"{"start_time":"x","method":"GET"}"#, Format::Envoy),
            (
                "203.0.113.9 - - [x] \"GET / HTTP/1.1\" 200 1",
                Format::Combined,
            ),
        ];
        for (line, format) in cases {
            assert_eq!(Format::of_line(line), format);
        }
        assert!("xml".parse::<Format>().unwrap_err().contains("combined"));
    }

    #[test]
    fn times_of_a_log_never_go_back() {
        let mut reader = Reader::new(Format::Combined, Names::default(), EncodedSlash::default());
        let mut at = |second: u32| {
            let line = format!(
                "192.0.2.1 - - [10/Oct/2026:13:55:{second:02} +0000] \"GET / HTTP/1.1\" 200 1"
            );
            reader.event(&line).unwrap().unwrap().at
        };
        let first = at(36);
        assert_eq!(at(35), first);
        assert!(at(37) > first);
    }
}
