//! The store that a process was started with.

mod open;

use std::sync::Arc;

use palisade::store::memory::MemoryStore;
use palisade::store::{
    Buckets, Charged, Commit, Entries, Entry, Loaded, RecordPage, Records, Registries, Registry,
    Remote, ResetDone, StoreError, StoreStats, Take, Taken, Vitals,
};
use palisade_core::plan::Charge;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{Clock, Micros};

pub use open::{Opening, open, postgres_config};

/// One of the stores, chosen at the start.
pub enum AnyStore {
    /// In this process.
    Embedded(MemoryStore<Arc<dyn Clock>>),
    /// Redis, a Redis Cluster or Postgres.
    Remote(Remote),
}

/// Hands a call on to the store that was chosen.
macro_rules! on_each {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Self::Embedded($store) => $call,
            Self::Remote($store) => $call,
        }
    };
}

impl Buckets for AnyStore {
    async fn charge(&self, charges: &[Charge<'_>], take: Take) -> Result<Charged, StoreError> {
        on_each!(self, store => store.charge(charges, take).await)
    }

    async fn charge_each(
        &self,
        charges: &[Charge<'_>],
        take: Take,
    ) -> Result<Vec<Charged>, StoreError> {
        on_each!(self, store => store.charge_each(charges, take).await)
    }

    async fn give_back(&self, taken: &[Taken<'_>]) -> Result<Charged, StoreError> {
        on_each!(self, store => store.give_back(taken).await)
    }

    async fn refund(&self, charges: &[Charge<'_>]) -> Result<Charged, StoreError> {
        on_each!(self, store => store.refund(charges).await)
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<ResetDone, StoreError> {
        on_each!(self, store => store.reset(charges).await)
    }
}

impl Records for AnyStore {
    async fn load(&self, keys: &[RecordKey]) -> Result<Loaded, StoreError> {
        on_each!(self, store => store.load(keys).await)
    }

    async fn commit(&self, writes: &[RecordWrite]) -> Result<Commit, StoreError> {
        on_each!(self, store => store.commit(writes).await)
    }

    async fn set_aside(&self, key: RecordKey) -> Result<(), StoreError> {
        on_each!(self, store => store.set_aside(key).await)
    }

    async fn scan(
        &self,
        kind: RecordKind,
        cursor: Option<&str>,
        count_max: usize,
    ) -> Result<RecordPage, StoreError> {
        on_each!(self, store => store.scan(kind, cursor, count_max).await)
    }
}

impl Registries for AnyStore {
    async fn put_entry(&self, registry: Registry, entry: Entry) -> Result<(), StoreError> {
        on_each!(self, store => store.put_entry(registry, entry).await)
    }

    async fn remove_entry(&self, registry: Registry, id: &str) -> Result<bool, StoreError> {
        on_each!(self, store => store.remove_entry(registry, id).await)
    }

    async fn entries(
        &self,
        registry: Registry,
        seen: Option<u64>,
    ) -> Result<Option<Entries>, StoreError> {
        on_each!(self, store => store.entries(registry, seen).await)
    }
}

impl Vitals for AnyStore {
    async fn probe(&self) -> Result<Micros, StoreError> {
        on_each!(self, store => store.probe().await)
    }

    async fn flush(&self) -> Result<(), StoreError> {
        on_each!(self, store => store.flush().await)
    }

    fn stats(&self) -> StoreStats {
        on_each!(self, store => store.stats())
    }

    fn is_shared(&self) -> bool {
        on_each!(self, store => store.is_shared())
    }

    fn never_waits(&self) -> bool {
        on_each!(self, store => store.never_waits())
    }
}
