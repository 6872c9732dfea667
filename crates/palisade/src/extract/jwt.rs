//! Verified bearer tokens (I-JWT).
//!
//! Nothing here reads a clock: time is an argument.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::decode_header;
use palisade_core::{Id, Micros};
use sha2::{Digest, Sha256};

use super::api_key::lower_hex;
pub use super::claims::Claims;
use super::claims::{Payload, Unusable};
pub use super::keys::{
    Algorithm, HMAC_BYTES_MIN, JwtKeys, KEY_FILE_BYTES_MAX, KEYS_MAX, KeyError, parse_algorithm,
};
use super::known::{AcceptedToken, KnownTokens};
use super::signature;

/// Longest token that is read, in bytes.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// Whether a token must say when it expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// A token without `exp` is refused.
    #[default]
    Required,
    /// A token without `exp` never expires.
    Optional,
}

/// Requirements for a token besides a good signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtRules {
    /// `iss`, if one is required.
    pub issuer: Option<Box<str>>,
    /// `aud` must name one of these; empty: any audience, and none, will do.
    pub audiences: Vec<Box<str>>,
    /// The claim that holds the organisation.
    pub org_claim: Box<str>,
    /// Largest difference between clocks that is tolerated.
    pub leeway: Duration,
    /// Whether `exp` is required.
    pub expiry: Expiry,
}

impl Default for JwtRules {
    fn default() -> Self {
        Self {
            issuer: None,
            audiences: Vec::new(),
            org_claim: "org_id".into(),
            leeway: Duration::from_secs(60),
            expiry: Expiry::Required,
        }
    }
}

/// Reason why a token was not accepted. The request is then unauthenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRefusal {
    /// Longer than [`TOKEN_BYTES_MAX`].
    TooLong,
    /// Not three base64url parts with JSON in them.
    Malformed,
    /// Not signed with the configured algorithm, `none` included.
    Algorithm,
    /// Needs an extension (`crit`) that is not understood.
    Critical,
    /// No key with this `kid`.
    UnknownKey,
    /// The signature does not match.
    Signature,
    /// `exp` has passed, or is missing where it is required.
    Expired,
    /// `nbf` lies in the future.
    NotYetValid,
    /// Another issuer.
    Issuer,
    /// Another audience.
    Audience,
    /// A claim has a type or size that cannot be used.
    Claim,
}

impl TokenRefusal {
    /// A word for logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
            Self::Algorithm => "algorithm",
            Self::Critical => "critical_extension",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::Claim => "claim",
        }
    }
}

impl From<Unusable> for TokenRefusal {
    fn from(_: Unusable) -> Self {
        Self::Claim
    }
}

/// The times between which a token is valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    expires: Option<Micros>,
    starts: Option<Micros>,
}

/// Verifies tokens with one set of keys under one set of rules.
///
/// ```
/// use palisade::core::Micros;
/// use palisade::extract::jwt::{Algorithm, JwtKeys, JwtRules, TokenRefusal, TokenVerifier};
///
/// let secret = b"at least 32 random bytes go here";
/// let keys = JwtKeys::from_secret(secret, Algorithm::HS256)?;
/// let verifier = TokenVerifier::new(keys, JwtRules::default());
/// // {"alg":"none"} and no signature:
/// let unsigned = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.";
/// let refused = verifier.verify(unsigned, Micros(0)).err();
/// assert_eq!(refused, Some(TokenRefusal::Algorithm));
/// # Ok::<(), palisade::extract::jwt::KeyError>(())
/// ```
#[derive(Debug)]
pub struct TokenVerifier {
    keys: JwtKeys,
    rules: JwtRules,
    known: KnownTokens,
}

impl TokenVerifier {
    /// A verifier with these keys and rules.
    #[must_use]
    pub fn new(keys: JwtKeys, rules: JwtRules) -> Self {
        Self {
            keys,
            rules,
            known: KnownTokens::default(),
        }
    }

