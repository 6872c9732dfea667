//! Registries: a hash of entries and a version, both in one slot. An entry is its
//! expiry (7 bytes, little endian, 0 never), then its bytes.

use palisade_core::time::Micros;
use redis::Value;

use super::codec::now_arg;
use super::error::misread;
use super::keys::Keys;
use super::script::{Call, REGISTRY_ENTRIES, REGISTRY_PUT, REGISTRY_REMOVE, Script};
use crate::{Entries, Entry, REGISTRY_ENTRIES_MAX, Registry, StoreError};

const HEADER_BYTES: usize = 7;
/// Last instant that a script can hold.
const AT_MAX: u64 = 1 << 53;

fn call(script: &'static Script, keys: &Keys, registry: Registry, now: Option<Micros>) -> Call {
    let (entries, version) = keys.registry(registry);
    Call::new(script)
        .key(entries)
        .key(version)
        .arg(now_arg(now))
}

pub(super) fn put_call(keys: &Keys, registry: Registry, entry: Entry, now: Option<Micros>) -> Call {
    let expires = entry
        .expires_at
        // An entry that ends at 0 has ended, but 0 would mean never.
        .map(|at| at.0.clamp(1, AT_MAX).to_string())
        .unwrap_or_default();
    call(&REGISTRY_PUT, keys, registry, now)
        .arg(entry.id)
        .arg(expires)
        .arg(entry.bytes)
        .arg(REGISTRY_ENTRIES_MAX.to_string())
}

pub(super) fn remove_call(keys: &Keys, registry: Registry, id: &str, now: Option<Micros>) -> Call {
    call(&REGISTRY_REMOVE, keys, registry, now).arg(id)
}

pub(super) fn entries_call(
    keys: &Keys,
    registry: Registry,
    seen: Option<u64>,
    now: Option<Micros>,
) -> Call {
    let seen = seen.map(|seen| seen.to_string()).unwrap_or_default();
    call(&REGISTRY_ENTRIES, keys, registry, now).arg(seen)
}

pub(super) fn read_entries(value: Value) -> Result<Option<Entries>, StoreError> {
    if value == Value::Nil {
        return Ok(None);
    }
    let (version, now, cells): (u64, u64, Vec<(String, Vec<u8>)>) =
        redis::from_redis_value(value).map_err(|_| misread("registry"))?;
    let mut entries: Vec<Entry> = cells
        .into_iter()
        .filter_map(|(id, bytes)| read_entry(id, &bytes))
        .filter(|entry| entry.expires_at.is_none_or(|until| until > Micros(now)))
        .collect();
    entries.sort_unstable_by(|a, b| a.id.cmp(&b.id));
    Ok(Some(Entries { version, entries }))
}

fn read_entry(id: String, bytes: &[u8]) -> Option<Entry> {
    let (header, content) = bytes.split_at_checked(HEADER_BYTES)?;
    let until = header
        .iter()
        .rev()
        .fold(0, |n, byte| n << 8 | u64::from(*byte));
    Some(Entry {
        id,
        bytes: content.to_vec(),
        expires_at: (until > 0).then_some(Micros(until)),
    })
}
