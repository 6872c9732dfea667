//! Access to the admin address. It is granted to holders of a static token, of a verified token
//! with the role, or of a session that began with one of them. Without a configured credential
//! nobody has access.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use palisade::engine::{Observer, Operator};
use palisade::extract::jwt::{Claims, TokenRefusal, TokenVerifier};
use palisade_core::Micros;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::guesses::GuessLimit;
use crate::config::Secret;
use crate::surfaces::exchange::TokenPlace;
use crate::surfaces::{CallerToken, Edge};

/// The permissions of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// May read everything and change nothing.
    Viewer,
    /// May do everything.
    Operator,
}

impl Role {
    /// The name that the dashboard gets.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }
}

/// An admitted operator and the operator's role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) operator: Operator,
    pub(crate) role: Role,
}

/// A static token. Only its digest is kept, because comparing digests takes the same time for
/// tokens of every length.
struct StaticToken {
    digest: [u8; 32],
    is_strong: bool,
}

impl StaticToken {
    fn new(secret: &Secret) -> Self {
        Self {
            digest: digest(secret.expose()),
            is_strong: secret.is_strong(),
        }
    }

    fn is(&self, shown: &[u8; 32]) -> bool {
        self.digest.ct_eq(shown).into()
    }
}

/// The credentials that the admin address accepts.
pub(crate) struct Access {
    token: Option<StaticToken>,
    viewer_token: Option<StaticToken>,
    caller: Option<Arc<CallerToken>>,
    /// The verifier of signed tokens, if they are accepted.
    edge: Option<Edge>,
    role: Box<str>,
    viewer_role: Box<str>,
    guesses: GuessLimit,
}

/// The reason why a request was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessRefusal {
    /// No credential, or one that is not valid.
    Unauthenticated,
    /// A genuine token that has expired or is not valid yet.
    Expired,
    /// Too many wrong credentials from this address. The credential was not checked.
    TooManyGuesses,
    /// A valid token without the role.
    WithoutRole,
    /// A valid credential that only permits reading, on a request that changes something.
    ReadOnly,
    /// A session's cookie on a request that the session's page did not make.
    Forged,
}

impl AccessRefusal {
    /// Reports the refusal and the missing credential to the observer.
    pub(crate) fn tell(self, observer: &dyn Observer) {
        let lacks = match self {
            Self::Unauthenticated | Self::Expired | Self::TooManyGuesses | Self::Forged => "token",
            Self::WithoutRole | Self::ReadOnly => "role",
        };
        observer.caller_refused(super::FLAG, lacks);
    }
}

impl Access {
    /// An access that admits nobody yet.
    pub(crate) fn new(guesses: GuessLimit) -> Self {
        Self {
            token: None,
            viewer_token: None,
            caller: None,
            edge: None,
            role: Box::default(),
            viewer_role: Box::default(),
            guesses,
        }
    }

    /// Grants everything to holders of this token, or of a signed token with this role.
    pub(crate) fn with_operators(mut self, token: Option<&Secret>, role: &str) -> Self {
        self.token = token.map(StaticToken::new);
        self.role = role.into();
        self
    }

    /// Grants reading to holders of this token, or of a signed token with this role.
    pub(crate) fn with_viewers(mut self, token: Option<&Secret>, role: &str) -> Self {
        self.viewer_token = token.map(StaticToken::new);
        self.viewer_role = role.into();
        self
    }

    /// Accepts signed tokens with a role, verified by the keys of the edge in force.
    pub(crate) fn with_signed_tokens(mut self, edge: Option<Edge>) -> Self {
        self.edge = edge;
        self
    }

    fn verifier(&self) -> Option<Arc<TokenVerifier>> {
        self.edge.as_ref()?.load().jwt.clone()
    }

    /// Requires this token of scrapers. Without one anybody may scrape.
    pub(crate) fn with_scrapers(mut self, caller: Option<Arc<CallerToken>>) -> Self {
        self.caller = caller;
        self
    }

    /// True if any credential is configured.
    pub(crate) const fn is_configured(&self) -> bool {
        self.token.is_some() || self.viewer_token.is_some() || self.edge.is_some()
    }

