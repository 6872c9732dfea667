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
//! A batch is as large as the last one's use foretells, and the next one is asked for
//! in the background before it runs out: a request waits for the store only if there
//! is nothing left.
//!
//! A bucket that is seen for the first time, or after a while, has no lease: it is charged
//! together with whatever else the request asks the store for, in the same figures.

mod batch;
mod refill;
mod sights;
mod spec;
mod take;
#[cfg(test)]
mod two_nodes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashMap;
use palisade_core::Digest;
use palisade_core::limit::Reading;
use palisade_core::plan::Charge;
use palisade_core::time::Micros;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

pub(super) use batch::{Given, Lease, Origin, Served, Unused};
pub(super) use spec::{is_leasable, leased_spec};

use sights::Sights;

/// How long a token may be kept before it is used.
const LEASE_US: u64 = 100_000;

/// Most buckets that are leased at once; others are charged in the store directly.
const LEASES_MAX: usize = 10_000;

/// Parts of the map with a lock of their own.
const SHARDS: usize = 16;

/// The tokens this node holds, by the bucket's digest.
#[derive(Default)]
pub(super) struct Leases {
    shards: [RwLock<HashMap<Digest, Arc<Lease>>>; SHARDS],
    sights: Sights,
    /// What is to be done while no request waits. Bounded by the leases: of each there
    /// is one next batch to ask for, and what is returned was in one.
    due: Mutex<Vec<Due>>,
    wake: Notify,
    /// There may be tokens that nobody will use.
    filled: Notify,
    /// Tasks that do what is due.
    workers: Arc<AtomicU32>,
}

/// What is to be done while no request waits.
enum Due {
    /// The next batch is to be asked for.
    Refill(Arc<Lease>),
    /// These tokens go back.
    Return(Arc<Lease>, Unused),
}

impl Leases {
    fn shard(&self, id: Digest) -> &RwLock<HashMap<Digest, Arc<Lease>>> {
        &self.shards[usize::try_from(id.0 % SHARDS as u128).unwrap_or(0)]
    }

    /// The lease of a charge's bucket; `None` if its limit cannot be leased or too many
    /// are held.
    pub(super) fn of(&self, charge: &Charge<'_>, now: Micros) -> Option<Arc<Lease>> {
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

    /// Whether a bucket is worth a lease: it has one that is in use, or gets one since it was
    /// asked for a moment ago. Notes that it is asked for.
    pub(super) fn is_warm(&self, charge: &Charge<'_>, now: Micros) -> bool {
        let seen = self.sights.see(charge.id, now);
        let held = self.shard(charge.id).read();
        let lease = held
            .get(&charge.id)
            .filter(|lease| lease.is_of(charge.spec));
        if lease.is_some_and(|lease| lease.is_in_use(now)) {
            return true;
        }
        drop(held);
        let lease = seen.and_then(|seen| Some((seen, self.of(charge, now)?)));
        lease.is_some_and(|(seen, lease)| {
            lease.begin(seen);
            true
        })
    }

    /// Whether there are tokens of a bucket that may be used.
    pub(super) fn has_usable(&self, charge: &Charge<'_>, now: Micros) -> bool {
        let held = self.shard(charge.id).read();
        let lease = held.get(&charge.id);
        lease.is_some_and(|lease| lease.is_usable(now))
    }

    /// What the tokens at hand, or a denial that stands, say to a charge.
    pub(super) fn serve(&self, charge: &Charge<'_>, now: Micros) -> Served {
        let held = self.shard(charge.id).read();
        match held.get(&charge.id) {
            Some(lease) if lease.is_of(charge.spec) => self.serve_from(lease, charge.cost, now),
            _ => Served::Ask,
        }
    }

    /// The same, from a lease at hand. A batch that runs low has the next one asked for.
    pub(super) fn serve_from(&self, lease: &Arc<Lease>, cost: u32, now: Micros) -> Served {
        let (served, is_low) = lease.serve(cost, now);
        if is_low && self.is_attended() && lease.begin_ahead() {
            self.put_due(Due::Refill(Arc::clone(lease)));
        }
        served
    }

    /// The denial that stands against a charge; takes nothing.
    pub(super) fn denial(&self, charge: &Charge<'_>, now: Micros) -> Option<Reading> {
        let held = self.shard(charge.id).read();
        let lease = held.get(&charge.id)?;
        let is_its = lease.is_of(charge.spec);
        lease.denial(charge.cost, now).filter(|_| is_its)
    }

    /// Whether somebody does what is due.
    pub(super) fn is_attended(&self) -> bool {
        self.workers.load(Ordering::Relaxed) > 0
    }

    /// Has tokens given back while no request waits.
    pub(super) fn return_later(&self, lease: &Arc<Lease>, unused: Unused) {
        self.put_due(Due::Return(Arc::clone(lease), unused));
    }

    fn put_due(&self, due: Due) {
        self.due.lock().push(due);
        self.wake.notify_one();
    }

    /// See [`Lease::fill`].
    pub(super) fn fill(&self, lease: &Lease, given: Given) -> (Origin, Option<Unused>) {
        let filled = lease.fill(given);
        if given.size > given.cost {
            self.filled.notify_one();
        }
        filled
    }

    /// Puts tokens back into the batch that they came from.
    pub(super) fn put_back(&self, charge: &Charge<'_>, origin: Origin) {
        if let Some(lease) = self.shard(charge.id).read().get(&charge.id) {
            self.put_back_to(lease, charge.cost, origin);
        }
    }

    /// Puts tokens back into the batch of this lease that they came from. The sweep is woken
    /// for them: the batch had perhaps no other token, and if nobody uses these, nobody else
    /// would notice its end.
    pub(super) fn put_back_to(&self, lease: &Lease, cost: u32, origin: Origin) {
        lease.put_back(cost, origin);
        self.filled.notify_one();
    }

    /// Something was given back to this bucket: a denial that is remembered may not hold
    /// any more. Tokens stay.
    pub(super) fn reopen(&self, id: Digest) {
        if let Some(lease) = self.shard(id).read().get(&id) {
            lease.reopen();
        }
    }

    /// Buckets that are leased.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Ends every lease. Tokens that nobody used go back if somebody does what is due.
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

    /// Forgets every cached denial and token, as after a reset: the store does not count these
    /// tokens any more, and what went back for them would be another's.
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
