//! Answers that take the application's place.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use super::body::Guarded;
use super::gate::Decided;
use crate::answer;
use crate::extract::ExtractError;

/// Why a request is not passed on, ready to be sent.
#[derive(Debug)]
pub struct Refusal(Box<Response<Vec<u8>>>);

impl Refusal {
    /// A decision that refuses.
    pub(super) fn of(decided: Decided, request_id: &str) -> Self {
        let mut reply = answer::enforced(decided.answer(), request_id);
        reply.extensions_mut().insert(decided);
        Self(Box::new(reply))
    }

    pub(super) fn unreadable(error: &ExtractError) -> Self {
        let reply = answer::unreadable(error, &answer::new_request_id());
        Self(Box::new(reply))
    }

    pub(super) fn unavailable(detail: &str) -> Self {
        let reply = answer::unavailable(detail, &answer::new_request_id());
        Self(Box::new(reply))
    }

    /// The response; in place of a status of HTTP, a gRPC client gets one of gRPC.
    pub(super) fn answer<B>(self, is_grpc: bool) -> Response<Guarded<B>> {
        let mut reply = *self.0;
        if is_grpc {
            translate(&mut reply);
        }
        reply.map(Guarded::own)
    }
}

const GRPC: &[u8] = b"application/grpc";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(GRPC))
}

/// An answer of gRPC that consists of nothing but its status.
fn translate(reply: &mut Response<Vec<u8>>) {
    let (code, message) = match reply.status().as_u16() {
        400 => ("3", "a field is not valid"),
        401 => ("16", "not authenticated"),
        403 => ("7", "not permitted"),
        429 => ("8", "rate limit exceeded"),
        _ => ("14", "unavailable"),
    };
    *reply.status_mut() = StatusCode::OK;
    reply.body_mut().clear();
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from_static(code));
    headers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
}
