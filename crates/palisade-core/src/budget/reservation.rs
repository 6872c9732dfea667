//! Reservations: charges made before a piece of work begins, carried by their holder and sealed
//! with the secret (B-SEALED).

use std::num::NonZeroU32;

use arrayvec::ArrayVec;

use super::{COSTS_MAX, Costs, is_unit_name};
use crate::key::{Digest, Keyring, Segment};
use crate::limit::COUNT_MAX;
use crate::receipt::{
    LINES_MAX, Line, RECEIPT_BYTES_MAX, Reader, ReceiptError, number, seal_of, write_line,
};
use crate::time::Micros;

/// First byte of a sealed reservation. Receipts begin with another one, so neither opens as the
/// other.
const VERSION: u8 = 2;
/// In the encoding, these take the place of a unit's position in a [`Part`] of another kind: no unit
/// has such a position.
const SLOT: u64 = COSTS_MAX as u64;
const HELD: u64 = SLOT + 1;
const SHARE: u64 = SLOT + 2;
const UNSETTLED: u64 = SLOT + 3;

/// The quantity that a part of a reservation counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// The unit at this position of [`Reservation::amounts`], each weighing this much in the
    /// bucket.
    Unit(usize, NonZeroU32),
    /// A slot of a limit on requests in progress.
    Slot,
    /// The unit at this position, in a bucket that gives back at the end of the reservation what
    /// nobody has settled (B-EXPIRE). What was used counts from the instant `taken`.
    Held {
        /// Position of the unit.
        unit: usize,
        /// Weight of one of it in the bucket.
        weight: NonZeroU32,
        /// Instant at which it was reserved; the line's is the one that its bucket counts it from.
        taken: Micros,
    },
    /// The unit at this position, in the bucket of what its caller holds (B-SHARE).
    Share(usize, NonZeroU32),
    /// One of the unsettled reservations of a bucket that gives them back at their end.
    Unsettled,
}

impl Counts {
    /// Position and weight of the unit, if one is counted.
    #[must_use]
    pub const fn unit(self) -> Option<(usize, NonZeroU32)> {
        match self {
            Self::Unit(unit, weight) | Self::Held { unit, weight, .. } => Some((unit, weight)),
            Self::Share(unit, weight) => Some((unit, weight)),
            Self::Slot | Self::Unsettled => None,
        }
    }

    /// Whether the charge leaves its bucket at the end of the reservation.
    #[must_use]
    pub const fn ends_with_reservation(self) -> bool {
        matches!(self, Self::Held { .. } | Self::Share(..) | Self::Unsettled)
    }
}

/// One charge of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Quantity that the charge counts.
    pub counts: Counts,
    /// The bucket, what it was charged, and when; a cost of zero was never charged.
    pub line: Line,
}

/// Reserved amount of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The unit.
    pub unit: Box<str>,
    /// The amount.
    pub reserved: u64,
}

/// Charges that were made before a piece of work began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Name of the reservation in stores, chosen before the first store call (B-ID).
    pub id: Digest,
    /// The process that made the reservation: no other process has its local buckets.
    pub process: u64,
    /// The request's class.
    pub class: Box<str>,
    /// When the reservation was made, by the clock that judged it.
    pub at: Micros,
    /// Instant from which the reservation counts as used in full, by the clock of `at`.
    pub ends: Micros,
    /// The lifetime that was asked for, in microseconds.
    pub hold_us: u64,
    /// Longest lifetime in all, extensions included, in microseconds.
    pub life_us: u64,
    /// Units, each once.
    pub amounts: Vec<Amount>,
    /// Charges, the oldest first.
    pub parts: Vec<Part>,
}

/// Changes that settling makes in the buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corrections {
    /// Charges that go back, as far as their buckets still count them.
    pub back: Vec<Line>,
    /// Use of charges that go back whole, to be charged whether or not it fits, from the
    /// instant at which it was reserved: the line's.
    pub used: Vec<Line>,
    /// Surplus, to be charged whether or not it fits.
    pub more: Vec<Line>,
}

impl Reservation {
    /// The position of a unit.
    #[must_use]
    pub fn unit(&self, unit: &str) -> Option<usize> {
        self.amounts.iter().position(|one| *one.unit == *unit)
    }

    /// Used amount of each unit as the holder reports it; a unit that the report leaves out counts
    /// as used in full. Returns `None` if the report names a unit that was never reserved.
    #[must_use]
    pub fn used(&self, said: &Costs) -> Option<Vec<u64>> {
        if said.iter().any(|(unit, _)| self.unit(unit).is_none()) {
            return None;
        }
        let used = |one: &Amount| said.of(&one.unit).unwrap_or(one.reserved);
        Some(self.amounts.iter().map(used).collect())
    }

