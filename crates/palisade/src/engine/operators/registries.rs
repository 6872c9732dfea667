//! The small shared lists that operators change and every node keeps a copy of.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use palisade_store::{Registry, StoreError};

use super::super::Engine;
use super::allowlist::Allowlist;
use super::credentials::Credentials;
use super::overage::Overages;

/// This node's copies.
#[derive(Default)]
pub(in crate::engine) struct Registries {
    pub(super) allowlist: Allowlist,
    /// The tier that an operator put an API key on, by the key's hash.
    tiers: ArcSwap<HashMap<String, Arc<str>>>,
    /// One more than the version of the resets that was seen last; 0 is none.
    resets_seen: AtomicU64,
    pub(super) overages: Overages,
    pub(in crate::engine) credentials: Credentials,
}

impl Registries {
    pub(in crate::engine) const fn allowlist(&self) -> &Allowlist {
        &self.allowlist
    }

    pub(in crate::engine) fn tiers(&self) -> arc_swap::Guard<Arc<HashMap<String, Arc<str>>>> {
        self.tiers.load()
    }
}

impl Engine {
    /// Takes over tiers that operators have changed.
    ///
    /// # Errors
    /// The store's; the copy stays as it was.
    pub async fn refresh_tiers(&self) -> Result<(), StoreError> {
        let found = self
            .link
            .attend(|store| store.entries(Registry::Tiers, None))
            .await?;
        if let Some(all) = found {
            let tiers = all
                .entries
                .into_iter()
                .filter_map(|entry| Some((entry.id, String::from_utf8(entry.bytes).ok()?.into())));
            self.registries.tiers.store(Arc::new(tiers.collect()));
        }
        Ok(())
    }

    /// Drops remembered denials and leases if another node has announced a reset. Who looks for
    /// the first time cannot tell whether the last one was before or after its first lease; that
    /// there was none it can.
    ///
    /// # Errors
    /// The store's; what is remembered stays.
    pub async fn refresh_resets(&self) -> Result<(), StoreError> {
        let seen = self
            .registries
            .resets_seen
            .load(Ordering::Acquire)
            .checked_sub(1);
        let found = self
            .link
            .attend(|store| store.entries(Registry::Resets, seen))
            .await?;
        if let Some(all) = found {
            self.registries
                .resets_seen
                .store(all.version + 1, Ordering::Release);
            if seen.is_some() || all.version > 0 {
                self.limits.forget_cached();
                self.link.stand_in().forget_readings();
            }
        }
        Ok(())
    }
}
