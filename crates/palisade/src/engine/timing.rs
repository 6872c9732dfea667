//! How long decisions take. One in a few is measured: reading a clock twice would be a
//! noticeable part of a decision in this process.

use std::cell::Cell;

use palisade_core::time::Micros;
use palisade_store::Store;

use super::Engine;

/// One decision in so many is measured on each thread, the first one among them.
const MEASURED_PER: u32 = 8;

thread_local! {
    static TURN: Cell<u32> = const { Cell::new(0) };
}

impl<S: Store> Engine<S> {
    /// When a decision that is to be measured began.
    pub(in crate::engine) fn begin_timing(&self) -> Option<Micros> {
        let turn = TURN.get();
        TURN.set(turn.wrapping_add(1));
        turn.is_multiple_of(MEASURED_PER).then(|| self.now())
    }

    /// Tells how long it took.
    pub(in crate::engine) fn end_timing(&self, began: Option<Micros>) {
        if let Some(began) = began {
            self.observer().timed(self.now().since(began));
        }
    }
}
