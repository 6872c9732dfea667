//! Clocks that step back (F-CLOCK). A bucket whose uses lie in the future would refuse for as long
//! as the step was, and a window more. Such a refusal can be recognised, because no other wait is
//! longer than a window: the store then counts those uses as of now and judges again.

use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::plan::{Charge, OnExceed};
use palisade_core::time::{HOUR, Micros};

use crate::ChargeReadings;

/// A wait from here on means never: the cost is above the capacity.
const NEVER: u64 = u64::MAX / 2;

/// Charges whose buckets refuse for longer than their windows. A bucket that counts whatever it is
/// charged may be ahead of its limit for good reason, and refuses nobody.
pub(crate) fn stuck<'p>(charges: &[Charge<'p>], charged: &ChargeReadings) -> Vec<Charge<'p>> {
    let is_stuck = |position: usize, charge: &Charge<'_>| {
        let retry_at = charged.readings.get(position)?.retry_at?;
        let wait = retry_at.since(charged.judged_at(position));
        let is_real = retry_at.0 < NEVER && charge.on_exceed != OnExceed::Count;
        Some(is_real && wait > charge.spec.longest_wait_us())
    };
    let positions = charges.iter().enumerate();
    positions
        .filter(|(position, charge)| is_stuck(*position, charge).unwrap_or(false))
        .map(|(_, charge)| charge.clone())
        .collect()
}

/// Logs, once per step, that the clock was put back.
#[derive(Debug, Default)]
pub(crate) struct StepBackNotice {
    /// Instant of the last notice, by the clock that stepped back; an hour later it is a new step.
    said_at: AtomicU64,
}

impl StepBackNotice {
    pub(crate) fn say(&self, now: Micros) {
        let said_at = Micros(self.said_at.swap(now.0, Ordering::Relaxed));
        let is_said = now.since(said_at) < HOUR && said_at.since(now) < HOUR;
        if !is_said {
            tracing::warn!(
                event = "clock_stepped_back",
                "the store's clock was put back: uses that lie in its future count as of now"
            );
        }
    }
}
