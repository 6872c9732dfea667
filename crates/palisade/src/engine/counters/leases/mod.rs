//! Leased limits: a node takes tokens in batches and serves them locally.
//!
//! A token may be used up to [`LEASE_US`] after it was taken, so the store counts
//! it that much longer: a sliding window is charged with its window widened by a
//! lease, a token bucket with its burst lowered by what flows in during one. Every
//! window slice of *uses* then lies in a window slice of *takings* that the store
//! bounded: no slice is ever exceeded. Tokens that were not used go back, as far as the
//! bucket they were taken from still counts them (L-GIVE-BACK): a token that is returned
//! after others have had its share of time would be used twice.
//!
//! The use of one batch predicts the size of the next, which is fetched in the background
//! before the first runs out: a request waits for the store only if no token is left.
//!
//! A bucket that is seen for the first time, or after a while, has no lease: it is charged in
//! the store with the other buckets of the request, in the figures of a lease.

mod batch;
mod refill;
mod sights;
mod spec;
#[cfg(test)]
mod two_nodes;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashMap;
use palisade_core::Digest;
use palisade_core::limit::Reading;
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::Accuracy;
use palisade_core::time::Micros;
use palisade_store::{BucketReadings, ChargeReadings, StoreError, Take};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::link::{CallTimes, LIMITS, NoAnswer};
use super::steps::{Steps, Target, moved};
use super::store::StoreBuckets;
use crate::deadline::until;

pub(super) use batch::{Lease, Origin};
pub(super) use spec::{is_leasable, leased_spec};

use batch::{LeaseAnswer, NewBatch, UnusedTokens};
use sights::Sights;

/// The lifetime of a token.
const LEASE_US: u64 = 100_000;

/// Most buckets that are leased at once; others are charged in the store directly.
const LEASES_MAX: usize = 10_000;

/// Parts of the map, each with a lock of its own.
const SHARDS: usize = 16;

/// The tokens this node holds, by the bucket's digest.
#[derive(Default)]
pub(super) struct Leases {
    shards: [RwLock<HashMap<Digest, Arc<Lease>>>; SHARDS],
    sights: Sights,
    /// Work for the background. It is bounded by the leases: each has one next batch, and
    /// returned tokens were in a batch.
    due: Mutex<Vec<Due>>,
    wake: Notify,
    /// Signals that there may be tokens which nobody will use.
    filled: Notify,
    /// Background tasks that do this work.
    workers: Arc<AtomicU32>,
}

/// Work for the background: no request waits for it.
enum Due {
    /// Fetch the next batch.
    Refill(Arc<Lease>),
    /// Give these tokens back.
    Return(Arc<Lease>, UnusedTokens),
}

impl Leases {
    fn shard(&self, id: Digest) -> &RwLock<HashMap<Digest, Arc<Lease>>> {
        &self.shards[usize::try_from(id.0 % SHARDS as u128).unwrap_or(0)]
    }

    /// The lease of a charge's bucket; `None` if its limit cannot be leased or too many
    /// are held.
    fn of(&self, charge: &Charge<'_>, now: Micros) -> Option<Arc<Lease>> {
        let shard = self.shard(charge.id);
        let is_its = |lease: &&Arc<Lease>| lease.is_of(charge.spec);
        if let Some(lease) = shard.read().get(&charge.id).filter(is_its) {
            return Some(Arc::clone(lease));
        }
        let charged = leased_spec(charge.spec)?;
        let mut held = shard.write();
        if let Some(lease) = held.get(&charge.id).filter(is_its) {
            return Some(Arc::clone(lease));
        }
        if held.len() >= LEASES_MAX / SHARDS {
            held.retain(|_, lease| Arc::strong_count(lease) > 1 || lease.is_usable(now));
        }
        if held.len() >= LEASES_MAX / SHARDS {
            return None;
        }
        let lease = Arc::new(Lease::new(charge, charged));
        held.insert(charge.id, Arc::clone(&lease));
        Some(lease)
    }

    /// The lease of a bucket that is asked for often: one that is in use, or a new one if the
    /// bucket was asked for a moment ago. A throttle always has one, as it meets every request.
    pub(super) fn warm(&self, charge: &Charge<'_>, now: Micros) -> Option<Arc<Lease>> {
        if charge.limit.def.throttle {
            return self.of(charge, now);
        }
        let seen = self.sights.see(charge.id, now);
        let held = self.shard(charge.id).read().get(&charge.id).cloned();
        let is_in_use = |lease: &Arc<Lease>| lease.is_of(charge.spec) && lease.is_in_use(now);
        if let Some(lease) = held.filter(is_in_use) {
            return Some(lease);
        }
        let seen = seen?;
        let lease = self.of(charge, now)?;
        lease.begin(seen);
        Some(lease)
    }

