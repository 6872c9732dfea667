//! The one id of a request (I-ID): the sender's if the sender is trusted and the id is valid, a new
//! one otherwise.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use palisade::answer::new_request_id;
use palisade::extract::request_id::{correlation_id as sent_correlation_id, sent_id};
use palisade_core::{Id, RequestFacts};

use crate::serve::trace;

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of an answer, in its body and in `X-Request-Id`.
#[derive(Clone)]
pub(crate) struct RequestId(Box<str>);

impl RequestId {
    /// A new random id, 32 hexadecimal characters.
    pub(crate) fn generate() -> Self {
        Self(new_request_id().into())
    }

    /// The id in the request's header, or a new one. This is for listeners whose callers are
    /// backends and operators. Where anybody may call, use [`RequestId::sent_by`].
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        sent_id(headers).map_or_else(Self::generate, |id| Self::given(&id))
    }

    /// The id in the request's header if its sender is trusted, otherwise a new one.
    pub(crate) fn sent_by(is_trusted: bool, headers: &HeaderMap) -> Self {
        match is_trusted {
            true => Self::of(headers),
            false => Self::generate(),
        }
    }

    /// The id that the caller gave among the facts.
    pub(crate) fn given(id: &Id) -> Self {
        Self(id.as_str().into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The id as a fact.
    pub(crate) fn id(&self) -> Option<Id> {
        Id::new("request_id", &self.0).ok()
    }

    /// Puts the id into the headers of an answer and on the request's span. An id that no header
    /// can carry is left out of the headers.
    pub(crate) fn mark(&self, headers: &mut HeaderMap) {
        trace::identify(self.as_str());
        if let Ok(value) = HeaderValue::from_str(self.as_str()) {
            headers.insert(X_REQUEST_ID, value);
        }
    }
}

/// Makes the id of the answer and the one among the facts the same: the caller's if there is one,
/// so that logs and audits can be joined with the answer.
pub(crate) fn identify(facts: &mut RequestFacts, id: &mut RequestId) {
    match &facts.request_id {
        Some(given) => *id = RequestId::given(given),
        None => facts.request_id = id.id(),
    }
}

/// Returns the correlation id in the request's headers.
pub(crate) fn correlation_id(headers: &HeaderMap) -> Option<Id> {
    sent_correlation_id(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_id_an_id_that_is_not_visible_ascii_is_replaced() {
        for (sent, kept) in [("r-1", true), ("<x>", true), ("a b", false), ("", false)] {
            let mut headers = HeaderMap::new();
            headers.insert(X_REQUEST_ID, HeaderValue::from_static(sent));
            assert_eq!(RequestId::of(&headers).as_str() == sent, kept, "{sent}");
            assert_ne!(RequestId::sent_by(false, &headers).as_str(), sent);
        }
    }

    #[test]
    fn new_ids_differ() {
        let (a, b) = (RequestId::generate(), RequestId::generate());
        assert_ne!(a.as_str(), b.as_str());
        assert_eq!(a.as_str().len(), 32);
    }
}
