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

use super::super::super::Engine;
use super::super::super::link::For;
use super::super::both_names;
use super::super::charge::{Counters, first};
use super::{Due, Given, LEASE_US, Lease, Leases, Unused};

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
}

impl Engine {
    /// Keeps leased limits supplied for as long as it is polled; see
    /// [`Engine::refill_forever`].
    pub(in crate::engine) async fn supply_leases(&self) {
        let _working = Working::at(&self.limits.leases);
        let counters = self.counters();
        tokio::join!(counters.attend(), counters.sweep_leases());
    }

    /// Gives the tokens of every lease back, as when the process ends.
    pub async fn return_leases(&self) {
        let unused = self.limits.leases.collect(Lease::drain);
        self.counters().return_all(unused).await;
    }
}

impl Counters<'_> {
    async fn attend(self) {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                due = self.limits.leases.next_due() => {
                    running.extend(due.into_iter().map(|due| self.do_due(due).boxed()));
                }
                Some(()) = running.next() => {}
            }
        }
    }

    async fn do_due(self, due: Due) {
        match due {
            Due::Refill(lease) => self.refill_ahead(&lease).await,
            Due::Return(lease, unused) => self.give_back(&lease, unused).await,
        }
    }

    /// Looks for tokens that nobody used in time, while there are any.
    async fn sweep_leases(self) {
        loop {
            self.limits.leases.filled.notified().await;
            tokio::time::sleep(SWEEP_EVERY).await;
            let now = self.link.now();
            let expired = self.limits.leases.collect(|lease| lease.expire(now));
            if self.limits.leases.hold_any() {
                self.limits.leases.filled.notify_one();
            }
            self.return_all(expired).await;
        }
    }

    async fn return_all(self, tokens: Vec<(Arc<Lease>, Unused)>) {
        for some in tokens.chunks(RETURNS_MAX) {
            let returns = some
                .iter()
                .map(|(lease, unused)| self.give_back(lease, *unused).boxed());
            join_all(returns).await;
        }
    }

    async fn refill_ahead(self, lease: &Lease) {
        let asked_at = self.link.now();
        let batch = lease.batch(1, asked_at);
        match self.fetch(lease, batch, asked_at).await {
            Some(Some(oldest)) => self.give_back(lease, oldest).await,
            Some(None) => {}
            None => lease.fail_ahead(),
        }
    }

    /// Fills the lease; what was left of the oldest batch, `None` if nothing came.
    async fn fetch(self, lease: &Lease, size: u32, asked: Micros) -> Option<Option<Unused>> {
        let charges = [lease.charge(size)];
        let ends = self.link.request_ends();
        let charged = self
            .link
            .call(For::Upkeep, ends, |store| {
                both_names::charge(store, &charges, Take::Consume)
            })
            .await
            .ok()?;
        self.keep_readings(&charges, &charged, asked);
        let reading = first(&charged, asked).ok()?;
        self.link.observer().refilled(self.link.now().since(asked));
        let is_given = charged.admitted && reading.retry_at.is_none();
        let given = Given {
            size,
            cost: 0,
            reading,
            asked,
            taken_at: charged.judged_at(0),
        };
        is_given.then(|| self.limits.leases.fill(lease, given).1)
    }

    async fn give_back(self, lease: &Lease, unused: Unused) {
        let ends = self.link.request_ends();
        self.tidy(&[lease.taken(unused)], ends).await;
    }
}
