//! Puts the lines of a state file into a store.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::BufRead;

use palisade_core::key::Keyring;
use palisade_core::limit::COUNT_MAX;
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::{PolicySet, quota_charge};
use palisade_core::record::RecordWrite;
use palisade_core::time::Micros;
use palisade_store::{Commit, Entry, Registry, Store, StoreError, Take};
use serde::Serialize;

use super::Counts;
use super::lines::{Item, Line, QuotaLine, Reader, RecordLine, StateError, VERSION, secrets_of};
use crate::engine::attach_stored;

/// Records per write to the store.
const BATCH: usize = 64;
/// Most attempts to replace a record that changes concurrently.
const TRIES: usize = 10;

/// Treatment of items that the store has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingItems {
    /// The store's item stays, because it is newer than the file.
    Keep,
    /// The file's item replaces that of the store.
    Replace,
}

/// The result of an import. Whatever it is, the same file may be imported again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ImportSummary {
    /// Items that were written.
    pub written: Counts,
    /// Items that the store had already, and kept.
    pub kept: Counts,
    /// Items that have expired since the file was written.
    pub expired: Counts,
    /// API keys that this policy does not have. Their usage is not imported.
    pub unknown_api_keys: u64,
}

/// A file that was read to its end: it is complete, and its digests fit the secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedFile {
    /// Items in the file.
    pub counts: Counts,
    /// When it was written.
    pub taken_at: String,
}

impl VerifiedFile {
    /// Reads a file to its end.
    ///
    /// # Errors
    /// [`StateError`]: the file is not a state file, is damaged, or belongs to another secret.
    pub fn read(from: impl BufRead, keyring: &Keyring) -> Result<Self, StateError> {
        let mut from = Reader::new(from);
        let taken_at = head(&mut from, keyring)?;
        let mut found = Counts::default();
        loop {
            match from.line()? {
                Line::End { counts, .. } if counts == found => {
                    return Ok(Self { counts, taken_at });
                }
                line => match line.item() {
                    Some(item) => found.count(&item),
                    None => return Err(from.damaged()),
                },
            }
        }
    }
}

/// Reads the first line, which must be a head whose secrets are all known.
fn head(from: &mut Reader<impl BufRead>, keyring: &Keyring) -> Result<String, StateError> {
    let Ok(Line::PalisadeState {
        version,
        secrets,
        taken_at,
    }) = from.line()
    else {
        return Err(StateError::NotState);
    };
    if version != VERSION {
        return Err(StateError::Version(version));
    }
    let known = secrets_of(keyring);
    let all_known = secrets.iter().all(|secret| known.contains(secret));
    if secrets.is_empty() || !all_known {
        return Err(StateError::OtherSecret);
    }
    Ok(taken_at)
}

/// Imports the state in `from`, which [`VerifiedFile::read`] has found complete, into a store. Items
/// keep their expiry; those that have expired are left out. A quota's use is raised to that of the
/// file and never lowered, so that a second import changes nothing.
///
/// # Errors
/// [`StateError`]. What has been written by then stays, and the same file can be imported again.
pub async fn import(
    store: &dyn Store,
    policy: &PolicySet,
    keyring: &Keyring,
    from: impl BufRead,
    existing: ExistingItems,
) -> Result<ImportSummary, StateError> {
    let mut from = Reader::new(from);
    head(&mut from, keyring)?;
    let mut run = Run {
        store,
        policy: Cow::Borrowed(policy),
        existing,
        now: store.probe().await?,
        entries: BTreeSet::new(),
        done: ImportSummary::default(),
    };
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        let line = from.line()?;
        let is_end = matches!(line, Line::End { .. });
        match line.item() {
            Some(Item::Record(record)) => batch.push(record),
            Some(Item::Entry(registry, entry)) => run.entry(registry, entry).await?,
            Some(Item::Quota(quota)) => run.quota(&quota).await?,
            None if is_end => {}
            None => return Err(from.damaged()),
        }
        if batch.len() == BATCH || is_end {
            run.records(std::mem::take(&mut batch)).await?;
        }
        if is_end {
            store.flush().await?;
            return Ok(run.done);
        }
    }
}

