//! Calls on reservations that could not be made while the store did not answer: settles to try
//! again, and charges of unknown outcome to give back (B-FAIL, B-ID).

use std::collections::VecDeque;
use std::time::Duration;

use palisade_core::budget::{Fate, Reservation, Settled};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::receipt::Line;
use palisade_core::time::{Micros, SECOND};
use parking_lot::Mutex;

use super::super::Engine;
use super::super::link::NoAnswer;
use super::SETTLED_FOR_US;
use super::anchor::Anchor;
use super::settle::PendingSettle;
use super::tally::{Outcome, Tally};

/// Most that wait; beyond that the oldest is dropped, and counted.
const WAITING_MAX: usize = 10_000;
/// Interval between looks whether something can be done.
const EVERY: Duration = Duration::from_millis(500);
/// So long after it was asked a charge is in the store or never will be.
const SETTLES_AFTER_US: u64 = SECOND;

/// Something that is to be done once the store answers.
enum Task {
    /// A settle that was answered with `recorded: false`.
    Settle(Box<PendingSettle>),
    /// A charge of which nobody knows whether it was made, and when that was asked.
    Orphan(Box<Reservation>, Micros),
}

/// Calls that wait for the store.
#[derive(Default)]
pub(in crate::engine) struct Retries {
    waiting: Mutex<VecDeque<Task>>,
    pub(in crate::engine) tally: Tally,
}

impl Retries {
    pub(super) fn add_settle(&self, settling: PendingSettle) {
        self.add(Task::Settle(Box::new(settling)));
    }

    pub(super) fn add_orphan(&self, reservation: Reservation) {
        let at = reservation.at;
        self.add(Task::Orphan(Box::new(reservation), at));
    }

    fn add(&self, task: Task) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= WAITING_MAX {
            waiting.pop_front();
            self.note_dropped();
        }
        waiting.push_back(task);
    }

    /// A correction was lost: its buckets count what was reserved.
    pub(super) fn note_dropped(&self) {
        self.tally.count(Outcome::Dropped);
    }

    fn next(&self) -> Option<Task> {
        self.waiting.lock().pop_front()
    }

    pub(in crate::engine) fn len(&self) -> usize {
        self.waiting.lock().len()
    }

    fn put_back(&self, task: Task) {
        self.waiting.lock().push_front(task);
    }
}

impl Engine {
    /// Corrections that wait for the store.
    pub fn waiting_settles(&self) -> usize {
        self.retries.len()
    }

    /// Corrections of reservations that were lost: their buckets count what was reserved.
    pub fn dropped_settles(&self) -> u64 {
        self.retries.tally.of(Outcome::Dropped)
    }

    /// Does what had to wait for the store, for as long as it is polled.
    pub async fn settle_reservations_forever(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.retry_settles().await;
        }
    }

    /// Does what had to wait for the store, until it does not answer again.
    pub async fn retry_settles(&self) {
        let count = self.waiting_settles();
        for _ in 0..count {
            let Some(task) = self.retries.next() else {
                return;
            };
            if let Err(task) = self.retry(task).await {
                self.retries.put_back(task);
                return;
            }
        }
    }

    async fn retry(&self, task: Task) -> Result<(), Task> {
        match task {
            Task::Settle(settling) => {
                let too_late = settling.reservation.ends.plus(SETTLED_FOR_US);
                match self.settle_now(&settling).await {
                    Ok(settlement) if settlement.late => self.retries.note_dropped(),
                    Ok(_) => {}
                    Err(_) if self.now() > too_late => self.retries.note_dropped(),
                    Err(_) => return Err(Task::Settle(settling)),
                }
                Ok(())
            }
            Task::Orphan(reservation, asked) => {
                let now = self.now();
                if now.since(asked) < SETTLES_AFTER_US {
                    return Err(Task::Orphan(reservation, asked));
                }
                match self.release_orphan(&reservation).await {
                    Ok(()) => {}
                    // Its anchor is gone by then, and what it took with it.
                    Err(_) if now > asked.plus(reservation.life_us) => self.retries.note_dropped(),
                    Err(_) => return Err(Task::Orphan(reservation, asked)),
                }
                Ok(())
            }
        }
    }

    /// Gives back a charge that nobody knows of, if it was made. A reservation that was asked
    /// for again meanwhile has an owner by now, and stays.
    async fn release_orphan(&self, reservation: &Reservation) -> Result<(), NoAnswer> {
        let Some(anchor) = Anchor::new(reservation.id, reservation.life_us) else {
            return Ok(());
        };
        let ends = self.link.request_ends();
        let firsts = reservation
            .parts
            .iter()
            .map(|part| part.line.segments.first().copied());
        let anchors: Vec<Charge<'_>> = anchor.charges(firsts, OnExceed::Deny);
        let found = self.counters.store.look(&anchors, ends).await?;
        let at_of = |line: &Line| {
            let own = anchors.iter().zip(&found.readings).find(|(one, _)| {
                let first = one.segments.iter().rev().nth(1).copied();
                first == line.segments.first().copied()
            });
            own.and_then(|(_, reading)| anchor.charged_at(reading))
        };
        let made: Vec<Line> = reservation
            .parts
            .iter()
            .filter_map(|part| {
                let at = at_of(&part.line)?;
                Some(part.line.charged(part.line.cost, at))
            })
            .collect();
        let nobodys = Fate::Settled(Settled::default());
        if made.is_empty() || !self.seal_fate(reservation, (&nobodys, 0), ends).await? {
            return Ok(());
        }
        let policy = self.policy();
        if self
            .return_lines(&policy, reservation, &made, ends)
            .await
            .is_err()
        {
            self.retries.note_dropped();
        }
        Ok(())
    }
}