    /// Returns the corrections that change the buckets from the reserved to the used amounts, and
    /// that free the slots.
    ///
    /// The latest charges are given back first, so that the rest counts from the earliest
    /// instants.
    #[must_use]
    pub fn corrections(&self, used: &[u64]) -> Corrections {
        let mut corrections = Corrections::default();
        for (position, part) in self.parts.iter().enumerate() {
            match part.counts {
                Counts::Slot | Counts::Share(..) | Counts::Unsettled => {
                    corrections
                        .back
                        .extend(with_cost(&part.line, part.line.cost));
                }
                Counts::Unit(unit, weight) | Counts::Held { unit, weight, .. } => {
                    let is_first = self.parts[..position].iter().all(|one| !one.shares(part));
                    if is_first {
                        let used = used.get(unit).copied().unwrap_or_default();
                        let target = used.saturating_mul(u64::from(weight.get()));
                        self.correct(position, target, &mut corrections);
                    }
                }
            }
        }
        corrections
    }

    /// Adds the corrections of one bucket; `first` is the position of the first part charged to
    /// it.
    fn correct(&self, first: usize, target: u64, corrections: &mut Corrections) {
        // An extension charges the bucket of an earlier part again: correct the sum of both once.
        let own = || {
            self.parts[first..]
                .iter()
                .filter(|one| one.shares(&self.parts[first]))
        };
        let charged: u64 = own().map(|one| one.line.cost).sum();
        let parts: Vec<&Part> = own().collect();
        if matches!(self.parts[first].counts, Counts::Held { .. }) {
            return exchange(&parts, target, corrections);
        }
        let mut left = charged.saturating_sub(target);
        for part in parts.iter().rev() {
            let cost = left.min(part.line.cost);
            left -= cost;
            corrections.back.extend(with_cost(&part.line, cost));
        }
        let surplus = target.saturating_sub(charged).min(COUNT_MAX);
        if let Some(last) = parts.last() {
            corrections.more.extend(with_cost(&last.line, surplus));
        }
    }

    /// Seals the reservation for its holder; `None` if it exceeds the bounds of a sealed
    /// reservation.
    #[must_use]
    pub fn seal(&self, keyring: &Keyring) -> Option<Vec<u8>> {
        let mut out = vec![VERSION];
        self.write(&mut out)?;
        let seal = seal_of(keyring, &out);
        out.extend_from_slice(&seal.to_bytes());
        (out.len() <= RECEIPT_BYTES_MAX).then_some(out)
    }

    /// Opens a sealed reservation.
    ///
    /// # Errors
    /// It was not sealed with one of the keyring's secrets, or was changed.
    pub fn open(keyring: &Keyring, bytes: &[u8]) -> Result<Self, ReceiptError> {
        let (said, seal) = bytes
            .split_last_chunk()
            .filter(|_| bytes.len() <= RECEIPT_BYTES_MAX)
            .ok_or(ReceiptError)?;
        if !seal_of(keyring, said).is(seal) {
            return Err(ReceiptError);
        }
        let mut reader = Reader(said);
        let read = (reader.byte() == Some(VERSION)).then(|| Self::read(&mut reader));
        read.flatten().ok_or(ReceiptError)
    }

