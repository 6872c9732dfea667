//! Small shared lists that operators change and of which every node keeps a copy.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use palisade_core::time::Micros;
use palisade_store::{Entry, Registry, StoreError};
use parking_lot::Mutex;

use super::super::Engine;
use super::allowlist::Allowlist;
use super::announcements::{HeardAnnouncements, News, Refunds};
use super::credentials::Credentials;
use super::overage::Overages;

/// This node's copies of the registries.
#[derive(Default)]
pub(in crate::engine) struct Registries {
    pub(super) allowlist: Allowlist,
    /// The tier that an operator has moved an API key to, by the key's hash.
    tiers: ArcSwap<HashMap<String, Arc<str>>>,
    /// Announcements of other nodes that have been seen.
    heard: Mutex<HeardAnnouncements>,
    /// This node's refunds, which it announces.
    pub(in crate::engine) refunds: Refunds,
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
    /// Copies the tiers that operators have changed.
    ///
    /// # Errors
    /// An error of the store; the copy stays as it was.
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

    /// Forgets what is remembered of buckets that another node has cleared or refunded, and
    /// refreshes tenants' policies if another node has announced it.
    ///
    /// # Errors
    /// An error of the store; what is remembered stays until the next read.
    pub async fn refresh_resets(&self) -> Result<(), StoreError> {
        let seen = self.registries.heard.lock().version();
        let found = self
            .link
            .attend(|store| store.entries(Registry::Resets, seen))
            .await?;
        let (news, policies) = self.registries.heard.lock().take(found, self.now());
        match news {
            News::Nothing => {}
            News::Refunds(buckets) => self.counters.reopen(&buckets),
            News::Everything => {
                self.counters.forget_cached();
                self.link.stand_in().forget_readings();
            }
        }
        if policies {
            self.tenants.invalidate(None);
        }
        Ok(())
    }

    /// Writes an announcement for the other nodes. It expires by the store's clock, because a
    /// node's own clock may be wrong.
    pub(super) async fn announce(&self, notice: fn(Micros) -> Entry) -> Result<(), StoreError> {
        if !self.store().is_shared() {
            return Ok(());
        }
        let at = self.link.operate(|store| store.probe()).await?;
        self.link
            .operate(|store| store.put_entry(Registry::Resets, notice(at)))
            .await
    }

    /// Announces this node's refunds since the last announcement, if there are any.
    ///
    /// # Errors
    /// An error of the store; the refunds stay in the next announcement.
    pub async fn announce_refunds(&self) -> Result<(), StoreError> {
        let refunds = &self.registries.refunds;
        let Some((entry, count)) = refunds.untold() else {
            return Ok(());
        };
        self.link
            .attend(|store| store.put_entry(Registry::Resets, entry))
            .await?;
        refunds.told(count);
        Ok(())
    }
}
