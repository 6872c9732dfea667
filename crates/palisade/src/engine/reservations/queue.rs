//! Waiting for a slot (B-FAIR): callers of a full bucket wait in line on their node, first come
//! first served, for as long as the limit allows.
//!
//! Whoever is first in line tries again when a slot is freed here, and at short intervals, because
//! other nodes free slots without telling. Nobody who waits has a call to the store under way.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use palisade_core::Digest;
use palisade_core::budget::Reservation;
use palisade_core::facts::RequestFacts;
use palisade_core::policy::{PolicySet, SlotQueue};
use palisade_store::deadline;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::super::Engine;
use super::reserve::{Attempt, Terms};

/// Most callers that wait on a node, in all lines together.
const WAITING_MAX: usize = 1_000;
/// Interval between two tries of whoever is first in line.
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// The lines of a node, by bucket. A line exists while somebody stands in it.
#[derive(Default)]
pub(in crate::engine) struct Queues {
    lines: Mutex<HashMap<Digest, Arc<WaitingLine>>>,
    waiting: AtomicUsize,
}

/// The callers that wait for a slot of one bucket.
#[derive(Default)]
struct WaitingLine {
    /// Held by whoever is first; handed on in the order of arrival.
    turn: tokio::sync::Mutex<()>,
    freed: Notify,
    waiting: AtomicUsize,
}

/// A bucket of a limit with a queue.
#[derive(Clone, Copy)]
struct QueuedBucket {
    id: Digest,
    queue: SlotQueue,
}

/// A place in a line, given up when it is dropped: by whoever was served, gave up or hung up.
struct PlaceInLine<'q> {
    queues: &'q Queues,
    bucket: Digest,
    line: Arc<WaitingLine>,
}

impl Queues {
    /// Tells whoever is first in line that a slot may be free.
    pub(super) fn note_freed(&self, reservation: &Reservation) {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let lines = self.lines.lock();
        for part in reservation.parts.iter().filter(|part| super::is_slot(part)) {
            if let Some(line) = lines.get(&part.line.id) {
                line.freed.notify_one();
            }
        }
    }

    fn has_line(&self, bucket: Digest) -> bool {
        self.lines.lock().contains_key(&bucket)
    }

    /// A place at the end of the line; `None` if it is full.
    fn join(&self, bucket: QueuedBucket) -> Option<PlaceInLine<'_>> {
        let mut lines = self.lines.lock();
        // Both counts change under this lock only.
        if self.waiting.load(Ordering::Relaxed) >= WAITING_MAX {
            return None;
        }
        let line = lines.entry(bucket.id).or_default();
        if line.waiting.load(Ordering::Relaxed) >= usize::from(bucket.queue.most) {
            return None;
        }
        line.waiting.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Some(PlaceInLine {
            queues: self,
            bucket: bucket.id,
            line: Arc::clone(line),
        })
    }
}

impl Drop for PlaceInLine<'_> {
    fn drop(&mut self) {
        let mut lines = self.queues.lines.lock();
        self.queues.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.line.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
            lines.remove(&self.bucket);
        }
    }
}

impl Engine {
    /// Tries to reserve and, where only a slot is missing whose limit has a queue, waits in line
    /// for it. Returns how long it waited, if it did.
    pub(super) async fn attempt_in_line(
        &self,
        policy: &Arc<PolicySet>,
        facts: &mut RequestFacts,
        terms: Terms,
    ) -> (Attempt, Option<Duration>) {
        let queued = self.queued_buckets(policy, facts);
        // Who comes while others wait stands behind them.
        let busy = queued.iter().find(|one| self.queues.has_line(one.id));
        let (first, bucket) = match busy {
            Some(bucket) => (None, Some(*bucket)),
            None => {
                let attempt = self.attempt_lowered(policy, facts, terms).await;
                let bucket = missing_slot(policy, &attempt, &queued);
                (Some(attempt), bucket)
            }
        };
        let place = bucket.and_then(|bucket| Some((bucket, self.queues.join(bucket)?)));
        let Some((bucket, place)) = place else {
            let attempt = match first {
                Some(attempt) => attempt,
                None => self.attempt_lowered(policy, facts, terms).await,
            };
            return (attempt, None);
        };
        let began = deadline::now();
        let ends = deadline::after(Duration::from_micros(bucket.queue.wait_us));
        let turn = timeout_at(ends, place.line.turn.lock()).await;
        let attempt = loop {
            let attempt = self.attempt_lowered(policy, facts, terms).await;
            // Without the turn its time is up, and so is that of everybody before it.
            let is_last = turn.is_err() || deadline::now() >= ends;
            if is_last || missing_slot(policy, &attempt, &queued).is_none() {
                break attempt;
            }
            let retry = ends.min(deadline::after(RETRY_EVERY));
            let _ = timeout_at(retry, place.line.freed.notified()).await;
        };
        (attempt, Some(waited_since(began)))
    }

    /// The buckets of a request that it may wait for.
    fn queued_buckets(&self, policy: &PolicySet, facts: &RequestFacts) -> Vec<QueuedBucket> {
        if !policy.has_queues() {
            return Vec::new();
        }
        let tenant = self.tenant(facts);
        let plan = self.plan(policy, tenant.as_deref(), facts);
        let charges = plan.charges.iter();
        let queued = charges.filter_map(|charge| {
            let queue = charge.limit.def.queue?;
            Some(QueuedBucket {
                id: charge.id,
                queue,
            })
        });
        queued.collect()
    }
}

/// The bucket whose full slots are the reason of a refusal.
fn missing_slot(
    policy: &PolicySet,
    attempt: &Attempt,
    queued: &[QueuedBucket],
) -> Option<QueuedBucket> {
    if queued.is_empty() || attempt.decision.is_allowed() {
        return None;
    }
    let mut full = attempt
        .decision
        .limits
        .iter()
        .filter(|reading| reading.retry_after.is_some() && !reading.shadow);
    let first = full.next()?;
    let has_slots = |name: &str| policy.limit(name).is_some_and(|one| one.def.concurrency);
    // Waiting for a slot does not help where another limit is used up.
    if !has_slots(&first.name) || full.any(|reading| !has_slots(&reading.name)) {
        return None;
    }
    queued.iter().find(|one| one.id == first.partition).copied()
}

fn waited_since(began: Instant) -> Duration {
    deadline::now().saturating_duration_since(began)
}
