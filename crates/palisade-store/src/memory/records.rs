//! Records by compare-and-swap. Each shard holds a range of digests, so that a listing goes
//! through the shards in order; a call on several records locks their shards in order.
//!
//! At most `records_max` records of a kind are held. Beyond that a new record takes
//! the place of expired ones, then of those that expire soonest, never of one with a
//! running block. If all have one, the store is full and says so (F-STORE-FULL).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use palisade_core::Digest;
use palisade_core::guard::{Account, Device, Network};
use palisade_core::lockout::{Lockout, LockoutPolicy};
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{DAY, Micros};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};

use super::Lifetime;
use crate::{Commit, ListedRecord, Mark, Record, RecordPage, StoreError};

const SHARDS_MAX: u64 = 256;
/// Most records that are set aside at a time.
const ASIDE_MAX: usize = 1024;

/// A record as the store holds it.
#[derive(Clone, Debug)]
pub(crate) struct StoredRecord {
    pub(crate) key: RecordKey,
    pub(crate) record: Record,
    pub(crate) expires_at: Micros,
}

impl StoredRecord {
    /// True if the record holds a running block. An unreadable one may hold a block: a newer
    /// version wrote it, or it is about to be set aside.
    fn has_block(&self, now: Micros) -> bool {
        let bytes = &self.record.bytes;
        let has_block = match self.key.kind {
            RecordKind::Account(_) => {
                Account::decode(bytes).map(|record| !record.active_blocks(now).is_empty())
            }
            RecordKind::Network(_) => {
                Network::decode(bytes).map(|record| !record.active_blocks(now).is_empty())
            }
            RecordKind::Device(_) => {
                Device::decode(bytes).map(|record| !record.active_blocks(now).is_empty())
            }
            RecordKind::Lockout => Lockout::decode(bytes)
                .map(|record| record.is_denying(&LockoutPolicy::default(), now)),
            // Stays for as long as it lives: without this record, the reservation could be settled
            // again.
            RecordKind::Reservation => return true,
            RecordKind::SendAccount
            | RecordKind::SendNetwork
            | RecordKind::SendDestination
            | RecordKind::SendRange => return false,
        };
        has_block.unwrap_or(true)
    }
}

#[derive(Default)]
struct Shard {
    records: HashTable<StoredRecord>,
    counts: [usize; RecordKind::COUNT],
    next_expiry: Micros,
    dirty: BTreeSet<RecordKey>,
}

/// Outcome of writing a mark.
pub(crate) enum MarkOutcome<T> {
    /// The mark was written, and the change was made.
    Made(T),
    /// This very mark was there before.
    Before,
    /// The record has changed in another way.
    Conflict,
}

/// The records.
pub(crate) struct Records {
    shards: Box<[Mutex<Shard>]>,
    bits: u32,
    /// Most records of one kind in one shard.
    count_max: usize,
    lifetime: Lifetime,
    /// A commit, and a change of buckets with its mark, holds this for reading, and the collection
    /// of what is dirty for writing: that way each reaches the log whole.
    cut: RwLock<()>,
    aside: Mutex<BTreeMap<RecordKey, (Record, Micros)>>,
    evictions: AtomicU64,
    expired: AtomicU64,
}

