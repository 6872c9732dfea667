//! JSON form of a decision in the decision API.

use palisade_core::bodies::{Body, Urls, body};
use palisade_core::challenge::{ChallengeRefusal, PassNote};
use palisade_core::decision::{
    Decision, ErrorCode, Level, LimitReading, LockoutNote, Reason, ShadowAnswer, ShownChallenge,
    ThresholdWarning,
};
use palisade_core::headers::{Header, HeaderFamilies, headers};
use palisade_core::rule::Rule;
use serde::{Serialize, Serializer};

/// Answer of the decision API: a decision with its reasons.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Answer<'a> {
    /// Outcome of the decision.
    #[cfg_attr(feature = "openapi", schema(value_type = palisade_core::decision::Outcome))]
    pub decision: &'static str,
    /// Ladder level of a block; null for any other decision.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub level: Option<Level>,
    /// Whole seconds to wait; null if there is nothing to wait for.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub retry_after: Option<u64>,
    /// Mode in which the decision was reached; `normal` if the store answered.
    #[cfg_attr(feature = "openapi", schema(value_type = palisade_core::decision::Mode))]
    pub mode: &'static str,
    /// The rule that decided; null if the request is allowed.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub rule: Option<Rule>,
    /// All reasons that the decision was chosen from.
    pub reasons: &'a [Reason],
    /// Every bucket that was read, the most constraining first.
    pub limits: &'a [LimitReading],
    /// Machine-readable cause of a refusal; null if the request is allowed.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<palisade_core::decision::ErrorCode>, required = true))]
    pub error: Option<&'static str>,
    /// Progressive delay in milliseconds, to wait before the client is answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u32>,
    /// Challenge to offer to the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub challenge: Option<ShownChallenge<'a>>,
    /// Why the `challenge_token` was not accepted; absent if it was, or if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub challenge_refused: Option<ChallengeRefusal>,
    /// `not_asked` if the attempt had no `username`, so that no lockout counts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lockout: Option<LockoutNote>,
    /// Answer that a flow of the guard in shadow mode would have given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<&'a ShadowAnswer>,
    /// Receipt with which `/v1/refund` gives the charge back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt: Option<&'a str>,
    /// Reservation of the money that a send may cost. `/v1/settle` corrects it to the gateway's
    /// report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<&'a str>,
    /// Names of limits on requests in progress that apply but were not charged: only a reservation
    /// holds a slot.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, required = false))]
    pub not_asked: &'a [std::sync::Arc<str>],
    /// Milliseconds that the request waited in line for a slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u32>,
    /// Limits that have reached a threshold of their `warn_at`.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub warnings: &'a [ThresholdWarning],
    /// Whether an attack is on; absent if none would tighten a limit of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attack: Option<bool>,
    /// Figure in force, for this caller, of the most constraining limit that an attack tightens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_in_force: Option<u64>,
    /// Headers to copy into the response to the client.
    #[serde(serialize_with = "as_map")]
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, String>))]
    pub headers: Vec<Header>,
    /// HTTP status for the client.
    #[cfg_attr(feature = "openapi", schema(minimum = 200, maximum = 599))]
    pub status: u16,
    /// JSON body for the client; null if the request is allowed.
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
            challenge: decision.shown_challenge(),
            challenge_refused: decision.pass.as_ref().and_then(PassNote::refused),
            lockout: decision.lockout,
            shadow: decision.shadow.as_deref(),
            receipt: decision.receipt.as_deref(),
            reservation: decision.reservation.as_deref(),
            not_asked: decision.not_asked.as_deref().unwrap_or_default(),
            waited_ms: decision.waited_ms,
            warnings: decision.warnings.as_deref().unwrap_or_default(),
            attack: decision.attack.map(|note| note.is_on),
            limit_in_force: decision.attack.map(|note| note.limit_in_force),
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
