//! Times of decisions and of calls of a synchronous store. Only one in a few is measured, because
//! reading a clock twice would be a noticeable part of either.

use std::cell::Cell;
use std::thread::LocalKey;

use palisade_core::time::Micros;

use super::Engine;

/// One in this many is measured on each thread, beginning with the first.
const MEASURED_PER: u32 = 8;

thread_local! {
    static TURN: Cell<u32> = const { Cell::new(0) };
}

/// Counts one more and returns whether it is to be measured.
#[inline]
pub(in crate::engine) fn is_measured(turns: &'static LocalKey<Cell<u32>>) -> bool {
    let turn = turns.get();
    turns.set(turn.wrapping_add(1));
    turn.is_multiple_of(MEASURED_PER)
}

impl Engine {
    /// The start of a decision, if it is to be measured.
    pub(in crate::engine) fn begin_timing(&self) -> Option<Micros> {
        let is_measured = is_measured(&TURN) && self.observer().hears_times();
        is_measured.then(|| self.now())
    }

    /// Reports the time of a decision that was measured.
    pub(in crate::engine) fn end_timing(&self, began: Option<Micros>) {
        if let Some(began) = began {
            self.observer().timed(self.now().since(began));
        }
    }
}
