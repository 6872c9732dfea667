//! Calls on reservations that wait for the store: settles to repeat, and charges of unknown outcome
//! to give back (B-FAIL, B-ID).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::budget::{Corrections, Fate, Reservation, SettlementRecord};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::receipt::Line;
use palisade_core::time::{Micros, SECOND};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::Engine;
use super::super::link::NoAnswer;
use super::SETTLED_FOR_US;
use super::anchor::Anchor;
use super::reserve::slots_hold;
use super::settle::PendingSettle;
use super::tally::{Outcome, Tally};

/// Most tasks that wait. Beyond it the oldest is dropped and counted.
const WAITING_MAX: usize = 10_000;
/// Interval at which waiting tasks are tried.
const EVERY: Duration = Duration::from_millis(500);
/// Time after which a charge of unknown outcome has either reached the store or never will.
const SETTLES_AFTER_US: u64 = SECOND;

/// A task to be done once the store answers.
enum Task {
    /// A settle that was answered with `recorded: false`.
    Settle(Box<PendingSettle>),
    /// A charge of unknown outcome, and when it was attempted.
    Orphan(Box<Reservation>, Micros),
}

/// Most guards that are settled at once; further ones wait like settles of a store that does not
/// answer.
const SETTLES_MAX: u32 = 1_024;

/// Calls that wait for the store, and those of guards that were dropped.
pub(in crate::engine) struct Retries {
    waiting: Mutex<VecDeque<Task>>,
    settles: Arc<Semaphore>,
    pub(in crate::engine) tally: Tally,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            settles: Arc::new(Semaphore::new(SETTLES_MAX as usize)),
            tally: Tally::default(),
        }
    }
}

impl Retries {
    /// Permission to settle in the background; `None` if too many do.
    pub(super) fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.settles).try_acquire_owned().ok()
    }

    /// Waits until nothing is settled in the background.
    pub(super) async fn all_settled(&self) {
        // Never closed: it cannot fail.
        let _all = self.settles.acquire_many(SETTLES_MAX).await;
    }

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

    /// Counts a lost correction: its buckets keep counting what was reserved.
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
    /// Number of corrections that wait for the store.
    pub fn waiting_settles(&self) -> usize {
        self.retries.len()
    }

    /// Number of corrections that were lost. Their buckets count what was reserved.
    pub fn dropped_settles(&self) -> u64 {
        self.retries.tally.of(Outcome::Dropped)
    }

    /// Does the tasks that wait for the store, for as long as it is polled.
    pub async fn settle_reservations_forever(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.retry_settles().await;
        }
    }

    /// Does the tasks that wait for the store, until a call fails.
    pub async fn retry_settles(&self) {
        // Tasks that are added meanwhile wait for the next round.
        let count = self.waiting_settles();
        for _ in 0..count {
            let Some(task) = self.retries.next() else {
                return;
            };
            if let Err(task) = self.retry(task).await {
                // The store does not answer: the tasks keep their order and wait.
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
                    // The call may still be on its way to the store.
                    return Err(Task::Orphan(reservation, asked));
                }
                match self.release_orphan(&reservation).await {
                    Ok(()) => {}
                    // Its anchor and its charges have expired by then.
                    Err(_) if now > asked.plus(reservation.life_us) => self.retries.note_dropped(),
                    Err(_) => return Err(Task::Orphan(reservation, asked)),
                }
                Ok(())
            }
        }
    }

    /// Gives back a charge of unknown outcome, if it was made. A reservation that was claimed by a
    /// repeated request has an owner and stays.
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
        let hold_us = slots_hold(&reservation.parts, reservation.hold_us);
        let made: Vec<Line> = reservation
            .parts
            .iter()
            .filter_map(|part| {
                let at = part.counted_at(at_of(&part.line)?, hold_us);
                Some(part.line.charged(part.line.cost, at))
            })
            .collect();
        if made.is_empty() {
            return Ok(());
        }
        // A settlement without units marks a released charge, which a repeated request can no
        // longer claim. If it has been claimed, the charge stays.
        let nobodys = Fate::Settled(SettlementRecord::default());
        let corrections = Corrections {
            back: made,
            ..Corrections::default()
        };
        self.write_fate(reservation, (&nobodys, 0), &corrections, ends)
            .await
            .map(drop)
    }
}
