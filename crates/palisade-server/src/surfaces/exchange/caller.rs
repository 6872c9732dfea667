//! Authentication of callers: backends with the caller token, and never web pages.

use std::sync::Arc;

use crate::config::Secret;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue, ORIGIN};
use palisade::engine::Observer;
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

    /// Compares a token with this one in constant time.
    fn is(&self, presented: &[u8]) -> bool {
        presented.ct_eq(self.0.expose()).into()
    }

    fn matches(&self, presented: Option<&[u8]>) -> bool {
        presented.is_some_and(|presented| self.is(presented))
    }

    /// True if the token is so long that no number of attempts finds it.
    pub(in crate::surfaces) fn is_strong(&self) -> bool {
        self.0.is_strong()
    }

    /// True if a request has the token's own header, with any value.
    pub(in crate::surfaces) fn is_shown(headers: &HeaderMap) -> bool {
        headers.contains_key(X_PALISADE_CALLER)
    }

    /// True if a request presents the token in one of the permitted places.
    pub(in crate::surfaces) fn admits(&self, headers: &HeaderMap, place: TokenPlace) -> bool {
        let own = headers.get(X_PALISADE_CALLER).map(HeaderValue::as_bytes);
        self.matches(own) || (place == TokenPlace::HeaderOrBearer && self.matches(bearer(headers)))
    }
}

/// The places in which a request may present the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenPlace {
    /// Only the token's own header: `Authorization` belongs to the client of the original request.
    Header,
    /// Also `Authorization`, because the caller speaks for itself.
    HeaderOrBearer,
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

/// Authentication of callers on one listener. It admits holders of the token, and everybody where
/// no token is configured. Refused callers are counted.
#[derive(Clone)]
pub(crate) struct Callers {
    token: Option<Arc<CallerToken>>,
    /// The flag of `serve` that chooses the listener's address.
    listener: &'static str,
    observer: Arc<dyn Observer>,
}

impl Callers {
    pub(in crate::surfaces) const fn new(
        token: Option<Arc<CallerToken>>,
        listener: &'static str,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self {
            token,
            listener,
            observer,
        }
    }

    /// Whether callers must present a token.
    pub(in crate::surfaces) const fn need_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether this is the token. Always true where no token is configured.
    pub(in crate::surfaces) fn hold(&self, presented: &[u8]) -> bool {
        let token = self.token.as_ref();
        self.counted(token.is_none_or(|token| token.is(presented)))
    }

    /// Whether a request presents the token or needs none.
    pub(in crate::surfaces) fn may_ask(&self, headers: &HeaderMap, place: TokenPlace) -> bool {
        let token = self.token.as_ref();
        self.counted(token.is_none_or(|token| token.admits(headers, place)))
    }

    /// Refuses callers without the token, and requests that web pages make. A page that a developer
    /// visits could otherwise report failures to a service on loopback.
    pub(in crate::surfaces) fn admit(
        &self,
        place: TokenPlace,
        headers: &HeaderMap,
    ) -> Result<(), Problem> {
        if !self.may_ask(headers, place) {
            return Err(Problem::unauthorized());
        }
        // Scanning the few header names once is faster than two lookups.
        let of_page = |name: &HeaderName| *name == ORIGIN || *name == SEC_FETCH_SITE;
        if place == TokenPlace::HeaderOrBearer && headers.keys().any(of_page) {
            return Err(Problem::from_a_browser());
        }
        Ok(())
    }

    fn counted(&self, is_admitted: bool) -> bool {
        if !is_admitted {
            self.refused();
        }
        is_admitted
    }

    /// Counts a caller that presented no token where one is needed.
    pub(in crate::surfaces) fn refused(&self) {
        self.observer.caller_refused(self.listener, "token");
    }
}
