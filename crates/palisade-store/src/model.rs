//! The definition of a store, in the plainest code that can be written: one lock,
//! one map, the pure functions. Other stores are compared with it, and simulations
//! run on it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use palisade_core::Digest;
use palisade_core::limit::{Reading, State};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{Clock, DAY, Micros};
use parking_lot::Mutex;

use crate::{
    Charged, Commit, Entries, Entry, Loaded, REGISTRY_ENTRIES_MAX, Record, RecordPage, Registry,
    ResetDone, Store, StoreError, StoreStats, Take,
};

/// The reference store. It forgets nothing but what has expired, and is bounded by
/// its users: do not serve with it.
pub struct ModelStore<C> {
    clock: C,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    buckets: HashMap<Digest, State>,
    records: BTreeMap<RecordKey, (Record, Micros)>,
    aside: BTreeMap<RecordKey, (Record, Micros)>,
    registries: HashMap<Registry, (u64, BTreeMap<String, Entry>)>,
}

impl<C: Clock> ModelStore<C> {
    /// An empty store that judges by `clock`.
    pub fn new(clock: C) -> Self {
        Self {
            clock,
            inner: Mutex::default(),
        }
    }

    /// Forgets everything, as a server restarted without its data.
    pub fn clear(&self) {
        *self.inner.lock() = Inner::default();
    }

    /// Puts raw bytes in place of a record, for tests of unreadable ones.
    pub fn plant(&self, key: RecordKey, bytes: Vec<u8>, expires_at: Micros) {
        let record = Record { bytes, revision: 1 };
        self.inner.lock().records.insert(key, (record, expires_at));
    }

    /// Records that were set aside.
    pub fn set_aside_count(&self) -> usize {
        self.inner.lock().aside.len()
    }
}

/// Evaluates charges on states with the pure functions: the meaning of L-ATOMIC.
///
/// # Panics
/// Never; `states` and `charges` are of one length.
pub fn evaluate(
    charges: &[Charge<'_>],
    states: &mut [State],
    now: Micros,
    take: Take,
) -> (bool, Vec<Reading>) {
    let waits: Vec<Option<Micros>> = charges
        .iter()
        .zip(&*states)
        .map(|(charge, state)| charge.spec.fits(state, now, charge.cost))
        .collect();
    let admitted = charges
        .iter()
        .zip(&waits)
        .all(|(charge, wait)| wait.is_none() || charge.on_exceed != OnExceed::Deny);
    if admitted && take == Take::Consume {
        for ((charge, state), wait) in charges.iter().zip(&mut *states).zip(&waits) {
            if wait.is_none() || charge.on_exceed == OnExceed::Count {
                charge.spec.take(state, now, charge.cost);
            }
        }
    }
    let readings = charges
        .iter()
        .zip(&*states)
        .zip(waits)
        .map(|((charge, state), wait)| Reading {
            retry_at: wait,
            ..charge.spec.read(state, now, charge.cost)
        })
        .collect();
    (admitted, readings)
}

/// The charges, each with what earlier ones take from the same bucket added: judged one
/// by one on what was found, a bucket that a plan has twice counts both, and the last
/// state is the one that remains.
pub(crate) fn summed<'c, 'p>(charges: &'c [Charge<'p>]) -> Cow<'c, [Charge<'p>]> {
    let before = |at: usize| {
        let mut earlier = (0..at).rev();
        earlier.find(|earlier| charges[*earlier].id == charges[at].id)
    };
    if (0..charges.len()).all(|at| before(at).is_none()) {
        return Cow::Borrowed(charges);
    }
    let mut summed = charges.to_vec();
    for at in 0..charges.len() {
        if let Some(earlier) = before(at) {
            summed[at].cost = summed[at].cost.saturating_add(summed[earlier].cost);
        }
    }
    Cow::Owned(summed)
}