/// Hash of a key. Digests are keyed, so their bits are hash enough.
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn hash(key: &RecordKey) -> u64 {
    key.digest.0 as u64 ^ u64::from(key.kind.code()).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Records {
    pub(crate) fn new(records_max: u64, lifetime: Lifetime) -> Self {
        let shards = (records_max / 256).clamp(1, SHARDS_MAX).next_power_of_two();
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            bits: shards.trailing_zeros(),
            count_max: usize::try_from(records_max.div_ceil(shards).max(1)).unwrap_or(usize::MAX),
            lifetime,
            cut: RwLock::default(),
            aside: Mutex::default(),
            evictions: AtomicU64::new(0),
            expired: AtomicU64::new(0),
        }
    }

    fn shard_of(&self, digest: Digest) -> usize {
        // With a single shard the shift would be by all 128 bits, which is not a shift.
        let shard = digest.0.checked_shr(128 - self.bits).unwrap_or(0);
        usize::try_from(shard).unwrap_or(0)
    }

    pub(crate) fn load(&self, keys: &[RecordKey], now: Micros) -> Vec<Option<Record>> {
        let locked = self.lock(keys.iter().map(|key| key.digest));
        keys.iter()
            .map(|key| {
                locked
                    .shard(self.shard_of(key.digest))?
                    .live(key, now)
                    .cloned()
            })
            .collect()
    }

    /// Writes all or nothing.
    pub(crate) fn commit(&self, writes: &[RecordWrite], now: Micros) -> Result<Commit, StoreError> {
        let _whole = self.cut.read();
        let mut locked = self.lock(writes.iter().map(|write| write.key.digest));
        for write in writes {
            let revision = locked
                .shard(self.shard_of(write.key.digest))
                .and_then(|shard| shard.live(&write.key, now))
                .map_or(0, |record| record.revision);
            // All are compared before any is written.
            if revision != write.expect {
                return Ok(Commit::Conflict);
            }
        }
        self.write(&mut locked, writes, now)?;
        Ok(Commit::Done)
    }

    /// Writes a mark and makes the change that it stands for, in one step: nobody sees the record
    /// without the change, and the log gets both or neither.
    pub(crate) fn mark<T>(
        &self,
        mark: &Mark,
        now: Micros,
        change: impl FnOnce() -> T,
    ) -> Result<MarkOutcome<T>, StoreError> {
        let _whole = self.cut.read();
        let mut locked = self.lock(std::iter::once(mark.key.digest));
        let shard = locked.shard(self.shard_of(mark.key.digest));
        let found = shard.and_then(|shard| shard.live(&mark.key, now));
        if mark.is(found) {
            return Ok(MarkOutcome::Before);
        }
        let has_expired = mark.expires_at <= now;
        if has_expired || found.map_or(0, |record| record.revision) != mark.expect {
            return Ok(MarkOutcome::Conflict);
        }
        self.write(&mut locked, &[mark.write()], now)?;
        Ok(MarkOutcome::Made(change()))
    }

    /// Keeps commits, and changes of buckets with a mark, from beginning until the guard is
    /// dropped; waits for those that have begun.
    pub(crate) fn cut(&self) -> RwLockWriteGuard<'_, ()> {
        self.cut.write()
    }

    fn write(
        &self,
        locked: &mut LockedShards<'_>,
        writes: &[RecordWrite],
        now: Micros,
    ) -> Result<(), StoreError> {
        for shard in locked
            .0
            .iter_mut()
            .map(|(number, shard)| (*number, &mut **shard))
        {
            self.make_room(shard, writes, now)?;
        }
        for write in writes {
            let Some(shard) = locked.shard_mut(self.shard_of(write.key.digest)) else {
                continue;
            };
            self.note_change(shard, write.key);
            match &write.bytes {
                None => {
                    shard.remove(&write.key);
                }
                Some(bytes) => {
                    let record = Record {
                        bytes: bytes.clone(),
                        revision: write.expect + 1,
                    };
                    shard.put(StoredRecord {
                        key: write.key,
                        record,
                        expires_at: write.expires_at,
                    });
                }
            }
        }
        Ok(())
    }

    /// Makes room in a shard for the records that `writes` create. It comes before anything is
    /// written, so that a commit stays whole.
    fn make_room(
        &self,
        (number, shard): (usize, &mut Shard),
        writes: &[RecordWrite],
        now: Micros,
    ) -> Result<(), StoreError> {
        for kind in RecordKind::ALL.into_iter().chain(RecordKind::OTHERS) {
            let is_new = |write: &&RecordWrite| {
                write.key.kind == kind
                    && write.bytes.is_some()
                    && self.shard_of(write.key.digest) == number
                    && shard.find(&write.key).is_none()
            };
            let count = writes.iter().filter(is_new).count();
            let is_written = |key: &RecordKey| writes.iter().any(|write| write.key == *key);
            if count > 0 && !self.has_room(shard, kind, count, now, is_written) {
                return Err(StoreError::Exhausted(format!(
                    "every `{}` record it may hold has a running block; raise `records_max`",
                    kind.name()
                )));
            }
        }
        Ok(())
    }

    /// Makes room for `count` records of `kind`, sparing those that are `needed`.
    fn has_room(
        &self,
        shard: &mut Shard,
        kind: RecordKind,
        count: usize,
        now: Micros,
        needed: impl Fn(&RecordKey) -> bool,
    ) -> bool {
        let is_full = |shard: &Shard| shard.counts[kind.index()] + count > self.count_max;
        if is_full(shard) {
            let dropped = shard.drop_expired(now);
            self.expired.fetch_add(dropped, Ordering::Relaxed);
        }
        if is_full(shard) {
            let evicted = shard.evict(kind, count, now, needed);
            self.evictions
                .fetch_add(evicted.len() as u64, Ordering::Relaxed);
            for gone in evicted {
                self.note_change(shard, gone);
            }
        }
        !is_full(shard)
    }

    /// Restores a record from the log, or removes it.
    pub(crate) fn restore(&self, key: RecordKey, stored: Option<StoredRecord>, now: Micros) {
        let mut shard = self.shards[self.shard_of(key.digest)].lock();
        match stored {
            Some(stored) if stored.expires_at > now => {
                let is_known = shard.find(&key).is_some();
                if is_known || self.has_room(&mut shard, key.kind, 1, now, |_| false) {
                    shard.put(stored);
                } else {
                    self.evictions.fetch_add(1, Ordering::Relaxed);
                }
            }
            _ => {
                shard.remove(&key);
            }
        }
    }

    pub(crate) fn set_aside(&self, key: RecordKey, now: Micros) {
        let _whole = self.cut.read();
        let mut shard = self.shards[self.shard_of(key.digest)].lock();
        let Some(stored) = shard.remove(&key) else {
            return;
        };
        self.note_change(&mut shard, key);
        drop(shard);
        let mut aside = self.aside.lock();
        aside.retain(|_, (_, until)| *until > now);
        if aside.len() < ASIDE_MAX {
            aside.insert(key, (stored.record, now.plus(DAY)));
        }
    }

    /// Records that were set aside and may still be inspected.
    pub(crate) fn aside(&self, now: Micros) -> Vec<(RecordKey, Record)> {
        let aside = self.aside.lock();
        let live = aside.iter().filter(|(_, (_, until))| *until > now);
        live.map(|(key, (record, _))| (*key, record.clone()))
            .collect()
    }

    pub(crate) fn scan(
        &self,
        kind: RecordKind,
        after: Option<Digest>,
        count_max: usize,
        now: Micros,
    ) -> RecordPage {
        let first = after.map_or(0, |digest| self.shard_of(digest));
        let mut page = RecordPage::default();
        for shard in &self.shards[first..] {
            let mut found = shard.lock().list(kind, after, now);
            let room = count_max - page.records.len();
            let has_more = found.len() > room;
            found.truncate(room);
            page.records.extend(found);
            if has_more {
                let last = page.records.last().map(|last| last.key.digest);
                page.next = last.or(after).map(Digest::hex);
                break;
            }
        }
        page
    }

    /// Drops expired records of all shards.
    pub(crate) fn sweep(&self, now: Micros) {
        for shard in &self.shards {
            let dropped = shard.lock().drop_expired(now);
            self.expired.fetch_add(dropped, Ordering::Relaxed);
        }
    }

    pub(crate) fn len(&self) -> u64 {
        let len = |shard: &Mutex<Shard>| shard.lock().records.len() as u64;
        self.shards.iter().map(len).sum()
    }

    /// Fill level of the fullest kind of record, in percent.
    pub(crate) fn used_percent(&self) -> u64 {
        let mut counts = [0; RecordKind::COUNT];
        for shard in &self.shards {
            let held = shard.lock().counts;
            counts
                .iter_mut()
                .zip(held)
                .for_each(|(sum, one)| *sum += one);
        }
        let most = counts.into_iter().max().unwrap_or(0);
        let bound = self.count_max.saturating_mul(self.shards.len()).max(1);
        (most * 100 / bound) as u64
    }

    pub(crate) fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Yields the records that have changed since the last call, each in its present state. A
    /// commit is seen whole or not at all, because the caller holds [`Records::cut`].
    pub(crate) fn collect_dirty(
        &self,
        _whole: &RwLockWriteGuard<'_, ()>,
        mut each: impl FnMut(RecordKey, Option<&StoredRecord>),
    ) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            for key in std::mem::take(&mut shard.dirty) {
                each(key, shard.find(&key));
            }
        }
    }

    pub(crate) fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Every record of one shard.
    pub(crate) fn collect_shard(&self, shard: usize, each: impl FnMut(&StoredRecord)) {
        if let Some(shard) = self.shards.get(shard) {
            shard.lock().records.iter().for_each(each);
        }
    }

    /// Marks a record as dirty again that could not be written.
    pub(crate) fn mark_dirty(&self, key: RecordKey) {
        let shard = &self.shards[self.shard_of(key.digest)];
        shard.lock().dirty.insert(key);
    }

    fn note_change(&self, shard: &mut Shard, key: RecordKey) {
        if self.lifetime == Lifetime::Durable {
            shard.dirty.insert(key);
        }
    }

    fn lock(&self, digests: impl Iterator<Item = Digest>) -> LockedShards<'_> {
        let mut shards: Vec<usize> = digests.map(|digest| self.shard_of(digest)).collect();
        shards.sort_unstable();
        shards.dedup();
        let lock = |shard: usize| (shard, self.shards[shard].lock());
        LockedShards(shards.into_iter().map(lock).collect())
    }
}

