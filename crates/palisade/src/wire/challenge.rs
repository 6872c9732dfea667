//! Calls about challenges as JSON: `/v1/challenge` and `/v1/challenge/verify`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use palisade_core::challenge::{
    ChallengeFacts, ChallengeFlow, ChallengeKind, ChallengeParameters, ChallengeRefusal,
    IssuedChallenge, OfferedChallenge, Solution,
};
use palisade_core::decision::Level;
use palisade_core::facts::FieldError;
use palisade_core::time::Micros;
use serde::{Deserialize, Serialize};

use super::request::{address, id};
use super::{RawDevice, Text, text};

/// Longest solution, in bytes.
const SOLUTION_BYTES_MAX: usize = 16 * 1024;

/// Facts about the client of a challenge: those of a guard command, and the flow.
#[derive(Clone, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ChallengeFacts))]
#[serde(deny_unknown_fields)]
pub struct RawChallenge<'a> {
    /// Flow that the challenge is to free; `request` is for limits with `on_exceed = "challenge"`.
    #[cfg_attr(feature = "openapi", schema(required = true, value_type = ChallengeFlow))]
    pub flow: Option<ChallengeFlow>,
    /// IP address of the client.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = true))]
    pub ip: Option<Text<'a>>,
    /// Id of the account; required for `login` and `otp`.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub account: Option<Text<'a>>,
    /// Level of the answer that asked for the challenge: a higher one is harder.
    #[serde(default)]
    pub level: Option<Level>,
    /// Solution of the client. Only for `/v1/challenge/verify`.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 16384))]
    pub solution: Option<Text<'a>>,
    /// Accepted so that the facts of a guard command can be sent as they are; not read.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 2048))]
    pub user_agent: Option<Text<'a>>,
    /// Accepted like `user_agent`; not read.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 2048))]
    pub accept_language: Option<Text<'a>>,
    /// Accepted like `user_agent`; not read.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 2048))]
    pub platform: Option<Text<'a>>,
    /// Accepted like `user_agent`; not read.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub username: Option<Text<'a>>,
    /// Accepted like `user_agent`; not read.
    #[serde(borrow, default)]
    pub device: Option<RawDevice<'a>>,
    /// Accepted like `user_agent`; not read.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub challenge_passed: bool,
    /// Id of the request, returned in the answer.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub request_id: Option<Text<'a>>,
    /// Correlation id, carried into logs and the audit.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub correlation_id: Option<Text<'a>>,
}

impl RawChallenge<'_> {
    /// Validates the facts of a challenge to be issued.
    ///
    /// # Errors
    /// A missing field or one outside its bounds, or a solution.
    pub fn into_facts(self) -> Result<ChallengeFacts, FieldError> {
        if self.solution.is_some() {
            let problem = "belongs to `/v1/challenge/verify`";
            return Err(FieldError::new("solution", problem));
        }
        self.facts()
    }

    /// Validates the facts of a challenge, and its solution.
    ///
    /// # Errors
    /// A missing field or one outside its bounds.
    pub fn into_solution(self) -> Result<(ChallengeFacts, Box<str>), FieldError> {
        let solution = self.solution.as_deref();
        let solution = solution.ok_or(FieldError::new("solution", "is required"))?;
        if solution.len() > SOLUTION_BYTES_MAX {
            return Err(FieldError::new("solution", "is too long"));
        }
        Ok((self.facts()?, solution.into()))
    }

    fn facts(&self) -> Result<ChallengeFacts, FieldError> {
        let flow = self.flow.ok_or(FieldError::new("flow", "is required"))?;
        let account = id("account", self.account.as_deref())?;
        if flow.is_of_guesses() && account.is_none() {
            return Err(FieldError::new("account", "is required"));
        }
        Ok(ChallengeFacts {
            account,
            level: self.level,
            request_id: id("request_id", self.request_id.as_deref())?,
            correlation_id: id("correlation_id", self.correlation_id.as_deref())?,
            ..ChallengeFacts::new(flow, address(self.ip.as_deref())?)
        })
    }
}

/// A challenge for one client.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Challenged))]
pub struct IssuedAnswer<'a> {
    /// Kind of the challenge.
    pub kind: ChallengeKind,
    /// Parameters for whatever solves or shows it.
    pub parameters: &'a ChallengeParameters,
    /// Instant after which a solution is late, RFC 3339; null where the provider decides.
    #[cfg_attr(feature = "openapi", schema(required = true, format = DateTime))]
    pub expires_at: Option<String>,
    /// The request's id.
    pub request_id: &'a str,
}

impl<'a> IssuedAnswer<'a> {
    /// Renders a challenge.
    #[must_use]
    pub fn new(issued: &'a IssuedChallenge, request_id: &'a str) -> Self {
        Self {
            kind: issued.offer.kind,
            parameters: &issued.offer.parameters,
            expires_at: issued.expires.map(Micros::to_rfc3339),
            request_id,
        }
    }
}

/// Result of a solution.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Verified))]
pub struct VerifiedAnswer<'a> {
    /// Whether the challenge was passed.
    pub passed: bool,
    /// Token to send with the next check; only if it was passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub challenge_token: Option<&'a str>,
    /// Instant after which the token is late, RFC 3339; only if it was passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub expires_at: Option<String>,
    /// Why it was not passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<ChallengeRefusal>,
    /// Challenge to offer in its place, if the provider does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub challenge: Option<&'a OfferedChallenge>,
    /// The request's id.
    pub request_id: &'a str,
}

/// A solution as clients send it: JSON in base64, as ALTCHA's widget posts it.
#[must_use]
pub fn solution_text(solution: &Solution) -> Option<String> {
    let json = serde_json::to_vec(solution).ok()?;
    Some(STANDARD.encode(json))
}

/// Reads a solution as clients send it.
#[must_use]
pub fn read_solution(text: &str) -> Option<Solution> {
    let json = STANDARD.decode(text).ok()?;
    serde_json::from_slice(&json).ok()
}
