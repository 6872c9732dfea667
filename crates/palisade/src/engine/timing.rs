//! How long decisions, and calls of a store in this process, take. One in a few is measured:
//! reading a clock twice would be a noticeable part of either.

use std::cell::Cell;
use std::thread::LocalKey;

use palisade_core::time::Micros;

use super::Engine;

/// One in so many is measured on each thread, the first one among them.
const MEASURED_PER: u32 = 8;

thread_local! {
    static TURN: Cell<u32> = const { Cell::new(0) };
}

/// Whether it is the turn of the one that is counted now.
#[inline]
pub(in crate::engine) fn is_measured(turns: &'static LocalKey<Cell<u32>>) -> bool {
    let turn = turns.get();
    turns.set(turn.wrapping_add(1));
    turn.is_multiple_of(MEASURED_PER)
}

impl Engine {
    /// When a decision that is to be measured began.
    pub(in crate::engine) fn begin_timing(&self) -> Option<Micros> {
        let is_measured = is_measured(&TURN) && self.observer().hears_times();
        is_measured.then(|| self.now())
    }

    /// Tells how long it took.
    pub(in crate::engine) fn end_timing(&self, began: Option<Micros>) {
        if let Some(began) = began {
            self.observer().timed(self.now().since(began));
        }
    }
}
