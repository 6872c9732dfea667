//! Settings of reservations: `[reservations]`.

use crate::time::MINUTE;

/// Settings of reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationSettings {
    /// Longest lifetime of a reservation, extensions included, in microseconds.
    pub max_hold_us: u64,
}

impl Default for ReservationSettings {
    fn default() -> Self {
        Self {
            max_hold_us: 10 * MINUTE,
        }
    }
}
