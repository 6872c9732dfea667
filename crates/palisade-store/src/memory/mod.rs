//! The embedded store.
//!
//! Buckets live in a table of atomic slots: a decision on one token bucket is one
//! compare-and-swap, a decision on several locks the segments that they are in, and there is no
//! global lock. Ids are keyed digests, so clients cannot choose where they fall.
//!
//! [`MemoryStore::new`] keeps nothing beyond the process. [`MemoryStore::open`] keeps everything
//! in a directory: a graceful shutdown loses nothing, a crash only windows under ten minutes
//! (L-DURABLE).

pub mod backup;
mod charge;
mod durable;
mod evaluate;
mod gcra;
mod journal;
mod limiter;
mod overflow;
mod records;
mod registry;
mod segment;
mod slot;
mod sweep;
mod table;
mod word;

use std::sync::Arc;
use std::time::Duration;

use palisade_core::Digest;
use palisade_core::key::Keyring;
use palisade_core::limit::{BucketSpec, State};
use palisade_core::plan::Charge;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{Clock, Micros};

use crate::step_back::{StepBackNotice, stuck};
use crate::{
    Answer, Buckets, ChargeReadings, Commit, Correction, CorrectionOutcome, Entries, Entry,
    LoadedRecords, Record, RecordPage, Registry, ResetDone, StoreError, StoreStats, Take,
    TakenCharge, Vitals,
};
use journal::Writer;
pub use journal::{JournalConfig, JournalStats, OpenError, RecoveryReport};
pub use limiter::{Limiter, TimedReading, Verdict};
use records::MarkOutcome;
use sweep::Sweeper;
use table::Table;

/// Settings of the embedded store.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Most buckets held. Default 10,000,000.
    pub keys_max: u64,
    /// Most records held of each kind. Default 2,000,000.
    pub records_max: u64,
    /// Time between searches for expired entries, each of which covers a part of the table.
    /// Default 1 s.
    pub sweep_every: Duration,
    /// Settings of the journal; without a directory nothing is written.
    pub journal: JournalConfig,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            keys_max: 10_000_000,
            records_max: 2_000_000,
            sweep_every: Duration::from_secs(1),
            journal: JournalConfig::default(),
        }
    }
}

/// Whether quotas, records and registries outlive the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lifetime {
    /// Until the process ends.
    Process,
    /// As long as the directory that keeps them.
    Durable,
}

/// The embedded store.
pub struct MemoryStore<C> {
    inner: Arc<Inner<C>>,
    writer: Option<Writer>,
    _sweeper: Sweeper,
}

/// State that the store shares with its background threads.
struct Inner<C> {
    clock: C,
    table: Table,
    records: records::Records,
    registries: registry::Registries,
    lifetime: Lifetime,
    step_back: StepBackNotice,
}

impl<C: Clock> MemoryStore<C> {
    /// A store that keeps nothing beyond the process.
    #[must_use]
    pub fn new(clock: C, config: &MemoryConfig) -> Self {
        let inner = Inner::new(clock, config, Lifetime::Process);
        Self::start(Arc::new(inner), None, config)
    }

    fn start(inner: Arc<Inner<C>>, writer: Option<Writer>, config: &MemoryConfig) -> Self {
        // Weak, so that the thread of the sweeper does not keep a dropped store alive.
        let weak = Arc::downgrade(&inner);
        let sweeper = Sweeper::start(config.sweep_every, move || {
            weak.upgrade()
                .map(|inner| inner.sweep(SWEEP_SEGMENTS))
                .is_some()
        });
        Self {
            inner,
            writer,
            _sweeper: sweeper,
        }
    }

    /// A short way to decide on one limit by one identifier. Its buckets are its own:
    /// [`MemoryStore::charge_now`] does not charge them, and limiters of the same `limit` share
    /// them.
    #[must_use]
    pub fn limiter(&self, keyring: &Keyring, limit: &str, spec: BucketSpec) -> Limiter<C> {
        let limit = keyring.named(limit);
        Limiter::new(Arc::clone(&self.inner), limit, keyring.namer(limit), spec)
    }

