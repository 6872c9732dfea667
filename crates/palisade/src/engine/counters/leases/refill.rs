//! Batches that are asked for, and given back, while no request waits.
//!
//! These calls keep off a store whose breaker is open, but do not count for it: the
//! breaker hears of requests, and a request that finds nothing left asks by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;
use futures_util::StreamExt;
use futures_util::future::{FutureExt, join_all};
use futures_util::stream::FuturesUnordered;
use palisade_core::time::Micros;
use palisade_store::Take;
use tokio::time::Instant;

use super::super::super::link::{CallTimes, For};
use super::super::store::StoreBuckets;
use super::{Due, Given, LEASE_US, Lease, Leases, Unused, first};

/// How often tokens that nobody used in time are looked for.
const SWEEP_EVERY: Duration = Duration::from_micros(LEASE_US);

/// Buckets that are given back to at once.
const RETURNS_MAX: usize = 64;

/// A task that asks for next batches, as long as it lives.
struct Working(Arc<AtomicU32>);

impl Working {
    fn at(leases: &Leases) -> Self {
        leases.workers.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&leases.workers))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Leases {
    /// What is due; waits until something is.
    async fn next_due(&self) -> Vec<Due> {
        loop {
            let due = std::mem::take(&mut *self.due.lock());
            if !due.is_empty() {
                return due;
            }
            self.wake.notified().await;
        }
    }

    fn hold_any(&self) -> bool {
        let mut any = false;
        self.each(|lease| any |= lease.left() > 0);
        any
    }

    /// What `of` takes out of each lease.
    fn collect(&self, of: impl Fn(&Lease) -> ArrayVec<Unused, 2>) -> Vec<(Arc<Lease>, Unused)> {
        let mut found = Vec::new();
        self.each(|lease| {
            let unused = of(lease).into_iter();
            found.extend(unused.map(|unused| (Arc::clone(lease), unused)));
        });
        found
    }

    /// Keeps leased limits supplied for as long as it is polled: asks for next batches before
    /// they are needed, and gives back what nobody used.
    pub(in crate::engine::counters) async fn supply(&self, store: &StoreBuckets) {
        let _working = Working::at(self);
        tokio::join!(self.attend(store), self.sweep(store));
    }

    async fn attend(&self, store: &StoreBuckets) {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                due = self.next_due() => {
                    running.extend(due.into_iter().map(|due| self.do_due(due, store).boxed()));
                }
                Some(()) = running.next() => {}
            }
        }
    }

    async fn do_due(&self, due: Due, store: &StoreBuckets) {
        match due {
            Due::Refill(lease) => self.refill_ahead(&lease, store).await,
            Due::Return(lease, unused) => {
                give_back(&lease, unused, store, store.link.request_ends()).await;
            }
        }
    }

    /// Looks for tokens that nobody used in time, while there are any.
    async fn sweep(&self, store: &StoreBuckets) {
        loop {
            self.filled.notified().await;
            tokio::time::sleep(SWEEP_EVERY).await;
            let now = store.now();
            let expired = self.collect(|lease| lease.expire(now));
            if self.hold_any() {
                self.filled.notify_one();
            }
            give_back_each(expired, store).await;
        }
    }

    /// Gives the tokens of every lease back.
    pub(in crate::engine::counters) async fn return_all(&self, store: &StoreBuckets) {
        give_back_each(self.collect(Lease::drain), store).await;
    }

    async fn refill_ahead(&self, lease: &Lease, store: &StoreBuckets) {
        let asked = store.now();
        let batch = lease.batch(1, asked);
        match self.fetch(lease, batch, asked, store).await {
            Some(Some(oldest)) => give_back(lease, oldest, store, store.link.request_ends()).await,
            Some(None) => {}
            None => lease.fail_ahead(),
        }
    }

    /// Fills the lease; what was left of the oldest batch, `None` if nothing came.
    async fn fetch(
        &self,
        lease: &Lease,
        size: u32,
        asked: Micros,
        store: &StoreBuckets,
    ) -> Option<Option<Unused>> {
        let charges = [lease.charge(size)];
        let times = CallTimes::started(store.link.request_ends(), Some(asked));
        let call = store.charge(For::Upkeep, &charges, Take::Consume, times);
        let charged = call.await.ok()?;
        let reading = first(&charged, asked).ok()?;
        store.link.observer().refilled(store.now().since(asked));
        let is_given = charged.admitted && reading.retry_at.is_none();
        let given = Given {
            size,
            cost: 0,
            reading,
            asked,
            taken_at: charged.judged_at(0),
        };
        is_given.then(|| self.fill(lease, given).1)
    }
}

async fn give_back_each(tokens: Vec<(Arc<Lease>, Unused)>, store: &StoreBuckets) {
    for some in tokens.chunks(RETURNS_MAX) {
        let ends = store.link.request_ends();
        let returns = some
            .iter()
            .map(|(lease, unused)| give_back(lease, *unused, store, ends).boxed());
        join_all(returns).await;
    }
}

/// Gives tokens back. Whether that succeeds does not matter: what is not given back expires.
pub(super) async fn give_back(lease: &Lease, unused: Unused, store: &StoreBuckets, ends: Instant) {
    let taken = [lease.taken(unused)];
    let _ = store.give_back(For::Upkeep, &taken, ends).await;
}
