//! A reference store with a door: it notes what it is asked and by whom, and can fail
//! or keep callers waiting.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test file uses its part of it"
)]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use palisade::core::plan::Charge;
use palisade::core::record::{RecordKey, RecordKind, RecordWrite};
use palisade::core::time::{Clock, Micros};
use palisade::store::{
    Buckets, Charged, Commit, Entries, Entry, Loaded, RecordPage, Records, Registries, Registry,
    ResetDone, StoreError, StoreStats, Take, Taken, Vitals,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::engine_support::Model;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Request,
    Task,
}

/// One bucket, and so many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Charge(By, u32),
    Refund(By, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Open,
    /// Whoever this is waits until it is opened; what it asks is done then.
    ShutFor(By),
    /// Every charge fails.
    Broken,
    /// Every charge takes so long, and succeeds.
    Slow(Duration),
}

tokio::task_local! {
    static REQUEST: ();
}

pub async fn by_a_request<T>(request: impl Future<Output = T>) -> T {
    REQUEST.scope((), request).await
}

fn who() -> By {
    REQUEST.try_with(|()| By::Request).unwrap_or(By::Task)
}

pub struct Doored {
    model: Model,
    asked: Mutex<Vec<Asked>>,
    calls: AtomicUsize,
    door: watch::Sender<Door>,
}

impl Doored {
    pub fn new(time: Arc<dyn Clock>) -> Self {
        Self {
            model: Model::new(time),
            asked: Mutex::default(),
            calls: AtomicUsize::new(0),
            door: watch::Sender::new(Door::Open),
        }
    }

    pub fn set(&self, door: Door) {
        self.door.send_replace(door);
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }

    /// How often something was to be charged or looked at.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    async fn pass(&self) -> Result<(), StoreError> {
        let by = who();
        let mut door = self.door.subscribe();
        let passed = door.wait_for(|door| *door != Door::ShutFor(by)).await;
        let passed = *passed.unwrap();
        match passed {
            Door::Broken => Err(StoreError::Unreachable("connection refused".to_owned())),
            Door::Slow(time) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Buckets for Doored {
    async fn charge(&self, charges: &[Charge<'_>], take: Take) -> Result<Charged, StoreError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if take == Take::Consume {
            let asked = charges.iter().map(|c| Asked::Charge(who(), c.cost));
            self.asked.lock().extend(asked);
            self.pass().await?;
        }
        self.model.charge(charges, take).await
    }

    async fn give_back(&self, taken: &[Taken<'_>]) -> Result<Charged, StoreError> {
        let asked = taken.iter().map(|t| Asked::Refund(who(), t.charge.cost));
        self.asked.lock().extend(asked);
        self.model.give_back(taken).await
    }

    async fn refund(&self, charges: &[Charge<'_>]) -> Result<Charged, StoreError> {
        let asked = charges.iter().map(|c| Asked::Refund(who(), c.cost));
        self.asked.lock().extend(asked);
        self.model.refund(charges).await
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<ResetDone, StoreError> {
        self.model.reset(charges).await
    }
}

impl Records for Doored {
    async fn load(&self, keys: &[RecordKey]) -> Result<Loaded, StoreError> {
        self.model.load(keys).await
    }

    async fn commit(&self, writes: &[RecordWrite]) -> Result<Commit, StoreError> {
        self.model.commit(writes).await
    }

    async fn set_aside(&self, key: RecordKey) -> Result<(), StoreError> {
        self.model.set_aside(key).await
    }

    async fn scan(
        &self,
        kind: RecordKind,
        cursor: Option<&str>,
        count_max: usize,
    ) -> Result<RecordPage, StoreError> {
        self.model.scan(kind, cursor, count_max).await
    }
}

impl Registries for Doored {
    async fn put_entry(&self, registry: Registry, entry: Entry) -> Result<(), StoreError> {
        self.model.put_entry(registry, entry).await
    }

    async fn remove_entry(&self, registry: Registry, id: &str) -> Result<bool, StoreError> {
        self.model.remove_entry(registry, id).await
    }

    async fn entries(
        &self,
        registry: Registry,
        seen: Option<u64>,
    ) -> Result<Option<Entries>, StoreError> {
        self.model.entries(registry, seen).await
    }
}

impl Vitals for Doored {
    async fn probe(&self) -> Result<Micros, StoreError> {
        self.model.probe().await
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.model.flush().await
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn stats(&self) -> StoreStats {
        self.model.stats()
    }
}
