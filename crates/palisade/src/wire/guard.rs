//! Parses JSON into [`GuardFacts`].

use palisade_core::facts::{Confidence, DeviceFacts, FieldError, GuardFacts};
use palisade_core::geo::{Geo, GeoFacts};
use palisade_core::send::policy::MONEY_PARTS;
use palisade_core::send::{Channel, Destination};
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
    /// Country of the client, by its code of two letters; looked up by address if absent.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^[A-Za-z]{2}$"))]
    pub country: Option<Text<'a>>,
    /// Number of the client's network (autonomous system); looked up by address if absent.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 4_294_967_295_u64))]
    pub asn: Option<u64>,
    /// True if the client has passed a challenge, which frees it from a soft block.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub challenge_passed: bool,
    /// Telephone number in international form, or mail address, of the code: of `otp/send` the one
    /// to send to, of `otp/success` the one it came by. Only a digest is kept.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub destination: Option<Text<'a>>,
    /// Way by which `otp/send` sends: `sms`, `voice` or `email`.
    #[serde(default)]
    pub channel: Option<Channel>,
    /// Price of `otp/send`, in the currency of the policy's budget; the policy's own if absent.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100000))]
    pub price: Option<f64>,
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
            geo: GeoFacts::stating(Geo::stated(self.country.as_deref(), self.asn)?),
            challenge_passed: self.challenge_passed,
            destination: self
                .destination
                .as_deref()
                .map(Destination::new)
                .transpose()?,
            channel: self.channel,
            price: self.price.map(price).transpose()?,
            pass: token(self.challenge_token.as_deref())?,
            request_id: id("request_id", self.request_id.as_deref())?,
            attempt_id: None,
            correlation_id: id("correlation_id", self.correlation_id.as_deref())?,
        })
    }
}

/// Highest price of one send.
const PRICE_MAX: f64 = 100_000.0;

/// A price in ten-thousandths, rounded up.
fn price(price: f64) -> Result<u64, FieldError> {
    if !(0.0..=PRICE_MAX).contains(&price) {
        return Err(FieldError::new("price", "must be 0 to 100000"));
    }
    // Rounded to a few digits more first: 0.07 must not become 701 parts.
    let parts = (price * f64::from(MONEY_PARTS) * 1e3).round() / 1e3;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it was just seen to be between 0 and a billion"
    )]
    Ok(parts.ceil() as u64)
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
