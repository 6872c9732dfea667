//! Audit events: JSON lines, never sampled, never in the way of a request.
//!
//! A request's task fills in digests and puts the event into a bounded buffer. A thread of its own
//! writes lines and retries when the sink fails. Several sinks have a buffer and a thread each: a
//! sink that is away delays no other.

mod beside;
mod event;
mod per_second;
#[cfg(feature = "postgres")]
mod postgres;
mod probes;
mod queue;
mod recent;
pub(super) mod record;
mod sink;
mod streaks;
mod writer;

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use palisade_core::key::Keyring;
use palisade_core::time::Clock;

pub use event::{EventKind, Priority, Severity};
#[cfg(feature = "postgres")]
pub use postgres::PostgresSink;
pub use recent::{Past, Whose};
pub use sink::{FileSink, Keeps, Sink, StdoutSink};

use self::event::{Event, Rank};
use self::per_second::{PerSecond, WriteTiming};
use self::probes::Probes;
use self::queue::{PushOutcome, Queue};
use self::recent::Recent;
use self::streaks::Streaks;
use super::classes::KnownClasses;

/// Time that the writers get to finish when the audit is dropped.
const END_PATIENCE: Duration = Duration::from_secs(5);
const END_PAUSE: Duration = Duration::from_millis(5);

/// Bounds and thresholds of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// Events that may wait to be written.
    pub buffer_max: usize,
    /// Denials in a row that are reported about an authenticated actor.
    pub repeated_throttling: NonZeroU32,
    /// Answers of 401 and 403 after which an actor or an address is reported.
    pub privilege_probing: NonZeroU32,
    /// The time within which those answers count.
    pub privilege_probing_window: Duration,
}

impl Default for AuditSettings {
    fn default() -> Self {
        const TEN: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);
        Self {
            buffer_max: 10_000,
            repeated_throttling: TEN,
            privilege_probing: TEN,
            privilege_probing_window: Duration::from_secs(600),
        }
    }
}

/// Numbers of events by their fate.
#[derive(Debug, Default)]
pub struct AuditCounts {
    written: AtomicU64,
    sink_errors: AtomicU64,
    dropped_security: AtomicU64,
    dropped_ordinary: AtomicU64,
}

impl AuditCounts {
    /// Returns how many events reached a sink, counted for each sink.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns how many attempts to write failed.
    pub fn sink_errors(&self) -> u64 {
        self.sink_errors.load(Ordering::Relaxed)
    }

    /// Returns how many security events were lost.
    pub fn dropped_security(&self) -> u64 {
        self.dropped_security.load(Ordering::Relaxed)
    }

    /// Returns how many ordinary events were lost.
    pub fn dropped_ordinary(&self) -> u64 {
        self.dropped_ordinary.load(Ordering::Relaxed)
    }

    fn lost(&self, priority: Priority) {
        let cell = match priority {
            Priority::Security => &self.dropped_security,
            Priority::Ordinary => &self.dropped_ordinary,
        };
        cell.fetch_add(1, Ordering::Relaxed);
    }
}

/// The audit of one process. Dropping the audit writes the events that wait, for a bounded time.
pub struct Audit {
    keyring: Arc<Keyring>,
    clock: Arc<dyn Clock>,
    shared: Arc<AuditState>,
    streaks: Streaks,
    probes: Probes,
    classes: KnownClasses,
    differences: beside::Ration,
    writers: Vec<JoinHandle<()>>,
}

struct AuditState {
    queues: Box<[Queue]>,
    counts: Arc<AuditCounts>,
    /// Refusals by limits. They are kept apart from attacks, so that a flood of refusals takes no
    /// place from attacks.
    refusals: PerSecond,
    attacks: PerSecond,
    recent: Recent,
}

impl AuditState {
    /// Adds an event to the recent ones, and to the buffer of every sink that keeps its rank.
    fn push(&self, event: Event) {
        self.recent.push(&event);
        let rank = event.rank();
        let mut queues = self.queues.iter().filter(|queue| queue.keeps(rank));
        let Some(first) = queues.next() else {
            return;
        };
        // The first queue gets the event itself, so that nothing is copied for a single sink.
        for queue in queues {
            self.push_to(queue, event.clone());
        }
        self.push_to(first, event);
    }

