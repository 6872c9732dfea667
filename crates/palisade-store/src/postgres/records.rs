//! Records and registries: one statement each.

use palisade_core::Digest;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{DAY, Micros};
use tokio_postgres::Row;

use super::batch::{signed, unsigned};
use super::connect::Connections;
use crate::{
    Commit, Entries, Entry, ListedRecord, LoadedRecords, REGISTRY_ENTRIES_MAX, Record, RecordPage,
    Registry, StoreError,
};

pub(super) const LOAD: &str = "SELECT * FROM palisade.load($1, $2, $3)";
pub(super) const COMMIT: &str = "SELECT palisade.commit($1, $2, $3, $4, $5, $6)";
const SET_ASIDE: &str = "SELECT palisade.set_aside($1, $2, $3, $4)";
const SCAN: &str = "SELECT digest, revision, bytes, expires_at FROM palisade.record
    WHERE kind = $2 AND digest > $3 AND expires_at > coalesce($1, palisade.clock())
    ORDER BY digest LIMIT $4";
const PUT_ENTRY: &str = "SELECT palisade.put_entry($1, $2, $3, $4, $5)";
const REMOVE_ENTRY: &str = "SELECT palisade.remove_entry($1, $2, $3)";
const ENTRIES: &str = "SELECT g.version, e.id, e.bytes, e.expires_at
    FROM palisade.registry g
    LEFT JOIN palisade.registry_entry e ON e.registry = g.name
     AND (e.expires_at IS NULL OR e.expires_at > coalesce($1, palisade.clock()))
    WHERE g.name = $2 AND g.version IS DISTINCT FROM $3
    ORDER BY e.id";
const PROBE: &str = "SELECT palisade.probe($1)";

fn odd() -> StoreError {
    StoreError::Corrupt("a record of another shape".to_owned())
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    index: usize,
) -> Result<T, StoreError> {
    row.try_get(index).map_err(|_| odd())
}

fn first(rows: &[Row]) -> Result<&Row, StoreError> {
    rows.first().ok_or_else(odd)
}

impl Connections {
    /// Writes a row, and answers with the clock.
    pub(super) async fn probe(&self, now: Option<i64>) -> Result<Micros, StoreError> {
        let rows = self.query(PROBE, &[&now]).await?;
        column(first(&rows)?, 0).map(unsigned)
    }

