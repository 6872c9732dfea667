//! The allowlist: entries in the store, a copy in every node. No entry holds a raw
//! address or user: only digests, and the anonymised network for people to read.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use ipnet::IpNet;
use palisade_core::facts::{FieldError, Id, RequestFacts};
use palisade_core::key::{Digest, Domain, Keyring, anonymised};
use palisade_core::time::Micros;
use palisade_store::{Entry, Registry, StoreError, Vitals};
use serde::{Deserialize, Serialize};

use super::super::Engine;
use super::super::seldom::Seldom;

/// Kind of identifier that an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllowlistKind {
    /// One address.
    Ip,
    /// A network.
    Cidr,
    /// A user, of one organisation or of any.
    UserId,
}

/// An entry to be added.
#[derive(Clone, Debug)]
pub struct NewAllowlistEntry {
    /// Kind of identifier that it names.
    pub kind: AllowlistKind,
    /// The identifier (an address, network or user); only its digest is kept.
    pub identifier: String,
    /// The organisation that a user belongs to; `None` lets a user of that name pass in
    /// any. Only its digest is kept.
    pub org: Option<String>,
    /// The operator's reason.
    pub reason: String,
    /// Expiry; `None` if the entry stays until it is removed.
    pub expires_at: Option<Micros>,
}

/// An entry as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowlistEntry {
    /// The digest that identifies the entry.
    pub id: String,
    /// Kind of identifier that it names.
    #[serde(rename = "type")]
    pub kind: AllowlistKind,
    /// The digest of a user's organisation; absent: of any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// The anonymised network of an address, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Prefix length of an address or network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_len: Option<u8>,
    /// The operator's reason.
    pub reason: String,
    /// Expiry, in microseconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Micros>,
}

/// Error of a change of the allowlist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllowlistError {
    /// `identifier` is not of its type, `reason` is empty, and so on.
    #[error("`{field}` {problem}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The problem with the field.
        problem: &'static str,
    },
    /// A store call failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<FieldError> for AllowlistError {
    fn from(FieldError { field, problem }: FieldError) -> Self {
        Self::Invalid { field, problem }
    }
}

/// This node's copy of the allowlist.
#[derive(Default)]
pub(in crate::engine) struct Allowlist {
    /// Absent while the list is empty, so that requests then pay next to nothing.
    copy: Seldom<Copy>,
    version: AtomicU64,
    /// Lead of the store's clock over this node's. Entries expire by the store's clock (F-CLOCK).
    ahead_us: AtomicI64,
}

#[derive(Default)]
struct Copy {
    by_id: HashMap<Digest, Option<Micros>>,
    v4_lengths: BTreeSet<u8>,
    v6_lengths: BTreeSet<u8>,
    /// Some entry names a user of any organisation.
    users: bool,
    /// Some entry names a user of one organisation.
    users_of_one: bool,
    /// Some entry expires.
    has_ends: bool,
}

/// `version` before the first copy. Afterwards it is the list's version plus one.
const UNSEEN: u64 = 0;

impl Allowlist {
    /// Finds the entry that lets `facts` pass; returns its digest in hexadecimal. The time is read
    /// only if there are entries.
    pub(in crate::engine) fn find(
        &self,
        keyring: &Keyring,
        facts: &RequestFacts,
        now: impl FnOnce() -> Micros,
    ) -> Option<String> {
        let copy = self.copy.look()?;
        let copy = copy.as_ref()?;
        let now = now().moved(self.ahead_us.load(Ordering::Relaxed));
        copy.find_user(keyring, facts, now)
            .or_else(|| copy.find_address(keyring, facts.address()?, now))
            .map(Digest::hex)
    }
}

impl Copy {
    fn live(&self, digests: palisade_core::key::DigestPair, now: Micros) -> Option<Digest> {
        [Some(digests.current), digests.previous]
            .into_iter()
            .flatten()
            .find(|digest| {
                self.by_id
                    .get(digest)
                    .is_some_and(|until| until.is_none_or(|until| until > now))
            })
    }

    fn find_user(&self, keyring: &Keyring, facts: &RequestFacts, now: Micros) -> Option<Digest> {
        let user = facts.user.as_ref()?.as_bytes();
        let org = facts.org.as_ref().filter(|_| self.users_of_one);
        let of_one = org.and_then(|org| {
            let digests = user_digest(keyring, Some(org.as_bytes()), user);
            self.live(digests, now)
        });
        let of_any = || self.live(user_digest(keyring, None, user), now);
        of_one.or_else(|| self.users.then(of_any)?)
    }

