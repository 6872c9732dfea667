//! The bounded buffer between requests and the writer (F-AUDIT-LOSS).
//!
//! Events of each rank wait in a line of their own under one bound. When it is reached,
//! the oldest event of the lowest rank makes room for one of a higher rank. One that finds
//! nothing below itself is lost: ordinary refusals go first, then those of authentication,
//! then what attackers cause, and what operators did only when nothing else is left.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::event::{Event, Priority, Rank};
use super::sink::Keeps;

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

const RANKS: usize = Rank::Change as usize + 1;

#[derive(Default)]
struct State {
    /// The number of each event says when it came.
    waiting: [VecDeque<(u64, Event)>; RANKS],
    pushed: u64,
    settled: u64,
    ending: bool,
}

pub(super) struct Queue {
    keeps: Keeps,
    capacity: usize,
    state: Mutex<State>,
    ready: Condvar,
    settled: Condvar,
}

impl Queue {
    pub(super) fn new(keeps: Keeps, capacity: usize) -> Self {
        Self {
            keeps,
            capacity: capacity.max(1),
            state: Mutex::default(),
            ready: Condvar::new(),
            settled: Condvar::new(),
        }
    }

    /// Whether its place keeps events of this rank.
    pub(super) fn keeps(&self, rank: Rank) -> bool {
        match self.keeps {
            Keeps::Everything => true,
            Keeps::Security => rank == Rank::Attack,
            Keeps::Changes => rank == Rank::Change,
        }
    }

    pub(super) fn push(&self, event: Event) -> Pushed {
        let rank = event.rank();
        let mut state = self.state.lock();
        let mut pushed = Pushed::Kept;
        if state.len() >= self.capacity {
            let Some(lost) = state.drop_below(rank) else {
                return Pushed::Lost(rank.priority());
            };
            pushed = Pushed::Lost(lost.priority());
        }
        state.pushed += 1;
        let number = state.pushed;
        state.waiting[rank as usize].push_back((number, event));
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
        let waiting = std::mem::take(&mut state.waiting);
        let mut all: Vec<(u64, Event)> = waiting.into_iter().flatten().collect();
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
    fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops the oldest event of the lowest rank that is below this one.
    fn drop_below(&mut self, rank: Rank) -> Option<Rank> {
        let lower = self.waiting.iter_mut().take(rank as usize);
        let dropped = lower.filter_map(VecDeque::pop_front).next();
        dropped.map(|(_, event)| event.rank())
    }
}
