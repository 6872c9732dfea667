//! Parses JSON into [`GuardFacts`].

use palisade_core::facts::{Confidence, DeviceFacts, FieldError, GuardFacts};
use serde::Deserialize;

use super::request::{address, header, id, token};
use super::{Text, text};

/// Facts of an attempt, as sent to `/v1/guard/…`.
#[derive(Clone, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = GuardFacts))]
#[serde(deny_unknown_fields)]
pub struct RawGuard<'a> {
    /// IP address of the client.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = true))]
    pub ip: Option<Text<'a>>,
    /// `User-Agent` of the client.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 2048))]
    pub user_agent: Option<Text<'a>>,
    /// `Accept-Language` of the client, for a passive fingerprint.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 2048))]
    pub accept_language: Option<Text<'a>>,
    /// Platform of the client (`Sec-CH-UA-Platform`), for a passive fingerprint.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 2048))]
    pub platform: Option<Text<'a>>,
    /// Id of the account; optional for `/v1/guard/api/hit`.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = true, min_length = 1, max_length = 512))]
    pub account: Option<Text<'a>>,
    /// Name or email as typed, for the lockout.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub username: Option<Text<'a>>,
    /// The client's device, as far as the application knows it.
    #[serde(borrow, default)]
    pub device: Option<RawDevice<'a>>,
    /// True if the client has passed a challenge, which frees it from a soft block.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub challenge_passed: bool,
    /// Token of a passed challenge (`/v1/challenge/verify`), which frees a check from a
    /// soft block, once.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub challenge_token: Option<Text<'a>>,
    /// Id of the attempt. A retry with the same id is counted once.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub request_id: Option<Text<'a>>,
    /// Correlation id, carried into logs and the audit.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub correlation_id: Option<Text<'a>>,
}

/// Facts about a device.
#[derive(Clone, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = DeviceFacts))]
#[serde(deny_unknown_fields)]
pub struct RawDevice<'a> {
    /// Session id that Palisade issued at `/v1/guard/sessions`.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub session_id: Option<Text<'a>>,
    /// Device id that the client itself reports.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub client_id: Option<Text<'a>>,
    /// Fingerprint that the application computed.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub fingerprint: Option<Text<'a>>,
    /// Confidence of `fingerprint`; `low` if absent.
    #[serde(default)]
    pub confidence: Option<Confidence>,
    /// True if the application asserts that the account knows this device.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub known: bool,
    /// True if the application asserts a trusted session of its own. Needs a `session_id`, or a
    /// `fingerprint` of high `confidence`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub trusted: bool,
}

impl RawGuard<'_> {
    /// Validates the facts.
    ///
    /// # Errors
    /// A missing field or one outside its bounds.
    pub fn into_facts(self) -> Result<GuardFacts, FieldError> {
        Ok(GuardFacts {
            ip: address(self.ip.as_deref())?,
            user_agent: header("user_agent", self.user_agent.as_deref())?,
            accept_language: header("accept_language", self.accept_language.as_deref())?,
            platform: header("platform", self.platform.as_deref())?,
            account: id("account", self.account.as_deref())?,
            username: id("username", self.username.as_deref())?,
            device: self.device.unwrap_or_default().into_facts()?,
            challenge_passed: self.challenge_passed,
            pass: token(self.challenge_token.as_deref())?,
            request_id: id("request_id", self.request_id.as_deref())?,
            attempt_id: None,
            correlation_id: id("correlation_id", self.correlation_id.as_deref())?,
        })
    }
}

impl RawDevice<'_> {
    fn into_facts(self) -> Result<DeviceFacts, FieldError> {
        Ok(DeviceFacts {
            session_id: id("device.session_id", self.session_id.as_deref())?,
            client_id: id("device.client_id", self.client_id.as_deref())?,
            fingerprint: id("device.fingerprint", self.fingerprint.as_deref())?,
            confidence: self.confidence,
            known: self.known,
            trusted: self.trusted,
        })
    }
}