    fn find_address(&self, keyring: &Keyring, ip: IpAddr, now: Micros) -> Option<Digest> {
        let lengths = match ip {
            IpAddr::V4(_) => &self.v4_lengths,
            IpAddr::V6(_) => &self.v6_lengths,
        };
        // One lookup for each prefix length in use, the longest first.
        lengths.iter().rev().find_map(|length| {
            let net = IpNet::new(ip, *length).ok()?.trunc();
            self.live(net_digest(keyring, net), now)
        })
    }

    fn insert(&mut self, entry: &AllowlistEntry) {
        let Some(id) = Digest::from_hex(&entry.id) else {
            return;
        };
        self.by_id.insert(id, entry.expires_at);
        self.has_ends |= entry.expires_at.is_some();
        match (entry.kind, entry.prefix_len, &entry.network) {
            (AllowlistKind::UserId, ..) if entry.org.is_some() => self.users_of_one = true,
            (AllowlistKind::UserId, ..) => self.users = true,
            (_, Some(length), Some(network)) if network.contains(':') => {
                self.v6_lengths.insert(length);
            }
            (_, Some(length), _) => {
                self.v4_lengths.insert(length);
            }
            _ => {}
        }
    }
}

fn user_digest(
    keyring: &Keyring,
    org: Option<&[u8]>,
    user: &[u8],
) -> palisade_core::key::DigestPair {
    match org {
        None => keyring.hmac(Domain::Allowlist, &[b"user", user]),
        Some(org) => keyring.hmac(Domain::Allowlist, &[b"user of", org, user]),
    }
}

fn net_digest(keyring: &Keyring, net: IpNet) -> palisade_core::key::DigestPair {
    let length = [net.prefix_len()];
    match net.network() {
        IpAddr::V4(v4) => keyring.hmac(Domain::Allowlist, &[b"net", &v4.octets(), &length]),
        IpAddr::V6(v6) => keyring.hmac(Domain::Allowlist, &[b"net", &v6.octets(), &length]),
    }
}

/// A validated identifier: its digests, and the parts of it that may be shown.
struct AllowlistIdentifier {
    digests: palisade_core::key::DigestPair,
    org: Option<String>,
    network: Option<String>,
    prefix_len: Option<u8>,
}

/// The digest that stands for an identifier in the list.
pub(super) fn entry_id(
    keyring: &Keyring,
    kind: AllowlistKind,
    identifier: &str,
    org: Option<&str>,
) -> Result<String, AllowlistError> {
    Ok(name(keyring, kind, identifier, org)?.digests.current.hex())
}

fn name_user(
    keyring: &Keyring,
    identifier: &str,
    org: Option<&str>,
) -> Result<AllowlistIdentifier, AllowlistError> {
    let check = |field, text: &str| Id::new(field, text).map(drop);
    check("identifier", identifier)?;
    org.map(|org| check("org", org)).transpose()?;
    let org = org.map(str::as_bytes);
    let shown = |org: &[u8]| keyring.hmac(Domain::Allowlist, &[b"org", org]);
    Ok(AllowlistIdentifier {
        digests: user_digest(keyring, org, identifier.as_bytes()),
        org: org.map(|org| shown(org).current.hex()),
        network: None,
        prefix_len: None,
    })
}

fn name(
    keyring: &Keyring,
    kind: AllowlistKind,
    identifier: &str,
    org: Option<&str>,
) -> Result<AllowlistIdentifier, AllowlistError> {
    let invalid = |problem| AllowlistError::Invalid {
        field: "identifier",
        problem,
    };
    if org.is_some() && kind != AllowlistKind::UserId {
        return Err(AllowlistError::Invalid {
            field: "org",
            problem: "belongs to a `user_id` only: addresses are of no organisation",
        });
    }
    let net = match kind {
        AllowlistKind::UserId => return name_user(keyring, identifier, org),
        AllowlistKind::Ip => identifier
            .parse::<IpAddr>()
            .map(|ip| IpNet::from(ip.to_canonical()))
            .map_err(|_| invalid("is not an IP address"))?,
        AllowlistKind::Cidr => identifier
            .parse::<IpNet>()
            .map_err(|_| invalid("is not a network such as 192.0.2.0/24"))?
            .trunc(),
    };
    Ok(AllowlistIdentifier {
        digests: net_digest(keyring, net),
        org: None,
        network: Some(anonymised(net.network())),
        prefix_len: Some(net.prefix_len()),
    })
}

