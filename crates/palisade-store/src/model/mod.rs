//! The oracle: the answers that a store has to give, in the plainest code that can be written. One
//! lock, one map, and `counters` of its own. Other stores are compared with it, so it shares no
//! arithmetic with any of them; simulations run on it.

mod counters;

use std::collections::{BTreeMap, HashMap};

use palisade_core::Digest;
use palisade_core::limit::{COUNT_MAX, Reading};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{Clock, DAY, Micros};
use parking_lot::Mutex;

use crate::step_back::stuck;
use crate::{
    Answer, BucketReadings, Buckets, ChargeReadings, Commit, Correction, CorrectionOutcome,
    Entries, Entry, ListedRecord, LoadedRecords, REGISTRY_ENTRIES_MAX, Record, RecordPage, Records,
    Registries, Registry, ResetDone, StoreError, StoreStats, Take, TakenCharge, Vitals, in_rounds,
};
use counters::Memory;

/// The reference store. It forgets nothing but what has expired, and only its users bound its
/// size: not for production.
pub struct ModelStore<C> {
    clock: C,
    inner: Mutex<Inner>,
}

/// The buckets and records of a [`ModelStore`], to be restored later: two that are equal answer
/// alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelSnapshot {
    buckets: BTreeMap<Digest, Memory>,
    records: BTreeMap<RecordKey, (Record, Micros)>,
}

#[derive(Default)]
struct Inner {
    buckets: BTreeMap<Digest, Memory>,
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

    /// The present buckets and records.
    pub fn snapshot(&self) -> ModelSnapshot {
        let inner = self.inner.lock();
        ModelSnapshot {
            buckets: inner.buckets.clone(),
            records: inner.records.clone(),
        }
    }

    /// Replaces buckets and records by those of a snapshot.
    pub fn restore(&self, snapshot: &ModelSnapshot) {
        let mut inner = self.inner.lock();
        inner.buckets.clone_from(&snapshot.buckets);
        inner.records.clone_from(&snapshot.records);
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

/// Cost of a charge together with earlier charges on the same bucket: a bucket that a plan has
/// twice is judged on both.
fn cost_with_earlier(charges: &[Charge<'_>], at: usize) -> u64 {
    let same = charges[..=at].iter().filter(|c| c.id == charges[at].id);
    same.fold(0, |sum, charge| COUNT_MAX.min(charge.cost + sum))
}

/// Amount that must be left of a bucket that is to take `cost`: one, if it may be overdrawn
/// (B-OVERDRAFT).
fn needed(charge: &Charge<'_>, cost: u64) -> u64 {
    match charge.on_exceed {
        OnExceed::Overdraft => 1,
        _ => cost,
    }
}

impl Inner {
    fn memory(&self, id: Digest) -> Memory {
        self.buckets.get(&id).cloned().unwrap_or_default()
    }

    /// L-ATOMIC: judges every bucket as it was found, then takes from all or from none.
    fn charge(&mut self, charges: &[Charge<'_>], take: Take, now: Micros) -> ChargeReadings {
        let costs: Vec<u64> = (0..charges.len())
            .map(|at| cost_with_earlier(charges, at))
            .collect();
        let mut memories: Vec<Memory> = charges.iter().map(|c| self.memory(c.id)).collect();
        let wait = |at: usize| {
            let needed = needed(&charges[at], costs[at]);
            counters::wait(&memories[at], charges[at].spec, now, needed)
        };
        let waits: Vec<Option<Micros>> = (0..charges.len()).map(wait).collect();
        let denies = |(charge, wait): (&Charge<'_>, &Option<Micros>)| {
            let is_strict = matches!(charge.on_exceed, OnExceed::Deny | OnExceed::Overdraft);
            wait.is_some() && is_strict
        };
        let admitted = !charges.iter().zip(&waits).any(denies);
        let mut readings = BucketReadings::new();
        for (at, charge) in charges.iter().enumerate() {
            let counts = waits[at].is_none() || charge.on_exceed == OnExceed::Count;
            if admitted && take == Take::Consume && counts {
                let taken = (charge.from, costs[at]);
                counters::take(&mut memories[at], charge.spec, now, taken);
                self.buckets.insert(charge.id, memories[at].clone());
            }
            readings.push(Reading {
                retry_at: waits[at],
                ..counters::read(&memories[at], charge.spec, now, costs[at])
            });
        }
        ChargeReadings {
            now,
            admitted,
            readings,
            rebuilt: 0,
            instants: Vec::new(),
        }
    }

    fn give_back(&mut self, taken: &[TakenCharge<'_>], now: Micros) -> ChargeReadings {
        let charges = taken.iter().map(|taken| &taken.charge);
        self.change(charges, now, |position, charge, memory| {
            let instants = (taken[position].at, now);
            counters::give_back_taken(memory, charge.spec, instants, charge.cost);
        })
    }

    /// Changes one bucket after the other; none is removed.
    fn change<'c, 'p: 'c>(
        &mut self,
        charges: impl Iterator<Item = &'c Charge<'p>>,
        now: Micros,
        mut change: impl FnMut(usize, &Charge<'_>, &mut Memory),
    ) -> ChargeReadings {
        let mut readings = BucketReadings::new();
        for (at, charge) in charges.enumerate() {
            let memory = self.buckets.entry(charge.id).or_default();
            change(at, charge, memory);
            let needed = needed(charge, charge.cost);
            readings.push(counters::read(memory, charge.spec, now, needed));
        }
        ChargeReadings {
            now,
            admitted: true,
            readings,
            rebuilt: 0,
            instants: Vec::new(),
        }
    }
}

impl<C: Clock> Buckets for ModelStore<C> {
    fn charge<'a>(&'a self, charges: &'a [Charge<'a>], take: Take) -> Answer<'a, ChargeReadings> {
        Answer::later(async move {
            let now = self.clock.now();
            let mut inner = self.inner.lock();
            let charged = inner.charge(charges, take, now);
            let stuck = stuck(charges, &charged);
            if stuck.is_empty() {
                return Ok(charged);
            }
            inner.change(stuck.iter(), now, |_, charge, memory| {
                counters::pull_to_now(memory, charge.spec, now);
            });
            Ok(inner.charge(charges, take, now))
        })
    }

    fn charge_each<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        take: Take,
    ) -> Answer<'a, Vec<ChargeReadings>> {
        in_rounds(self, charges, take)
    }

