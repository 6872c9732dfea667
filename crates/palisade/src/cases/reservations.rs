//! `"op":"reserve"` and its follow-up operations: reservations as lines, with names that later
//! lines of the file refer to.

use std::collections::HashMap;
use std::sync::Arc;

use palisade_core::decision::Decision;
use palisade_core::path::EncodedSlash;
use palisade_core::policy::PolicySet;
use palisade_core::time::Micros;
use palisade_core::{FieldError, RequestFacts};
use serde_json::{Map, Value};

use super::event::CaseError;
use crate::engine::{Engine, ExtendAnswer, Hold, ReservationError};
use crate::wire::{
    ExtendedAnswer, FollowUp, RawFollowUp, ReserveCall, ReservedAnswer, SettledAnswer, WireError,
    parse,
};

/// Most reservations that a file may name.
const NAMED_MAX: usize = 100_000;

/// A line that makes a reservation.
#[derive(Clone, Debug)]
pub struct NamedReserve {
    /// Name by which later lines refer to the reservation.
    pub name: Option<String>,
    /// Facts of the request that the reservation is for.
    pub facts: RequestFacts,
    /// Duration of the reservation, and whether a smaller one is accepted.
    pub hold: Hold,
}

/// A call on a reservation that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationStep {
    /// Adds cost, moves the end, or both.
    Extend,
    /// Reports the use.
    Settle,
    /// Reports that nothing was used.
    Release,
}

impl ReservationStep {
    /// The step with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "extend" => Some(Self::Extend),
            "settle" => Some(Self::Settle),
            "release" => Some(Self::Release),
            _ => None,
        }
    }

    /// Returns the name that lines use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Extend => "extend",
            Self::Settle => "settle",
            Self::Release => "release",
        }
    }
}

/// A line that extends, settles or releases the reservation of an earlier line.
#[derive(Clone, Debug)]
pub struct NamedFollowUp {
    /// The call.
    pub step: ReservationStep,
    /// The name of the reservation.
    pub of: String,
    /// Costs and hold of the step; the token is found by the name.
    pub asked: FollowUp,
}

/// Reads a line that reserves.
pub(super) fn reserve(
    mut fields: Map<String, Value>,
    slash: EncodedSlash,
) -> Result<NamedReserve, CaseError> {
    let name = match fields.remove("as") {
        None => None,
        Some(Value::String(name)) => Some(name),
        Some(_) => return Err(CaseError::Field("as", "must be a string")),
    };
    let ReserveCall { facts, hold } = ReserveCall::of(fields, slash)?;
    Ok(NamedReserve { name, facts, hold })
}

/// Reads a line that follows one that reserves.
pub(super) fn follow_up(
    step: ReservationStep,
    mut fields: Map<String, Value>,
) -> Result<NamedFollowUp, CaseError> {
    let Some(Value::String(of)) = fields.remove("of") else {
        return Err(CaseError::Field(
            "of",
            "must name the reservation of an earlier line",
        ));
    };
    fields.insert("reservation".to_owned(), Value::String(String::new()));
    let text = Value::Object(fields).to_string();
    let raw: RawFollowUp = parse(text.as_bytes())?;
    let asked = raw.into_follow_up().map_err(WireError::from)?;
    Ok(NamedFollowUp { step, of, asked })
}

/// The tokens of reservations, by the names that lines have given them.
#[derive(Default)]
pub(super) struct NamedReservations(HashMap<String, Box<str>>);

/// The result of a line about a reservation.
pub(super) struct ReservationOutcome {
    pub(super) decision: Decision,
    pub(super) policy: Arc<PolicySet>,
    pub(super) shown: Value,
}

impl NamedReservations {
    pub(super) async fn reserve(
        &mut self,
        engine: &Engine,
        asked: &NamedReserve,
        request_id: &str,
    ) -> Result<ReservationOutcome, CaseError> {
        let reserved = engine.reserve(&asked.facts, asked.hold).await;
        let reserved = reserved.map_err(WireError::from)?;
        if let (Some(name), Some(held)) = (&asked.name, &reserved.held) {
            if self.0.len() >= NAMED_MAX {
                return Err(CaseError::Field("as", "is one name too many"));
            }
            self.0.insert(name.clone(), held.token.clone());
        }
        let answer = ReservedAnswer::new(&reserved, request_id);
        let shown = serde_json::to_value(answer).unwrap_or_default();
        Ok(ReservationOutcome {
            decision: (*reserved.answer.decision).clone(),
            policy: reserved.answer.policy,
            shown,
        })
    }

    pub(super) async fn follow_up(
        &self,
        engine: &Engine,
        asked: &NamedFollowUp,
        request_id: &str,
        now: Micros,
    ) -> Result<ReservationOutcome, CaseError> {
        let unknown = CaseError::Field("of", "names no reservation that is held");
        let token = self.0.get(&asked.of).ok_or(unknown)?;
        let FollowUp { costs, hold, .. } = &asked.asked;
        let mut decision = Decision::allow(now);
        let settled = match (asked.step, costs) {
            (ReservationStep::Extend, costs) => {
                let extended = engine.extend(token, costs.as_ref(), *hold).await;
                let extended = extended.map_err(refused)?;
                if let ExtendAnswer::Denied(denied) = &extended {
                    decision = (**denied).clone();
                }
                let shown = ExtendedAnswer::new(&extended, request_id);
                let shown = serde_json::to_value(shown).unwrap_or_default();
                let policy = engine.policy();
                return Ok(ReservationOutcome {
                    decision,
                    policy,
                    shown,
                });
            }
            (ReservationStep::Settle, Some(used)) => engine.settle(token, used).await,
            (ReservationStep::Settle, None) => {
                return Err(CaseError::Field("costs", "is required: what was used"));
            }
            (ReservationStep::Release, _) => engine.release(token).await,
        };
        let settled = settled.map_err(refused)?;
        let shown = SettledAnswer::new(&settled, request_id);
        Ok(ReservationOutcome {
            decision,
            policy: engine.policy(),
            shown: serde_json::to_value(shown).unwrap_or_default(),
        })
    }
}

fn refused(error: ReservationError) -> CaseError {
    let error = match error {
        ReservationError::Foreign => FieldError::new("of", "is no reservation of this engine"),
        ReservationError::Field(error) => error,
    };
    WireError::from(error).into()
}
