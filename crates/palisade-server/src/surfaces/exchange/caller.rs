//! Who may ask: backends with the caller token, never web pages.

use crate::config::Secret;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue, ORIGIN};
use subtle::ConstantTimeEq;

use super::problem::Problem;

const X_PALISADE_CALLER: HeaderName = HeaderName::from_static("x-palisade-caller");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The token that callers present.
pub(crate) struct CallerToken(Secret);

impl CallerToken {
    pub(crate) const fn new(secret: Secret) -> Self {
        Self(secret)
    }

    /// Whether this is the token, in constant time.
    pub(in crate::surfaces) fn is(&self, presented: &[u8]) -> bool {
        presented.ct_eq(self.0.expose()).into()
    }

    fn matches(&self, presented: Option<&[u8]>) -> bool {
        presented.is_some_and(|presented| self.is(presented))
    }

    /// True if a request shows the token in one of the places for it.
    pub(crate) fn admits(&self, headers: &HeaderMap, place: Place) -> bool {
        let own = headers.get(X_PALISADE_CALLER).map(HeaderValue::as_bytes);
        self.matches(own) || (place == Place::HeaderOrBearer && self.matches(bearer(headers)))
    }
}

/// Where the token may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// `Authorization` belongs to the client of the original request.
    Header,
    /// The caller speaks for itself.
    HeaderOrBearer,
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

/// Refuses callers without the token, and web pages that speak for themselves: a
/// page that a developer visits could otherwise report failures to a service on
/// loopback.
pub(in crate::surfaces) fn admit(
    token: Option<&CallerToken>,
    place: Place,
    headers: &HeaderMap,
) -> Result<(), Problem> {
    if token.is_some_and(|token| !token.admits(headers, place)) {
        return Err(Problem::unauthorized());
    }
    let from_page = headers.contains_key(ORIGIN) || headers.contains_key(SEC_FETCH_SITE);
    if from_page && place == Place::HeaderOrBearer {
        return Err(Problem::from_a_browser());
    }
    Ok(())
}