impl Engine {
    /// Adds an entry. It binds here at once, on other nodes within a second.
    ///
    /// # Errors
    /// A field that is not valid, or an error of the store.
    pub async fn allowlist_add(
        &self,
        new: NewAllowlistEntry,
    ) -> Result<AllowlistEntry, AllowlistError> {
        let named = name(&self.keyring, new.kind, &new.identifier, new.org.as_deref())?;
        if new.reason.trim().is_empty() || new.reason.len() > 500 {
            return Err(AllowlistError::Invalid {
                field: "reason",
                problem: "must be 1 to 500 characters",
            });
        }
        // The future by the store's clock, which also ends the entry.
        if let Some(until) = new.expires_at
            && until <= self.link.operate(Vitals::probe).await?
        {
            return Err(AllowlistError::Invalid {
                field: "expires_at",
                problem: "must be in the future",
            });
        }
        let entry = AllowlistEntry {
            id: named.digests.current.hex(),
            kind: new.kind,
            org: named.org,
            network: named.network,
            prefix_len: named.prefix_len,
            reason: new.reason,
            expires_at: new.expires_at,
        };
        let stored = Entry {
            id: entry.id.clone(),
            bytes: serde_json::to_vec(&entry)
                .map_err(|_| StoreError::Corrupt("an entry could not be written".to_owned()))?,
            expires_at: entry.expires_at,
        };
        self.link
            .operate(|store| store.put_entry(Registry::Allowlist, stored))
            .await?;
        self.refresh_allowlist().await?;
        Ok(entry)
    }

    /// Removes the entry with exactly this identifier and organisation; false if there
    /// was none.
    ///
    /// # Errors
    /// An identifier that is not valid, or an error of the store.
    pub async fn allowlist_remove(
        &self,
        kind: AllowlistKind,
        identifier: &str,
        org: Option<&str>,
    ) -> Result<bool, AllowlistError> {
        let named = name(&self.keyring, kind, identifier, org)?;
        let mut removed = false;
        // An entry from before a rotation of the secret is stored under the previous digest.
        for digest in [Some(named.digests.current), named.digests.previous]
            .into_iter()
            .flatten()
        {
            let id = digest.hex();
            removed |= self
                .link
                .operate(|store| store.remove_entry(Registry::Allowlist, &id))
                .await?;
        }
        self.refresh_allowlist().await?;
        Ok(removed)
    }

    /// Every live entry.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn allowlist(&self) -> Result<Vec<AllowlistEntry>, StoreError> {
        let found = self
            .link
            .operate(|store| store.entries(Registry::Allowlist, None))
            .await?;
        Ok(found.map(|all| decode(&all.entries)).unwrap_or_default())
    }

    /// Copies the list if it has changed. Called at least once a second.
    ///
    /// # Errors
    /// An error of the store; the copy stays as it was.
    pub async fn refresh_allowlist(&self) -> Result<(), StoreError> {
        let allowlist = &self.registries.allowlist;
        let seen = match allowlist.version.load(Ordering::Acquire) {
            UNSEEN => None,
            version => Some(version - 1),
        };
        let found = self
            .link
            .attend(|store| store.entries(Registry::Allowlist, seen))
            .await?;
        if let Some(all) = found {
            let mut copy = Copy::default();
            for entry in decode(&all.entries) {
                copy.insert(&entry);
            }
            match copy.by_id.is_empty() {
                true => allowlist.copy.take_away(),
                false => allowlist.copy.put(Arc::new(copy)),
            }
            allowlist.version.store(all.version + 1, Ordering::Release);
        }
        if allowlist.copy.get().is_some_and(|copy| copy.has_ends) {
            self.compare_clocks().await?;
        }
        Ok(())
    }

    async fn compare_clocks(&self) -> Result<(), StoreError> {
        let asked = self.now();
        let answered = self.link.attend(Vitals::probe).await?;
        self.registries
            .allowlist
            .ahead_us
            .store(answered.ahead_of(asked), Ordering::Relaxed);
        Ok(())
    }
}

fn decode(entries: &[Entry]) -> Vec<AllowlistEntry> {
    entries
        .iter()
        .filter_map(|entry| serde_json::from_slice(&entry.bytes).ok())
        .collect()
}
