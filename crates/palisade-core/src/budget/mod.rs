//! Budgets: the costs of a decision in units of the policy's own ([`Costs`]), the estimated cost
//! that is charged before a piece of work begins ([`Reservation`]), and its fate ([`Fate`]).

mod costs;
mod fate;
mod reservation;
#[cfg(test)]
mod tests;

pub use costs::{AMOUNT_MAX, COSTS_MAX, Costs, UNIT_BYTES_MAX, is_unit_name};
pub use fate::{Fate, SettledUnit, SettlementRecord};
pub use reservation::{Amount, Corrections, Counts, Part, Reservation};
