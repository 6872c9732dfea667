//! Registries: put, remove, list, version, expiry, bounds.

use palisade_core::time::{HOUR, Micros};

use super::{Bench, Make, START, bench};
use crate::{Entries, Entry, REGISTRY_ENTRIES_MAX, Registry, Store, StoreError};

pub(super) async fn run<S: Store>(make: &impl Make<S>) {
    entries_are_put_replaced_and_removed(make).await;
    an_entry_stops_at_its_instant(make).await;
    the_longest_entry_is_kept(make).await;
    registries_are_apart(make).await;
}

pub(super) fn entry(id: &str, bytes: &[u8], expires_at: Option<Micros>) -> Entry {
    Entry {
        id: id.to_owned(),
        bytes: bytes.to_vec(),
        expires_at,
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
pub(super) async fn list<S: Store>(store: &S, registry: Registry) -> Entries {
    let mut entries = store.entries(registry, None).await.unwrap().unwrap();
    entries.entries.sort_by(|a, b| a.id.cmp(&b.id));
    entries
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn entries_are_put_replaced_and_removed<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let registry = Registry::Allowlist;
    assert_eq!(list(&*store, registry).await.entries, []);
    let mut version = list(&*store, registry).await.version;
    let mut grown = |now: &Entries| {
        assert!(now.version > version, "every change is a new version");
        version = now.version;
    };
    store
        .put_entry(registry, entry("b", b"1", None))
        .await
        .unwrap();
    store
        .put_entry(registry, entry("a", b"2", None))
        .await
        .unwrap();
    let now = list(&*store, registry).await;
    grown(&now);
    assert_eq!(
        now.entries,
        [entry("a", b"2", None), entry("b", b"1", None)]
    );
    let unchanged = store.entries(registry, Some(now.version)).await.unwrap();
    assert_eq!(unchanged, None, "nothing new since that version");

    let until = Some(START.plus(HOUR));
    store
        .put_entry(registry, entry("a", b"3", until))
        .await
        .unwrap();
    let seen = store.entries(registry, Some(now.version)).await.unwrap();
    assert!(seen.is_some(), "a replaced entry is a change");
    let now = list(&*store, registry).await;
    grown(&now);
    assert_eq!(
        now.entries,
        [entry("a", b"3", until), entry("b", b"1", None)]
    );

    assert!(store.remove_entry(registry, "b").await.unwrap());
    let now = list(&*store, registry).await;
    grown(&now);
    assert_eq!(now.entries, [entry("a", b"3", until)]);
    assert!(!store.remove_entry(registry, "b").await.unwrap());
    assert!(!store.remove_entry(registry, "never there").await.unwrap());
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn an_entry_stops_at_its_instant<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    let ends = START.plus(HOUR);
    for (id, until) in [("brief", Some(ends)), ("endless", None)] {
        store
            .put_entry(Registry::Tiers, entry(id, b"t", until))
            .await
            .unwrap();
    }
    clock.set(ends.minus(1));
    assert_eq!(list(&*store, Registry::Tiers).await.entries.len(), 2);
    clock.set(ends);
    let now = list(&*store, Registry::Tiers).await;
    assert_eq!(now.entries, [entry("endless", b"t", None)]);
    assert!(!store.remove_entry(Registry::Tiers, "brief").await.unwrap());
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn the_longest_entry_is_kept<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let id = "i".repeat(128);
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(4 * 1024).collect();
    store
        .put_entry(Registry::Resets, entry(&id, &bytes, None))
        .await
        .unwrap();
    let now = list(&*store, Registry::Resets).await;
    assert_eq!(now.entries, [entry(&id, &bytes, None)]);
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn registries_are_apart<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    for registry in Registry::ALL {
        let own = entry("same", registry.name().as_bytes(), None);
        store.put_entry(registry, own).await.unwrap();
    }
    assert!(store.remove_entry(Registry::Tiers, "same").await.unwrap());
    for (registry, count) in [
        (Registry::Allowlist, 1),
        (Registry::Tiers, 0),
        (Registry::Resets, 1),
    ] {
        let now = list(&*store, registry).await;
        assert_eq!(now.entries.len(), count, "{}", registry.name());
        let own = |e: &Entry| e.bytes == registry.name().as_bytes();
        assert!(now.entries.iter().all(own));
    }
}

/// A full registry refuses a new entry and still accepts a changed one. Not part of
/// [`super::run`], because it fills a registry.
///
/// # Panics
/// If the store breaks the rule.
#[expect(clippy::unwrap_used, reason = "part of a test suite")]
pub async fn registry_is_bounded<S: Store>(make: impl Make<S>) {
    let Bench { store, .. } = bench(&make).await;
    let registry = Registry::Allowlist;
    for number in 0..REGISTRY_ENTRIES_MAX {
        let one = entry(&format!("{number}"), b"e", None);
        store.put_entry(registry, one).await.unwrap();
    }
    let refused = store.put_entry(registry, entry("more", b"e", None)).await;
    assert!(matches!(refused, Err(StoreError::Exhausted(_))));
    store
        .put_entry(registry, entry("7", b"changed", None))
        .await
        .unwrap();
    assert!(store.remove_entry(registry, "8").await.unwrap());
    store
        .put_entry(registry, entry("more", b"e", None))
        .await
        .unwrap();
}
