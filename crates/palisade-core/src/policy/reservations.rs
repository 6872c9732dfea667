//! `[reservations]`: figures of budgets.

use crate::time::MINUTE;

/// Figures of reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationSettings {
    /// The longest that one lasts, extensions included, in microseconds.
    pub max_hold_us: u64,
}

impl Default for ReservationSettings {
    fn default() -> Self {
        Self {
            max_hold_us: 10 * MINUTE,
        }
    }
}
