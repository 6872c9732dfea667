//! Reservations that are held, for operators: the oldest first, and released by id.

use std::collections::BTreeMap;

use palisade_core::Digest;
use palisade_core::budget::{Counts, Fate, Part, Reservation};
use palisade_core::time::{Micros, SECOND};
use palisade_store::StoreError;
use serde::Serialize;

use super::super::limits::limit_named;
use super::super::reservations::Settlement;
use super::super::{Change, Engine};
use super::{Admin, AdminError};

/// Most reservations that one listing shows.
pub const RESERVATIONS_LISTED_MAX: usize = 1000;

/// A held reservation. Subjects are shown as digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = HeldReservation))]
pub struct ReservationView {
    /// Id of the reservation, 32 hexadecimal digits.
    pub id: String,
    /// Class of the request.
    pub class: String,
    /// Start of the reservation, RFC 3339.
    pub since: String,
    /// End of the reservation, RFC 3339.
    pub expires_at: String,
    /// Whole seconds until the reservation ends.
    pub expires_in: u64,
    /// Reserved amounts, by unit.
    pub reserved: BTreeMap<String, u64>,
    /// Limits that the reservation is charged to.
    pub limits: Vec<ReservedLimit>,
}

/// A limit that a reservation is charged to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReservedLimit {
    /// The limit's name.
    pub name: String,
    /// The bucket's subject: digests such as `org:0f3a…`, joined by commas. Empty if all callers
    /// share the bucket.
    pub subject: String,
    /// The bucket's digest.
    pub bucket: String,
    /// Amount reserved in the bucket.
    pub amount: u64,
    /// True for a slot of a limit on requests in progress.
    pub slot: bool,
}

/// The reservations that a node knows to be held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationPage {
    /// The oldest of them.
    pub reservations: Vec<ReservationView>,
    /// The number of all.
    pub total: usize,
}

impl Engine {
    /// The oldest reservations that are held, of those that this node granted or extended.
    ///
    /// # Errors
    /// The store's: it knows which of them were settled on other nodes.
    pub async fn reservations(&self, count: usize) -> Result<ReservationPage, StoreError> {
        let count = count.clamp(1, RESERVATIONS_LISTED_MAX);
        let now = self.now();
        let (oldest, total) = self.register.oldest(now, count);
        let fates = self.fates_of(&oldest).await?;
        let mut page = ReservationPage {
            reservations: Vec::with_capacity(oldest.len()),
            total,
        };
        for (reservation, fate) in oldest.into_iter().zip(fates) {
            let held = match fate {
                None => reservation,
                Some(Fate::Held(latest)) => *latest,
                Some(Fate::Settled(_)) => {
                    self.register.forget(reservation.id);
                    page.total -= 1;
                    continue;
                }
            };
            page.reservations.push(self.view_of(&held, now));
        }
        Ok(page)
    }

    fn view_of(&self, held: &Reservation, now: Micros) -> ReservationView {
        let policy = self.policy();
        // What is held for a caller's share is the same amount once more.
        let is_own = |part: &&Part| !matches!(part.counts, Counts::Share(..) | Counts::Unsettled);
        let limits = held.parts.iter().filter(is_own).map(|part| {
            let limit = limit_named(&policy, part.line.limit);
            let segments = part.line.segments.iter();
            let subject: Vec<String> = segments
                .map(|one| format!("{}:{}", one.kind.name(), one.digest.hex()))
                .collect();
            ReservedLimit {
                name: limit.map_or_else(String::new, |limit| limit.name.to_string()),
                subject: subject.join(","),
                bucket: part.line.id.hex(),
                amount: part.line.cost,
                slot: part.counts == Counts::Slot,
            }
        });
        let mut shown: Vec<ReservedLimit> = Vec::new();
        // An extension adds another part to a bucket.
        for limit in limits {
            match shown.iter_mut().find(|one| one.bucket == limit.bucket) {
                Some(known) => known.amount += limit.amount,
                None => shown.push(limit),
            }
        }
        let amounts = held.amounts.iter();
        ReservationView {
            id: held.id.hex(),
            class: held.class.to_string(),
            since: held.at.to_rfc3339(),
            expires_at: held.ends.to_rfc3339(),
            expires_in: held.ends.since(now).div_ceil(SECOND),
            reserved: amounts
                .map(|one| (one.unit.to_string(), one.reserved))
                .collect(),
            limits: shown,
        }
    }
}

impl Admin<'_> {
    /// Releases a reservation as its holder would: nothing was used.
    ///
    /// # Errors
    /// This node did not grant or extend it, or it was settled or has ended.
    pub async fn release_reservation(
        &self,
        id: Digest,
        reason: &str,
    ) -> Result<Settlement, AdminError> {
        const NOBODYS: AdminError = AdminError::NotFound("reservation");
        let now = self.engine.now();
        let held = self.engine.register.find(id).filter(|one| one.ends > now);
        let settlement = self
            .engine
            .settle_reservation(held.ok_or(NOBODYS)?, None)
            .await;
        // Its holder was first, perhaps on another node.
        let was_settled = settlement.units.iter().any(|unit| unit.used > 0);
        if settlement.late || was_settled {
            return Err(NOBODYS);
        }
        self.record(Change::ReservationReleased {
            id: &id.hex(),
            reason,
        });
        Ok(settlement)
    }
}