impl Inner {
    /// Runs on the states of `charges`; of a bucket that is there twice the last stays.
    fn with_states<R>(&mut self, charges: &[Charge<'_>], run: impl FnOnce(&mut [State]) -> R) -> R {
        let mut states: Vec<State> = charges
            .iter()
            .map(|charge| self.buckets.get(&charge.id).cloned().unwrap_or_default())
            .collect();
        let result = run(&mut states);
        for (charge, state) in charges.iter().zip(states) {
            self.buckets.insert(charge.id, state);
        }
        result
    }
}

impl<C: Clock> Store for ModelStore<C> {
    async fn charge(&self, charges: &[Charge<'_>], take: Take) -> Result<Charged, StoreError> {
        let now = self.clock.now();
        let charges = &*summed(charges);
        let (admitted, readings) = self
            .inner
            .lock()
            .with_states(charges, |states| evaluate(charges, states, now, take));
        Ok(Charged {
            now,
            admitted,
            readings,
            rebuilt: 0,
        })
    }

    async fn refund(&self, charges: &[Charge<'_>]) -> Result<Charged, StoreError> {
        let now = self.clock.now();
        let charges = &*summed(charges);
        let readings = self.inner.lock().with_states(charges, |states| {
            charges
                .iter()
                .zip(states)
                .map(|(charge, state)| {
                    charge.spec.give_back(state, now, charge.cost);
                    charge.spec.read(state, now, charge.cost)
                })
                .collect()
        });
        Ok(Charged {
            now,
            admitted: true,
            readings,
            rebuilt: 0,
        })
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<ResetDone, StoreError> {
        let mut inner = self.inner.lock();
        for charge in charges {
            inner.buckets.remove(&charge.id);
        }
        Ok(ResetDone {
            done: vec![true; charges.len()],
        })
    }

    async fn load(&self, keys: &[RecordKey]) -> Result<Loaded, StoreError> {
        let now = self.clock.now();
        let inner = self.inner.lock();
        let records = keys
            .iter()
            .map(|key| live(&inner.records, key, now).cloned())
            .collect();
        Ok(Loaded { now, records })
    }

    async fn commit(&self, writes: &[RecordWrite]) -> Result<Commit, StoreError> {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let current = |key| live(&inner.records, key, now).map_or(0, |record| record.revision);
        if writes
            .iter()
            .any(|write| current(&write.key) != write.expect)
        {
            return Ok(Commit::Conflict);
        }
        for write in writes {
            match &write.bytes {
                Some(bytes) => {
                    let record = Record {
                        bytes: bytes.clone(),
                        revision: write.expect + 1,
                    };
                    inner.records.insert(write.key, (record, write.expires_at));
                }
                None => {
                    inner.records.remove(&write.key);
                }
            }
        }
        Ok(Commit::Done)
    }

    async fn set_aside(&self, key: RecordKey) -> Result<(), StoreError> {
        let until = self.clock.now().plus(DAY);
        let mut inner = self.inner.lock();
        if let Some((record, _)) = inner.records.remove(&key) {
            inner.aside.insert(key, (record, until));
        }
        Ok(())
    }

    async fn scan(
        &self,
        kind: RecordKind,
        cursor: Option<&str>,
        count_max: usize,
    ) -> Result<RecordPage, StoreError> {
        let now = self.clock.now();
        let after = cursor.and_then(Digest::from_hex);
        let inner = self.inner.lock();
        let mut found = inner
            .records
            .iter()
            .filter(|(key, (_, until))| {
                key.kind == kind && *until > now && after.is_none_or(|after| key.digest > after)
            })
            .map(|(key, (record, _))| (*key, record.clone()));
        let records: Vec<_> = found.by_ref().take(count_max).collect();
        let next = found
            .next()
            .and_then(|_| records.last().map(|(key, _)| key.digest.hex()));
        Ok(RecordPage { records, next })
    }

    async fn put_entry(&self, registry: Registry, entry: Entry) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let (version, entries) = inner.registries.entry(registry).or_default();
        if entries.len() >= REGISTRY_ENTRIES_MAX && !entries.contains_key(&entry.id) {
            return Err(StoreError::Exhausted(format!(
                "the {} is full",
                registry.name()
            )));
        }
        *version += 1;
        entries.insert(entry.id.clone(), entry);
        Ok(())
    }

    async fn remove_entry(&self, registry: Registry, id: &str) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let (version, entries) = inner.registries.entry(registry).or_default();
        let removed = entries.remove(id);
        *version += u64::from(removed.is_some());
        Ok(removed.is_some_and(|entry| is_live(&entry, now)))
    }

    async fn entries(
        &self,
        registry: Registry,
        seen: Option<u64>,
    ) -> Result<Option<Entries>, StoreError> {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let (version, entries) = inner.registries.entry(registry).or_default();
        if seen == Some(*version) {
            return Ok(None);
        }
        let entries = entries
            .values()
            .filter(|entry| is_live(entry, now))
            .cloned();
        Ok(Some(Entries {
            version: *version,
            entries: entries.collect(),
        }))
    }

    async fn probe(&self) -> Result<Micros, StoreError> {
        Ok(self.clock.now())
    }

    async fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn stats(&self) -> StoreStats {
        let inner = self.inner.lock();
        StoreStats {
            tracked_keys: (inner.buckets.len() + inner.records.len()) as u64,
            ..StoreStats::default()
        }
    }
}

fn live<'a>(
    records: &'a BTreeMap<RecordKey, (Record, Micros)>,
    key: &RecordKey,
    now: Micros,
) -> Option<&'a Record> {
    let (record, until) = records.get(key)?;
    (*until > now).then_some(record)
}

fn is_live(entry: &Entry, now: Micros) -> bool {
    entry.expires_at.is_none_or(|until| until > now)
}
