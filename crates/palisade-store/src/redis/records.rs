//! Records as Redis stores them: revision and expiry (7 bytes each, little endian), then the
//! bytes.

use palisade_core::Digest;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::Micros;
use redis::Value;

use super::codec::{AT_MAX, now_arg};
use super::error::misread;
use super::keys::Keys;
use super::script::{COMMIT, Call, LOAD};
use crate::{LoadedRecords, Record, StoreError};

const HEADER_BYTES: usize = 14;
/// Keys that one step of a listing examines.
const SCAN_STEP: usize = 1_000;

pub(super) fn load_call(keys: &Keys, records: &[RecordKey], now: Option<Micros>) -> Call {
    let call = Call::new(&LOAD).arg(now_arg(now));
    records
        .iter()
        .fold(call, |call, record| call.key(keys.record(record)))
}

/// A record and when it expires. An unreadable record counts as expired: it cannot be moved to
/// another store.
#[derive(Clone, Debug)]
pub(super) struct ExpiringRecord {
    pub(super) record: Record,
    pub(super) expires_at: Micros,
}

/// Result of a load, with the expiry of each record.
pub(super) struct RecordBatch {
    pub(super) now: Micros,
    pub(super) held: Vec<Option<ExpiringRecord>>,
}

impl From<RecordBatch> for LoadedRecords {
    fn from(found: RecordBatch) -> Self {
        let records = found.held.into_iter();
        Self {
            now: found.now,
            records: records.map(|held| held.map(|held| held.record)).collect(),
        }
    }
}

pub(super) fn read_loaded(value: Value, count: usize) -> Result<RecordBatch, StoreError> {
    let mut cells = match value {
        Value::Array(cells) if cells.len() == count + 1 => cells.into_iter(),
        _ => return Err(misread("load")),
    };
    let now = match cells.next() {
        Some(Value::Int(now)) => Micros(u64::try_from(now).map_err(|_| misread("load"))?),
        _ => return Err(misread("load")),
    };
    Ok(RecordBatch {
        now,
        held: cells.map(|cell| read_record(cell, now)).collect(),
    })
}

/// Reads the value of a key. A value that is no record at all becomes one without content, which
/// no decoder accepts: it is then set aside like any other unreadable record.
fn read_record(cell: Value, now: Micros) -> Option<ExpiringRecord> {
    let held = |bytes, revision, expires_at| {
        let record = Record { bytes, revision };
        Some(ExpiringRecord { record, expires_at })
    };
    let unreadable = |bytes| held(bytes, 0, Micros(0));
    match cell {
        Value::Nil => None,
        Value::BulkString(bytes) => match split(&bytes) {
            Some((_, expires_at, _)) if expires_at <= now => None,
            Some((revision, expires_at, content)) => held(content.to_vec(), revision, expires_at),
            None => unreadable(bytes),
        },
        _ => unreadable(Vec::new()),
    }
}

fn split(bytes: &[u8]) -> Option<(u64, Micros, &[u8])> {
    let (header, content) = bytes.split_at_checked(HEADER_BYTES)?;
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0, |n, byte| n << 8 | u64::from(*byte))
    };
    let (revision, expires_at) = header.split_at(HEADER_BYTES / 2);
    Some((number(revision), Micros(number(expires_at)), content))
}

pub(super) fn commit_call(keys: &Keys, writes: &[RecordWrite], now: Option<Micros>) -> Call {
    let call = Call::new(&COMMIT).arg(now_arg(now));
    writes.iter().fold(call, |call, write| {
        let (action, bytes) = match &write.bytes {
            Some(bytes) => ("w", bytes.clone()),
            None => ("d", Vec::new()),
        };
        call.key(keys.record(&write.key))
            .arg(write.expect.to_string())
            .arg(write.expires_at.min(AT_MAX).0.to_string())
            .arg(action)
            .arg(bytes)
    })
}

/// Position of a listing: the server, its cursor, and the last record shown of those that the
/// cursor found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) server: usize,
    pub(super) cursor: u64,
    pub(super) after: Option<Digest>,
}

