//! One reference store behind several engines, as nodes share a server.

use std::sync::Arc;

use palisade::core::plan::Charge;
use palisade::core::record::{RecordKey, RecordKind, RecordWrite};
use palisade::core::time::Micros;
use palisade::store::{
    Buckets, Charged, Commit, Entries, Entry, Loaded, RecordPage, Records, Registries, Registry,
    ResetDone, Store, StoreError, StoreStats, Take, Taken, Vitals,
};

use super::Model;

pub struct Shared<S = Model> {
    store: Arc<S>,
    is_shared: bool,
}

impl<S> Shared<S> {
    /// A store that several nodes use.
    pub const fn new(store: Arc<S>) -> Self {
        let is_shared = true;
        Self { store, is_shared }
    }

    /// A store that one node at a time uses.
    pub const fn in_turn(store: Arc<S>) -> Self {
        let is_shared = false;
        Self { store, is_shared }
    }
}

impl<S> Clone for Shared<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            ..*self
        }
    }
}

impl<S: Store> Buckets for Shared<S> {
    async fn charge(&self, charges: &[Charge<'_>], take: Take) -> Result<Charged, StoreError> {
        self.store.charge(charges, take).await
    }

    async fn give_back(&self, taken: &[Taken<'_>]) -> Result<Charged, StoreError> {
        self.store.give_back(taken).await
    }

    async fn refund(&self, charges: &[Charge<'_>]) -> Result<Charged, StoreError> {
        self.store.refund(charges).await
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<ResetDone, StoreError> {
        self.store.reset(charges).await
    }
}

impl<S: Store> Records for Shared<S> {
    async fn load(&self, keys: &[RecordKey]) -> Result<Loaded, StoreError> {
        let loaded = self.store.load(keys).await;
        // Lets other tasks in between a read and its commit.
        tokio::task::yield_now().await;
        loaded
    }

    async fn commit(&self, writes: &[RecordWrite]) -> Result<Commit, StoreError> {
        self.store.commit(writes).await
    }

    async fn set_aside(&self, key: RecordKey) -> Result<(), StoreError> {
        self.store.set_aside(key).await
    }

    async fn scan(
        &self,
        kind: RecordKind,
        cursor: Option<&str>,
        count_max: usize,
    ) -> Result<RecordPage, StoreError> {
        self.store.scan(kind, cursor, count_max).await
    }
}

impl<S: Store> Registries for Shared<S> {
    async fn put_entry(&self, registry: Registry, entry: Entry) -> Result<(), StoreError> {
        self.store.put_entry(registry, entry).await
    }

    async fn remove_entry(&self, registry: Registry, id: &str) -> Result<bool, StoreError> {
        self.store.remove_entry(registry, id).await
    }

    async fn entries(
        &self,
        registry: Registry,
        seen: Option<u64>,
    ) -> Result<Option<Entries>, StoreError> {
        self.store.entries(registry, seen).await
    }
}

impl<S: Store> Vitals for Shared<S> {
    async fn probe(&self) -> Result<Micros, StoreError> {
        self.store.probe().await
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.store.flush().await
    }

    fn stats(&self) -> StoreStats {
        self.store.stats()
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }
}