/// The shards of one call, locked in their order.
struct LockedShards<'r>(Vec<(usize, MutexGuard<'r, Shard>)>);

impl LockedShards<'_> {
    fn shard(&self, number: usize) -> Option<&Shard> {
        let index = self.0.binary_search_by_key(&number, |(n, _)| *n).ok()?;
        self.0.get(index).map(|(_, shard)| &**shard)
    }

    fn shard_mut(&mut self, number: usize) -> Option<&mut Shard> {
        let index = self.0.binary_search_by_key(&number, |(n, _)| *n).ok()?;
        self.0.get_mut(index).map(|(_, shard)| &mut **shard)
    }
}

impl Shard {
    fn find(&self, key: &RecordKey) -> Option<&StoredRecord> {
        self.records.find(hash(key), |stored| stored.key == *key)
    }

    fn live(&self, key: &RecordKey, now: Micros) -> Option<&Record> {
        let stored = self.find(key)?;
        (stored.expires_at > now).then_some(&stored.record)
    }

    fn put(&mut self, stored: StoredRecord) {
        self.next_expiry = self.next_expiry.min(stored.expires_at);
        let key = stored.key;
        let same = |held: &StoredRecord| held.key == key;
        let rehash = |held: &StoredRecord| hash(&held.key);
        match self.records.entry(hash(&key), same, rehash) {
            Entry::Occupied(mut held) => *held.get_mut() = stored,
            Entry::Vacant(place) => {
                place.insert(stored);
                self.counts[key.kind.index()] += 1;
            }
        }
    }