    /// The claims of a token that is genuine and valid at `now`.
    ///
    /// # Errors
    /// The reason why the token is not accepted. The signature is checked before any claim.
    pub fn verify(&self, token: &str, now: Micros) -> Result<Claims, TokenRefusal> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenRefusal::TooLong);
        }
        let known = self.known.get(token, |known| {
            self.judge_times(known.times, now)?;
            Ok(known.claims.clone())
        });
        if let Some(claims) = known {
            return claims;
        }
        let accepted = self.accept(token)?;
        // Only a token that is valid now is cached.
        self.judge_times(accepted.times, now)?;
        let claims = accepted.claims.clone();
        self.known.insert(token, accepted);
        Ok(claims)
    }

    /// Returns the claims of a token that [`TokenVerifier::verify`] has accepted before, and that
    /// is still valid. The cost is that of a lookup.
    #[must_use]
    pub fn recall(&self, token: &str, now: Micros) -> Option<Claims> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let known = self.known.get(token, |known| {
            self.judge_times(known.times, now).ok()?;
            Some(known.claims.clone())
        });
        known.flatten()
    }

    /// Checks everything but the times, which depend on the instant.
    fn accept(&self, token: &str) -> Result<AcceptedToken, TokenRefusal> {
        let parts = Parts::split(token).ok_or(TokenRefusal::Malformed)?;
        self.verify_signature(token, &parts)?;
        let json = decoded(parts.payload)?;
        let payload = Payload::parse(&json).ok_or(TokenRefusal::Malformed)?;
        let times = Times {
            expires: payload.time("exp")?,
            starts: payload.time("nbf")?,
        };
        self.judge_origin(&payload)?;
        let claims = self.claims(&payload, parts.signed)?;
        Ok(AcceptedToken { claims, times })
    }

    fn verify_signature(&self, token: &str, parts: &Parts<'_>) -> Result<(), TokenRefusal> {
        let pinned = self.keys.algorithm();
        let header = decode_header(token).map_err(|_| unreadable_header(parts.header))?;
        // Pinned by the configuration: a token must not choose its own algorithm.
        if header.alg != pinned {
            return Err(TokenRefusal::Algorithm);
        }
        if header.crit.is_some() {
            return Err(TokenRefusal::Critical);
        }
        let key = self.keys.find(header.kid.as_deref());
        let key = key.ok_or(TokenRefusal::UnknownKey)?;
        let signature = decoded(parts.signature)?;
        if !signature::verifies(pinned, key, parts.signed.as_bytes(), &signature) {
            return Err(TokenRefusal::Signature);
        }
        Ok(())
    }

    fn judge_times(&self, times: Times, now: Micros) -> Result<(), TokenRefusal> {
        let leeway = u64::try_from(self.rules.leeway.as_micros()).unwrap_or(u64::MAX);
        match times.expires {
            Some(end) if now >= end.plus(leeway) => return Err(TokenRefusal::Expired),
            None if self.rules.expiry == Expiry::Required => return Err(TokenRefusal::Expired),
            Some(_) | None => {}
        }
        match times.starts {
            Some(start) if now.plus(leeway) < start => Err(TokenRefusal::NotYetValid),
            Some(_) | None => Ok(()),
        }
    }

    fn judge_origin(&self, payload: &Payload) -> Result<(), TokenRefusal> {
        let issuer = self.rules.issuer.as_deref();
        if issuer.is_some_and(|issuer| !payload.is("iss", issuer)) {
            return Err(TokenRefusal::Issuer);
        }
        let audiences = &self.rules.audiences;
        let mut meant = audiences.iter().map(|name| payload.names("aud", name));
        if !audiences.is_empty() && !meant.any(|named| named) {
            return Err(TokenRefusal::Audience);
        }
        Ok(())
    }

    fn claims(&self, payload: &Payload, signed: &str) -> Result<Claims, TokenRefusal> {
        Ok(Claims {
            user: payload.id("sub")?,
            org: payload.id(&self.rules.org_claim)?,
            token: match payload.id("jti")? {
                Some(id) => id,
                None => digest_id(signed)?,
            },
            scopes: payload.list(["scope", "scp"])?,
            roles: payload.list(["roles", "role"])?,
        })
    }
}

/// A token's three parts, encoded; `signed` is the first two with their dot.
struct Parts<'a> {
    signed: &'a str,
    header: &'a str,
    payload: &'a str,
    signature: &'a str,
}

impl<'a> Parts<'a> {
    fn split(token: &'a str) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        (!payload.contains('.')).then_some(Self {
            signed,
            header,
            payload,
            signature,
        })
    }
}

/// Returns the refusal for a header that cannot be read: an unsupported algorithm, or no header at
/// all.
fn unreadable_header(encoded: &str) -> TokenRefusal {
    let json = decoded(encoded).unwrap_or_default();
    let names_algorithm = serde_json::from_slice::<serde_json::Value>(&json)
        .is_ok_and(|header| header.get("alg").is_some_and(serde_json::Value::is_string));
    if names_algorithm {
        TokenRefusal::Algorithm
    } else {
        TokenRefusal::Malformed
    }
}

fn decoded(part: &str) -> Result<Vec<u8>, TokenRefusal> {
    URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| TokenRefusal::Malformed)
}

/// Returns the id of a token without `jti`: a digest of its signed part. The signature is left out:
/// some schemes let the holder derive a second valid one, and with it a second identity.
fn digest_id(signed: &str) -> Result<Id, TokenRefusal> {
    let digest = lower_hex(&Sha256::digest(signed.as_bytes()));
    Id::new("token", &format!("sha256:{digest}")).map_err(|_| TokenRefusal::Claim)
}
