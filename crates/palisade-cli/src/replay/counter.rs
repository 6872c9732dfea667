//! A thread that counts events by subject and time, in parallel with the one that decides. Most
//! subjects have left the processor's cache when their next event comes, and waiting for memory
//! would take as long as a decision.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use palisade_server::failure::Failure;

use super::super::events::{BatchReturn, NumberedEvent};
use super::subjects::Subjects;
use super::timeline::Timeline;

/// Most batches that wait to be counted.
const WAITING_MAX: usize = 4;

/// The counts by subject and time.
#[derive(Default)]
pub(super) struct EventCounts {
    pub(super) subjects: Subjects,
    pub(super) timeline: Timeline,
}

/// Sends decided events to the counting thread.
pub(super) struct Counter {
    batches: SyncSender<Vec<NumberedEvent>>,
    thread: JoinHandle<EventCounts>,
}

impl Counter {
    /// Starts the thread. It returns batches through `done` when they are counted.
    pub(super) fn start(done: BatchReturn) -> Result<Self, Failure> {
        let (batches, decided) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new()
            .name("palisade-count".to_owned())
            .spawn(move || count_all(&decided, &done))
            .map_err(|error| {
                Failure::unavailable(format!("cannot start a thread: {error}"), "try again")
            })?;
        Ok(Self { batches, thread })
    }

    /// Queues a batch to be counted.
    pub(super) fn take(&self, batch: Vec<NumberedEvent>) -> Result<(), Failure> {
        self.batches.send(batch).map_err(|_| ended())
    }

    /// Waits until everything is counted, and returns the counts.
    pub(super) fn end(self) -> Result<EventCounts, Failure> {
        drop(self.batches);
        self.thread.join().map_err(|_| ended())
    }
}

fn ended() -> Failure {
    Failure::unavailable("the thread that counts has ended".to_owned(), "report it")
}

fn count_all(decided: &Receiver<Vec<NumberedEvent>>, done: &BatchReturn) -> EventCounts {
    let mut counted = EventCounts::default();
    while let Ok(batch) = decided.recv() {
        for numbered in &batch {
            if let Some(is_allowed) = numbered.is_allowed {
                counted.timeline.count(numbered.event.at, is_allowed);
                counted.subjects.count(numbered, is_allowed);
            }
        }
        done.give_back(batch);
    }
    counted
}