    fn give_back<'a>(&'a self, taken: &'a [TakenCharge<'a>]) -> Answer<'a, ChargeReadings> {
        Answer::later(async move {
            let now = self.clock.now();
            Ok(self.inner.lock().give_back(taken, now))
        })
    }

    fn refund<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ChargeReadings> {
        Answer::later(async move {
            let now = self.clock.now();
            let give_back = |_, charge: &Charge<'_>, memory: &mut Memory| {
                counters::give_back(memory, charge.spec, now, charge.cost);
            };
            Ok(self.inner.lock().change(charges.iter(), now, give_back))
        })
    }

    fn correct<'a>(&'a self, correction: &'a Correction<'a>) -> Answer<'a, CorrectionOutcome> {
        Answer::later(async move {
            let now = self.clock.now();
            let mut inner = self.inner.lock();
            let mark = &correction.mark;
            let found = live(&inner.records, &mark.key, now);
            if mark.is(found) {
                let looked = inner.charge(&correction.charges(), Take::Peek, now);
                return Ok(CorrectionOutcome::Repeated(looked));
            }
            let has_expired = mark.expires_at <= now;
            if has_expired || found.map_or(0, |record| record.revision) != mark.expect {
                return Ok(CorrectionOutcome::Conflict);
            }
            let record = Record {
                bytes: mark.bytes.clone(),
                revision: mark.expect + 1,
            };
            inner.records.insert(mark.key, (record, mark.expires_at));
            let mut made = inner.charge(&correction.more, Take::Consume, now);
            let back = inner.give_back(&correction.back, now);
            made.readings.extend(back.readings);
            Ok(CorrectionOutcome::Made(made))
        })
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ResetDone> {
        Answer::later(async move {
            let mut inner = self.inner.lock();
            for charge in charges {
                inner.buckets.remove(&charge.id);
            }
            Ok(ResetDone {
                done: vec![true; charges.len()],
            })
        })
    }
}

impl<C: Clock> Records for ModelStore<C> {
    fn load<'a>(&'a self, keys: &'a [RecordKey]) -> Answer<'a, LoadedRecords> {
        Answer::later(async move {
            let now = self.clock.now();
            let inner = self.inner.lock();
            let records = keys
                .iter()
                .map(|key| live(&inner.records, key, now).cloned())
                .collect();
            Ok(LoadedRecords { now, records })
        })
    }

    fn commit<'a>(&'a self, writes: &'a [RecordWrite]) -> Answer<'a, Commit> {
        Answer::later(async move {
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
        })
    }

    fn set_aside(&self, key: RecordKey) -> Answer<'_, ()> {
        Answer::later(async move {
            let until = self.clock.now().plus(DAY);
            let mut inner = self.inner.lock();
            if let Some((record, _)) = inner.records.remove(&key) {
                inner.aside.insert(key, (record, until));
            }
            Ok(())
        })
    }

    fn scan<'a>(
        &'a self,
        kind: RecordKind,
        cursor: Option<&'a str>,
        count_max: usize,
    ) -> Answer<'a, RecordPage> {
        Answer::later(async move {
            let now = self.clock.now();
            let after = cursor.and_then(Digest::from_hex);
            let inner = self.inner.lock();
            let mut found = inner
                .records
                .iter()
                .filter(|(key, (_, until))| {
                    key.kind == kind && *until > now && after.is_none_or(|after| key.digest > after)
                })
                .map(|(key, (record, until))| ListedRecord {
                    key: *key,
                    record: record.clone(),
                    expires_at: *until,
                });
            let records: Vec<_> = found.by_ref().take(count_max).collect();
            let next = found
                .next()
                .and_then(|_| records.last().map(|last| last.key.digest.hex()));
            Ok(RecordPage { records, next })
        })
    }
}

impl<C: Clock> Registries for ModelStore<C> {
    fn put_entry(&self, registry: Registry, entry: Entry) -> Answer<'_, ()> {
        Answer::later(async move {
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
        })
    }

    fn remove_entry<'a>(&'a self, registry: Registry, id: &'a str) -> Answer<'a, bool> {
        Answer::later(async move {
            let now = self.clock.now();
            let mut inner = self.inner.lock();
            let (version, entries) = inner.registries.entry(registry).or_default();
            let removed = entries.remove(id);
            *version += u64::from(removed.is_some());
            Ok(removed.is_some_and(|entry| is_live(&entry, now)))
        })
    }

    fn entries(&self, registry: Registry, seen: Option<u64>) -> Answer<'_, Option<Entries>> {
        Answer::later(async move {
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
        })
    }
}

impl<C: Clock> Vitals for ModelStore<C> {
    fn probe(&self) -> Answer<'_, Micros> {
        Answer::later(async move { Ok(self.clock.now()) })
    }

    fn connect(&self) -> Answer<'_, ()> {
        Answer::later(async { Ok(()) })
    }

    fn flush(&self) -> Answer<'_, ()> {
        Answer::later(async { Ok(()) })
    }

    fn is_shared(&self) -> bool {
        false
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
