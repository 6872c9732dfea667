//! Answers that take the application's place.

use http::Response;

use super::body::Guarded;
use super::gate::Decided;
use super::grpc;
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
            grpc::translate(&mut reply);
        }
        reply.map(Guarded::own)
    }
}
