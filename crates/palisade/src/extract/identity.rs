//! Identity that a trusted proxy states in headers (I-JWT).

use http::{HeaderMap, HeaderName};
use palisade_core::facts::SCOPES_MAX;
use palisade_core::{FieldError, Id};

use super::header;

/// Names of the headers in which a trusted proxy states the user's identity.
///
/// The proxy must set or remove each of them on every request: one that it lets
/// through is the client's own claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityHeaders {
    /// The user.
    pub user: HeaderName,
    /// The organisation.
    pub org: HeaderName,
    /// The token's id.
    pub token: HeaderName,
    /// The token's scopes, separated by spaces or commas.
    pub scopes: HeaderName,
}

impl Default for IdentityHeaders {
    fn default() -> Self {
        Self {
            user: HeaderName::from_static("x-palisade-user"),
            org: HeaderName::from_static("x-palisade-org"),
            token: HeaderName::from_static("x-palisade-token"),
            scopes: HeaderName::from_static("x-palisade-scopes"),
        }
    }
}

/// The identity of a caller, by token or by headers.
pub(super) struct Identity {
    pub(super) user: Option<Id>,
    pub(super) org: Option<Id>,
    pub(super) token: Option<Id>,
    pub(super) scopes: Option<Vec<Id>>,
    pub(super) roles: Vec<Id>,
}

impl IdentityHeaders {
    /// The headers themselves.
    #[must_use]
    pub const fn names(&self) -> [&HeaderName; 4] {
        [&self.user, &self.org, &self.token, &self.scopes]
    }

    /// Reads the identity that the proxy states. The caller has checked that the proxy is trusted.
    pub(super) fn read(&self, headers: &HeaderMap) -> Result<Identity, FieldError> {
        Ok(Identity {
            user: id(headers, &self.user, "user")?,
            org: id(headers, &self.org, "org")?,
            token: id(headers, &self.token, "token")?,
            scopes: scopes(headers, &self.scopes)?,
            roles: Vec::new(),
        })
    }
}

fn id(
    headers: &HeaderMap,
    name: &HeaderName,
    field: &'static str,
) -> Result<Option<Id>, FieldError> {
    header::single(headers, name, field)?
        .map(|text| Id::new(field, text))
        .transpose()
}

fn scopes(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Vec<Id>>, FieldError> {
    const FIELD: &str = "scopes";
    let Some(text) = header::single(headers, name, FIELD)? else {
        return Ok(None);
    };
    let mut scopes = Vec::new();
    for scope in text
        .split([' ', ',', '\t'])
        .filter(|scope| !scope.is_empty())
    {
        if scopes.len() == SCOPES_MAX {
            return Err(FieldError::new(FIELD, "has too many entries"));
        }
        scopes.push(Id::new(FIELD, scope)?);
    }
    Ok(Some(scopes))
}
