//! API keys and OAuth clients that are registered outside the policy file.

use std::collections::{HashMap, HashSet};

use super::{ApiKey, PolicySet};
use crate::facts::ClientType;

/// Place where a key or client is registered. Of two registrations the first in this order is in
/// force: configuration in a file is not overruled at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The policy file.
    File,
    /// The policy source (a database of the application).
    Source,
    /// The admin API.
    Admin,
}

impl Origin {
    /// The name of the origin in answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Source => "source",
            Self::Admin => "admin",
        }
    }
}

/// Keys and clients from outside the file, and the keys that operators revoked.
#[derive(Clone, Default)]
pub struct RegisteredCredentials {
    /// API keys, by hash.
    pub api_keys: HashMap<Box<str>, (ApiKey, Origin)>,
    /// OAuth clients, by id.
    pub clients: HashMap<Box<str>, (ClientType, Origin)>,
    /// Hash of the newest secret of each key whose usage is counted under another hash.
    pub newest: HashMap<Box<str>, Box<str>>,
    /// Hashes that are no longer in force, wherever they are registered.
    pub revoked: HashSet<Box<str>>,
}

impl RegisteredCredentials {
    /// Whether nothing is registered or revoked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.api_keys.is_empty() && self.clients.is_empty() && self.revoked.is_empty()
    }
}

/// A registration, found by any of its hashes.
#[derive(Clone, Copy, Debug)]
pub struct KeyRegistration<'p> {
    /// The registered key.
    pub key: &'p ApiKey,
    /// Hash of the secret that the lookup named, or of the newest one.
    pub hash: &'p str,
    /// Hash under which usage is counted: it stays the same when the secret is replaced.
    pub usage: &'p str,
    /// Place where the key is registered.
    pub origin: Origin,
}

impl PolicySet {
    /// Finds the registration of the key with this hash, or of the key whose usage is counted
    /// under it.
    #[must_use]
    pub fn key_registration(&self, hash: &str) -> Option<KeyRegistration<'_>> {
        let hash = match self.api_key(hash) {
            Some(_) => hash,
            None => self.registered.newest.get(hash)?,
        };
        let (own, key, origin) = match self.api_keys.get_key_value(hash) {
            Some((own, key)) => (own, key, Origin::File),
            None => {
                let (own, (key, origin)) = self.registered.api_keys.get_key_value(hash)?;
                (own, key, *origin)
            }
        };
        self.api_key(hash)?;
        Some(KeyRegistration {
            key,
            hash: own,
            usage: key.usage_of.as_ref().unwrap_or(own),
            origin,
        })
    }

    /// OAuth clients of every origin, including those that a stronger origin overrules.
    pub fn clients(&self) -> impl Iterator<Item = (&str, ClientType, Origin)> {
        let own = self.clients.iter();
        let own = own.map(|(id, kind)| (&**id, *kind, Origin::File));
        let others = self.registered.clients.iter();
        own.chain(others.map(|(id, (kind, origin))| (&**id, *kind, *origin)))
    }

    /// Keys and clients from outside the file.
    #[must_use]
    pub fn registered(&self) -> &RegisteredCredentials {
        &self.registered
    }
}