    /// Like [`Buckets::give_back`], without an [`Answer`], because this store never waits.
    pub fn give_back_now(&self, taken: &[TakenCharge<'_>]) -> ChargeReadings {
        let charges: Vec<Charge<'_>> = taken.iter().map(|taken| taken.charge.clone()).collect();
        self.change(&charges, |position, charge, state, now| {
            let at = taken[position].at;
            charge.spec.give_back_taken(state, at, now, charge.cost);
        })
    }

    /// Like [`Buckets::correct`], without an [`Answer`], because this store never waits.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`] if there is no room for the mark.
    pub fn correct_now(
        &self,
        correction: &Correction<'_>,
    ) -> Result<CorrectionOutcome, StoreError> {
        let Correction { mark, more, back } = correction;
        let now = self.inner.clock.now();
        let change = || {
            let mut made = self.charge_once(more, Take::Consume);
            made.readings.extend(self.give_back_now(back).readings);
            made
        };
        let marked = self.inner.records.mark(mark, now, change)?;
        Ok(match marked {
            MarkOutcome::Made(readings) => {
                self.note_change();
                CorrectionOutcome::Made(readings)
            }
            MarkOutcome::Before => {
                let looked = self.charge_once(&correction.charges(), Take::Peek);
                CorrectionOutcome::Repeated(looked)
            }
            MarkOutcome::Conflict => CorrectionOutcome::Conflict,
        })
    }

    /// Like [`Buckets::charge`], without an [`Answer`], because this store never waits.
    pub fn charge_now(&self, charges: &[Charge<'_>], take: Take) -> ChargeReadings {
        let charged = self.charge_once(charges, take);
        let stuck = stuck(charges, &charged);
        if stuck.is_empty() {
            return charged;
        }
        // F-CLOCK: these buckets refuse only because the clock stepped back.
        self.inner.step_back.say(charged.now);
        self.change(&stuck, |_, charge, state, now| {
            charge.spec.pull_to_now(state, now);
        });
        self.charge_once(charges, take)
    }

    fn charge_once(&self, charges: &[Charge<'_>], take: Take) -> ChargeReadings {
        let inner = &*self.inner;
        let now = inner.clock.now();
        let (admitted, readings) = inner.table.charge(charges, take, now, inner.lifetime);
        if take == Take::Consume {
            self.note_charges(charges);
        }
        ChargeReadings {
            now,
            admitted,
            readings,
            rebuilt: 0,
            instants: Vec::new(),
        }
    }

    /// Changes the buckets that are known.
    fn change(
        &self,
        charges: &[Charge<'_>],
        mut change: impl FnMut(usize, &Charge<'_>, &mut State, Micros),
    ) -> ChargeReadings {
        let inner = &*self.inner;
        let now = inner.clock.now();
        let changed = |position: usize, charge: &Charge<'_>, state: &mut State| {
            change(position, charge, state, now);
            charge.spec.read(state, now, charge.required())
        };
        let readings = inner.table.change(charges, inner.lifetime, changed);
        self.note_charges(charges);
        ChargeReadings {
            now,
            admitted: true,
            readings,
            rebuilt: 0,
            instants: Vec::new(),
        }
    }

    /// Removes expired entries from the next `segments` parts of the table and from all records.
    /// The store does this by itself, see [`MemoryConfig::sweep_every`].
    pub fn sweep(&self, segments: u32) {
        self.inner.sweep(segments);
    }

    fn note_change(&self) {
        if let Some(writer) = &self.writer {
            writer.note_change();
        }
    }

    fn note_charges(&self, charges: &[Charge<'_>]) {
        if self.writer.is_some() && charges.iter().any(Charge::is_durable) {
            self.note_change();
        }
    }

    /// Whether durable entries reach the disk. While they do not, decisions go on and writing is
    /// retried.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`] with the reason.
    pub fn health(&self) -> Result<(), StoreError> {
        self.writer.as_ref().map_or(Ok(()), Writer::health)
    }

    /// Statistics of the journal; all zero without one.
    pub fn journal_stats(&self) -> JournalStats {
        self.writer.as_ref().map(Writer::stats).unwrap_or_default()
    }

    /// Records that were set aside within the last day.
    pub fn set_aside_records(&self) -> Vec<(RecordKey, Record)> {
        self.inner.records.aside(self.inner.clock.now())
    }
}

/// Segments that one turn of the background sweep covers: within a minute it gets through ten
/// million keys.
const SWEEP_SEGMENTS: u32 = 512;

impl<C: Clock> Inner<C> {
    fn new(clock: C, config: &MemoryConfig, lifetime: Lifetime) -> Self {
        let now = clock.now();
        Self {
            clock,
            table: Table::new(now, config.keys_max),
            records: records::Records::new(config.records_max, lifetime),
            registries: registry::Registries::new(lifetime),
            lifetime,
            step_back: StepBackNotice::default(),
        }
    }

    fn sweep(&self, segments: u32) {
        let now = self.clock.now();
        self.table.sweep_some(segments, now);
        self.records.sweep(now);
        self.registries.sweep(now);
    }
}

impl<C: Clock> Buckets for MemoryStore<C> {
    fn charge<'a>(&'a self, charges: &'a [Charge<'a>], take: Take) -> Answer<'a, ChargeReadings> {
        Answer::ready(self.charge_now(charges, take))
    }

    fn charge_each<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        take: Take,
    ) -> Answer<'a, Vec<ChargeReadings>> {
        let one = |charge| self.charge_now(std::slice::from_ref(charge), take);
        Answer::ready(charges.iter().map(one).collect())
    }

