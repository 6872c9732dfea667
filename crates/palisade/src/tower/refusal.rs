//! Answers that take the application's place.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue, Response};
use palisade_core::Id;

use super::body::Guarded;
use super::gate::Decided;
use super::grpc;
use crate::answer;
use crate::extract::ExtractError;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The response to a request that is not passed on, ready to be sent.
#[derive(Debug)]
pub struct Refusal(Box<Response<Vec<u8>>>);

impl Refusal {
    /// Creates the response for a decision that refuses.
    pub(super) fn of(decided: Decided) -> Self {
        let id = shown(decided.request_id()).into_owned();
        let mut reply = answer::enforced(decided.answer(), &id);
        reply.extensions_mut().insert(decided);
        Self::marked(reply, &id)
    }

    pub(super) fn unreadable(error: &ExtractError, request_id: Option<&Id>) -> Self {
        let id = shown(request_id);
        Self::marked(answer::unreadable(error, &id), &id)
    }

    pub(super) fn unavailable(detail: &str, request_id: Option<&Id>) -> Self {
        let id = shown(request_id);
        Self::marked(answer::unavailable(detail, &id), &id)
    }

    /// Adds the request's id to the response's header, too (I-ID).
    fn marked(mut reply: Response<Vec<u8>>, id: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(id) {
            reply.headers_mut().insert(X_REQUEST_ID, value);
        }
        Self(Box::new(reply))
    }

    /// Returns the response. A gRPC client gets a gRPC status in place of the HTTP status.
    pub(super) fn answer<B>(self, is_grpc: bool) -> Response<Guarded<B>> {
        let mut reply = *self.0;
        if is_grpc {
            grpc::translate(&mut reply);
        }
        reply.map(Guarded::own)
    }
}

/// Returns the id to answer with. If nothing was recorded under an id, a new one will do.
fn shown(id: Option<&Id>) -> Cow<'_, str> {
    match id {
        Some(id) => Cow::Borrowed(id.as_str()),
        None => Cow::Owned(answer::new_request_id()),
    }
}
