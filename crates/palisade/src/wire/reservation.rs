//! Reservations in JSON: requests and answers.

use std::collections::BTreeMap;
use std::time::Duration;

use palisade_core::FieldError;
use palisade_core::budget::Costs;
use palisade_core::decision::{LimitReading, ThresholdWarning};
use palisade_core::path::EncodedSlash;
use palisade_core::{RequestFacts, time::SECOND};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Answer, RawCosts, RawRequest, WireError, parse};
use crate::engine::{ExtendAnswer, HeldReservation, Hold, ReserveAnswer, Settlement};

/// A request's facts, and the terms of its reservation.
pub struct ReserveCall {
    /// Facts of the request that the reservation is for.
    pub facts: RequestFacts,
    /// Hold of the reservation, and the other terms.
    pub hold: Hold,
}

impl ReserveCall {
    /// Reads the body of `/v1/reserve`.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn parse(json: &[u8], slash: EncodedSlash) -> Result<Self, WireError> {
        let fields: Map<String, Value> = parse(json)?;
        Self::of(fields, slash)
    }

    /// Reads the body's members.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn of(mut fields: Map<String, Value>, slash: EncodedSlash) -> Result<Self, WireError> {
        let mut hold = Hold::default();
        if let Some(written) = fields.remove("hold") {
            (hold.hold, hold.shorten) = (duration(&written)?, false);
        }
        match fields.remove("at_most") {
            None | Some(Value::Null) => {}
            Some(Value::Bool(at_most)) => hold.at_most = at_most,
            Some(_) => return Err(FieldError::new("at_most", "must be true or false").into()),
        }
        if fields.contains_key("receipt") {
            let problem = "is for `/v1/check`: what is reserved is settled or released";
            return Err(FieldError::new("receipt", problem).into());
        }
        if fields.contains_key("report") {
            let problem = "is for `/v1/check`: settle says what was used";
            return Err(FieldError::new("report", problem).into());
        }
        let text = Value::Object(fields).to_string();
        let raw: RawRequest<'_> = parse(text.as_bytes())?;
        let facts = raw.into_facts_of(slash)?;
        Ok(Self { facts, hold })
    }
}

/// Reads a duration such as `"90s"` or `"5min"`: whole numbers with `ms`, `s`, `min` or `h`.
fn duration(written: &Value) -> Result<Duration, FieldError> {
    let wrong = || FieldError::new("hold", "must be 1 second to 1 hour, as in \"90s\"");
    let text = written.as_str().ok_or_else(wrong)?;
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (count, unit) = text.split_at(split);
    let ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    let count: u64 = count.parse().map_err(|_| wrong())?;
    count
        .checked_mul(ms)
        .map(Duration::from_millis)
        .ok_or_else(wrong)
}

/// Request to extend, settle or release a reservation.
#[derive(Clone, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ReservationFacts))]
#[serde(deny_unknown_fields)]
pub struct RawFollowUp {
    /// The sealed reservation, as `/v1/reserve` returned it.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 5464))]
    pub reservation: String,
    /// Costs by unit: the amounts used (settle) or the amounts to add (extend).
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, u64>>))]
    pub costs: Option<RawCosts>,
    /// Time from now to the end of the reservation, for example `90s`. Only for an extension.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub hold: Option<Value>,
    /// Id of the request.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 512))]
    pub request_id: Option<String>,
}

/// The members of [`RawFollowUp`], validated.
#[derive(Clone)]
pub struct FollowUp {
    /// The reservation.
    pub reservation: String,
    /// Costs by unit.
    pub costs: Option<Costs>,
    /// Hold from now on.
    pub hold: Option<Duration>,
}

impl RawFollowUp {
    /// Validates the members.
    ///
    /// # Errors
    /// A field outside its bounds.
    pub fn into_follow_up(self) -> Result<FollowUp, FieldError> {
        Ok(FollowUp {
            reservation: self.reservation,
            costs: self.costs.map(RawCosts::into_costs).transpose()?,
            hold: self.hold.as_ref().map(duration).transpose()?,
        })
    }
}

/// A reservation that is held, as members of an answer.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Held))]
pub struct HeldMembers<'a> {
    /// The sealed reservation. Every node accepts it.
    pub reservation: &'a str,
    /// End of the reservation, RFC 3339.
    pub expires_at: String,
    /// Whole seconds until the reservation ends.
    pub expires_in: u64,
    /// Reserved amounts, by unit.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, u64>))]
    pub reserved: BTreeMap<&'a str, u64>,
}

impl<'a> HeldMembers<'a> {
    /// Renders a reservation that is held.
    #[must_use]
    pub fn new(held: &'a HeldReservation) -> Self {
        let reserved = held.reserved.iter();
        Self {
            reservation: &held.token,
            expires_at: held.expires_at.to_rfc3339(),
            expires_in: held.expires_in_us / SECOND,
            reserved: reserved.map(|(unit, amount)| (&**unit, *amount)).collect(),
        }
    }
}

