//! Who may administer, and who may only look: holders of a static token, of a verified
//! token with the role, or of a session that began with one of them. Without any
//! configured nobody may.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use palisade::engine::{Observer, Operator};
use palisade::extract::jwt::TokenVerifier;
use palisade_core::Micros;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What somebody who was let in may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Look at everything and change nothing.
    Viewer,
    /// Everything.
    Operator,
}

impl Role {
    /// As the dashboard is told.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }
}

/// Who was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) operator: Operator,
    pub(crate) role: Role,
}

/// What an operator must present.
#[derive(Default)]
pub(crate) struct Access {
    /// Only digests are kept: comparing digests takes the same time for tokens of every
    /// length.
    token: Option<[u8; 32]>,
    viewer_token: Option<[u8; 32]>,
    verifier: Option<Arc<TokenVerifier>>,
    role: Box<str>,
    viewer_role: Box<str>,
}

/// Why somebody may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No credential, or one that is not valid.
    Unauthenticated,
    /// A valid token without the role.
    WithoutRole,
    /// A valid credential that may only look.
    ReadOnly,
    /// A session, and a request that its page did not make.
    Forged,
}

impl Denied {
    /// Tells that somebody was refused, and for want of what.
    pub(crate) fn tell(self, observer: &dyn Observer) {
        let lacks = match self {
            Self::Unauthenticated | Self::Forged => "token",
            Self::WithoutRole | Self::ReadOnly => "role",
        };
        observer.caller_refused(super::FLAG, lacks);
    }
}

impl Access {
    /// Accepts this token, and tokens that `verifier` verifies if they have the role.
    pub(crate) fn new(
        token: Option<&[u8]>,
        verifier: Option<Arc<TokenVerifier>>,
        role: &str,
    ) -> Self {
        Self {
            token: token.map(digest),
            verifier,
            role: role.into(),
            ..Self::default()
        }
    }

    /// Lets those who show this token, or have this role, look.
    pub(crate) fn with_viewers(mut self, token: Option<&[u8]>, role: &str) -> Self {
        self.viewer_token = token.map(digest);
        self.viewer_role = role.into();
        self
    }

    /// True if somebody can be let in at all.
    pub(crate) const fn is_configured(&self) -> bool {
        self.token.is_some() || self.viewer_token.is_some() || self.verifier.is_some()
    }

    /// Who shows this credential.
    pub(crate) fn grant(&self, presented: &str, now: Micros) -> Result<Grant, Denied> {
        let shown = digest(presented.as_bytes());
        let is = |token: Option<[u8; 32]>| token.is_some_and(|token| token.ct_eq(&shown).into());
        let of_holder = |role| Grant {
            operator: Operator::TokenHolder,
            role,
        };
        if is(self.token) {
            return Ok(of_holder(Role::Operator));
        }
        if is(self.viewer_token) {
            return Ok(of_holder(Role::Viewer));
        }
        let verifier = self.verifier.as_ref().ok_or(Denied::Unauthenticated)?;
        let claims = verifier
            .verify(presented, now)
            .map_err(|_| Denied::Unauthenticated)?;
        let has = |role: &str| claims.roles.iter().any(|held| held.as_str() == role);
        let role = match (has(&self.role), has(&self.viewer_role)) {
            (true, _) => Role::Operator,
            (false, true) => Role::Viewer,
            (false, false) => return Err(Denied::WithoutRole),
        };
        Ok(Grant {
            operator: Operator::Named(claims.user.unwrap_or(claims.token)),
            role,
        })
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// The credential of a request that speaks for itself.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case("bearer ")
        .then(|| token.trim_ascii())
}
