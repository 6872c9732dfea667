//! What runs beside the requests: probes of the store, copies of the registries,
//! refills of leased limits.
//!
//! One step of the probes serves the server's task and the virtual clock of policy
//! cases, so that both see the same modes.

use std::time::Duration;

use palisade_core::time::Micros;
use palisade_store::StoreError;

use super::Engine;

/// How often it is looked whether a probe is due.
const PROBES_EVERY: Duration = Duration::from_millis(250);

/// How often changes of other nodes are taken over: twice within the second in which
/// they must bind.
const REGISTRIES_EVERY: Duration = Duration::from_millis(500);

/// How often overage is shared: a node that is killed loses no more of it.
const OVERAGE_EVERY: Duration = Duration::from_secs(5);

impl Engine {
    /// When the failure machinery next has something to do.
    pub fn next_due(&self) -> Option<Micros> {
        self.link.modes().next_due().map(|(at, _)| at)
    }

    /// Does everything that is due at `now`: probes and expiries, one at a time.
    pub async fn run_due(&self, now: Micros) {
        loop {
            let next = self.link.modes().next_due();
            match next {
                Some((at, due)) if at <= now => self.link.run(due, now).await,
                _ => return,
            }
        }
    }

    /// Everything that runs beside requests: probes, registries, leases and overage, for as long
    /// as it is polled.
    pub async fn run_forever(&self) {
        tokio::join!(
            self.probe_forever(),
            self.follow_registries(),
            self.refill_forever(),
            self.settle_forever(),
        );
    }

    /// Gives back tokens that were taken ahead, shares what API keys used beyond their quotas,
    /// and makes the store durable: part of a graceful end, after the last request.
    ///
    /// # Errors
    /// The store could not be flushed: what was counted in the last moments may be lost.
    pub async fn finish(&self) -> Result<(), StoreError> {
        self.return_leases().await;
        if self.settle_overage().await.is_err() {
            tracing::warn!(
                "what API keys used beyond their quotas in the last seconds is not kept"
            );
        }
        self.store().flush().await
    }

    /// Probes in the background for as long as it is polled.
    pub async fn probe_forever(&self) {
        loop {
            self.run_due(self.now()).await;
            tokio::time::sleep(PROBES_EVERY).await;
        }
    }

    /// Takes over allowlist, tier changes, API keys, clients and resets for as long as it is polled, so that a
    /// change reaches every node within a second.
    pub async fn follow_registries(&self) {
        loop {
            let _ = self.refresh_allowlist().await;
            let _ = self.refresh_tiers().await;
            let _ = self.refresh_credentials().await;
            let _ = self.refresh_resets().await;
            tokio::time::sleep(REGISTRIES_EVERY).await;
        }
    }

    /// Shares what API keys use beyond their quotas, and tells the totals of a month that
    /// is over, for as long as it is polled.
    pub async fn settle_forever(&self) {
        loop {
            tokio::time::sleep(OVERAGE_EVERY).await;
            let _ = self.settle_overage().await;
        }
    }

    /// Keeps leased limits supplied for as long as it is polled: the next batch of a
    /// busy one is fetched before the last has run out, and tokens that nobody used go
    /// back to the store. Without it each batch is waited for by the request that finds
    /// the last one used up.
    pub async fn refill_forever(&self) {
        self.supply_leases().await;
    }
}
