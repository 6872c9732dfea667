//! Decision → HTTP: the status, headers and body that an enforcing surface answers with,
//! whichever it is.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use palisade_core::bodies::body;
use serde::Serialize;

use crate::engine::RequestAnswer;
use crate::extract::ExtractError;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A decision applied: its status, headers and body. One that lets a request through has
/// no body.
#[must_use]
pub fn enforced(answer: &RequestAnswer, request_id: &str) -> Response<Vec<u8>> {
    let decision = &answer.decision;
    let urls = &answer.policy.settings.urls;
    let bytes = body(decision, urls, request_id).and_then(|body| serde_json::to_vec(&body).ok());
    let has_body = bytes.is_some();
    let mut reply = Response::new(bytes.unwrap_or_default());
    *reply.status_mut() =
        StatusCode::from_u16(decision.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    if has_body {
        reply.headers_mut().insert(CONTENT_TYPE, JSON);
    }
    apply_headers(reply.headers_mut(), answer);
    reply
}

/// Puts a decision's headers on an answer.
pub fn apply_headers(target: &mut HeaderMap, answer: &RequestAnswer) {
    answer.each_header(|name, value| {
        if let (Some(name), Ok(value)) = (header_name(name), HeaderValue::from_str(value)) {
            target.insert(name, value);
        }
    });
}

/// Says that the candidate policy differs, unless that is said already.
#[cfg(feature = "tower")]
pub(crate) fn add_candidate(target: &mut HeaderMap, answer: &RequestAnswer) {
    let header = answer.candidate.as_ref().and_then(|one| one.header());
    if let Some((name, value)) = header
        && let (Some(name), Ok(value)) = (header_name(name), HeaderValue::try_from(value))
    {
        target.entry(name).or_insert(value);
    }
}

/// The header of this name. Those of every answer are known, which spares reading them.
fn header_name(name: &'static str) -> Option<HeaderName> {
    macro_rules! known {
        ($($spelt:literal => $lower:literal),* $(,)?) => {
            match name {
                $($spelt => Some(const { HeaderName::from_static($lower) }),)*
                other => HeaderName::from_bytes(other.as_bytes()).ok(),
            }
        };
    }
    known! {
        "X-RateLimit-Limit" => "x-ratelimit-limit",
        "X-RateLimit-Remaining" => "x-ratelimit-remaining",
        "X-RateLimit-Reset" => "x-ratelimit-reset",
        "RateLimit-Policy" => "ratelimit-policy",
        "RateLimit" => "ratelimit",
        "RateLimit-Limit" => "ratelimit-limit",
        "RateLimit-Remaining" => "ratelimit-remaining",
        "RateLimit-Reset" => "ratelimit-reset",
        "Retry-After" => "retry-after",
    }
}

/// RFC 9457, of a request that could not be read.
#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    field: &'static str,
    request_id: &'a str,
}

/// What is wrong with a request that could not be read; names the field and no value.
#[must_use]
pub fn unreadable(error: &ExtractError, request_id: &str) -> Response<Vec<u8>> {
    let (r#type, title) = match error.status() {
        403 => (
            "urn:palisade:problem:forbidden",
            "The request is not accepted from here",
        ),
        413 => (
            "urn:palisade:problem:body-too-large",
            "The body is too large",
        ),
        415 => (
            "urn:palisade:problem:unsupported-media",
            "The body is of a type that is not read here",
        ),
        _ => ("urn:palisade:problem:invalid-field", "A field is not valid"),
    };
    let problem = Problem {
        r#type,
        title,
        status: error.status(),
        detail: &error.to_string(),
        field: error.field(),
        request_id,
    };
    let mut reply = Response::new(serde_json::to_vec(&problem).unwrap_or_default());
    *reply.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
    reply.headers_mut().insert(CONTENT_TYPE, PROBLEM);
    reply
}

/// What a client gets that is not served for a fault of ours.
#[must_use]
pub fn unavailable(detail: &str, request_id: &str) -> Response<Vec<u8>> {
    let problem = serde_json::json!({
        "type": "urn:palisade:problem:unavailable",
        "title": "The service cannot answer now",
        "status": 503,
        "detail": detail,
        "request_id": request_id,
    });
    let mut reply = Response::new(serde_json::to_vec(&problem).unwrap_or_default());
    *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, PROBLEM);
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    reply
}

/// A new random request id, 32 hexadecimal characters.
#[must_use]
pub fn new_request_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_header_is_spelt_as_it_is_written_in_small_letters() {
        for name in [
            "X-RateLimit-Limit",
            "RateLimit",
            "Retry-After",
            "X-Quota-Limit",
        ] {
            assert_eq!(header_name(name).unwrap().as_str(), name.to_lowercase());
        }
    }
}
