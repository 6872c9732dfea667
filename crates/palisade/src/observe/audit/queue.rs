//! The bounded buffer between requests and the writer (F-AUDIT-LOSS).
//!
//! Events of each rank wait in a queue of their own, under one bound for all. When the bound is
//! reached, the oldest event of the lowest rank makes room for one of a higher rank. An event that
//! finds none of a lower rank is lost: ordinary refusals are lost first, then those of
//! authentication, then events that attackers cause, and changes by operators only when nothing
//! else is left.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::event::{Event, Priority, Rank};
use super::sink::Keeps;

/// The fate of a pushed event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushOutcome {
    Kept,
    /// An event of this priority was dropped: an older one, or the pushed one itself.
    Lost(Priority),
}

/// The reason why the writer woke up.
pub(super) enum WakeReason {
    /// Events to write, and the number of the last of them.
    Batch(Vec<Event>, u64),
    /// No event came for a while.
    Idle,
    /// No event is left and none will come.
    Ended,
}

const RANKS: usize = Rank::Change as usize + 1;

#[derive(Default)]
struct State {
    /// Waiting events by rank, each with its number in the order of arrival.
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

    /// True if the queue's sink keeps events of this rank.
    pub(super) fn keeps(&self, rank: Rank) -> bool {
        match self.keeps {
            Keeps::Everything => true,
            Keeps::Security => rank == Rank::Attack,
            Keeps::Changes => rank == Rank::Change,
        }
    }

    pub(super) fn push(&self, event: Event) -> PushOutcome {
        let rank = event.rank();
        let mut state = self.state.lock();
        let mut pushed = PushOutcome::Kept;
        if state.len() >= self.capacity {
            let Some(lost) = state.drop_below(rank) else {
                return PushOutcome::Lost(rank.priority());
            };
            pushed = PushOutcome::Lost(lost.priority());
        }
        state.pushed += 1;
        let number = state.pushed;
        state.waiting[rank as usize].push_back((number, event));
        drop(state);
        self.ready.notify_one();
        pushed
    }

    /// Returns all waiting events in the order of arrival. Waits at most `patience` for the first.
    pub(super) fn take(&self, patience: Duration) -> WakeReason {
        let mut state = self.state.lock();
        if state.is_empty() && !state.ending {
            // A spurious wake-up is harmless: it only ends this round as idle.
            self.ready.wait_for(&mut state, patience);
        }
        if state.is_empty() {
            return if state.ending {
                WakeReason::Ended
            } else {
                WakeReason::Idle
            };
        }
        let waiting = std::mem::take(&mut state.waiting);
        let mut all: Vec<(u64, Event)> = waiting.into_iter().flatten().collect();
        let up_to = state.pushed;
        drop(state);
        // Ranks wait in separate queues; this restores the order of arrival.
        all.sort_unstable_by_key(|(number, _)| *number);
        WakeReason::Batch(all.into_iter().map(|(_, event)| event).collect(), up_to)
    }

    /// Marks all events up to this number as written, or given up.
    pub(super) fn settle(&self, up_to: u64) {
        self.state.lock().settled = up_to;
        self.settled.notify_all();
    }

    /// Waits until all events pushed before are settled; false if that took too long.
    pub(super) fn wait_settled(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        let target = state.pushed;
        let waiting = |state: &mut State| state.settled < target;
        let result = self.settled.wait_while_for(&mut state, waiting, patience);
        !result.timed_out()
    }

    /// Waits before another attempt, at most until the process ends. True if it does.
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

    /// Drops the oldest event of the lowest rank below `rank`, and returns its rank.
    fn drop_below(&mut self, rank: Rank) -> Option<Rank> {
        let lower = self.waiting.iter_mut().take(rank as usize);
        // Lazy: only the first queue that has an event loses one.
        let dropped = lower.filter_map(VecDeque::pop_front).next();
        dropped.map(|(_, event)| event.rank())
    }
}
