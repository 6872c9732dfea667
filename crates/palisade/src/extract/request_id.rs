//! Request and correlation ids that arrive with a request.
//!
//! A request has one id (I-ID). `X-Request-Id` is believed from a trusted proxy or an authenticated
//! backend; every other request gets a new id. Even a believed id may have been chosen by an end
//! user, so it does not distinguish a retry from a new attempt: a surface that reports to the guard
//! on a client's behalf makes an `attempt_id` of its own. Otherwise a client could repeat one id
//! and have every failure after the first ignored (G-ONCE).

use http::{HeaderMap, HeaderName};
use palisade_core::Id;

/// Longest id that is accepted, in bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_CORRELATION_ID: HeaderName = HeaderName::from_static("x-correlation-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Returns `X-Request-Id`, if it was sent once and is valid. The caller has checked that the sender
/// is trusted.
#[must_use]
pub fn sent_id(headers: &HeaderMap) -> Option<Id> {
    taken(only(headers, &X_REQUEST_ID)?)
}

/// A new random id, 32 hexadecimal characters.
#[must_use]
pub fn new_id() -> Option<Id> {
    Id::new("request_id", &palisade_core::hex::text(rand::random())).ok()
}

/// Returns `X-Correlation-Id`, otherwise the trace id of `traceparent`.
#[must_use]
pub fn correlation_id(headers: &HeaderMap) -> Option<Id> {
    only(headers, &X_CORRELATION_ID)
        .and_then(taken)
        .or_else(|| taken(trace_id(only(headers, &TRACEPARENT)?)?))
}

fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next()?.to_str().ok()?;
    lines.next().is_none().then(|| line.trim())
}

/// Returns the id if it is visible ASCII of a bounded length: any header can carry it, and it
/// cannot split a log line.
fn taken(text: &str) -> Option<Id> {
    if text.len() > REQUEST_ID_BYTES_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    Id::new("request_id", text).ok()
}

/// Returns the trace id of a `traceparent` header (W3C Trace Context):
/// `version-traceid-parentid-flags`, lower-case hexadecimal.
fn trace_id(text: &str) -> Option<&str> {
    let hex = |part: &str, len: usize| {
        part.len() == len
            && part
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let mut parts = text.split('-');
    let (version, trace, parent, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let shaped = hex(version, 2) && hex(trace, 32) && hex(parent, 16) && hex(flags, 2);
    let known = version != "ff" && (version != "00" || parts.next().is_none());
    let nonzero = |part: &str| part.bytes().any(|byte| byte != b'0');
    (shaped && known && nonzero(trace) && nonzero(parent)).then_some(trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_key_trace_ids_are_taken_only_if_well_formed() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let good = format!("00-{id}-00f067aa0ba902b7-01");
        assert_eq!(trace_id(&good), Some(id));
        assert_eq!(
            trace_id(&format!("01-{id}-00f067aa0ba902b7-01-more")),
            Some(id)
        );
        let bad = [
            format!("{good}-more"),
            format!("ff-{id}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{id}-{}-01", "0".repeat(16)),
            format!("00-{}-00f067aa0ba902b7-01", id.to_uppercase()),
            "00".to_owned(),
        ];
        for text in bad {
            assert_eq!(trace_id(&text), None, "{text}");
        }
    }

    #[test]
    fn i_id_request_ids_are_bounded_and_visible_ascii() {
        assert!(taken("a\"b<c>").is_some());
        assert!(taken("req-1").is_some());
        assert!(taken(&"x".repeat(REQUEST_ID_BYTES_MAX)).is_some());
        for text in ["", "a b", "a\u{e9}", &"x".repeat(REQUEST_ID_BYTES_MAX + 1)] {
            assert!(taken(text).is_none());
        }
    }
}
