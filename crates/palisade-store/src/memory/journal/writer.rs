//! The thread that writes the journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::codec::{Batch, Name};
use super::files::{Files, Snapshot};
use super::{JournalConfig, JournalStats};
use crate::StoreError;

/// Source of what the journal writes.
pub(crate) trait Durable: Send + Sync + 'static {
    /// Adds everything that has changed since the last call, and clears its marks.
    fn collect_changed(&self, batch: &mut Batch);
    /// Adds one part of the whole state; false if there is no such part.
    fn collect_part(&self, part: usize, batch: &mut Batch) -> bool;
    /// Adds one part of the state that only a graceful shutdown keeps; false if there is no such
    /// part.
    fn collect_burst(&self, _part: usize, _batch: &mut Batch) -> bool {
        false
    }
    /// Marks changes as dirty again that could not be written.
    fn mark_changed(&self, names: Vec<Name>);
}

type Answer = oneshot::Sender<Result<(), StoreError>>;

/// Longest pause between attempts on a failing disk.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Parts of a snapshot that are written before the next commit.
const PARTS_PER_TURN: usize = 64;

#[derive(Default)]
struct WriterState {
    has_changes: AtomicBool,
    asked: Mutex<WriterRequests>,
    changed: Condvar,
    health: Mutex<Option<StoreError>>,
    commits: AtomicU64,
    failures: AtomicU64,
    snapshots: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Default)]
struct WriterRequests {
    end: bool,
    flushes: Vec<Answer>,
}

