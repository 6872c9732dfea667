//! Builds answers from decisions.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
pub(crate) use palisade::answer::apply_headers;
use palisade::engine::RequestAnswer;
use palisade::wire::Answer;
use serde::Serialize;

use super::Reply;
use super::ids::RequestId;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Initial capacity of an answer: a fixed part, and one for each bucket. Most answers fit without
/// growing. The allocator is fastest with powers of two.
const ANSWER_BYTES: usize = 512;
const BUCKET_BYTES: usize = 192;

/// The decision as data: HTTP 200 for any decision.
pub(in crate::surfaces) fn as_data(answer: &RequestAnswer, id: &RequestId) -> Reply {
    let buckets = answer.decision.limits.len() + answer.decision.reasons.len();
    let expected = ANSWER_BYTES + buckets * BUCKET_BYTES;
    let mut bytes = Vec::with_capacity(expected.next_power_of_two());
    let written = rendered(answer, id).write_json(&mut bytes);
    with_status(written.is_ok(), bytes)
}

/// The answer's JSON form.
pub(in crate::surfaces) fn rendered<'a>(
    answer: &'a RequestAnswer,
    id: &'a RequestId,
) -> Answer<'a> {
    let settings = &answer.policy.settings;
    let mut rendered = Answer::new(
        &answer.decision,
        settings.headers,
        &settings.urls,
        id.as_str(),
    );
    let candidate = answer.candidate.as_ref();
    let header = candidate.and_then(|candidate| candidate.header());
    rendered.headers.extend(header);
    rendered
}

/// A JSON body with HTTP 200.
pub(in crate::surfaces) fn json(value: &impl Serialize) -> Reply {
    let mut bytes = Vec::with_capacity(ANSWER_BYTES);
    let written = serde_json::to_writer(&mut bytes, value);
    with_status(written.is_ok(), bytes)
}

fn with_status(is_written: bool, bytes: Vec<u8>) -> Reply {
    let status = if is_written {
        StatusCode::OK
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    let mut reply = Response::new(Full::new(Bytes::from(bytes)));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, JSON);
    reply
}

/// The decision applied: its status, headers and body.
pub(crate) fn enforced(answer: &RequestAnswer, id: &RequestId) -> Reply {
    palisade::answer::enforced(answer, id.as_str()).map(|bytes| Full::new(Bytes::from(bytes)))
}
