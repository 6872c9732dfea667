//! Request ids: taken over if they are plain, made otherwise.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use palisade::answer::new_request_id;
use palisade::extract::request_id::REQUEST_ID_BYTES_MAX;
use palisade_core::{Id, RequestFacts};

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_CORRELATION_ID: HeaderName = HeaderName::from_static("x-correlation-id");

/// The id that an answer carries, in its body and as `X-Request-Id`.
#[derive(Clone)]
pub(crate) struct RequestId(Box<str>);

impl RequestId {
    /// A new random id, 32 hexadecimal characters.
    pub(crate) fn generate() -> Self {
        Self(new_request_id().into())
    }

    /// The id of the request's header, or a new one.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        plain(headers, &X_REQUEST_ID).map_or_else(Self::generate, |text| Self(text.into()))
    }

    /// The id that the caller put among the facts.
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

    /// Puts the id on an answer; one that no header can carry is left out.
    pub(crate) fn mark(&self, headers: &mut HeaderMap) {
        if let Ok(value) = HeaderValue::from_str(self.as_str()) {
            headers.insert(X_REQUEST_ID, value);
        }
    }
}

/// The caller's id goes into the answer; without one the answer's goes into the
/// facts, so that logs and audits can be joined with it.
pub(crate) fn identify(facts: &mut RequestFacts, id: &mut RequestId) {
    match &facts.request_id {
        Some(given) => *id = RequestId::given(given),
        None => facts.request_id = id.id(),
    }
}

/// The correlation id of the request's header.
pub(crate) fn correlation_id(headers: &HeaderMap) -> Option<Id> {
    Id::new("correlation_id", plain(headers, &X_CORRELATION_ID)?).ok()
}

/// Only what needs no escaping in logs and headers is taken over.
fn plain<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let text = headers.get(name)?.to_str().ok()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@~".contains(&byte);
    let fits = (1..=REQUEST_ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain);
    fits.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_need_escaping_are_replaced() {
        for (sent, kept) in [("r-1", true), ("a b", false), ("<x>", false), ("", false)] {
            let mut headers = HeaderMap::new();
            headers.insert(X_REQUEST_ID, HeaderValue::from_static(sent));
            assert_eq!(RequestId::of(&headers).as_str() == sent, kept, "{sent}");
        }
    }

    #[test]
    fn new_ids_differ() {
        let (a, b) = (RequestId::generate(), RequestId::generate());
        assert_ne!(a.as_str(), b.as_str());
        assert_eq!(a.as_str().len(), 32);
    }
}
