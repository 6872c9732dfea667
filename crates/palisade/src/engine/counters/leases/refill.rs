//! Background work of leases: next batches are fetched, and unused tokens given back.
//!
//! These calls are not made while the breaker is open, and their results do not count for it: a
//! request that finds no token left asks the store by itself, and that call counts.

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
use super::{Due, LEASE_US, Lease, Leases, NewBatch, UnusedTokens, first};

/// Interval between looks for expired tokens.
const SWEEP_EVERY: Duration = Duration::from_micros(LEASE_US);

/// Most give-backs under way at once.
const RETURNS_MAX: usize = 64;

/// Counts a background task for as long as it lives.
struct RefillWorker(Arc<AtomicU32>);

impl RefillWorker {
    fn at(leases: &Leases) -> Self {
        leases.workers.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&leases.workers))
    }
}

impl Drop for RefillWorker {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Leases {
    /// The work that is due; waits until there is some.
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

    /// The tokens that `of` takes out of each lease.
    fn collect(
        &self,
        of: impl Fn(&Lease) -> ArrayVec<UnusedTokens, 2>,
    ) -> Vec<(Arc<Lease>, UnusedTokens)> {
        let mut found = Vec::new();
        self.each(|lease| {
            let unused = of(lease).into_iter();
            found.extend(unused.map(|unused| (Arc::clone(lease), unused)));
        });
        found
    }

    /// Fetches next batches before they are needed, and gives unused tokens back, for as long as
    /// it is polled.
    pub(in crate::engine::counters) async fn supply(&self, store: &StoreBuckets) {
        let _working = RefillWorker::at(self);
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

    /// Gives back expired tokens, while there are leases with any.
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

    /// Fetches a batch; `None` if none came. Returns the tokens of the batch that it pushed out.
    async fn fetch(
        &self,
        lease: &Lease,
        size: u64,
        asked: Micros,
        store: &StoreBuckets,
    ) -> Option<Option<UnusedTokens>> {
        let charges = [lease.charge(size)];
        let times = CallTimes::started(store.link.request_ends(), Some(asked));
        let call = store.charge(For::Upkeep, &charges, Take::Consume, times);
        let charged = call.await.ok()?;
        let reading = first(&charged, asked).ok()?;
        store.link.observer().refilled(store.now().since(asked));
        let is_given = charged.admitted && reading.retry_at.is_none();
        let given = NewBatch {
            size,
            cost: 0,
            reading,
            asked,
            taken_at: charged.judged_at(0),
        };
        is_given.then(|| self.fill(lease, given).1)
    }
}

async fn give_back_each(tokens: Vec<(Arc<Lease>, UnusedTokens)>, store: &StoreBuckets) {
    for some in tokens.chunks(RETURNS_MAX) {
        let ends = store.link.request_ends();
        let returns = some
            .iter()
            .map(|(lease, unused)| give_back(lease, *unused, store, ends).boxed());
        join_all(returns).await;
    }
}

/// Gives tokens back. A failure does no harm: the store forgets them when they expire.
pub(super) async fn give_back(
    lease: &Lease,
    unused: UnusedTokens,
    store: &StoreBuckets,
    ends: Instant,
) {
    let taken = [lease.taken(unused)];
    let _ = store.give_back(For::Upkeep, &taken, ends).await;
}
