//! Budgets: what a decision costs in units of the policy's own ([`Costs`]), what was
//! reserved before a piece of work began ([`Reservation`]), and what became of it
//! ([`Fate`]).

mod costs;
mod fate;
mod reservation;
#[cfg(test)]
mod tests;

pub use costs::{AMOUNT_MAX, COSTS_MAX, Costs, UNIT_BYTES_MAX, is_unit_name};
pub use fate::{Fate, Settled, SettledUnit};
pub use reservation::{Amount, Corrections, Counts, Part, Reservation, beyond_debt};
