//! Tasks that run beside the requests: probes of the store, copies of the registries,
//! refills of leased limits.
//!
//! One step of the probes serves the server's task and the virtual clock of policy
//! cases, so that both see the same modes.

use std::time::Duration;

use palisade_core::failure::Policy;
use palisade_core::time::Micros;
use palisade_store::StoreError;

use super::Engine;
use super::link::For;

/// Interval between looks whether a probe is due.
const PROBES_EVERY: Duration = Duration::from_millis(250);

/// Interval between looks at a store that answers: at its risky settings, and on a quiet
/// node whether it is still there.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Interval at which changes of other nodes are taken over: twice within the second in which
/// they must bind.
const REGISTRIES_EVERY: Duration = Duration::from_millis(500);

/// Interval at which refunds are announced, if there are any: a tenth of the second in which
/// others must know, and few enough writes however many refunds there are.
const REFUNDS_EVERY: Duration = Duration::from_millis(100);

/// Interval at which overage is shared: a node that is killed loses no more of it.
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

    /// Everything that runs beside requests: probes, registries, leases, overage and settles that
    /// wait for the store, for as long as it is polled.
    pub async fn run_forever(&self) {
        tokio::join!(
            self.probe_forever(),
            self.follow_registries(),
            self.refill_forever(),
            self.settle_forever(),
            self.settle_reservations_forever(),
        );
    }

    /// Gives back tokens that were taken ahead, shares what API keys used beyond their quotas,
    /// and makes the store durable: part of a graceful end, after the last request.
    ///
    /// # Errors
    /// The store could not be flushed: what was counted in the last moments may be lost.
    pub async fn finish(&self) -> Result<(), StoreError> {
        self.return_leases().await;
        self.retry_settles().await;
        if self.settle_overage().await.is_err() {
            tracing::warn!(
                "what API keys used beyond their quotas in the last seconds is not kept"
            );
        }
        self.store().flush().await
    }

    /// Gives the tokens of every lease back, as when the process ends.
    pub async fn return_leases(&self) {
        self.counters.return_leases().await;
    }

    /// Makes the calling thread's connections to the store, so that its first decision does
    /// not spend its time on that (F-READY). To be awaited on every thread that decides,
    /// before it does: it takes as long as a connection may. Whether it succeeded matters to
    /// nobody: without a store the first decisions are made as in any outage.
    pub async fn connect(&self) {
        if let Err(error) = self.store().connect().await {
            tracing::debug!(%error, "no connection to the store yet");
        }
    }

    /// Probes in the background for as long as it is polled: a store that failed when its
    /// breaker wants it, one that answers now and then.
    pub async fn probe_forever(&self) {
        self.reach().await;
        let mut looked = self.now();
        loop {
            let now = self.now();
            self.run_due(now).await;
            if Duration::from_micros(now.since(looked)) >= LOOK_EVERY {
                looked = now;
                let _ = self.link.look().await;
            }
            tokio::time::sleep(PROBES_EVERY).await;
        }
    }

    /// Asks the store until it has answered, or until limits are decided without it: a node
    /// that nobody asks anything is ready too, then (F-READY). Failures count as those of
    /// requests do.
    async fn reach(&self) {
        self.connect().await;
        let _ = self.link.look().await;
        while !self.link.is_reached() && !self.link.is_cut_off(Policy::Limits) {
            let ends = self.link.request_ends();
            let whom = For::Decision(Policy::Limits);
            let _ = self.link.call(whom, ends, |store| store.probe()).await;
            tokio::time::sleep(PROBES_EVERY).await;
        }
    }

    /// Takes over allowlist, tier changes, API keys, clients, resets and refunds for as long as
    /// it is polled, and announces this node's own refunds, so that a change reaches every node
    /// within a second.
    pub async fn follow_registries(&self) {
        let follow = async {
            loop {
                let _ = self.refresh_allowlist().await;
                let _ = self.refresh_tiers().await;
                let _ = self.refresh_credentials().await;
                let _ = self.refresh_resets().await;
                tokio::time::sleep(REGISTRIES_EVERY).await;
            }
        };
        let announce = async {
            loop {
                let _ = self.announce_refunds().await;
                tokio::time::sleep(REFUNDS_EVERY).await;
            }
        };
        let ((), ()) = tokio::join!(follow, announce);
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
        self.counters.supply_leases().await;
    }
}
