//! Registries: small lists that operators change, and that are read whole.

use std::collections::{BTreeMap, BTreeSet};

use palisade_core::time::Micros;
use parking_lot::RwLock;

use super::Lifetime;
use crate::{Entries, Entry, REGISTRY_ENTRIES_MAX, Registry, StoreError};

const ID_BYTES_MAX: usize = 128;
const ENTRY_BYTES_MAX: usize = 4 * 1024;

/// The registries.
pub(crate) struct Registries {
    lists: [RwLock<List>; Registry::ALL.len()],
    lifetime: Lifetime,
}

#[derive(Default)]
struct List {
    version: u64,
    entries: BTreeMap<String, Entry>,
    dirty: BTreeSet<String>,
}

fn is_live(entry: &Entry, now: Micros) -> bool {
    entry.expires_at.is_none_or(|until| until > now)
}

impl Registries {
    pub(crate) fn new(lifetime: Lifetime) -> Self {
        Self {
            lists: Default::default(),
            lifetime,
        }
    }

    fn of(&self, registry: Registry) -> &RwLock<List> {
        // Taken apart by name: a new registry does not compile until it has a list.
        let [
            allowlist,
            tiers,
            resets,
            overages,
            api_keys,
            clients,
            attacks,
        ] = &self.lists;
        match registry {
            Registry::Allowlist => allowlist,
            Registry::Tiers => tiers,
            Registry::Resets => resets,
            Registry::Overages => overages,
            Registry::ApiKeys => api_keys,
            Registry::Clients => clients,
            Registry::Attacks => attacks,
        }
    }

    pub(crate) fn put(
        &self,
        registry: Registry,
        entry: Entry,
        now: Micros,
    ) -> Result<(), StoreError> {
        let refused = |why: &str| {
            Err(StoreError::Exhausted(format!(
                "the {} {why}",
                registry.name()
            )))
        };
        if entry.id.len() > ID_BYTES_MAX {
            return refused("takes no `id` over 128 bytes");
        }
        if entry.bytes.len() > ENTRY_BYTES_MAX {
            return refused("takes no entry over 4 KiB");
        }
        let mut list = self.of(registry).write();
        if list.entries.len() >= REGISTRY_ENTRIES_MAX && !list.entries.contains_key(&entry.id) {
            list.drop_expired(now);
            if list.entries.len() >= REGISTRY_ENTRIES_MAX {
                return refused("is full");
            }
        }
        list.note_change(self.lifetime, &entry.id);
        list.entries.insert(entry.id.clone(), entry);
        Ok(())
    }

    pub(crate) fn remove(&self, registry: Registry, id: &str, now: Micros) -> bool {
        let mut list = self.of(registry).write();
        let Some(entry) = list.entries.remove(id) else {
            return false;
        };
        list.note_change(self.lifetime, &entry.id);
        is_live(&entry, now)
    }

    pub(crate) fn list(
        &self,
        registry: Registry,
        seen: Option<u64>,
        now: Micros,
    ) -> Option<Entries> {
        let list = self.of(registry).read();
        if seen == Some(list.version) {
            return None;
        }
        let live = list.entries.values().filter(|entry| is_live(entry, now));
        Some(Entries {
            version: list.version,
            entries: live.cloned().collect(),
        })
    }

    /// Restores an entry from the log, or removes it.
    pub(crate) fn restore(
        &self,
        registry: Registry,
        id: String,
        entry: Option<Entry>,
        now: Micros,
    ) {
        let mut list = self.of(registry).write();
        list.version += 1;
        match entry.filter(|entry| is_live(entry, now)) {
            Some(entry) => list.entries.insert(id, entry),
            None => list.entries.remove(&id),
        };
    }

    pub(crate) fn len(&self) -> u64 {
        let len = |list: &RwLock<List>| list.read().entries.len() as u64;
        self.lists.iter().map(len).sum()
    }

    pub(crate) fn sweep(&self, now: Micros) {
        for list in &self.lists {
            list.write().drop_expired(now);
        }
    }

    /// Yields the entries that have changed since the last call, each in its present state.
    pub(crate) fn collect_dirty(&self, mut each: impl FnMut(Registry, &str, Option<&Entry>)) {
        for registry in Registry::ALL {
            let mut list = self.of(registry).write();
            for id in std::mem::take(&mut list.dirty) {
                each(registry, &id, list.entries.get(&id));
            }
        }
    }

    pub(crate) fn collect_all(&self, mut each: impl FnMut(Registry, &Entry)) {
        for registry in Registry::ALL {
            let list = self.of(registry).read();
            list.entries
                .values()
                .for_each(|entry| each(registry, entry));
        }
    }

    /// Marks an entry as dirty again that could not be written.
    pub(crate) fn mark_dirty(&self, registry: Registry, id: String) {
        self.of(registry).write().dirty.insert(id);
    }
}

impl List {
    fn note_change(&mut self, lifetime: Lifetime, id: &str) {
        self.version += 1;
        if lifetime == Lifetime::Durable {
            self.dirty.insert(id.to_owned());
        }
    }

    /// Removes expired entries. The version stays: they were no longer listed anyway.
    fn drop_expired(&mut self, now: Micros) {
        self.entries.retain(|_, entry| is_live(entry, now));
    }
}