    /// Returns the grant of a credential that `peer` presents. A wrong one counts as a guess.
    ///
    /// Once an address has no guess left, only credentials that cannot have been guessed are
    /// admitted: static tokens of [`Secret::is_strong`] length, and signed tokens that were
    /// verified before. So guesses of others from the same address cannot keep their holders out.
    pub(crate) fn admit(
        &self,
        peer: IpAddr,
        presented: &str,
        now: Micros,
    ) -> Result<Grant, AccessRefusal> {
        if self.guesses.is_exhausted(peer) {
            return self.grant_beyond_guessing(presented, now);
        }
        let grant = self.grant(presented, now);
        // An expired token, or one without the role, is genuine: it was not guessed.
        if grant == Err(AccessRefusal::Unauthenticated) {
            self.guesses.record(peer);
        }
        grant
    }

    /// Admits a scraper that presents the caller token, or a credential that may read everything.
    pub(crate) fn admit_scraper(
        &self,
        peer: IpAddr,
        headers: &HeaderMap,
        now: Micros,
    ) -> Result<(), AccessRefusal> {
        let Some(caller) = &self.caller else {
            return Ok(());
        };
        // A token that cannot be guessed is accepted even if no guess is left.
        let is_limited = self.guesses.is_exhausted(peer) && !caller.is_strong();
        if !is_limited && caller.admits(headers, TokenPlace::HeaderOrBearer) {
            return Ok(());
        }
        if let Some(presented) = bearer(headers) {
            return self.admit(peer, presented, now).map(|_| ());
        }
        // A request without any token is no guess.
        if !CallerToken::is_shown(headers) {
            return Err(AccessRefusal::Unauthenticated);
        }
        if self.guesses.is_exhausted(peer) {
            return Err(AccessRefusal::TooManyGuesses);
        }
        self.guesses.record(peer);
        Err(AccessRefusal::Unauthenticated)
    }

    /// Returns the grant of a credential without a limit on guesses.
    pub(crate) fn grant(&self, presented: &str, now: Micros) -> Result<Grant, AccessRefusal> {
        if let Some((_, role)) = self.static_token(presented) {
            return Ok(of_holder(role));
        }
        let verifier = self.verifier().ok_or(AccessRefusal::Unauthenticated)?;
        let claims = verifier
            .verify(presented, now)
            .map_err(|refusal| match refusal {
                TokenRefusal::Expired | TokenRefusal::NotYetValid => AccessRefusal::Expired,
                _ => AccessRefusal::Unauthenticated,
            })?;
        self.grant_of(claims)
    }

    fn grant_beyond_guessing(&self, presented: &str, now: Micros) -> Result<Grant, AccessRefusal> {
        if let Some((token, role)) = self.static_token(presented)
            && token.is_strong
        {
            return Ok(of_holder(role));
        }
        let recalled = self
            .verifier()
            .and_then(|verifier| verifier.recall(presented, now));
        recalled.map_or(Err(AccessRefusal::TooManyGuesses), |claims| {
            self.grant_of(claims)
        })
    }

    /// Returns the static token that is presented, and the role of its holders.
    fn static_token(&self, presented: &str) -> Option<(&StaticToken, Role)> {
        let shown = digest(presented.as_bytes());
        let tokens = [
            (&self.token, Role::Operator),
            (&self.viewer_token, Role::Viewer),
        ];
        let configured = tokens
            .into_iter()
            .filter_map(|(token, role)| Some((token.as_ref()?, role)));
        let mut matching = configured.filter(|(token, _)| token.is(&shown));
        matching.next()
    }

    fn grant_of(&self, claims: Claims) -> Result<Grant, AccessRefusal> {
        let has = |role: &str| claims.roles.iter().any(|held| held.as_str() == role);
        let role = match (has(&self.role), has(&self.viewer_role)) {
            (true, _) => Role::Operator,
            (false, true) => Role::Viewer,
            (false, false) => return Err(AccessRefusal::WithoutRole),
        };
        Ok(Grant {
            // The token of a service may have no user: it is then named by its own id.
            operator: Operator::Named(claims.user.unwrap_or(claims.token)),
            role,
        })
    }
}

const fn of_holder(role: Role) -> Grant {
    Grant {
        operator: Operator::TokenHolder,
        role,
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// The bearer token of a request.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case("bearer ")
        .then(|| token.trim_ascii())
}