    fn remove(&mut self, key: &RecordKey) -> Option<StoredRecord> {
        let same = |stored: &StoredRecord| stored.key == *key;
        let (stored, _) = self.records.find_entry(hash(key), same).ok()?.remove();
        self.counts[key.kind.index()] -= 1;
        Some(stored)
    }

    /// Removes expired records; returns their number.
    fn drop_expired(&mut self, now: Micros) -> u64 {
        if self.next_expiry > now {
            return 0;
        }
        let before = self.records.len();
        let mut soonest = Micros(u64::MAX);
        let counts = &mut self.counts;
        self.records.retain(|stored| {
            let is_live = stored.expires_at > now;
            if is_live {
                soonest = soonest.min(stored.expires_at);
            } else {
                counts[stored.key.kind.index()] -= 1;
            }
            is_live
        });
        self.next_expiry = soonest;
        (before - self.records.len()) as u64
    }

    /// Removes records of `kind` without a running block, those that expire soonest first, at
    /// least `count` if there are as many. Returns their keys.
    fn evict(
        &mut self,
        kind: RecordKind,
        count: usize,
        now: Micros,
        needed: impl Fn(&RecordKey) -> bool,
    ) -> Vec<RecordKey> {
        let mut ages: Vec<(Micros, RecordKey)> = self
            .records
            .iter()
            .filter(|stored| stored.key.kind == kind && !needed(&stored.key))
            .map(|stored| (stored.expires_at, stored.key))
            .collect();
        ages.sort_unstable();
        // Several at once, so that a flood pays for the search only now and then.
        let batch = (ages.len() / 16).max(count);
        let has_block = |key: &RecordKey| self.find(key).is_some_and(|held| held.has_block(now));
        let gone: Vec<RecordKey> = ages
            .into_iter()
            .map(|(_, key)| key)
            .filter(|key| !has_block(key))
            .take(batch)
            .collect();
        for key in &gone {
            self.remove(key);
        }
        gone
    }

    fn list(&self, kind: RecordKind, after: Option<Digest>, now: Micros) -> Vec<ListedRecord> {
        let is_asked = |stored: &&StoredRecord| {
            stored.key.kind == kind
                && stored.expires_at > now
                && after.is_none_or(|after| stored.key.digest > after)
        };
        let mut found: Vec<_> = self
            .records
            .iter()
            .filter(is_asked)
            .map(|stored| ListedRecord {
                key: stored.key,
                record: stored.record.clone(),
                expires_at: stored.expires_at,
            })
            .collect();
        found.sort_unstable_by_key(|listed| listed.key);
        found
    }
}
