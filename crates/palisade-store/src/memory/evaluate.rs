//! L-ATOMIC on states that were taken out of the table.

use palisade_core::limit::State;
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::time::Micros;

use super::charge::PerCharge;
use crate::{BucketReadings, Take};

/// Judges every charge on its state as it was found, then takes from all of them or from none.
/// `states` and `charges` have the same length.
pub(super) fn evaluate(
    charges: &[Charge<'_>],
    states: &mut [State],
    now: Micros,
    take: Take,
) -> (bool, BucketReadings) {
    let waits: PerCharge<Option<Micros>> = charges
        .iter()
        .zip(&*states)
        .map(|(charge, state)| charge.spec.fits(state, now, charge.required()))
        .collect();
    let admitted = charges
        .iter()
        .zip(&waits)
        .all(|(charge, wait)| wait.is_none() || !charge.on_exceed.denies());
    if admitted && take == Take::Consume {
        for ((charge, state), wait) in charges.iter().zip(&mut *states).zip(&waits) {
            if wait.is_none() || charge.on_exceed == OnExceed::Count {
                charge.take(state, now);
            }
        }
    }
    let readings = charges
        .iter()
        .zip(&*states)
        .zip(waits)
        .map(|((charge, state), wait)| charge.spec.read_waiting(state, now, wait))
        .collect();
    (admitted, readings)
}
