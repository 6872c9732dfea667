//! JSON form of a decision in the decision API.

use palisade_core::bodies::{Body, Urls, body};
use palisade_core::decision::{
    Challenge, Decision, ErrorCode, Level, LimitReading, LockoutNote, Reason, ShadowAnswer,
    ThresholdWarning,
};
use palisade_core::headers::{Header, HeaderFamilies, headers};
use palisade_core::rule::Rule;
use serde::{Serialize, Serializer};

/// A decision with its reasons, as the decision API answers it.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Answer<'a> {
    /// What to do.
    #[cfg_attr(feature = "openapi", schema(value_type = palisade_core::decision::Outcome))]
    pub decision: &'static str,
    /// Ladder level.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub level: Option<Level>,
    /// Whole seconds to wait.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub retry_after: Option<u64>,
    /// Mode.
    #[cfg_attr(feature = "openapi", schema(value_type = palisade_core::decision::Mode))]
    pub mode: &'static str,
    /// The rule that decided.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub rule: Option<Rule>,
    /// Every candidate.
    pub reasons: &'a [Reason],
    /// Every bucket that was read.
    pub limits: &'a [LimitReading],
    /// Machine-readable error.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<palisade_core::decision::ErrorCode>, required = true))]
    pub error: Option<&'static str>,
    /// Progressive delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u32>,
    /// Challenge to offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub challenge: Option<Challenge>,
    /// `not_asked` if no `username` came with the attempt: no lockout counts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lockout: Option<LockoutNote>,
    /// What a flow of the guard in shadow mode would have answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<&'a ShadowAnswer>,
    /// With it the charge can be given back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt: Option<&'a str>,
    /// Limits on what is in progress that apply and were not asked: only a reservation
    /// holds a place.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, required = false))]
    pub not_asked: &'a [std::sync::Arc<str>],
    /// Milliseconds that the request waited in line for a slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u32>,
    /// Limits that have reached a share in their `warn_at`.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub warnings: &'a [ThresholdWarning],
    /// Headers, ready to copy.
    #[serde(serialize_with = "as_map")]
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, String>))]
    pub headers: Vec<Header>,
    /// Status for the client.
    #[cfg_attr(feature = "openapi", schema(minimum = 200, maximum = 599))]
    pub status: u16,
    /// Body for the client, ready to copy.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub body: Option<Body<'a>>,
    /// The request's id.
    pub request_id: &'a str,
}

impl<'a> Answer<'a> {
    /// Renders a decision.
    #[must_use]
    pub fn new(
        decision: &'a Decision,
        families: HeaderFamilies,
        urls: &'a Urls,
        request_id: &'a str,
    ) -> Self {
        Self {
            decision: decision.outcome.name(),
            level: decision.level,
            retry_after: decision.retry_after,
            mode: decision.mode.name(),
            rule: decision.rule,
            reasons: &decision.reasons,
            limits: &decision.limits,
            error: decision.error.map(ErrorCode::name),
            delay_ms: decision.delay_ms,
            challenge: decision.challenge,
            lockout: decision.lockout,
            shadow: decision.shadow.as_deref(),
            receipt: decision.receipt.as_deref(),
            not_asked: decision.not_asked.as_deref().unwrap_or_default(),
            waited_ms: decision.waited_ms,
            warnings: decision.warnings.as_deref().unwrap_or_default(),
            headers: headers(decision, families),
            status: decision.status,
            body: body(decision, urls, request_id),
            request_id,
        }
    }
}

fn as_map<S: Serializer>(headers: &[Header], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(headers.iter().map(|(name, value)| (name, value)))
}
