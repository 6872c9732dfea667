//! Tasks that run beside the requests: probes of the store, copies of the registries, refills of
//! leased limits.
//!
//! The server's task and the virtual clock of policy cases share the step that makes probes, so
//! that both see the same modes.

use std::time::Duration;

use palisade_core::failure::Policy;
use palisade_core::time::Micros;
use palisade_store::StoreError;

use super::Engine;
use super::link::For;

/// Interval at which due probes are looked for.
const PROBES_EVERY: Duration = Duration::from_millis(250);

/// Interval at which a healthy store is probed, to find out about risky settings and, on a quiet
/// node, whether the store is still there.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Interval at which changes by other nodes are copied. They must bind within a second, so every
/// node looks twice in that time.
const REGISTRIES_EVERY: Duration = Duration::from_millis(500);

/// Interval at which refunds are announced. Other nodes must know within a second; the interval is
/// a tenth of that, and still bounds the number of writes.
const REFUNDS_EVERY: Duration = Duration::from_millis(100);

/// Interval at which overage is shared. A node that is killed loses at most this much of it.
const OVERAGE_EVERY: Duration = Duration::from_secs(5);

impl Engine {
    /// The instant at which the failure machinery next has something to do.
    pub fn next_due(&self) -> Option<Micros> {
        self.link.modes().next_due().map(|(at, _)| at)
    }

    /// Does everything that is due at `now`: probes and expiries, one at a time.
    pub async fn run_due(&self, now: Micros) {
        loop {
            // Each step may make another one due.
            let next = self.link.modes().next_due();
            match next {
                Some((at, due)) if at <= now => self.link.run(due, now).await,
                _ => return,
            }
        }
    }

    /// Runs the background work for as long as it is polled: probes, registries, leases, overage,
    /// and settles that wait for the store.
    pub async fn run_forever(&self) {
        tokio::join!(
            self.probe_forever(),
            self.follow_registries(),
            self.refill_forever(),
            self.settle_forever(),
            self.settle_reservations_forever(),
            self.tell_thresholds_forever(),
        );
    }

    /// Returns leased tokens, shares overage of API keys and flushes the store. Part of a graceful
    /// end, after the last request.
    ///
    /// # Errors
    /// The store could not be flushed: what was counted in the last moments may be lost.
    pub async fn finish(&self) -> Result<(), StoreError> {
        self.return_leases().await;
        self.retry_settles().await;
        self.tell_thresholds().await;
        if self.settle_overage().await.is_err() {
            tracing::warn!("overage of API keys in the last seconds is lost");
        }
        self.store().flush().await
    }

    /// Gives the tokens of every lease back, as when the process ends.
    pub async fn return_leases(&self) {
        self.counters.return_leases().await;
    }

    /// Opens the calling thread's connections to the store, so that its first decision does not
    /// have to (F-READY). To be awaited before the first decision on every thread that decides; it
    /// takes as long as connecting may. Failure is not reported: without a store the first
    /// decisions are made as in any outage.
    pub async fn connect(&self) {
        if let Err(error) = self.store().connect().await {
            tracing::debug!(%error, "no connection to the store yet");
        }
    }

    /// Probes the store for as long as it is polled: when a breaker asks for it, and now and then
    /// while the store answers.
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

    /// Calls the store until it has answered once, or until limits are decided without it, so that
    /// a node without traffic becomes ready, too (F-READY). Failures count for the breaker like
    /// those of requests.
    async fn reach(&self) {
        self.connect().await;
        let _ = self.link.look().await;
        // Made like decisions, so that failures open the breaker, which ends this loop.
        while !self.link.is_reached() && !self.link.is_cut_off(Policy::Limits) {
            let ends = self.link.request_ends();
            let whom = For::Decision(Policy::Limits);
            let _ = self.link.call(whom, ends, |store| store.probe()).await;
            tokio::time::sleep(PROBES_EVERY).await;
        }
    }

    /// Copies allowlist, tiers, API keys, clients, resets and refunds of other nodes for as long as
    /// it is polled, and announces this node's own refunds. A change reaches every node within a
    /// second.
    pub async fn follow_registries(&self) {
        let follow = async {
            loop {
                let _ = self.refresh_allowlist().await;
                let _ = self.refresh_tiers().await;
                let _ = self.refresh_credentials().await;
                let _ = self.refresh_resets().await;
                let _ = self.share_attacks().await;
                let _ = self.refresh_attacks().await;
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

    /// Shares overage of API keys, and reports the totals of a month that is over, for as long as
    /// it is polled.
    pub async fn settle_forever(&self) {
        loop {
            tokio::time::sleep(OVERAGE_EVERY).await;
            let _ = self.settle_overage().await;
        }
    }

    /// Keeps leased limits supplied for as long as it is polled: fetches the next batch of a busy
    /// limit before the last one has run out, and returns unused tokens to the store. Without it, a
    /// request that finds no token left has to wait for the next batch.
    pub async fn refill_forever(&self) {
        self.counters.supply_leases().await;
    }
}
