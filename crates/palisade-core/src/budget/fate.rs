//! The fate of a reservation, as stores keep it: extended, or settled (B-ONCE).

use super::reservation::text;
use super::{COSTS_MAX, Reservation, is_unit_name};
use crate::receipt::{Reader, number};

const VERSION: u8 = 2;
const HELD: u8 = 1;
const SETTLED: u8 = 2;

/// Record of how a reservation was settled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettlementRecord {
    /// Reserved and used amounts by unit; empty if the reservation was unknown.
    pub units: Vec<SettledUnit>,
    /// The reservation as it was settled, if that is not what its first token says: a later settle
    /// may have to complete the correction.
    pub extended: Option<Box<Reservation>>,
}

/// One unit of a reservation that was settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledUnit {
    /// The unit.
    pub unit: Box<str>,
    /// Reserved amount, extensions included.
    pub reserved: u64,
    /// Used amount.
    pub used: u64,
}

impl SettledUnit {
    /// Amount used beyond the reservation.
    #[must_use]
    pub const fn over(&self) -> u64 {
        self.used.saturating_sub(self.reserved)
    }
}

/// State of a reservation that a store keeps. Without one, the reservation is as its holder's
/// sealed copy says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The reservation was extended: this is what is held now.
    Held(Box<Reservation>),
    /// The reservation was settled; later calls get this answer again.
    Settled(SettlementRecord),
}

impl Fate {
    /// Encodes the fate; `None` if it exceeds the bounds of a reservation.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut out = vec![VERSION];
        match self {
            Self::Held(reservation) => {
                out.push(HELD);
                reservation.write(&mut out)?;
            }
            Self::Settled(settled) => {
                out.push(SETTLED);
                number(&mut out, settled.units.len() as u64);
                for settled in &settled.units {
                    text(&mut out, &settled.unit);
                    number(&mut out, settled.reserved);
                    number(&mut out, settled.used);
                }
                if let Some(extended) = &settled.extended {
                    extended.write(&mut out)?;
                }
            }
        }
        Some(out)
    }

    /// Decodes a fate; `None` for unreadable bytes, or bytes of a newer version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.byte()? != VERSION {
            return None;
        }
        match reader.byte()? {
            HELD => Some(Self::Held(Box::new(Reservation::read(&mut reader)?))),
            SETTLED => {
                let mut units = Vec::new();
                // Never more units than are allowed, whatever the bytes say.
                for _ in 0..reader.number()?.min(COSTS_MAX as u64) {
                    let unit = reader.text().filter(|unit| is_unit_name(unit))?;
                    units.push(SettledUnit {
                        unit: unit.into(),
                        reserved: reader.number()?,
                        used: reader.number()?,
                    });
                }
                let extended = match reader.0.is_empty() {
                    true => None,
                    false => Some(Box::new(Reservation::read(&mut reader)?)),
                };
                Some(Self::Settled(SettlementRecord { units, extended }))
            }
            _ => None,
        }
    }
}
