//! A store that can be taken away: every call fails while it is down.

use std::sync::atomic::{AtomicU8, Ordering};

use palisade_core::plan::Charge;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::Micros;
use palisade_store::{
    Buckets, Charged, Commit, Entries, Entry, Loaded, RecordPage, Records, Registries, Registry,
    ResetDone, Store, StoreError, StoreStats, Take, Taken, Vitals,
};

use super::event::StoreState;

/// Wraps a store. A time-out is answered at once: on a virtual clock nobody waits.
pub struct FaultStore<S> {
    inner: S,
    state: AtomicU8,
}

impl<S> FaultStore<S> {
    /// A store that is up.
    pub const fn new(inner: S) -> Self {
        Self {
            inner,
            state: AtomicU8::new(StoreState::Up as u8),
        }
    }

    /// What the store does from now on.
    pub fn set(&self, state: StoreState) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    fn up(&self) -> Result<&S, StoreError> {
        const DOWN: u8 = StoreState::Down as u8;
        const TIMEOUT: u8 = StoreState::Timeout as u8;
        match self.state.load(Ordering::SeqCst) {
            DOWN => Err(StoreError::Unreachable("connection refused".to_owned())),
            TIMEOUT => Err(StoreError::TimedOut),
            _ => Ok(&self.inner),
        }
    }
}

impl<S: Store> Buckets for FaultStore<S> {
    async fn charge(&self, charges: &[Charge<'_>], take: Take) -> Result<Charged, StoreError> {
        self.up()?.charge(charges, take).await
    }

    async fn give_back(&self, taken: &[Taken<'_>]) -> Result<Charged, StoreError> {
        self.up()?.give_back(taken).await
    }

    async fn refund(&self, charges: &[Charge<'_>]) -> Result<Charged, StoreError> {
        self.up()?.refund(charges).await
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<ResetDone, StoreError> {
        self.up()?.reset(charges).await
    }
}

impl<S: Store> Records for FaultStore<S> {
    async fn load(&self, keys: &[RecordKey]) -> Result<Loaded, StoreError> {
        self.up()?.load(keys).await
    }

    async fn commit(&self, writes: &[RecordWrite]) -> Result<Commit, StoreError> {
        self.up()?.commit(writes).await
    }

    async fn set_aside(&self, key: RecordKey) -> Result<(), StoreError> {
        self.up()?.set_aside(key).await
    }

    async fn scan(
        &self,
        kind: RecordKind,
        cursor: Option<&str>,
        count_max: usize,
    ) -> Result<RecordPage, StoreError> {
        self.up()?.scan(kind, cursor, count_max).await
    }
}

impl<S: Store> Registries for FaultStore<S> {
    async fn put_entry(&self, registry: Registry, entry: Entry) -> Result<(), StoreError> {
        self.up()?.put_entry(registry, entry).await
    }

    async fn remove_entry(&self, registry: Registry, id: &str) -> Result<bool, StoreError> {
        self.up()?.remove_entry(registry, id).await
    }

    async fn entries(
        &self,
        registry: Registry,
        seen: Option<u64>,
    ) -> Result<Option<Entries>, StoreError> {
        self.up()?.entries(registry, seen).await
    }
}

impl<S: Store> Vitals for FaultStore<S> {
    async fn probe(&self) -> Result<Micros, StoreError> {
        self.up()?.probe().await
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.up()?.flush().await
    }

    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }
}