/// Handle of the thread. Dropping it writes what is left and ends the thread.
pub(crate) struct Writer {
    shared: Arc<WriterState>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(crate) fn start(
        source: Arc<dyn Durable>,
        files: Files,
        config: &JournalConfig,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(WriterState::default());
        shared.bytes.store(files.bytes(), Ordering::Relaxed);
        let mut turns = Turns {
            shared: Arc::clone(&shared),
            source,
            files,
            every: config.commit_every,
            pause: Duration::ZERO,
            snapshot: None,
        };
        let thread = std::thread::Builder::new()
            .name("palisade-journal".to_owned())
            .spawn(move || turns.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Wakes the thread after a durable change.
    pub(crate) fn note_change(&self) {
        let shared = &*self.shared;
        // Most calls find the flag set: reading it first spares them a write to a shared line.
        if !shared.has_changes.load(Ordering::Acquire)
            && !shared.has_changes.swap(true, Ordering::AcqRel)
        {
            // With the lock, so that the signal cannot fall between the thread's check and its
            // wait.
            let _asked = shared.asked.lock();
            shared.changed.notify_all();
        }
    }

    /// Writes everything that was acknowledged so far.
    pub(crate) async fn flush(&self) -> Result<(), StoreError> {
        let (answer, answered) = oneshot::channel();
        {
            let mut asked = self.shared.asked.lock();
            asked.flushes.push(answer);
            self.shared.changed.notify_all();
        }
        let gone = || Err(StoreError::Exhausted("the journal has ended".to_owned()));
        answered.await.unwrap_or_else(|_| gone())
    }

    /// Whether the last attempt to write succeeded.
    pub(crate) fn health(&self) -> Result<(), StoreError> {
        self.shared.health.lock().clone().map_or(Ok(()), Err)
    }

    pub(crate) fn stats(&self) -> JournalStats {
        let shared = &*self.shared;
        JournalStats {
            commits: shared.commits.load(Ordering::Relaxed),
            failures: shared.failures.load(Ordering::Relaxed),
            snapshots: shared.snapshots.load(Ordering::Relaxed),
            bytes: shared.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        {
            let mut asked = self.shared.asked.lock();
            asked.end = true;
            self.shared.changed.notify_all();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Turns {
    shared: Arc<WriterState>,
    source: Arc<dyn Durable>,
    files: Files,
    every: Duration,
    /// Pause before the next attempt; zero while the disk works.
    pause: Duration,
    snapshot: Option<(Snapshot, usize)>,
}

impl Turns {
    fn run(&mut self) {
        loop {
            let (end, flushes) = self.wait();
            let mut done = self.commit();
            if end || !flushes.is_empty() {
                done = done.and_then(|()| self.keep_burst());
            }
            for answer in flushes {
                let _ = answer.send(done.clone());
            }
            if end {
                return;
            }
            self.compact();
        }
    }

    /// Waits for a change and then a little longer, so that other changes join it; or for a flush,
    /// or for the end.
    fn wait(&self) -> (bool, Vec<Answer>) {
        let shared = &*self.shared;
        let mut asked = shared.asked.lock();
        let is_urgent = |asked: &WriterRequests| asked.end || !asked.flushes.is_empty();
        while !is_urgent(&asked)
            && !shared.has_changes.load(Ordering::Acquire)
            && self.snapshot.is_none()
        {
            shared.changed.wait(&mut asked);
        }
        let is_idle = self.snapshot.is_none() || !self.pause.is_zero();
        if !is_urgent(&asked) && is_idle {
            let pause = self.every.max(self.pause);
            shared
                .changed
                .wait_while_for(&mut asked, |asked| !is_urgent(asked), pause);
        }
        (asked.end, std::mem::take(&mut asked.flushes))
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        // Cleared first: a change that comes while these are collected sets the flag again.
        self.shared.has_changes.store(false, Ordering::Release);
        let mut batch = Batch::default();
        self.source.collect_changed(&mut batch);
        if batch.is_empty() {
            return Ok(());
        }
        let (frames, names) = batch.finish();
        let written = self.files.append(&frames);
        self.shared
            .bytes
            .store(self.files.bytes(), Ordering::Relaxed);
        match written {
            Ok(()) => {
                self.shared.commits.fetch_add(1, Ordering::Relaxed);
                self.note_success();
                Ok(())
            }
            Err(error) => {
                // Dirty again: the next attempt writes their state of that time.
                self.source.mark_changed(names);
                self.shared.has_changes.store(true, Ordering::Release);
                Err(self.note_failure(&error))
            }
        }
    }

    fn keep_burst(&mut self) -> Result<(), StoreError> {
        let source = &self.source;
        let kept = self
            .files
            .write_burst(|part, batch| source.collect_burst(part, batch));
        match kept {
            Ok(()) => {
                self.note_success();
                Ok(())
            }
            Err(error) => Err(self.note_failure(&error)),
        }
    }

    fn note_success(&mut self) {
        self.pause = Duration::ZERO;
        let healed = self.shared.health.lock().take().is_some();
        if healed {
            tracing::info!("the journal is written again");
        }
    }

    fn note_failure(&mut self, error: &std::io::Error) -> StoreError {
        self.pause = (self.pause * 2).clamp(self.every, PAUSE_MAX);
        self.shared.failures.fetch_add(1, Ordering::Relaxed);
        let failure = StoreError::Exhausted(format!(
            "the journal cannot be written ({}); decisions go on and it is tried again",
            error.kind()
        ));
        let is_new = self.shared.health.lock().replace(failure.clone()).is_none();
        if is_new {
            let directory = self.files.place();
            tracing::error!(directory, kind = %error.kind(), "the journal cannot be written");
        }
        failure
    }

    /// Writes a snapshot a few parts at a time, so that commits are not held up.
    fn compact(&mut self) {
        let step = match self.snapshot.take() {
            // Not while the disk fails: a snapshot would only write more.
            None if self.pause.is_zero() && self.files.is_long() => {
                self.files.begin_snapshot().map(|new| Some((new, 0)))
            }
            None => return,
            Some((snapshot, part)) => self.write_parts(snapshot, part),
        };
        match step {
            Ok(next) => self.snapshot = next,
            Err(error) => {
                self.note_failure(&error);
            }
        }
    }

    fn write_parts(
        &mut self,
        mut snapshot: Snapshot,
        first: usize,
    ) -> std::io::Result<Option<(Snapshot, usize)>> {
        let mut batch = Batch::nameless();
        for part in first..first + PARTS_PER_TURN {
            if !self.source.collect_part(part, &mut batch) {
                snapshot.append(&batch.finish().0)?;
                return self.finish(snapshot);
            }
        }
        snapshot.append(&batch.finish().0)?;
        Ok(Some((snapshot, first + PARTS_PER_TURN)))
    }

    /// Ends a snapshot. Its parts were read one after the other, so a change to several of them
    /// may be in it only in part. Such changes are whole in the log before the snapshot counts; if
    /// they cannot be written, the snapshot is given up.
    fn finish(&mut self, snapshot: Snapshot) -> std::io::Result<Option<(Snapshot, usize)>> {
        if self.commit().is_ok() {
            self.files.finish_snapshot(snapshot)?;
            self.shared.snapshots.fetch_add(1, Ordering::Relaxed);
        }
        Ok(None)
    }
}
