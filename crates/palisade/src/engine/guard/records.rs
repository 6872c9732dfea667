//! Loading and writing of records, and handling of those that cannot be read.

use palisade_core::guard::{DecodeError, KeyPair, RecordPair};
use palisade_core::record::{Record, RecordKey, RecordWrite};
use palisade_core::rule::Rule;
use palisade_core::time::Micros;

use super::super::link::{Calls, NoAnswer};
use super::command::Unusable;

/// A record of this command: its keys, and what the store had under them.
#[derive(Clone)]
pub(super) struct Slot {
    keys: Option<KeyPair>,
    found: RecordPair,
}

/// All records of one command, in the order in which it asked for them.
#[derive(Clone)]
pub(super) struct CommandRecords {
    pub(super) now: Micros,
    slots: Vec<Slot>,
}

impl CommandRecords {
    #[cfg(test)]
    pub(super) const fn empty(now: Micros) -> Self {
        Self {
            now,
            slots: Vec::new(),
        }
    }

    /// The record in `slot`, decoded. A missing record is the default.
    pub(super) fn record<T: Default>(
        &self,
        slot: usize,
        decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<T, (RecordKey, DecodeError)> {
        let Some(Slot {
            keys: Some(keys),
            found,
        }) = self.slots.get(slot)
        else {
            return Ok(T::default());
        };
        let Some(stored) = found.record() else {
            return Ok(T::default());
        };
        // During a rotation of the secret, a record may exist under its previous key only.
        let place = match &found.current {
            Some(_) => keys.current,
            None => keys.previous.unwrap_or(keys.current),
        };
        decode(&stored.bytes).map_err(|error| (place, error))
    }

    /// Continues after a commit that wrote only some records. Those are taken as they were before,
    /// at the same instant, so that evaluation gives the same result; they are not written again.
    pub(super) fn resume(&mut self, before: &Self, written: &[RecordWrite]) {
        self.now = before.now;
        for (slot, old) in self.slots.iter_mut().zip(&before.slots) {
            let is_written = old
                .keys
                .is_some_and(|keys| written.iter().any(|write| write.key == keys.current));
            if is_written {
                *slot = old.clone();
            }
        }
    }

    /// The records as they are after `written` has been committed.
    pub(super) fn after(&self, written: &[RecordWrite]) -> Self {
        let mut after = self.clone();
        for slot in &mut after.slots {
            let Some(keys) = slot.keys else { continue };
            let found = |key| written.iter().find(|write| Some(write.key) == key);
            if let Some(write) = found(Some(keys.current)) {
                slot.found.current = stored(write);
            }
            if let Some(write) = found(keys.previous) {
                slot.found.previous = stored(write);
            }
        }
        after
    }

    /// The writes that replace the record in `slot` by `bytes`.
    pub(super) fn writes(&self, slot: usize, bytes: Vec<u8>, until: Micros) -> Vec<RecordWrite> {
        match self.slots.get(slot) {
            Some(Slot {
                keys: Some(keys),
                found,
            }) => found.writes(keys, bytes, until),
            _ => Vec::new(),
        }
    }

    /// The revision of each record of this command after `written` has been committed.
    pub(super) fn revisions(&self, written: &[RecordWrite]) -> Vec<(&'static str, u64)> {
        self.slots
            .iter()
            .filter_map(|slot| {
                let keys = slot.keys?;
                let read = slot.found.current.as_ref().map_or(0, |s| s.revision);
                let is_written = written.iter().any(|write| write.key == keys.current);
                Some((keys.current.kind.name(), read + u64::from(is_written)))
            })
            .collect()
    }
}

fn stored(write: &RecordWrite) -> Option<Record> {
    let bytes = write.bytes.clone()?;
    Some(Record {
        bytes,
        // A commit increases the revision by one.
        revision: write.expect + 1,
    })
}

/// Reads the records of `pairs` and the store's clock.
pub(super) async fn load(
    calls: Calls<'_>,
    pairs: &[Option<KeyPair>],
) -> Result<CommandRecords, NoAnswer> {
    let mut keys: Vec<RecordKey> = Vec::with_capacity(2 * pairs.len());
    for pair in pairs.iter().flatten() {
        keys.push(pair.current);
        keys.extend(pair.previous);
    }
    let loaded = calls.make(|store| store.load(&keys)).await?;
    let mut records = loaded.records.into_iter();
    // The store returns records in the order of `keys`: of each pair the current key, then the
    // previous one.
    let mut next = || records.next().flatten();
    let slots = pairs.iter().map(|keys| Slot {
        found: keys.map_or_else(RecordPair::default, |pair| RecordPair {
            current: next(),
            previous: pair.previous.and_then(|_| next()),
        }),
        keys: *keys,
    });
    Ok(CommandRecords {
        now: loaded.now,
        slots: slots.collect(),
    })
}

/// Sets a corrupt record aside: this request fails closed, and the next one starts with an empty
/// record (F-CORRUPT). A record of a newer version is left alone (F-VERSION).
pub(super) async fn unreadable(calls: Calls<'_>, failed: (RecordKey, DecodeError)) -> Unusable {
    match failed {
        (_, DecodeError::NewerVersion) => Unusable::Record(Rule::F_VERSION),
        (key, DecodeError::Corrupt) => match calls.make(|store| store.set_aside(key)).await {
            Ok(()) => {
                calls.link.observer().rebuilt("record", 1);
                Unusable::Record(Rule::F_CORRUPT)
            }
            Err(no_answer) => Unusable::Store(no_answer),
        },
    }
}