/// An import in progress.
struct Run<'a> {
    store: &'a dyn Store,
    /// The policy, with the keys of the store attached once a quota needs them. Entries come before
    /// quotas in a file.
    policy: Cow<'a, PolicySet>,
    existing: ExistingItems,
    now: Micros,
    /// Entries that the store had before, by registry. An id of `None` marks a registry that has
    /// been read.
    entries: BTreeSet<(Registry, Option<String>)>,
    done: ImportSummary,
}

impl Run<'_> {
    /// Writes a batch of records at once if the store has none of them, otherwise one by one.
    async fn records(&mut self, batch: Vec<RecordLine>) -> Result<(), StateError> {
        let (live, ended): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .partition(|line| line.expires_at > self.now);
        self.done.expired.records += ended.len() as u64;
        // Revision zero: a write succeeds only where the store has no record.
        let mut writes: Vec<RecordWrite> = live.into_iter().map(|line| write(line, 0)).collect();
        let stand = match self.store.commit(&writes).await? {
            Commit::Done => writes.len(),
            Commit::Conflict => 0,
            Commit::Part(stand) => stand,
        };
        self.done.written.records += stand as u64;
        for one in writes.drain(stand..) {
            self.record(one).await?;
        }
        Ok(())
    }

    async fn record(&mut self, mut write: RecordWrite) -> Result<(), StateError> {
        for _ in 0..TRIES {
            if self.store.commit(std::slice::from_ref(&write)).await? == Commit::Done {
                self.done.written.records += 1;
                return Ok(());
            }
            // The store has a record: keep it, or replace exactly this revision of it.
            let loaded = self.store.load(&[write.key]).await?.records;
            let held = loaded.into_iter().next().flatten();
            if held.is_some() && self.existing == ExistingItems::Keep {
                self.done.kept.records += 1;
                return Ok(());
            }
            write.expect = held.map_or(0, |record| record.revision);
        }
        let why = "a record changes too often to be replaced; stop the nodes first";
        Err(StoreError::Exhausted(why.to_owned()).into())
    }

    async fn entry(&mut self, registry: Registry, entry: Entry) -> Result<(), StateError> {
        if entry.expires_at.is_some_and(|end| end <= self.now) {
            self.done.expired.entries += 1;
            return Ok(());
        }
        if self.existing == ExistingItems::Keep && self.has_entry(registry, &entry.id).await? {
            self.done.kept.entries += 1;
            return Ok(());
        }
        self.store.put_entry(registry, entry).await?;
        self.done.written.entries += 1;
        Ok(())
    }

    /// True if the store had the entry before. Each registry is read once.
    async fn has_entry(&mut self, registry: Registry, id: &str) -> Result<bool, StateError> {
        if self.entries.insert((registry, None)) {
            let found = self
                .store
                .entries(registry, None)
                .await?
                .unwrap_or_default();
            let ids = found.entries.into_iter().map(|entry| Some(entry.id));
            self.entries.extend(ids.map(|id| (registry, id)));
        }
        Ok(self.entries.contains(&(registry, Some(id.to_owned()))))
    }

    async fn quota(&mut self, line: &QuotaLine) -> Result<(), StateError> {
        if line.reset_at <= self.now {
            self.done.expired.quotas += 1;
            return Ok(());
        }
        if let Cow::Borrowed(own) = self.policy {
            self.policy = Cow::Owned(attach_stored(self.store, own, self.now).await?);
        }
        let registered = self.policy.key_registration(&line.api_key);
        let tier = registered.and_then(|registered| self.policy.tier(&registered.key.tier));
        let Some(charge) = tier.and_then(|tier| quota_charge(tier, &line.api_key)) else {
            self.done.unknown_api_keys += 1;
            return Ok(());
        };
        // `Count`, because use beyond the quota is imported, too.
        let mut charges = [Charge {
            on_exceed: OnExceed::Count,
            ..charge
        }];
        let seen = self.store.charge(&charges, Take::Peek).await?.readings;
        let used = seen.first().map_or(0, |reading| reading.used);
        let missing = line.used.saturating_sub(used);
        match missing {
            0 => self.done.kept.quotas += 1,
            _ => self.done.written.quotas += 1,
        }
        if missing > 0 {
            let [charge] = &mut charges;
            charge.cost = missing.min(COUNT_MAX);
            self.store.charge(&charges, Take::Consume).await?;
        }
        Ok(())
    }
}

fn write(line: RecordLine, expect: u64) -> RecordWrite {
    RecordWrite {
        key: line.key,
        expect,
        bytes: Some(line.bytes),
        expires_at: line.expires_at,
    }
}
