//! API keys and OAuth clients that are registered outside the policy file, by the admin API (in the
//! store) or by a policy source. Every node holds a copy and attaches it to the policy in force, so
//! that a request finds all of them in one place.
//!
//! While the store is down the last copy applies. A revocation cannot be written then, and one that
//! was written before binds on every node that had copied it.

mod clients;
mod keys;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use palisade_core::facts::ClientType;
use palisade_core::policy::{ApiKey, Origin, PolicySet, RegisteredCredentials};
use palisade_core::time::Micros;
use palisade_store::{Entries, Registry, Store, StoreError};
use parking_lot::Mutex;

use super::super::Engine;
use clients::ClientEntry;
use keys::{KeyEntry, KeyRecord};

pub use clients::{CLIENTS_MAX, ClientPage, ClientView};
pub use keys::{IssuedKey, KEYS_MAX, KeyPage, KeyView, NewApiKey, OVERLAP_DEFAULT, OVERLAP_MAX};

/// Most keys or clients on one page.
pub const CREDENTIALS_PAGE_MAX: usize = 1_000;

/// Keys and clients of a policy source, without entries that are not valid.
#[derive(Clone, Default)]
pub struct SourceCredentials {
    /// API keys, by hash.
    pub api_keys: HashMap<Box<str>, ApiKey>,
    /// OAuth clients, by id.
    pub clients: HashMap<Box<str>, ClientType>,
}

/// This node's copy of the registered keys and clients.
#[derive(Default)]
pub(in crate::engine) struct Credentials {
    held: Mutex<CredentialTable>,
    /// The entries of `held` that apply now.
    current: ArcSwap<RegisteredCredentials>,
}

#[derive(Default)]
struct CredentialTable {
    keys: HashMap<String, KeyEntry>,
    revoked: HashSet<String>,
    clients: HashMap<String, ClientEntry>,
    source: Arc<SourceCredentials>,
    keys_seen: Option<u64>,
    clients_seen: Option<u64>,
    /// Instant at which the next replaced secret expires.
    next_end: Option<Micros>,
}

impl CredentialTable {
    fn take_keys(&mut self, all: &Entries) {
        self.keys.clear();
        self.revoked.clear();
        for record in all.entries.iter().filter_map(KeyRecord::read) {
            match record {
                KeyRecord::Key(id, entry) => drop(self.keys.insert(id, entry)),
                KeyRecord::Revoked(hash) => drop(self.revoked.insert(hash)),
            }
        }
        self.keys_seen = Some(all.version);
    }

    fn take_clients(&mut self, all: &Entries) {
        let read = all.entries.iter().filter_map(ClientEntry::read);
        self.clients = read.map(|entry| (entry.id.clone(), entry)).collect();
        self.clients_seen = Some(all.version);
    }

    fn is_due(&self, now: Micros) -> bool {
        self.next_end.is_some_and(|end| end <= now)
    }

    /// The entries that apply at `now`. An entry of the source wins over one of the admin API.
    fn registered(&mut self, now: Micros) -> RegisteredCredentials {
        let mut all = RegisteredCredentials {
            revoked: self
                .revoked
                .iter()
                .map(|hash| hash.as_str().into())
                .collect(),
            ..RegisteredCredentials::default()
        };
        self.next_end = None;
        for (id, entry) in self
            .keys
            .iter()
            .filter(|(id, _)| !self.revoked.contains(*id))
        {
            let ends = entry.secrets.iter().filter_map(|secret| secret.until);
            let next = ends.filter(|end| *end > now).min();
            self.next_end = [self.next_end, next].into_iter().flatten().min();
            entry.register(id, now, &mut all);
        }
        let clients = self.clients.values();
        all.clients = clients
            .map(|entry| (entry.id.as_str().into(), (entry.kind(), Origin::Admin)))
            .collect();
        // Inserted last, so that an entry of the source replaces one of the admin API.
        for (hash, key) in &self.source.api_keys {
            if let Some(usage) = &key.usage_of {
                all.newest.insert(usage.clone(), hash.clone());
            }
            all.api_keys
                .insert(hash.clone(), (key.clone(), Origin::Source));
        }
        let clients = self.source.clients.iter();
        all.clients
            .extend(clients.map(|(id, kind)| (id.clone(), (*kind, Origin::Source))));
        all
    }
}

impl Credentials {
    /// The policy together with the keys and clients that are registered outside its file.
    pub(in crate::engine) fn attach(&self, policy: Arc<PolicySet>) -> Arc<PolicySet> {
        let current = self.current.load_full();
        match current.is_empty() && policy.registered().is_empty() {
            true => policy,
            false => Arc::new(policy.with_registered(current)),
        }
    }
}

impl Engine {
    /// Copies keys and clients that operators have changed on any node, and drops replaced secrets
    /// that have expired.
    ///
    /// # Errors
    /// An error of the store; the copy stays as it was, but secrets still expire.
    pub async fn refresh_credentials(&self) -> Result<(), StoreError> {
        let credentials = &self.registries.credentials;
        let (keys_seen, clients_seen) = {
            let held = credentials.held.lock();
            (held.keys_seen, held.clients_seen)
        };
        // Both lists are read before an error is returned, so that one of them can be updated
        // without the other.
        let keys = self.changed_entries(Registry::ApiKeys, keys_seen).await;
        let clients = self.changed_entries(Registry::Clients, clients_seen).await;
        let mut has_changed = false;
        {
            let mut held = credentials.held.lock();
            if let Ok(Some(all)) = &keys {
                held.take_keys(all);
                has_changed = true;
            }
            if let Ok(Some(all)) = &clients {
                held.take_clients(all);
                has_changed = true;
            }
            // A replaced secret must expire even if nothing has changed in the store.
            has_changed |= held.is_due(self.now());
        }
        if has_changed {
            self.rebuild_registered();
        }
        keys.and(clients).map(drop)
    }

    async fn changed_entries(
        &self,
        registry: Registry,
        seen: Option<u64>,
    ) -> Result<Option<Entries>, StoreError> {
        self.link
            .attend(|store| store.entries(registry, seen))
            .await
    }

    /// Replaces the keys and clients of the policy source.
    pub fn set_source_credentials(&self, source: SourceCredentials) {
        self.registries.credentials.held.lock().source = Arc::new(source);
        self.rebuild_registered();
    }

    /// Attaches the registered keys and clients to the live and the candidate policy. The lock is
    /// held throughout, so that the later of two changes wins.
    fn rebuild_registered(&self) {
        let credentials = &self.registries.credentials;
        let mut held = credentials.held.lock();
        let registered = held.registered(self.now());
        let both_empty = registered.is_empty() && credentials.current.load().is_empty();
        if both_empty {
            return;
        }
        credentials.current.store(Arc::new(registered));
        self.attach_registered();
        if let Some(candidate) = self.candidate.get() {
            candidate.attach_registered();
        }
    }

    pub(in crate::engine) fn attach_registered(&self) {
        let credentials = &self.registries.credentials;
        self.policy
            .rcu(|policy| credentials.attach(Arc::clone(policy)));
    }
}

/// Attaches the keys of a store to a policy, for use without an engine.
///
/// # Errors
/// An error of the store.
pub(crate) async fn attach_stored(
    store: &dyn Store,
    policy: &PolicySet,
    now: Micros,
) -> Result<PolicySet, StoreError> {
    let mut held = CredentialTable::default();
    if let Some(all) = store.entries(Registry::ApiKeys, None).await? {
        held.take_keys(&all);
    }
    Ok(policy.with_registered(Arc::new(held.registered(now))))
}
