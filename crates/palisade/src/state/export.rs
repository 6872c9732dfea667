//! Writes the state of a store as lines.

use std::io::Write;

use palisade_core::key::Keyring;
use palisade_core::limit::Reading;
use palisade_core::plan::Charge;
use palisade_core::policy::{PolicySet, quota_charge};
use palisade_core::record::RecordKind;
use palisade_store::{Store, Take};

use super::Counts;
use super::lines::{Line, MOVED, StateError, VERSION, Writer, secrets_of};
use crate::engine::attach_stored;

/// Records per read of the store.
const PAGE: usize = 512;
/// Quotas per read of the store.
const QUOTAS_AT_ONCE: usize = 64;

/// Writes the guard and lockout records, allowlist, tiers and overages of a store, and the quotas
/// of this policy's API keys. Nodes may stay in use: each record is consistent in itself, and later
/// changes are not in the file.
///
/// # Errors
/// [`StateError`]. A file that was begun then has no last line, and `import`
/// refuses it.
pub async fn export(
    store: &dyn Store,
    policy: &PolicySet,
    keyring: &Keyring,
    to: impl Write,
) -> Result<Counts, StateError> {
    let mut to = Writer::new(to);
    to.line(&Line::PalisadeState {
        version: VERSION,
        secrets: secrets_of(keyring),
        taken_at: store.probe().await?.to_rfc3339(),
    })?;
    for kind in RecordKind::ALL {
        records(store, kind, &mut to).await?;
    }
    entries(store, &mut to).await?;
    // Keys that the admin API has made have quotas, too.
    let policy = attach_stored(store, policy, store.probe().await?).await?;
    quotas(store, &policy, &mut to).await?;
    Ok(to.end()?)
}

async fn records(
    store: &dyn Store,
    kind: RecordKind,
    to: &mut Writer<impl Write>,
) -> Result<(), StateError> {
    let mut cursor: Option<String> = None;
    loop {
        let page = store.scan(kind, cursor.as_deref(), PAGE).await?;
        for listed in &page.records {
            to.line(&Line::record(listed))?;
            to.counts.records += 1;
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(());
        }
    }
}

async fn entries(store: &dyn Store, to: &mut Writer<impl Write>) -> Result<(), StateError> {
    for registry in MOVED {
        let found = store.entries(registry, None).await?.unwrap_or_default();
        for entry in &found.entries {
            to.line(&Line::entry(registry, entry))?;
            to.counts.entries += 1;
        }
    }
    Ok(())
}

async fn quotas(
    store: &dyn Store,
    policy: &PolicySet,
    to: &mut Writer<impl Write>,
) -> Result<(), StateError> {
    let keys = policy.api_keys().filter_map(|(hash, registered)| {
        let tier = policy.tier(&registered.tier)?;
        let usage = registered.usage_of.as_deref().unwrap_or(hash);
        Some((usage, quota_charge(tier, usage)?))
    });
    let mut known: Vec<(&str, Charge<'_>)> = keys.collect();
    known.sort_unstable_by_key(|(hash, _)| *hash);
    // All secrets of a key share one quota.
    known.dedup_by_key(|(hash, _)| *hash);
    for some in known.chunks(QUOTAS_AT_ONCE) {
        let charges: Vec<Charge<'_>> = some.iter().map(|(_, charge)| charge.clone()).collect();
        let found = store.charge(&charges, Take::Peek).await?.readings;
        for ((hash, _), reading) in some.iter().zip(found) {
            quota(hash, reading, to)?;
        }
    }
    Ok(())
}

fn quota(hash: &str, reading: Reading, to: &mut Writer<impl Write>) -> Result<(), StateError> {
    if reading.used > 0 {
        to.line(&Line::Quota {
            api_key: hash.to_owned(),
            used: reading.used,
            reset_at: reading.reset_at.0,
        })?;
        to.counts.quotas += 1;
    }
    Ok(())
}