    pub(super) async fn load(
        &self,
        now: Option<i64>,
        keys: &[RecordKey],
    ) -> Result<LoadedRecords, StoreError> {
        let kinds: Vec<i16> = keys.iter().map(|key| kind_code(key.kind)).collect();
        let digests: Vec<[u8; 16]> = keys.iter().map(|key| key.digest.to_bytes()).collect();
        let digests: Vec<&[u8]> = digests.iter().map(<[u8; 16]>::as_slice).collect();
        let rows = self.query(LOAD, &[&now, &kinds, &digests]).await?;
        let row = first(&rows)?;
        // Without keys, the arrays are NULL.
        let revisions: Option<Vec<Option<i64>>> = column(row, 1)?;
        let bodies: Option<Vec<Option<Vec<u8>>>> = column(row, 2)?;
        let records = revisions
            .unwrap_or_default()
            .into_iter()
            .zip(bodies.unwrap_or_default())
            .map(|(revision, bytes)| revision.zip(bytes).map(record).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        if records.len() != keys.len() {
            return Err(odd());
        }
        Ok(LoadedRecords {
            now: column(row, 0).map(unsigned)?,
            records,
        })
    }

    pub(super) async fn commit(
        &self,
        now: Option<i64>,
        writes: &[RecordWrite],
    ) -> Result<Commit, StoreError> {
        let mut writes: Vec<&RecordWrite> = writes.iter().collect();
        // Rows are locked in this order, on every node.
        writes.sort_unstable_by_key(|write| (write.key.kind.code(), write.key.digest));
        let kinds: Vec<i16> = writes
            .iter()
            .map(|write| kind_code(write.key.kind))
            .collect();
        let digests: Vec<Vec<u8>> = writes
            .iter()
            .map(|write| write.key.digest.to_bytes().to_vec())
            .collect();
        let expected: Vec<i64> = writes.iter().map(|write| signed(write.expect)).collect();
        let bodies: Vec<Option<&[u8]>> =
            writes.iter().map(|write| write.bytes.as_deref()).collect();
        let expires: Vec<i64> = writes
            .iter()
            .map(|write| signed(write.expires_at.0))
            .collect();
        let rows = self
            .query(
                COMMIT,
                &[&now, &kinds, &digests, &expected, &bodies, &expires],
            )
            .await?;
        Ok(match column(first(&rows)?, 0)? {
            true => Commit::Done,
            false => Commit::Conflict,
        })
    }

    pub(super) async fn set_aside(
        &self,
        now: Option<i64>,
        key: RecordKey,
    ) -> Result<(), StoreError> {
        let digest = key.digest.to_bytes();
        self.query(
            SET_ASIDE,
            &[&now, &kind_code(key.kind), &digest.as_slice(), &signed(DAY)],
        )
        .await
        .map(drop)
    }

    pub(super) async fn scan(
        &self,
        now: Option<i64>,
        kind: RecordKind,
        cursor: Option<&str>,
        count_max: usize,
    ) -> Result<RecordPage, StoreError> {
        // The empty one sorts before every digest.
        let after = cursor
            .and_then(Digest::from_hex)
            .map_or(Vec::new(), |digest| digest.to_bytes().to_vec());
        // One more than a page holds, to learn whether there is another page.
        let limit = i64::try_from(count_max).unwrap_or(i64::MAX - 1) + 1;
        let rows = self
            .query_in_bulk(SCAN, &[&now, &kind_code(kind), &after, &limit])
            .await?;
        let records = rows
            .iter()
            .take(count_max)
            .map(|row| {
                let digest = column::<&[u8]>(row, 0)?.try_into().map_err(|_| odd())?;
                let key = RecordKey {
                    kind,
                    digest: Digest::from_bytes(digest),
                };
                Ok(ListedRecord {
                    key,
                    record: record((column(row, 1)?, column(row, 2)?))?,
                    expires_at: unsigned(column(row, 3)?),
                })
            })
            .collect::<Result<Vec<_>, StoreError>>()?;
        let next = match records.last() {
            Some(last) if rows.len() > count_max => Some(last.key.digest.hex()),
            _ => None,
        };
        Ok(RecordPage { records, next })
    }

    pub(super) async fn put_entry(
        &self,
        registry: Registry,
        entry: &Entry,
    ) -> Result<(), StoreError> {
        let until = entry.expires_at.map(|until| signed(until.0));
        let size_max = i64::try_from(REGISTRY_ENTRIES_MAX).unwrap_or(i64::MAX);
        let rows = self
            .query(
                PUT_ENTRY,
                &[&registry.name(), &entry.id, &entry.bytes, &until, &size_max],
            )
            .await?;
        match column(first(&rows)?, 0)? {
            true => Ok(()),
            false => Err(StoreError::Exhausted(format!(
                "the {} is full",
                registry.name()
            ))),
        }
    }

    pub(super) async fn remove_entry(
        &self,
        now: Option<i64>,
        registry: Registry,
        id: &str,
    ) -> Result<bool, StoreError> {
        let rows = self
            .query(REMOVE_ENTRY, &[&now, &registry.name(), &id])
            .await?;
        column(first(&rows)?, 0)
    }

    pub(super) async fn entries(
        &self,
        now: Option<i64>,
        registry: Registry,
        seen: Option<u64>,
    ) -> Result<Option<Entries>, StoreError> {
        let seen = seen.map(signed);
        let rows = self
            .query_in_bulk(ENTRIES, &[&now, &registry.name(), &seen])
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        Ok(Some(Entries {
            version: unsigned(column(row, 0)?).0,
            entries: rows
                .iter()
                .map(entry)
                .filter_map(Result::transpose)
                .collect::<Result<_, _>>()?,
        }))
    }
}

/// Reads an entry of the join; an empty registry has one row without an entry.
fn entry(row: &Row) -> Result<Option<Entry>, StoreError> {
    let Some(id) = column::<Option<String>>(row, 1)? else {
        return Ok(None);
    };
    Ok(Some(Entry {
        id,
        bytes: column(row, 2)?,
        expires_at: column::<Option<i64>>(row, 3)?.map(unsigned),
    }))
}

fn record((revision, bytes): (i64, Vec<u8>)) -> Result<Record, StoreError> {
    Ok(Record {
        revision: u64::try_from(revision).map_err(|_| odd())?,
        bytes,
    })
}

pub(super) fn kind_code(kind: RecordKind) -> i16 {
    i16::from(kind.code())
}
