//! The store that a process was started with.

mod open;

use std::sync::Arc;

use palisade::store::memory::MemoryStore;
use palisade::store::postgres::PostgresStore;
use palisade::store::redis::RedisStore;
use palisade::store::{
    Buckets, Charged, Commit, Entries, Entry, Loaded, RecordPage, Records, Registries, Registry,
    ResetDone, StoreError, StoreStats, Take, Taken, Vitals,
};
use palisade_core::plan::Charge;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{Clock, Micros};

pub use open::{Opening, open, postgres_config};

/// One of the stores, chosen at the start.
pub enum AnyStore {
    /// In this process.
    Embedded(MemoryStore<Arc<dyn Clock>>),
    /// Redis or a Redis Cluster.
    Redis(RedisStore),
    /// Postgres.
    Postgres(PostgresStore),
}

/// Hands a call on to the store that was chosen.
macro_rules! on_each {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Self::Embedded($store) => $call,
            Self::Redis($store) => $call,
            Self::Postgres($store) => $call,
        }
    };
}

/// Hands a call on and waits for it.
///
/// Calls over a network are boxed: their state is kilobytes, which every request's
/// future would hold and copy, on the embedded store too. A box is nothing beside a
/// round trip.
macro_rules! wait_on_each {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Self::Embedded($store) => $call.await,
            Self::Redis($store) => Box::pin($call).await,
            Self::Postgres($store) => Box::pin($call).await,
        }
    };
}

impl Buckets for AnyStore {
    async fn charge(&self, charges: &[Charge<'_>], take: Take) -> Result<Charged, StoreError> {
        wait_on_each!(self, store => store.charge(charges, take))
    }

    async fn charge_each(
        &self,
        charges: &[Charge<'_>],
        take: Take,
    ) -> Result<Vec<Charged>, StoreError> {
        wait_on_each!(self, store => store.charge_each(charges, take))
    }

    async fn give_back(&self, taken: &[Taken<'_>]) -> Result<Charged, StoreError> {
        wait_on_each!(self, store => store.give_back(taken))
    }

    async fn refund(&self, charges: &[Charge<'_>]) -> Result<Charged, StoreError> {
        wait_on_each!(self, store => store.refund(charges))
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<ResetDone, StoreError> {
        wait_on_each!(self, store => store.reset(charges))
    }
}

impl Records for AnyStore {
    async fn load(&self, keys: &[RecordKey]) -> Result<Loaded, StoreError> {
        wait_on_each!(self, store => store.load(keys))
    }

    async fn commit(&self, writes: &[RecordWrite]) -> Result<Commit, StoreError> {
        wait_on_each!(self, store => store.commit(writes))
    }

    async fn set_aside(&self, key: RecordKey) -> Result<(), StoreError> {
        wait_on_each!(self, store => store.set_aside(key))
    }

    async fn scan(
        &self,
        kind: RecordKind,
        cursor: Option<&str>,
        count_max: usize,
    ) -> Result<RecordPage, StoreError> {
        wait_on_each!(self, store => store.scan(kind, cursor, count_max))
    }
}

impl Registries for AnyStore {
    async fn put_entry(&self, registry: Registry, entry: Entry) -> Result<(), StoreError> {
        wait_on_each!(self, store => store.put_entry(registry, entry))
    }

    async fn remove_entry(&self, registry: Registry, id: &str) -> Result<bool, StoreError> {
        wait_on_each!(self, store => store.remove_entry(registry, id))
    }

    async fn entries(
        &self,
        registry: Registry,
        seen: Option<u64>,
    ) -> Result<Option<Entries>, StoreError> {
        wait_on_each!(self, store => store.entries(registry, seen))
    }
}

impl Vitals for AnyStore {
    async fn probe(&self) -> Result<Micros, StoreError> {
        wait_on_each!(self, store => store.probe())
    }

    async fn flush(&self) -> Result<(), StoreError> {
        wait_on_each!(self, store => store.flush())
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