    /// Whether there are tokens of a bucket that may be used.
    pub(super) fn has_usable(&self, charge: &Charge<'_>, now: Micros) -> bool {
        let held = self.shard(charge.id).read();
        let lease = held.get(&charge.id);
        lease.is_some_and(|lease| lease.is_usable(now))
    }

    /// Charges a plan of nothing but leased buckets from tokens at hand. If there are too few,
    /// nothing is taken.
    pub(super) fn charge_at_hand(
        &self,
        charges: &[Charge<'_>],
        now: Micros,
        notes_instants: bool,
    ) -> Option<ChargeReadings> {
        let is_leased = |charge: &Charge<'_>| {
            charge.limit.def.accuracy == Accuracy::Leased && charge.on_exceed != OnExceed::Overdraft
        };
        if charges.is_empty() || !charges.iter().all(is_leased) {
            return None;
        }
        let mut readings = BucketReadings::with_capacity(charges.len());
        let mut origins: Vec<Origin> = Vec::new();
        for charge in charges {
            let held = self.shard(charge.id).read();
            let lease = held.get(&charge.id);
            let lease = lease.filter(|lease| lease.is_of(charge.spec));
            let answer = lease.and_then(|lease| self.serve(lease, charge.cost, now));
            let Some(LeaseAnswer::Taken(reading, origin)) = answer else {
                drop(held);
                for (charge, origin) in charges.iter().zip(origins) {
                    if let Some(lease) = self.shard(charge.id).read().get(&charge.id) {
                        self.put_back_to(lease, charge.cost, origin);
                    }
                }
                return None;
            };
            readings.push(reading);
            if notes_instants || readings.len() < charges.len() {
                origins.push(origin);
            }
        }
        let instants = origins.into_iter().filter(|_| notes_instants);
        Some(ChargeReadings {
            now,
            admitted: true,
            readings,
            rebuilt: 0,
            instants: instants.map(|origin| origin.taken_at).collect(),
        })
    }

    /// Takes the steps that end in a lease, all or nothing: from the tokens at hand, else from
    /// new batches. False if one denies.
    pub(super) async fn charge(
        &self,
        steps: &mut Steps<'_, '_>,
        mut now: Micros,
        store: &StoreBuckets,
        ends: Instant,
    ) -> Result<bool, NoAnswer> {
        for step in &mut steps.0 {
            let Target::Lease(lease, origin) = &mut step.target else {
                continue;
            };
            let answer = match self.serve(lease, step.charge.cost, now) {
                Some(answer) => answer,
                // Boxed: requests that do not wait would carry its state.
                None => {
                    let waiting = Box::pin(self.wait_for(lease, step.charge, store, ends));
                    let answer = waiting.await?;
                    now = store.now();
                    answer
                }
            };
            let (reading, taken_at) = match answer {
                LeaseAnswer::Taken(reading, batch) => {
                    *origin = Some(batch);
                    (reading, batch.taken_at)
                }
                LeaseAnswer::Reported(reading) => (reading, now),
                LeaseAnswer::Denied(reading) => {
                    step.reading = Some((reading, now));
                    return Ok(false);
                }
            };
            step.reading = Some((reading, taken_at));
        }
        Ok(true)
    }

    /// Fills a lease without tokens at hand and charges it. One request at a time asks the
    /// store; the others wait for its batch.
    async fn wait_for(
        &self,
        lease: &Arc<Lease>,
        charge: &Charge<'_>,
        store: &StoreBuckets,
        ends: Instant,
    ) -> Result<LeaseAnswer, NoAnswer> {
        let Ok(_filling) = until(ends, pin!(lease.filling.lock())).await else {
            return Err(NoAnswer::OutOfTime);
        };
        if let Some(answer) = self.serve(lease, charge.cost, store.now()) {
            return Ok(answer);
        }
        let full = lease.batch(charge.cost, store.now());
        let seen = lease.reopened();
        for batch in [full, charge.cost] {
            let asked = store.now();
            let charges = [lease.charge(batch)];
            let times = CallTimes::started(ends, Some(asked));
            let charged = store.charge(LIMITS, &charges, Take::Consume, times).await?;
            let reading = first(&charged, asked)?;
            let took_us = store.now().since(asked);
            store.link.observer().refilled(took_us);
            let is_full = reading.retry_at.is_some();
            if charged.admitted && is_full {
                // The limit does not deny. Where a batch does not fit, the request alone may.
                if batch > charge.cost && charge.on_exceed == OnExceed::Report {
                    continue;
                }
                return Ok(LeaseAnswer::Reported(reading));
            }
            if charged.admitted {
                let given = NewBatch {
                    size: batch,
                    cost: charge.cost,
                    reading,
                    asked,
                    taken_at: charged.judged_at(0),
                };
                let (origin, unused) = self.fill(lease, given);
                if let Some(unused) = unused {
                    self.return_unused(lease, unused, store, ends).await;
                }
                let reading = Reading {
                    // Tokens at hand count as remaining, too.
                    remaining: reading.remaining + (batch - charge.cost),
                    ..reading
                };
                return Ok(LeaseAnswer::Taken(reading, origin));
            }
            if batch == charge.cost {
                lease.deny(
                    charge.cost,
                    reading.retry_at.unwrap_or(asked),
                    reading,
                    seen,
                );
                return Ok(LeaseAnswer::Denied(reading));
            }
        }
        Err(NoAnswer::NotAsked)
    }

