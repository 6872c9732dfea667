//! The embedded store with a directory: what is written, and how it is restored.

use std::path::Path;
use std::sync::Arc;

use palisade_core::limit::State;
use palisade_core::time::Clock;

use super::journal::codec::{self, Batch, Change, Name};
use super::journal::disk::{Directory, Disk};
use super::journal::files::{self, Files, Source};
use super::journal::{Durable, OpenError, RecoveryReport, Writer};
use super::segment::{Durability, StoredState, Which};
use super::{Inner, Lifetime, MemoryConfig, MemoryStore};

impl<C: Clock> MemoryStore<C> {
    /// A store that keeps its content in `directory`, which it creates if need be and holds alone
    /// (L-DURABLE). A graceful shutdown, by [`Vitals::flush`](crate::Vitals::flush) or by dropping
    /// the store, loses nothing. After a crash the store recovers by itself: quotas, windows of
    /// ten minutes and longer, records and registries are restored except for at most the last 100
    /// ms, shorter windows start empty, and incomplete writes are cut off and reported.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        directory: &Path,
        clock: C,
        config: &MemoryConfig,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        Self::open_on(Arc::new(Directory::open(directory)?), clock, config)
    }

    /// A store in memory with the present content of a directory. Another process may hold the
    /// directory and go on. Nothing is written, neither there nor later.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn look(
        directory: &Path,
        clock: C,
        config: &MemoryConfig,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        let inner = Arc::new(Inner::new(clock, config, Lifetime::Process));
        let mut report = RecoveryReport::default();
        for part in files::opened(&Directory::look(directory))? {
            let through = codec::read(part.file, |change| {
                report.changes += 1;
                inner.restore(change, part.source);
            })?;
            if through.is_newer {
                return Err(OpenError::Newer);
            }
            report.torn_bytes += through.torn;
            report.skipped_frames += through.skipped;
        }
        report.buckets = inner.table.tracked();
        report.records = inner.records.len();
        report.entries = inner.registries.len();
        Ok((Self::start(inner, None, config), report))
    }

    pub(crate) fn open_on(
        disk: Arc<dyn Disk>,
        clock: C,
        config: &MemoryConfig,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        let inner = Arc::new(Inner::new(clock, config, Lifetime::Durable));
        let compact_bytes = config.journal.compact_bytes;
        let (files, read) = Files::open(disk, compact_bytes, |change, source| {
            inner.restore(change, source);
        })?;
        let report = RecoveryReport {
            buckets: inner.table.tracked(),
            records: inner.records.len(),
            entries: inner.registries.len(),
            ..read
        };
        if report.is_damaged() {
            tracing::warn!("the journal is damaged: {report}");
        }
        let source: Arc<dyn Durable> = Arc::clone(&inner) as _;
        let writer = Writer::start(source, files, &config.journal)?;
        Ok((Self::start(inner, Some(writer), config), report))
    }
}

impl<C: Clock> Inner<C> {
    fn restore(&self, change: Change, source: Source) {
        let now = self.clock.now();
        let durability = match source {
            Source::Journal => Durability::Saved,
            // The journal does not keep these short windows: only a graceful shutdown writes them.
            Source::Burst => Durability::Volatile,
        };
        match change {
            Change::Bucket(id, held) => self.table.restore(id, held, durability, now),
            Change::Record(key, held) => self.records.restore(key, held, now),
            Change::Entry(registry, id, held) => self.registries.restore(registry, id, held, now),
        }
    }
}

/// Returns the state to write; `None` for an empty bucket, which a restart need not restore.
fn present(kept: &StoredState) -> Option<(&State, palisade_core::time::Micros)> {
    (kept.state != State::Empty).then_some((&kept.state, kept.expires_at))
}

impl<C: Clock> Durable for Inner<C> {
    fn collect_changed(&self, batch: &mut Batch) {
        // A correction of buckets is in the batch with its mark, or not at all (B-ONCE). Marks
        // come first: if a crash cuts a long batch short, too much is counted and not too little.
        let cut = self.records.cut();
        self.records
            .collect_dirty(&cut, |key, stored| batch.record(key, stored));
        for segment in self.table.all_segments() {
            segment.collect_durable(Which::Dirty, |kept| batch.bucket(kept.id, present(kept)));
        }
        drop(cut);
        self.registries
            .collect_dirty(|registry, id, entry| batch.entry(registry, id, entry));
    }

    /// Registries come first, then the shards of the records, then the segments of the table:
    /// segments may be added meanwhile, so they come last.
    fn collect_part(&self, part: usize, batch: &mut Batch) -> bool {
        let now = self.clock.now();
        let Some(part) = part.checked_sub(1) else {
            self.registries
                .collect_all(|registry, entry| batch.entry(registry, &entry.id, Some(entry)));
            return true;
        };
        let shards = self.records.shard_count();
        if part < shards {
            self.records.collect_shard(part, |stored| {
                if stored.expires_at > now {
                    batch.record(stored.key, Some(stored));
                }
            });
            return true;
        }
        let number = u32::try_from(part - shards).unwrap_or(u32::MAX);
        if number >= self.table.allocated() {
            return false;
        }
        if let Some(segment) = self.table.segment(number) {
            segment.collect_durable(Which::All, |kept| {
                if kept.expires_at > now {
                    batch.bucket(kept.id, present(kept));
                }
            });
        }
        true
    }

    fn collect_burst(&self, part: usize, batch: &mut Batch) -> bool {
        let number = u32::try_from(part).unwrap_or(u32::MAX);
        if number >= self.table.allocated() {
            return false;
        }
        let now = self.clock.now();
        if let Some(segment) = self.table.segment(number) {
            segment.collect_volatile(now, |id, state, expires_at| {
                batch.bucket(id, Some((state, expires_at)));
            });
        }
        true
    }

    fn mark_changed(&self, names: Vec<Name>) {
        for name in names {
            match name {
                Name::Bucket(id) => self.table.mark_dirty(id),
                Name::Record(key) => self.records.mark_dirty(key),
                Name::Entry(registry, id) => self.registries.mark_dirty(registry, id),
            }
        }
    }
}
