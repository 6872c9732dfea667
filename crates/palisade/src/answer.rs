//! Renders a decision as HTTP: status, headers and body, the same for every enforcing surface.

mod lasting;

use std::cell::Cell;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use palisade_core::bodies::body;
use palisade_core::headers::{Field, TakeHeaders, each_header};
use serde::Serialize;

use crate::engine::RequestAnswer;
use crate::extract::ExtractError;
use lasting::LimitHeaders;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Returns the response for a decision: status, headers and body. A response that lets the request
/// through has no body.
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
    lasting::with(answer, |known| {
        let mut headers = Headers {
            target,
            known,
            text: TEXT.take(),
        };
        let families = answer.policy.settings.headers;
        each_header(&answer.decision, families, &mut headers);
        TEXT.set(headers.text);
    });
    // Depends on the request, so it is not among the remembered values.
    if let Some((name, value)) = candidate(answer) {
        target.insert(name, value);
    }
}

thread_local! {
    /// Buffer in which header values are formatted, kept for the next answer. It is as long as the
    /// longest value so far, which a policy bounds.
    static TEXT: Cell<String> = const { Cell::new(String::new()) };
}

/// The headers of an answer on their way into its map.
struct Headers<'a> {
    target: &'a mut HeaderMap,
    known: Option<&'a mut LimitHeaders>,
    /// Buffer in which values are formatted, taken from `TEXT` for this answer.
    text: String,
}

impl Headers<'_> {
    /// Puts a header on the answer: the remembered value if there is one, else the one that `made`
    /// returns. Inlined into every caller, so that `field` and the place of its value are constants
    /// at compile time.
    #[inline(always)]
    fn put(&mut self, field: Field, made: impl FnOnce(&mut String) -> Option<HeaderValue>) {
        let known = self.known.as_mut().and_then(|known| known.place(field));
        let value = match known {
            Some(Some(known)) => Some(known.clone()),
            Some(unknown) => {
                *unknown = made(&mut self.text).map(|value| lasting::kept(field, value));
                unknown.clone()
            }
            None => made(&mut self.text),
        };
        if let Some(value) = value {
            self.target.insert(header_name(field), value);
        }
    }
}

impl TakeHeaders for Headers<'_> {
    #[inline(always)]
    fn take(&mut self, field: Field, write: impl FnOnce(&mut String)) {
        self.put(field, |text| {
            text.clear();
            write(text);
            HeaderValue::from_str(text).ok()
        });
    }

    #[inline(always)]
    fn take_number(&mut self, field: Field, number: u64) {
        self.put(field, |_| {
            let mut digits = itoa::Buffer::new();
            HeaderValue::from_str(digits.format(number)).ok()
        });
    }
}

/// Adds the header that says that the candidate policy decides differently, unless it is there
/// already.
#[cfg(feature = "tower")]
pub(crate) fn add_candidate(target: &mut HeaderMap, answer: &RequestAnswer) {
    if let Some((name, value)) = candidate(answer) {
        target.entry(name).or_insert(value);
    }
}

fn candidate(answer: &RequestAnswer) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = answer.candidate.as_ref()?.header()?;
    Some((name.parse().ok()?, value.parse().ok()?))
}

/// Returns the name of a field as `http` knows it: looked up at compile time, not for each answer.
const fn header_name(field: Field) -> HeaderName {
    macro_rules! named {
        ($($field:ident => $lower:literal,)*) => {
            match field {
                $(Field::$field => const { HeaderName::from_static($lower) },)*
            }
        };
    }
    named! {
        XRateLimitLimit => "x-ratelimit-limit",
        XRateLimitRemaining => "x-ratelimit-remaining",
        XRateLimitReset => "x-ratelimit-reset",
        XRateLimitStatus => "x-ratelimit-status",
        RateLimitPolicy => "ratelimit-policy",
        RateLimit => "ratelimit",
        RateLimitLimit => "ratelimit-limit",
        RateLimitRemaining => "ratelimit-remaining",
        RateLimitReset => "ratelimit-reset",
        RetryAfter => "retry-after",
        XQuotaLimit => "x-quota-limit",
        XQuotaRemaining => "x-quota-remaining",
        XQuotaReset => "x-quota-reset",
    }
}

/// A problem document (RFC 9457) about a request that could not be read.
#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    field: &'static str,
    request_id: &'a str,
}

/// Returns the problem document for a request that could not be read. It names the field and no
/// value.
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

/// Returns the 503 for a client that is refused because of a fault on our side.
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
    palisade_core::hex::text(rand::random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_called_by_its_name_in_small_letters() {
        for field in Field::ALL {
            assert_eq!(header_name(field).as_str(), field.name().to_lowercase());
        }
    }
}