    fn give_back<'a>(&'a self, taken: &'a [TakenCharge<'a>]) -> Answer<'a, ChargeReadings> {
        Answer::ready(self.give_back_now(taken))
    }

    fn refund<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ChargeReadings> {
        Answer::ready(self.change(charges, |_, charge, state, now| {
            charge.spec.give_back(state, now, charge.cost);
        }))
    }

    fn correct<'a>(&'a self, correction: &'a Correction<'a>) -> Answer<'a, CorrectionOutcome> {
        Answer::Ready(self.correct_now(correction))
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, ResetDone> {
        self.change(charges, |_, _, state, _| *state = State::Empty);
        Answer::ready(ResetDone {
            done: vec![true; charges.len()],
        })
    }
}

impl<C: Clock> crate::Records for MemoryStore<C> {
    fn load<'a>(&'a self, keys: &'a [RecordKey]) -> Answer<'a, LoadedRecords> {
        let now = self.inner.clock.now();
        let records = self.inner.records.load(keys, now);
        Answer::ready(LoadedRecords { now, records })
    }

    fn commit<'a>(&'a self, writes: &'a [RecordWrite]) -> Answer<'a, Commit> {
        let commit = self.inner.records.commit(writes, self.inner.clock.now());
        if commit.is_ok() {
            self.note_change();
        }
        Answer::Ready(commit)
    }

    fn set_aside(&self, key: RecordKey) -> Answer<'_, ()> {
        self.inner.records.set_aside(key, self.inner.clock.now());
        self.note_change();
        Answer::ready(())
    }

    fn scan<'a>(
        &'a self,
        kind: RecordKind,
        cursor: Option<&'a str>,
        count_max: usize,
    ) -> Answer<'a, RecordPage> {
        let after = cursor.and_then(Digest::from_hex);
        let now = self.inner.clock.now();
        Answer::ready(self.inner.records.scan(kind, after, count_max, now))
    }
}

impl<C: Clock> crate::Registries for MemoryStore<C> {
    fn put_entry(&self, registry: Registry, entry: Entry) -> Answer<'_, ()> {
        let now = self.inner.clock.now();
        let put = self.inner.registries.put(registry, entry, now);
        if put.is_ok() {
            self.note_change();
        }
        Answer::Ready(put)
    }

    fn remove_entry<'a>(&'a self, registry: Registry, id: &'a str) -> Answer<'a, bool> {
        let now = self.inner.clock.now();
        let removed = self.inner.registries.remove(registry, id, now);
        self.note_change();
        Answer::ready(removed)
    }

    fn entries(&self, registry: Registry, seen: Option<u64>) -> Answer<'_, Option<Entries>> {
        let now = self.inner.clock.now();
        Answer::ready(self.inner.registries.list(registry, seen, now))
    }
}

impl<C: Clock> Vitals for MemoryStore<C> {
    fn probe(&self) -> Answer<'_, Micros> {
        Answer::ready(self.inner.clock.now())
    }

    fn connect(&self) -> Answer<'_, ()> {
        Answer::ready(())
    }

    fn flush(&self) -> Answer<'_, ()> {
        match &self.writer {
            Some(writer) => Answer::later(writer.flush()),
            None => Answer::ready(()),
        }
    }

    fn stats(&self) -> StoreStats {
        let Inner { table, records, .. } = &*self.inner;
        StoreStats {
            tracked_keys: table.tracked() + records.len(),
            evictions: table.evictions() + records.evictions(),
            expired: table.expired() + records.expired(),
            overflowed: table.overflow.counted(),
            queue_depth: 0,
            used_percent: table.used_percent().max(records.used_percent()),
            is_unsaved: self.health().is_err(),
            risks: None,
        }
    }

    fn is_shared(&self) -> bool {
        false
    }
}