    /// Appends the reservation's encoding; `None` if it exceeds the bounds.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> Option<()> {
        if self.parts.len() > LINES_MAX || self.amounts.len() > COSTS_MAX {
            return None;
        }
        out.extend_from_slice(&self.id.0.to_be_bytes());
        for figure in [
            self.process,
            self.at.0,
            self.ends.0,
            self.hold_us,
            self.life_us,
        ] {
            number(out, figure);
        }
        text(out, &self.class);
        number(out, self.amounts.len() as u64);
        for amount in &self.amounts {
            text(out, &amount.unit);
            number(out, amount.reserved);
        }
        let mut known: ArrayVec<Segment, 16> = ArrayVec::new();
        for part in &self.parts {
            match part.counts {
                Counts::Slot => number(out, SLOT),
                Counts::Unsettled => number(out, UNSETTLED),
                Counts::Unit(unit, weight) => {
                    number(out, unit as u64);
                    number(out, u64::from(weight.get()));
                }
                Counts::Share(unit, weight) => {
                    number(out, SHARE);
                    number(out, unit as u64);
                    number(out, u64::from(weight.get()));
                }
                Counts::Held {
                    unit,
                    weight,
                    taken,
                } => {
                    number(out, HELD);
                    number(out, unit as u64);
                    number(out, u64::from(weight.get()));
                    number(out, taken.0);
                }
            }
            write_line(out, &part.line, &mut known);
        }
        Some(())
    }

    /// Reads what [`Reservation::write`] wrote, to the end.
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let id = reader.digest()?;
        let mut figures = [0; 5];
        for figure in &mut figures {
            *figure = reader.number()?;
        }
        let [process, at, ends, hold_us, life_us] = figures;
        let class = reader.text()?.into();
        let mut amounts = Vec::new();
        // Never more amounts than units are allowed, whatever the bytes say.
        for _ in 0..reader.number()?.min(SLOT) {
            let unit = reader.text()?;
            let reserved = reader.number()?;
            is_unit_name(&unit).then(|| {
                amounts.push(Amount {
                    unit: unit.into(),
                    reserved,
                });
            })?;
        }
        let (mut parts, mut known) = (Vec::new(), ArrayVec::new());
        while !reader.0.is_empty() && parts.len() < LINES_MAX {
            let counts = read_counts(reader, amounts.len())?;
            let line = reader.line(&mut known)?;
            parts.push(Part { counts, line });
        }
        reader.0.is_empty().then_some(Self {
            id,
            process,
            class,
            at: Micros(at),
            ends: Micros(ends),
            hold_us,
            life_us,
            amounts,
            parts,
        })
    }
}

/// Corrects a bucket whose charges end with the reservation. They go back whole, or are gone at the
/// end, and `target`, which ends with its window, is charged in their place: in one charge, from the
/// latest of their instants that it reaches, or from now if it is more than they were.
fn exchange(parts: &[&Part], target: u64, corrections: &mut Corrections) {
    let (mut left, mut since) = (target, None);
    for part in parts {
        corrections
            .back
            .extend(with_cost(&part.line, part.line.cost));
        if let (Counts::Held { taken, .. }, 1..) = (part.counts, left) {
            since = Some(part.line.charged(part.line.cost, taken));
        }
        left = left.saturating_sub(part.line.cost);
    }
    let cost = target.min(COUNT_MAX);
    let list = match left {
        0 => &mut corrections.used,
        _ => &mut corrections.more,
    };
    list.extend(since.and_then(|line| with_cost(&line, cost)));
}

fn read_counts(reader: &mut Reader<'_>, units: usize) -> Option<Counts> {
    let known = |unit: u64| usize::try_from(unit).ok().filter(|at| *at < units);
    let weight = |reader: &mut Reader<'_>| NonZeroU32::new(reader.small()?);
    Some(match reader.number()? {
        SLOT => Counts::Slot,
        UNSETTLED => Counts::Unsettled,
        SHARE => Counts::Share(known(reader.number()?)?, weight(reader)?),
        HELD => Counts::Held {
            unit: known(reader.number()?)?,
            weight: weight(reader)?,
            taken: Micros(reader.number()?),
        },
        unit => Counts::Unit(known(unit)?, weight(reader)?),
    })
}

impl Part {
    /// Instant from which the bucket counts the charge, if it was made at `now` for a reservation
    /// that ends `hold_us` later.
    #[must_use]
    pub const fn counted_at(&self, now: Micros, hold_us: u64) -> Micros {
        match self.counts.ends_with_reservation() {
            true => now.minus(self.line.spec.window_us().saturating_sub(hold_us)),
            false => now,
        }
    }

    /// Weight of `amount` units in the part's bucket, at most [`COUNT_MAX`].
    #[must_use]
    pub fn weighed(&self, amount: u64) -> u64 {
        let unit = self.counts.unit();
        let weight = unit.map_or(1, |(_, weight)| u64::from(weight.get()));
        amount.saturating_mul(weight).min(COUNT_MAX)
    }

    /// Whether both parts count units in the same bucket.
    #[must_use]
    pub fn shares(&self, other: &Self) -> bool {
        let is_unit = |part: &Self| part.counts.unit().is_some();
        is_unit(self)
            && is_unit(other)
            && self.line.limit == other.line.limit
            && self.line.id == other.line.id
            && self.line.segments == other.line.segments
    }
}

fn with_cost(line: &Line, cost: u64) -> Option<Line> {
    (cost > 0).then(|| Line {
        cost,
        ..line.clone()
    })
}

pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}