/// Answer of `/v1/reserve`: the decision and, if it allows, the reservation.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Reserved))]
pub struct ReservedAnswer<'a> {
    /// The reservation, if the decision allows it.
    #[serde(flatten)]
    pub held: Option<HeldMembers<'a>>,
    /// The decision.
    #[serde(flatten)]
    pub answer: Answer<'a>,
}

impl<'a> ReservedAnswer<'a> {
    /// Renders an answer.
    #[must_use]
    pub fn new(reserved: &'a ReserveAnswer, request_id: &'a str) -> Self {
        let settings = &reserved.answer.policy.settings;
        let decision = &reserved.answer.decision;
        Self {
            held: reserved.held.as_ref().map(HeldMembers::new),
            answer: Answer::new(decision, settings.headers, &settings.urls, request_id),
        }
    }
}

/// Answer of `/v1/settle` and `/v1/release`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Settled))]
pub struct SettledAnswer<'a> {
    /// False if the store did not answer. The result is then sent again in the background.
    pub recorded: bool,
    /// True if the call came too late to change anything.
    pub late: bool,
    /// Amounts used, by unit.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, u64>))]
    pub used: BTreeMap<&'a str, u64>,
    /// Amounts reserved, by unit.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, u64>))]
    pub reserved: BTreeMap<&'a str, u64>,
    /// Amounts used beyond the reservation, by unit.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, u64>))]
    pub over: BTreeMap<&'a str, u64>,
    /// State of the corrected buckets.
    pub limits: &'a [LimitReading],
    /// Limits that have reached a threshold of their `warn_at`.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub warnings: &'a [ThresholdWarning],
    /// The request's id.
    pub request_id: &'a str,
}

impl<'a> SettledAnswer<'a> {
    /// Renders a settlement.
    #[must_use]
    pub fn new(settlement: &'a Settlement, request_id: &'a str) -> Self {
        let units = || settlement.units.iter();
        Self {
            recorded: settlement.recorded,
            late: settlement.late,
            used: units().map(|one| (&*one.unit, one.used)).collect(),
            reserved: units().map(|one| (&*one.unit, one.reserved)).collect(),
            over: units()
                .filter(|one| one.over() > 0)
                .map(|one| (&*one.unit, one.over()))
                .collect(),
            limits: &settlement.limits,
            warnings: settlement.warnings.as_deref().unwrap_or_default(),
            request_id,
        }
    }
}

/// Answer of `/v1/extend`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Extended))]
pub struct ExtendedAnswer<'a> {
    /// `allow` or `deny`. After a denial the reservation stays as it was.
    pub decision: &'static str,
    /// True if the reservation has ended or has lost its slot: its holder must stop.
    pub expired: bool,
    /// The reservation, if it was extended.
    #[serde(flatten)]
    pub held: Option<HeldMembers<'a>>,
    /// Whole seconds to wait; null if there is nothing to wait for.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub retry_after: Option<u64>,
    /// Machine-readable cause of a denial; null if the extension is allowed.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<palisade_core::decision::ErrorCode>, required = true))]
    pub error: Option<&'static str>,
    /// Buckets that were asked for the additional cost; empty unless it was denied.
    pub limits: &'a [LimitReading],
    /// The earlier settlement, if the reservation was already settled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled: Option<SettledAnswer<'a>>,
    /// The request's id.
    pub request_id: &'a str,
}

impl<'a> ExtendedAnswer<'a> {
    /// Renders an answer; `None` for an extension whose outcome is not known.
    #[must_use]
    pub fn new(extended: &'a ExtendAnswer, request_id: &'a str) -> Option<Self> {
        let mut answer = Self {
            decision: "deny",
            expired: false,
            held: None,
            retry_after: None,
            error: None,
            limits: &[],
            settled: None,
            request_id,
        };
        match extended {
            ExtendAnswer::Held(held) => {
                answer.decision = "allow";
                answer.held = Some(HeldMembers::new(held));
            }
            ExtendAnswer::Denied(decision) => {
                answer.retry_after = decision.retry_after;
                answer.error = decision.error.map(palisade_core::decision::ErrorCode::name);
                answer.limits = &decision.limits;
            }
            ExtendAnswer::Expired => answer.expired = true,
            ExtendAnswer::Settled(settlement) => {
                answer.settled = Some(SettledAnswer::new(settlement, request_id));
            }
            ExtendAnswer::Unavailable => return None,
        }
        Some(answer)
    }
}

impl std::fmt::Debug for FollowUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FollowUp(…)")
    }
}

impl std::fmt::Debug for RawFollowUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RawFollowUp(…)")
    }
}
