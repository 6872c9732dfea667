//! Refusals in gRPC: a status in the head of an answer without a body and, where waiting helps, the
//! time to wait.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

const GRPC: &[u8] = b"application/grpc";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(GRPC))
}

/// Turns a refusal into an answer of gRPC that consists of its status only. The seconds to wait are
/// among its details, where gRPC clients look for them (`google.rpc.RetryInfo`).
pub(super) fn translate(reply: &mut Response<Vec<u8>>) {
    let (code, message) = match reply.status().as_u16() {
        400 => (3, "a field is not valid"),
        401 => (16, "not authenticated"),
        403 => (7, "not permitted"),
        429 => (8, "rate limit exceeded"),
        _ => (14, "unavailable"),
    };
    *reply.status_mut() = StatusCode::OK;
    reply.body_mut().clear();
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from(code));
    headers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
    let wait = headers.get(RETRY_AFTER).and_then(|wait| wait.to_str().ok());
    if let Some(seconds) = wait.and_then(|wait| wait.parse().ok()) {
        let details = STANDARD_NO_PAD.encode(details(code, message, seconds));
        if let Ok(details) = HeaderValue::try_from(details) {
            headers.insert(GRPC_DETAILS, details);
        }
    }
}

/// Encodes `google.rpc.Status` with a `RetryInfo` (protocol buffers; three fixed messages need no
/// library).
fn details(code: u16, message: &str, seconds: u64) -> Vec<u8> {
    // Duration { seconds } in RetryInfo { retry_delay }.
    let retry_info = field(1, &number(1, seconds));
    let any = [field(1, RETRY_INFO.as_bytes()), field(2, &retry_info)].concat();
    [
        number(1, code.into()),
        field(2, message.as_bytes()),
        field(3, &any),
    ]
    .concat()
}

/// Encodes a field that is a number.
fn number(field: u8, value: u64) -> Vec<u8> {
    let mut bytes = vec![field << 3];
    varint(&mut bytes, value);
    bytes
}

/// Encodes a field that is text, bytes or a message.
fn field(field: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![field << 3 | 2];
    varint(&mut bytes, value.len() as u64);
    bytes.extend_from_slice(value);
    bytes
}

/// Appends a varint: seven bits to a byte, the lowest first; all bytes but the last have the
/// highest bit set.
fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            return bytes.push(low);
        }
        bytes.push(low | 0x80);
    }
}