    fn push_to(&self, queue: &Queue, event: Event) {
        if let PushOutcome::Lost(priority) = queue.push(event) {
            self.counts.lost(priority);
        }
    }

    /// Counts an event that a request caused. The first of its bucket is written at once, the
    /// others of the second as one event with their number.
    fn count(&self, event: Event) {
        self.count_as(event, WriteTiming::FirstAtOnce);
    }

    fn count_as(&self, event: Event, telling: WriteTiming) {
        let seconds = match event.rank() {
            Rank::Refusal | Rank::AuthRefusal => &self.refusals,
            Rank::Attack | Rank::Change => &self.attacks,
        };
        for told in seconds.count(event, telling) {
            self.push(told);
        }
    }

    fn close_second(&self) {
        for seconds in [&self.refusals, &self.attacks] {
            for told in seconds.close() {
                self.push(told);
            }
        }
    }
}

impl Audit {
    /// Starts the writer.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        keyring: Arc<Keyring>,
        clock: Arc<dyn Clock>,
        sink: impl Sink,
        settings: AuditSettings,
    ) -> std::io::Result<Self> {
        Self::start_all(keyring, clock, vec![Box::new(sink)], settings)
    }

    /// Starts a writer for each sink.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start_all(
        keyring: Arc<Keyring>,
        clock: Arc<dyn Clock>,
        sinks: Vec<Box<dyn Sink>>,
        settings: AuditSettings,
    ) -> std::io::Result<Self> {
        let queues = sinks
            .iter()
            .map(|sink| Queue::new(sink.keeps(), settings.buffer_max));
        let shared = Arc::new(AuditState {
            queues: queues.collect(),
            counts: Arc::default(),
            refusals: PerSecond::default(),
            attacks: PerSecond::default(),
            recent: Recent::default(),
        });
        let mut audit = Self {
            keyring,
            clock,
            shared: Arc::clone(&shared),
            differences: beside::Ration::default(),
            streaks: Streaks::new(settings.repeated_throttling),
            probes: Probes::new(
                settings.privilege_probing,
                settings.privilege_probing_window,
            ),
            classes: KnownClasses::default(),
            writers: Vec::new(),
        };
        for (at, sink) in sinks.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            let writer = std::thread::Builder::new()
                .name("palisade-audit".to_owned())
                .spawn(move || {
                    if let Some(queue) = shared.queues.get(at) {
                        writer::run(&shared, queue, sink);
                    }
                })?;
            audit.writers.push(writer);
        }
        Ok(audit)
    }

    /// Returns the numbers of events by their fate.
    pub fn counts(&self) -> Arc<AuditCounts> {
        Arc::clone(&self.shared.counts)
    }

    /// Returns the newest events about a subject, at most `most` of those that this process still
    /// remembers. They contain no name and no digest.
    #[must_use]
    pub fn recent_of(&self, whose: Whose<'_>, most: usize) -> Vec<Past> {
        self.shared.recent.of(&self.keyring, whose, most)
    }

    /// Waits until everything recorded so far is written; false if it took longer
    /// than `patience`.
    pub fn flush(&self, patience: Duration) -> bool {
        self.shared.close_second();
        // Every sink gets the whole patience, also after another sink did not finish in time.
        let queues = self.shared.queues.iter();
        let late = queues.filter(|queue| !queue.wait_settled(patience));
        late.count() == 0
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.shared.close_second();
        self.shared.queues.iter().for_each(Queue::end);
        // A sink that takes nothing (a full pipe that nobody reads) must not keep the
        // process from ending.
        let mut pauses = END_PATIENCE.as_millis() / END_PAUSE.as_millis();
        while pauses > 0 && self.writers.iter().any(|writer| !writer.is_finished()) {
            std::thread::sleep(END_PAUSE);
            pauses -= 1;
        }
    }
}
