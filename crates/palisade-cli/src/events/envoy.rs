//! Reads Envoy's JSON access log. Its `json_format` chooses the names of the members; the usual
//! names are known, those of Istio among them.

use std::borrow::Cow;

use palisade::cases::Event;
use palisade_core::Micros;
use palisade_core::path::EncodedSlash;
use serde::Deserialize;

use super::LineError;
use super::logged::{LoggedRequest, unix_time};

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow, alias = "timestamp", alias = "@timestamp", alias = "time")]
    start_time: Option<Cow<'a, str>>,
    #[serde(borrow, alias = ":method", alias = "request_method")]
    method: Option<Cow<'a, str>>,
    /// The path before a rewrite, if the log has both.
    #[serde(borrow, alias = "x-envoy-original-path", alias = "original_path")]
    x_envoy_original_path: Option<Cow<'a, str>>,
    #[serde(borrow, alias = ":path", alias = "request_path")]
    path: Option<Cow<'a, str>>,
    /// The client, as Envoy determines it by `xff_num_trusted_hops`.
    #[serde(borrow, alias = "client_ip", alias = "remote_address")]
    downstream_remote_address: Option<Cow<'a, str>>,
    #[serde(borrow, alias = "x-forwarded-for")]
    x_forwarded_for: Option<Cow<'a, str>>,
    #[serde(borrow, alias = "user-agent", alias = "request_user_agent")]
    user_agent: Option<Cow<'a, str>>,
}

/// Returns the event of a line.
pub(super) fn event(line: &str, slash: EncodedSlash) -> Result<Event, LineError> {
    let line: Line<'_> = serde_json::from_str(line)
        .map_err(|_| LineError::Line("is no line of Envoy's JSON access log"))?;
    let said = |text: &Option<Cow<'_, str>>| text.as_deref().is_some_and(|text| text != "-");
    let original = said(&line.x_envoy_original_path);
    let target = match original {
        true => line.x_envoy_original_path.as_deref(),
        false => line.path.as_deref(),
    };
    let ip = match said(&line.downstream_remote_address) {
        true => line.downstream_remote_address.as_deref().map(without_port),
        false => line.x_forwarded_for.as_deref().and_then(last_hop),
    };
    LoggedRequest {
        at: line.start_time.as_deref().and_then(time),
        ip,
        method: line.method.as_deref(),
        target,
        agent: line.user_agent.as_deref(),
        ..LoggedRequest::default()
    }
    .into_event(slash)
}

fn time(text: &str) -> Option<Micros> {
    Micros::parse_rfc3339(text).or_else(|| unix_time(text))
}

/// Returns the address in `192.0.2.1:4711` or `[2001:db8::1]:4711`.
fn without_port(text: &str) -> &str {
    if let Some((address, _)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match text.rsplit_once(':') {
        Some((address, _)) if !address.contains(':') => address,
        _ => text,
    }
}

/// Returns the address that the nearest proxy appended: only that one can be believed.
pub(super) fn last_hop(text: &str) -> Option<&str> {
    text.rsplit(',').next().map(str::trim)
}

#[cfg(test)]
mod tests {
    use palisade::cases::Operation;

    use super::*;

    fn read(line: &str) -> Result<(String, String), LineError> {
        let event = event(line, EncodedSlash::default())?;
        match event.operation {
            Operation::Request(facts) => Ok((
                facts.ip.to_string(),
                format!("{} {}", facts.method, facts.path),
            )),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_client_is_whom_envoy_takes_it_for() {
        let line = r#"{"start_time":"2026-10-10T11:55:36.123Z","method":"GET","path":"/a?x=1","response_code":200,"downstream_remote_address":"203.0.113.9:4711","x_forwarded_for":"198.51.100.1,203.0.113.9","user_agent":"curl/8"}"#;
        let expected = ("203.0.113.9".to_owned(), "GET /a".to_owned());
        assert_eq!(read(line).unwrap(), expected);
        let spoofed = r#"{":method":"GET",":path":"/a","time":"1700000000.5","x-forwarded-for":"198.51.100.1, 203.0.113.9"}"#;
        assert_eq!(read(spoofed).unwrap(), expected);
        let six = r#"{"start_time":"2026-10-10T11:55:36Z","method":"GET","path":"/new","x_envoy_original_path":"/a","downstream_remote_address":"[2001:db8::1]:1"}"#;
        assert_eq!(read(six).unwrap().1, "GET /a");
        assert_eq!(read(six).unwrap().0, "2001:db8::1");
    }

    #[test]
    fn a_connection_without_a_request_is_none() {
        let line = r#"{"start_time":"2026-10-10T11:55:36Z","method":"-","path":"-","downstream_remote_address":"203.0.113.9:1"}"#;
        assert_eq!(read(line).unwrap_err().to_string(), "`method` is required");
        assert!(read("[]").is_err() && read("{").is_err());
    }
}
