//! Reservations (B-…): the likely cost of a piece of work is charged before it begins and corrected
//! when it has ended.
//!
//! Stores do not know reservations, which are made of the operations that checks use:
//!
//! - **A reservation is a receipt with an end.** [`reserve`] decides and charges like a check. It
//!   seals the charges (amounts, buckets and instants) into a token, which the holder keeps and
//!   which every node can open. The store keeps no record of a reservation that is neither extended
//!   nor settled.
//! - **Settling** refunds what was not used, charge by charge and as far as each bucket still
//!   counts it (L-GIVE-BACK), or charges the surplus even if it does not fit.
//! - **Once** (B-ONCE): [`settle`] writes the reservation's fate as a record by compare-and-swap,
//!   in the same step in which the buckets change ([`fate`]). A second settle finds the first
//!   one's answer there, and one of unknown outcome is simply repeated. An extension writes the
//!   new state of the reservation there, so that the first token stays valid.
//! - **A slot** of a concurrency limit is a hit of an exact sliding log whose window is the
//!   hold. A refund of the hit frees the slot; if its holder dies, it is free once the window has
//!   passed. [`extend`] takes the new hit before it refunds the old one, so that for an instant
//!   one slot too many is taken, and never one too few.
//! - **An anchor** is a bucket with a capacity of one. It is named after the reservation's id and
//!   charged in the same step as the other buckets, in the same cluster slot. Its reading shows, by
//!   the store's clock, whether a charge of unknown outcome was made and when (B-ID), and whether
//!   the store has lost the slots of a reservation (B-EXACT).
//!
//! The order of writes decides what a crash can do. On Redis Cluster the fate is written before the
//! slots are corrected: after a crash in between, what was not corrected stays counted until the
//! settle is repeated. The new hit of an extension is taken before the old one is refunded: after
//! a crash in between, a slot is taken twice until its window has passed. Both may admit too
//! little and never too much.

mod anchor;
mod extend;
mod fate;
mod guard;
mod queue;
mod register;
mod renew;
mod reserve;
mod retry;
mod settle;
mod tally;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_core::FieldError;
use palisade_core::budget::{Counts, Part, Reservation, SettledUnit};
use palisade_core::decision::{Decision, LimitReading, ThresholdWarning};
use palisade_core::receipt::{Place, RECEIPT_BYTES_MAX, ReceiptError};
use palisade_core::time::{Micros, SECOND};

use super::{Engine, RequestAnswer};

pub use guard::{ReservationGuard, TookTooLong};
pub(super) use queue::Queues;
pub(super) use register::Register;
pub(super) use retry::Retries;
pub use tally::{ReservationFigures, SpendResult};

/// Time after its end within which a reservation may still be settled, and for which its fate is
/// kept.
const SETTLED_FOR_US: u64 = 600 * SECOND;

/// Default lifetime of a reservation.
pub const HOLD_DEFAULT: Duration = Duration::from_secs(60);

/// Terms of a new reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Lifetime unless it is extended: a second to an hour.
    pub hold: Duration,
    /// Whether to reserve what is left if the whole cost does not fit.
    pub at_most: bool,
    /// Whether a hold that is longer than the window of a limit in a unit of the policy's own is
    /// shortened to it. Otherwise it is refused (B-BOUND).
    pub shorten: bool,
    /// Whether a repeated request (equal `request_id`, facts and costs) gets the same reservation
    /// again (B-ID).
    pub once: bool,
}

impl Default for Hold {
    fn default() -> Self {
        Self {
            hold: HOLD_DEFAULT,
            at_most: false,
            shorten: true,
            once: true,
        }
    }
}

/// A reservation that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldReservation {
    /// The sealed reservation.
    pub token: Box<str>,
    /// Instant of its end, by the clock that decided it.
    pub expires_at: Micros,
    /// Microseconds until then.
    pub expires_in_us: u64,
    /// Reserved amounts by unit.
    pub reserved: Vec<(Box<str>, u64)>,
}

/// The answer to a request for a reservation.
#[derive(Clone, Debug)]
pub struct ReserveAnswer {
    /// The decision.
    pub answer: RequestAnswer,
    /// The reservation, if it was allowed.
    pub held: Option<HeldReservation>,
}

/// The answer to an extension.
#[derive(Clone, Debug)]
pub enum ExtendAnswer {
    /// The reservation was extended.
    Held(HeldReservation),
    /// There is no room for the additional cost: the reservation stays as it was.
    Denied(Box<Decision>),
    /// The reservation has ended, or its slot was lost and is taken: the holder must stop.
    Expired,
    /// The reservation was settled before, with this answer.
    Settled(Settlement),
    /// The store could not be called; the reservation stays as it was.
    Unavailable,
}

/// The answer to a settle or a release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// Whether the call came so long after the end of the reservation that it changed nothing.
    pub late: bool,
    /// False while the store cannot be called; the settle is then tried again in the background.
    pub recorded: bool,
    /// Reserved and used amounts by unit.
    pub units: Vec<SettledUnit>,
    /// The corrected buckets as they are now.
    pub limits: Vec<LimitReading>,
    /// Limits that have reached a threshold (B-WARN).
    pub warnings: Option<Box<[ThresholdWarning]>>,
}

/// Reason to refuse a call on a reservation before the store is called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    /// The token was not issued by this deployment, or was changed.
    #[error("`reservation` is not a reservation that was issued here, or was changed")]
    Foreign,
    /// Another field is not valid.
    #[error(transparent)]
    Field(#[from] FieldError),
}

impl From<ReceiptError> for ReservationError {
    fn from(_: ReceiptError) -> Self {
        Self::Foreign
    }
}

impl Engine {
    /// Opens the token of a reservation.
    fn open_reservation(&self, token: &str) -> Result<Reservation, ReservationError> {
        if token.len() > RECEIPT_BYTES_MAX.div_ceil(3) * 4 {
            return Err(ReservationError::Foreign);
        }
        let sealed = URL_SAFE_NO_PAD.decode(token).map_err(|_| ReceiptError)?;
        Ok(Reservation::open(&self.keyring, &sealed)?)
    }

    /// A reservation in the form that its holder gets; `None` if it is too large for a token.
    fn held(&self, reservation: &Reservation, now: Micros) -> Option<HeldReservation> {
        let sealed = reservation.seal(&self.keyring)?;
        let reserved = |one: &palisade_core::budget::Amount| (one.unit.clone(), one.reserved);
        Some(HeldReservation {
            token: URL_SAFE_NO_PAD.encode(sealed).into(),
            expires_at: reservation.ends,
            expires_in_us: reservation.ends.since(now),
            reserved: reservation.amounts.iter().map(reserved).collect(),
        })
    }

    /// Whether this process can touch the bucket of a part. A local bucket exists only in the
    /// process that charged it.
    fn is_reachable(&self, reservation: &Reservation, part: &Part) -> bool {
        part.line.place == Place::Store || reservation.process == self.receipts.process
    }
}

/// Whether a part is a slot.
fn is_slot(part: &Part) -> bool {
    part.counts == Counts::Slot
}
