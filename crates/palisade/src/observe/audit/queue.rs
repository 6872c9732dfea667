//! The bounded buffer between requests and the writer (F-AUDIT-LOSS).
//!
//! Security events and ordinary ones wait in two lines under one bound. When it is
//! reached an ordinary event goes, the newest if another one comes, the oldest if a
//! security event needs its place; a security event goes only when nothing else is
//! left to drop.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::event::{Event, Priority};

/// What happened to a pushed event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    Kept,
    /// One event of this priority was lost for it, maybe itself.
    Lost(Priority),
}

/// Why the writer woke up.
pub(super) enum Woken {
    /// There is something to write; the number says up to which event.
    Batch(Vec<Event>, u64),
    /// Nothing came for a while.
    Idle,
    /// Nothing is left and nothing will come.
    Ended,
}

#[derive(Default)]
struct State {
    security: VecDeque<(u64, Event)>,
    ordinary: VecDeque<(u64, Event)>,
    pushed: u64,
    settled: u64,
    ending: bool,
}

pub(super) struct Queue {
    capacity: usize,
    state: Mutex<State>,
    ready: Condvar,
    settled: Condvar,
}

impl Queue {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            state: Mutex::default(),
            ready: Condvar::new(),
            settled: Condvar::new(),
        }
    }

    pub(super) fn push(&self, event: Event) -> Pushed {
        let priority = event.kind.priority();
        let mut state = self.state.lock();
        let full = state.security.len() + state.ordinary.len() >= self.capacity;
        let mut pushed = Pushed::Kept;
        if full {
            pushed = Pushed::Lost(Priority::Ordinary);
            let made_room = priority == Priority::Security && state.ordinary.pop_front().is_some();
            if !made_room {
                return Pushed::Lost(priority);
            }
        }
        state.pushed += 1;
        let number = state.pushed;
        match priority {
            Priority::Security => state.security.push_back((number, event)),
            Priority::Ordinary => state.ordinary.push_back((number, event)),
        }
        drop(state);
        self.ready.notify_one();
        pushed
    }

    /// Everything that waits, in the order it came.
    pub(super) fn take(&self, patience: Duration) -> Woken {
        let mut state = self.state.lock();
        if state.is_empty() && !state.ending {
            self.ready.wait_for(&mut state, patience);
        }
        if state.is_empty() {
            return if state.ending {
                Woken::Ended
            } else {
                Woken::Idle
            };
        }
        let mut all: Vec<(u64, Event)> = std::mem::take(&mut state.security).into();
        all.extend(std::mem::take(&mut state.ordinary));
        let up_to = state.pushed;
        drop(state);
        all.sort_unstable_by_key(|(number, _)| *number);
        Woken::Batch(all.into_iter().map(|(_, event)| event).collect(), up_to)
    }

    /// Everything up to this event was written, or given up.
    pub(super) fn settle(&self, up_to: u64) {
        self.state.lock().settled = up_to;
        self.settled.notify_all();
    }

    /// Waits until what was pushed before is settled; false if it took too long.
    pub(super) fn wait_settled(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        let target = state.pushed;
        let waiting = |state: &mut State| state.settled < target;
        let result = self.settled.wait_while_for(&mut state, waiting, patience);
        !result.timed_out()
    }

    /// Waits before another attempt; shorter when the end has come. True if it has.
    pub(super) fn pause(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        let running = |state: &mut State| !state.ending;
        self.ready.wait_while_for(&mut state, running, patience);
        state.ending
    }

    pub(super) fn end(&self) {
        self.state.lock().ending = true;
        self.ready.notify_all();
    }
}

impl State {
    fn is_empty(&self) -> bool {
        self.security.is_empty() && self.ordinary.is_empty()
    }
}
