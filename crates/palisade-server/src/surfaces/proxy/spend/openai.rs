//! Refusals in the shape that clients of OpenAI's interface parse, and their headers.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http_body_util::Full;
use palisade::engine::RequestAnswer;
use palisade_core::bodies::body;
use palisade_core::decision::{Decision, ErrorCode, LimitReading};
use serde_json::json;

use crate::surfaces::exchange::Reply;
use crate::surfaces::exchange::ids::RequestId;
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::exchange::reply::enforced;

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit-tokens");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining-tokens");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The type of a refusal by a limit in the route's unit.
const BUDGET: &str = "tokens";

/// The refusal of a decision.
pub(in super::super) fn refused(answer: &RequestAnswer, unit: &str, id: &RequestId) -> Reply {
    let mut reply = enforced(answer, id);
    let urls = &answer.policy.settings.urls;
    if let Some(body) = body(&answer.decision, urls, id.as_str()) {
        let (kind, code) = names(&answer.decision, unit);
        let budget = format!("The budget of {unit} is used up for now. Try again later.");
        let message = if kind == BUDGET {
            &*budget
        } else {
            body.message
        };
        *reply.body_mut() = document(message, kind, None, code);
        reply.headers_mut().insert(CONTENT_TYPE, JSON);
    }
    reply.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    show(reply.headers_mut(), &answer.decision, unit);
    reply
}

/// The answer to a request that could not be read, or was not answered.
pub(in super::super) fn problem(problem: &Problem, id: &RequestId) -> Reply {
    let mut reply = problem.respond(id);
    let kind = match reply.status().is_client_error() {
        true => "invalid_request_error",
        false => "server_error",
    };
    *reply.body_mut() = document(problem.detail(), kind, problem.named_field(), None);
    reply.headers_mut().insert(CONTENT_TYPE, JSON);
    reply
}

/// Puts what is left of the tightest limit in this unit on an answer.
pub(in super::super) fn show(headers: &mut HeaderMap, decision: &Decision, unit: &str) {
    if let Some(tightest) = tightest(decision, unit) {
        headers.insert(LIMIT, tightest.limit.into());
        headers.insert(REMAINING, tightest.remaining.into());
    }
}

fn tightest<'d>(decision: &'d Decision, unit: &str) -> Option<&'d LimitReading> {
    let of_unit = |one: &&LimitReading| !one.shadow && one.unit.name() == unit;
    let own = decision.limits.iter().filter(of_unit);
    own.min_by(|a, b| {
        let share = |one: &LimitReading, other: &LimitReading| {
            u128::from(one.remaining) * u128::from(other.limit)
        };
        share(a, b).cmp(&share(b, a))
    })
}

/// The type and the code of a refusal.
fn names(decision: &Decision, unit: &str) -> (&'static str, Option<&'static str>) {
    match decision.error {
        Some(ErrorCode::QuotaExceeded) => ("insufficient_quota", Some("insufficient_quota")),
        Some(ErrorCode::InvalidApiKey) => ("invalid_request_error", Some("invalid_api_key")),
        Some(error) if decision.status == 429 => {
            let denying = decision.limits.first();
            let is_of_unit = denying.is_some_and(|one| one.unit.name() == unit);
            let kind = if is_of_unit { BUDGET } else { "requests" };
            (kind, Some(error.name()))
        }
        Some(error) if decision.status < 500 => ("invalid_request_error", Some(error.name())),
        error => ("server_error", error.map(ErrorCode::name)),
    }
}

fn document(message: &str, kind: &str, param: Option<&str>, code: Option<&str>) -> Full<Bytes> {
    let error = json!({
        "error": { "message": message, "type": kind, "param": param, "code": code }
    });
    Full::new(Bytes::from(error.to_string()))
}
