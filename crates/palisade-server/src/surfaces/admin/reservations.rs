//! `/admin/reservations`: the reservations that are held, and releasing them.

use std::collections::BTreeMap;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use palisade::engine::{AdminError, RESERVATIONS_LISTED_MAX, ReservationView};
use palisade_core::Digest;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::input::{Body, Fields};
use super::refusal::Refusal;
use super::{Caller, Operations};

const INVALID: &str = "Invalid reservation request";
const MISSING: &str = "Reservation not found";
const LISTED_DEFAULT: usize = 100;

/// Held reservations that this node granted or extended.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Reservations))]
pub(super) struct Listing {
    /// The reservations, the oldest first.
    reservations: Vec<ReservationView>,
    /// Number of all held reservations.
    total: usize,
}

/// Size of the listing.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub(super) struct PageSize {
    /// Number of reservations to list, 1 to 1000; 100 if absent.
    limit: Option<usize>,
}

/// Reason for releasing a reservation.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = ReservationRelease))]
#[serde(deny_unknown_fields)]
pub(super) struct Reason {
    /// Reason for the change, recorded in the audit.
    #[cfg_attr(test, schema(value_type = String, example = "the job was cancelled"))]
    reason: Option<Value>,
}

/// A released reservation.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = ReservationReleased))]
pub(super) struct Report {
    /// False if the store is unavailable. The release then takes effect as soon as the store
    /// answers.
    recorded: bool,
    /// Amounts that were given back, by unit.
    released: BTreeMap<String, u64>,
}

fn refusal(error: &AdminError) -> Refusal {
    Refusal::from_admin(error, INVALID, MISSING)
}

/// Lists held reservations, the oldest first. A node lists those that it granted or extended.
#[cfg_attr(test, utoipa::path(
    get,
    path = "/admin/reservations",
    params(PageSize),
    responses((status = 200, body = Listing), (status = 400, body = Refusal))
))]
pub(super) async fn list(
    State(operations): State<Operations>,
    page: Result<Query<PageSize>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Listing>, Refusal> {
    let count = page.map(|Query(page)| page.limit.unwrap_or(LISTED_DEFAULT));
    let count = count
        .ok()
        .filter(|count| (1..=RESERVATIONS_LISTED_MAX).contains(count))
        .ok_or_else(|| Refusal::invalid_field(INVALID, "limit", "must be 1 to 1000"))?;
    let page = operations.engine.reservations(count).await;
    let page = page.map_err(|error| Refusal::store(&error))?;
    Ok(Json(Listing {
        reservations: page.reservations,
        total: page.total,
    }))
}

/// Releases a reservation. All of it is given back, as if nothing had been used.
#[cfg_attr(test, utoipa::path(
    post,
    path = "/admin/reservations/{id}/release",
    params(("id" = String, Path, description = "Id of the reservation, as listed")),
    request_body = Reason,
    responses(
        (status = 200, body = Report),
        (status = 202, body = Report, description = "The store is unavailable; the release takes effect as soon as it answers"),
        (status = 404, body = Refusal)
    )
))]
pub(super) async fn release(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(body): Body<Reason>,
) -> Result<(StatusCode, Json<Report>), Refusal> {
    let mut fields = Fields::new(INVALID);
    let reason = fields.required("reason", body.reason);
    let id = Digest::from_hex(&id);
    if id.is_none() {
        fields.wrong("id", "must be 32 hexadecimal digits");
    }
    fields.finish()?;
    let admin = operations.administer(&caller);
    let settled = admin.release_reservation(id.unwrap_or_default(), &reason);
    let settled = settled.await.map_err(|error| refusal(&error))?;
    let status = match settled.recorded {
        true => StatusCode::OK,
        false => StatusCode::ACCEPTED,
    };
    let released = settled.units.into_iter();
    Ok((
        status,
        Json(Report {
            recorded: settled.recorded,
            released: released
                .map(|unit| (unit.unit.into(), unit.reserved))
                .collect(),
        }),
    ))
}
