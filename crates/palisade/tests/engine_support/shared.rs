//! One reference store behind several engines, as nodes share a server.

use std::sync::Arc;

use palisade::core::plan::Charge;
use palisade::core::record::{RecordKey, RecordKind, RecordWrite};
use palisade::core::time::{Clock, Micros};
use palisade::store::memory::MemoryStore;
use palisade::store::{
    Buckets, Charged, Commit, Entries, Entry, Loaded, RecordPage, Records, Registries, Registry,
    ResetDone, StoreError, StoreStats, Take, Taken, Vitals,
};

use super::Model;

type Memory = MemoryStore<Arc<dyn Clock>>;

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident($store:ty, $is_shared:literal);)*) => {$(
        $(#[$meta])*
        #[derive(Clone)]
        pub struct $name(pub Arc<$store>);

        impl Buckets for $name {
            async fn charge(&self, charges: &[Charge<'_>], take: Take) -> Result<Charged, StoreError> {
                self.0.charge(charges, take).await
            }

            async fn give_back(&self, taken: &[Taken<'_>]) -> Result<Charged, StoreError> {
                self.0.give_back(taken).await
            }

            async fn refund(&self, charges: &[Charge<'_>]) -> Result<Charged, StoreError> {
                self.0.refund(charges).await
            }

            async fn reset(&self, charges: &[Charge<'_>]) -> Result<ResetDone, StoreError> {
                self.0.reset(charges).await
            }
        }

        impl Records for $name {
            async fn load(&self, keys: &[RecordKey]) -> Result<Loaded, StoreError> {
                let loaded = self.0.load(keys).await;
                // Lets other tasks in between a read and its commit.
                tokio::task::yield_now().await;
                loaded
            }

            async fn commit(&self, writes: &[RecordWrite]) -> Result<Commit, StoreError> {
                self.0.commit(writes).await
            }

            async fn set_aside(&self, key: RecordKey) -> Result<(), StoreError> {
                self.0.set_aside(key).await
            }

            async fn scan(
                &self,
                kind: RecordKind,
                cursor: Option<&str>,
                count_max: usize,
            ) -> Result<RecordPage, StoreError> {
                self.0.scan(kind, cursor, count_max).await
            }
        }

        impl Registries for $name {
            async fn put_entry(&self, registry: Registry, entry: Entry) -> Result<(), StoreError> {
                self.0.put_entry(registry, entry).await
            }

            async fn remove_entry(&self, registry: Registry, id: &str) -> Result<bool, StoreError> {
                self.0.remove_entry(registry, id).await
            }

            async fn entries(
                &self,
                registry: Registry,
                seen: Option<u64>,
            ) -> Result<Option<Entries>, StoreError> {
                self.0.entries(registry, seen).await
            }
        }

        impl Vitals for $name {
            async fn probe(&self) -> Result<Micros, StoreError> {
                self.0.probe().await
            }

            async fn flush(&self) -> Result<(), StoreError> {
                self.0.flush().await
            }

            fn stats(&self) -> StoreStats {
                self.0.stats()
            }

            fn is_shared(&self) -> bool {
                $is_shared
            }
        }
    )*};
}

handles! {
    /// The reference store, used by several nodes.
    Shared(Model, true);
    /// The embedded store, used by several nodes.
    SharedMemory(Memory, true);
    /// The embedded store, used by one node after another.
    MemoryInTurn(Memory, false);
}