    /// The answer of a lease, if it has one without the store. If tokens run low, the next
    /// batch is fetched in the background.
    fn serve(&self, lease: &Arc<Lease>, cost: u64, now: Micros) -> Option<LeaseAnswer> {
        let (answer, is_low) = lease.serve(cost, now);
        if is_low && self.is_attended() && lease.begin_ahead() {
            self.put_due(Due::Refill(Arc::clone(lease)));
        }
        answer
    }

    /// Gives back tokens of a batch that was pushed out: in the background, if there is one.
    async fn return_unused(
        &self,
        lease: &Arc<Lease>,
        unused: UnusedTokens,
        store: &StoreBuckets,
        ends: Instant,
    ) {
        if self.is_attended() {
            self.return_later(lease, unused);
        } else {
            refill::give_back(lease, unused, store, ends).await;
        }
    }

    /// The denial of a charge that a lease knows of; takes nothing.
    pub(super) fn denial(&self, charge: &Charge<'_>, now: Micros) -> Option<Reading> {
        let held = self.shard(charge.id).read();
        let lease = held.get(&charge.id)?;
        let is_its = lease.is_of(charge.spec);
        lease.denial(charge.cost, now).filter(|_| is_its)
    }

    /// Whether background tasks run.
    fn is_attended(&self) -> bool {
        self.workers.load(Ordering::Relaxed) > 0
    }

    /// Gives tokens back in the background.
    fn return_later(&self, lease: &Arc<Lease>, unused: UnusedTokens) {
        self.put_due(Due::Return(Arc::clone(lease), unused));
    }

    fn put_due(&self, due: Due) {
        self.due.lock().push(due);
        self.wake.notify_one();
    }

    /// See [`Lease::fill`].
    fn fill(&self, lease: &Lease, given: NewBatch) -> (Origin, Option<UnusedTokens>) {
        let filled = lease.fill(given);
        if given.size > given.cost {
            self.filled.notify_one();
        }
        filled
    }

    /// Puts back the tokens that these steps took.
    pub(super) fn put_back(&self, steps: &Steps<'_, '_>) {
        for step in &steps.0 {
            if let Target::Lease(lease, Some(origin)) = &step.target {
                self.put_back_to(lease, step.charge.cost, *origin);
            }
        }
    }

    /// Puts tokens back into their batch, and wakes the sweep: if they were the last of the
    /// batch and nobody uses them, nothing else would give them back.
    fn put_back_to(&self, lease: &Lease, cost: u64, origin: Origin) {
        lease.put_back(cost, origin);
        self.filled.notify_one();
    }

    /// Forgets the denial of this bucket, since something was given back to it. Tokens stay.
    pub(super) fn reopen(&self, id: Digest) {
        if let Some(lease) = self.shard(id).read().get(&id) {
            lease.reopen();
        }
    }

    /// Buckets that are leased.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Ends every lease. Unused tokens go back if background tasks run.
    pub(super) fn retire(&self) {
        let is_attended = self.is_attended();
        for shard in &self.shards {
            for (_, lease) in shard.write().drain() {
                let unused = lease.drain();
                if is_attended {
                    unused
                        .into_iter()
                        .for_each(|unused| self.return_later(&lease, unused));
                }
            }
        }
    }

    /// Drops all tokens and denials, as after a reset: the store no longer counts these tokens,
    /// and to give them back would credit the uses of others.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            shard.write().clear();
        }
        self.due.lock().clear();
    }

    fn each(&self, mut see: impl FnMut(&Arc<Lease>)) {
        for shard in &self.shards {
            shard.read().values().for_each(&mut see);
        }
    }
}

/// The only reading of a call that was made at `asked`, by this node's clock.
fn first(charged: &ChargeReadings, asked: Micros) -> Result<Reading, NoAnswer> {
    let missing = || NoAnswer::Failed(StoreError::Corrupt("a reading is missing".to_owned()));
    let reading = charged.readings.first().copied().ok_or_else(missing)?;
    Ok(moved(reading, charged.now, asked))
}
