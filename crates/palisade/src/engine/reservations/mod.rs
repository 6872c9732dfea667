//! Reservations (B-…): what a piece of work may cost is charged before it begins, and
//! corrected when it has ended.
//!
//! No store knows of reservations. They are made of what checks have already:
//!
//! - **A reservation is a receipt with an end.** [`reserve`] decides and charges like a check
//!   and seals what was charged, where and when, into a token that its holder carries and any
//!   node can open. Nothing is kept of one that is never extended nor settled.
//! - **Settling** gives back what was not used, charge by charge and as far as its bucket
//!   still counts it (L-GIVE-BACK), or charges the surplus although it does not fit.
//! - **Once** (B-ONCE): before it touches a bucket, [`settle`] writes the reservation's fate as
//!   a record by compare-and-swap. Whoever comes second finds the first answer there. An
//!   extension writes what is held now, so that the first token stays good.
//! - **A slot** of a concurrency limit is a hit of an exact sliding log whose window is the
//!   hold. To give it back frees it; a holder that dies frees it when the window has passed.
//!   [`extend`] takes the new hit before it returns the old one: for an instant one place more
//!   is taken than is held, never one less.
//! - **An anchor** is a bucket for one, named after the reservation's id and charged in the
//!   same step as the others, in the same cluster slot. It says, by the store's own clock,
//!   whether a charge of unknown outcome was made and when (B-ID), and whether the store still
//!   has what a slot's holder believes it holds (B-EXACT).
//!
//! The order of writes decides what a crash can do. Fate before buckets: what was marked and
//! not corrected stays counted in full. New hit before old: a slot is taken twice until its
//! window has passed. Each errs to the side of the limit.

mod anchor;
mod extend;
mod fate;
mod guard;
mod reserve;
mod retry;
mod settle;
mod tally;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_core::FieldError;
use palisade_core::budget::{Counts, Part, Reservation, SettledUnit};
use palisade_core::decision::{Decision, LimitReading};
use palisade_core::receipt::{Place, RECEIPT_BYTES_MAX, ReceiptError};
use palisade_core::time::{Micros, SECOND};

use super::{Engine, RequestAnswer};

pub use guard::{ReservationGuard, TookTooLong};
pub(super) use retry::Retries;
pub use tally::{ReservationFigures, SpendResult};

/// So long after its end a reservation may still be settled, and its fate is kept.
const SETTLED_FOR_US: u64 = 600 * SECOND;

/// Default lifetime of a reservation.
pub const HOLD_DEFAULT: Duration = Duration::from_secs(60);

/// Terms of a reservation that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its lifetime unless it is extended: a second to an hour.
    pub hold: Duration,
    /// Whether what is left is granted where not everything is.
    pub at_most: bool,
    /// Whether the same request, by its `request_id`, facts and costs, gets the same
    /// reservation again (B-ID).
    pub once: bool,
}

impl Default for Hold {
    fn default() -> Self {
        Self {
            hold: HOLD_DEFAULT,
            at_most: false,
            once: true,
        }
    }
}

/// A reservation that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The sealed reservation.
    pub token: Box<str>,
    /// When it ends, by the clock that judged it.
    pub expires_at: Micros,
    /// In how long, in microseconds.
    pub expires_in_us: u64,
    /// Reserved amounts by unit.
    pub reserved: Vec<(Box<str>, u64)>,
}

/// The answer to a reservation that was asked for.
#[derive(Clone, Debug)]
pub struct ReserveAnswer {
    /// The decision.
    pub answer: RequestAnswer,
    /// The reservation, if it was allowed.
    pub held: Option<Held>,
}

/// The answer to an extension.
#[derive(Clone, Debug)]
pub enum ExtendAnswer {
    /// It was extended.
    Held(Held),
    /// There is no room for the additional cost: the reservation stays as it was.
    Denied(Box<Decision>),
    /// It has ended, or its place was lost and is taken: its holder is to stop.
    Expired,
    /// It was settled before.
    Settled(Settlement),
    /// The store could not be asked: it stays as it was.
    Unavailable,
}

/// The answer to a settle or a release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// It came too late to change anything.
    pub late: bool,
    /// False while the store cannot be asked: it is tried again in the background.
    pub recorded: bool,
    /// Reserved and used amounts by unit.
    pub units: Vec<SettledUnit>,
    /// The corrected buckets as they are now.
    pub limits: Vec<LimitReading>,
}

/// Why a reservation was refused before anything was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    /// It was not issued here, or was changed.
    #[error("`reservation` is not a reservation that was issued here, or was changed")]
    Foreign,
    /// A field beside it.
    #[error(transparent)]
    Field(#[from] FieldError),
}

impl From<ReceiptError> for ReservationError {
    fn from(_: ReceiptError) -> Self {
        Self::Foreign
    }
}

impl Engine {
    /// Opens a reservation as its holder sends it.
    fn open_reservation(&self, token: &str) -> Result<Reservation, ReservationError> {
        if token.len() > RECEIPT_BYTES_MAX.div_ceil(3) * 4 {
            return Err(ReservationError::Foreign);
        }
        let sealed = URL_SAFE_NO_PAD.decode(token).map_err(|_| ReceiptError)?;
        Ok(Reservation::open(&self.keyring, &sealed)?)
    }

    /// A reservation as its holder sees it; `None` if there is too much to say.
    fn held(&self, reservation: &Reservation, now: Micros) -> Option<Held> {
        let sealed = reservation.seal(&self.keyring)?;
        let reserved = |one: &palisade_core::budget::Amount| (one.unit.clone(), one.reserved);
        Some(Held {
            token: URL_SAFE_NO_PAD.encode(sealed).into(),
            expires_at: reservation.ends,
            expires_in_us: reservation.ends.since(now),
            reserved: reservation.amounts.iter().map(reserved).collect(),
        })
    }

    /// Whether the bucket of a part can be touched here: local ones only where they are.
    fn is_reachable(&self, reservation: &Reservation, part: &Part) -> bool {
        part.line.place == Place::Store || reservation.process == self.limits.process()
    }
}

/// Whether a part is a slot.
fn is_slot(part: &Part) -> bool {
    part.counts == Counts::Slot
}
