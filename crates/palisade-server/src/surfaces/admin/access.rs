//! Who may administer: the holder of the static token, or of a verified token with
//! the role. Without either configured nobody may.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use palisade::engine::Operator;
use palisade::extract::jwt::TokenVerifier;
use palisade_core::Micros;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What an operator must present.
#[derive(Default)]
pub(crate) struct Access {
    /// Only the digest is kept: comparing digests takes the same time for tokens of
    /// every length.
    token: Option<[u8; 32]>,
    verifier: Option<(Arc<TokenVerifier>, Box<str>)>,
}

/// Why somebody may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No credential, or one that is not valid.
    Unauthenticated,
    /// A valid token without the role.
    WithoutRole,
}

impl Access {
    /// Accepts this token, and tokens that `verifier` verifies if they have the role.
    pub(crate) fn new(
        token: Option<&[u8]>,
        verifier: Option<Arc<TokenVerifier>>,
        role: &str,
    ) -> Self {
        Self {
            token: token.map(|token| Sha256::digest(token).into()),
            verifier: verifier.map(|verifier| (verifier, role.into())),
        }
    }

    /// Who asks.
    pub(crate) fn operator(&self, headers: &HeaderMap, now: Micros) -> Result<Operator, Denied> {
        let presented = bearer(headers).ok_or(Denied::Unauthenticated)?;
        if self.is_static_token(presented) {
            return Ok(Operator::TokenHolder);
        }
        let (verifier, role) = self.verifier.as_ref().ok_or(Denied::Unauthenticated)?;
        let claims = verifier
            .verify(presented, now)
            .map_err(|_| Denied::Unauthenticated)?;
        if !claims.roles.iter().any(|held| held.as_str() == &**role) {
            return Err(Denied::WithoutRole);
        }
        Ok(Operator::Named(claims.user.unwrap_or(claims.token)))
    }

    fn is_static_token(&self, presented: &str) -> bool {
        let digest: [u8; 32] = Sha256::digest(presented.as_bytes()).into();
        self.token
            .as_ref()
            .is_some_and(|token| bool::from(token.ct_eq(&digest)))
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case("bearer ")
        .then(|| token.trim_ascii())
}