impl Position {
    /// Reads what [`Position::text`] wrote; anything else starts from the beginning.
    pub(super) fn parse(text: Option<&str>) -> Self {
        text.and_then(Self::read).unwrap_or_default()
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        Some(Self {
            server: parts.next()?.parse().ok()?,
            cursor: parts.next()?.parse().ok()?,
            after: match parts.next()? {
                "" => None,
                after => Some(Digest::from_hex(after)?),
            },
        })
    }

    pub(super) fn text(&self) -> String {
        let after = self.after.map(Digest::hex).unwrap_or_default();
        format!("{}.{}.{after}", self.server, self.cursor)
    }

    /// Takes as many of a step's records as there is room for, and moves on behind them.
    pub(super) fn take(&mut self, step: Step, room: usize) -> Vec<Digest> {
        let mut found = step.found;
        // `SCAN` may return a key twice, and in another order when a step is repeated: sorting
        // makes `after` a position in it.
        found.sort_unstable();
        found.dedup();
        found.retain(|digest| self.after.is_none_or(|after| *digest > after));
        if found.len() > room {
            found.truncate(room);
            self.after = found.last().copied().or(self.after);
        } else {
            // All of this step fitted: go on at its cursor, or on the next server if it was the
            // last step.
            self.after = None;
            self.cursor = step.cursor;
            self.server += usize::from(step.cursor == 0);
        }
        found
    }
}

/// Result of one step of a listing, and the cursor of the next.
pub(super) struct Step {
    cursor: u64,
    found: Vec<Digest>,
}

/// Command for the next step of a listing on one server.
pub(super) fn scan_command(keys: &Keys, kind: RecordKind, cursor: u64) -> redis::Cmd {
    let mut cmd = redis::cmd("SCAN");
    cmd.arg(cursor)
        .arg("MATCH")
        .arg(keys.record_pattern(kind))
        .arg("COUNT")
        .arg(SCAN_STEP);
    cmd
}

/// Reads the answer to [`scan_command`].
pub(super) fn read_scan(value: Value, keys: &Keys, kind: RecordKind) -> Result<Step, StoreError> {
    let (cursor, found): (u64, Vec<Vec<u8>>) =
        redis::from_redis_value(value).map_err(|_| misread("scan"))?;
    let found = found
        .iter()
        .filter_map(|key| keys.digest_of(key, kind))
        .collect();
    Ok(Step { cursor, found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_its_text_and_nonsense_begins_anew() {
        let position = Position {
            server: 2,
            cursor: u64::MAX,
            after: Some(Digest(7)),
        };
        assert_eq!(Position::parse(Some(&position.text())), position);
        assert_eq!(Position::parse(Some("1.x.")), Position::default());
        assert_eq!(Position::parse(None), Position::default());
    }

    #[test]
    fn a_page_that_is_full_goes_on_within_the_same_step() {
        let step = |cursor| Step {
            cursor,
            found: vec![Digest(3), Digest(1), Digest(2), Digest(1)],
        };
        let mut position = Position::default();
        assert_eq!(position.take(step(9), 2), [Digest(1), Digest(2)]);
        assert_eq!((position.cursor, position.after), (0, Some(Digest(2))));
        assert_eq!(position.take(step(9), 2), [Digest(3)]);
        assert_eq!((position.cursor, position.server), (9, 0));
        assert_eq!(position.take(step(0), 5).len(), 3);
        assert_eq!((position.cursor, position.server), (0, 1));
    }

    #[test]
    fn f_corrupt_what_is_no_record_is_shown_so_that_it_can_be_set_aside() {
        let read = |cell| read_record(cell, Micros(0)).unwrap().record;
        let short = read(Value::BulkString(vec![1, 2]));
        assert_eq!((short.bytes, short.revision), (vec![1, 2], 0));
        let list = read(Value::Int(0));
        assert_eq!((list.bytes, list.revision), (vec![], 0));
    }
}
