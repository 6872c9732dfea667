//! API keys that operators create, rotate and revoke. The secret is returned once; only its hash is
//! kept.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_core::policy::{ApiKey, Origin, PolicySet, RegisteredCredentials, hash_api_key};
use palisade_core::time::{HOUR, Micros};
use palisade_store::{Entry, Registry};
use serde::{Deserialize, Serialize};

use super::super::super::{Change, Engine, KeyChange};
use super::super::quotas::check_reason;
use super::super::{Admin, AdminError};
use super::CREDENTIALS_PAGE_MAX;

/// Most keys that the admin API keeps.
pub const KEYS_MAX: usize = 10_000;
/// Time for which a replaced secret stays valid unless the operator chooses another.
pub const OVERLAP_DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest overlap.
pub const OVERLAP_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

const NAME_BYTES_MAX: usize = 100;
const SCOPES_MAX: usize = 32;
const SCOPE_BYTES_MAX: usize = 64;
/// Bytes of randomness in a key.
const KEY_BYTES: usize = 32;
/// Lets people and secret scanners recognise our keys.
const KEY_PREFIX: &str = "pal_";
const REVOKED_PREFIX: &str = "revoked:";
/// Lifetime of the mark of a revoked admin-API key: long enough for a rotation on another node that
/// was in progress at the time.
const REVOCATION_KEPT_US: u64 = HOUR;

/// A key to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewApiKey {
    /// Description for people: whose key it is, or its purpose.
    pub name: String,
    /// A tier of the policy.
    pub tier: String,
    /// Scopes; `None` covers every route.
    pub scopes: Option<Vec<String>>,
    /// For the audit.
    pub reason: Option<String>,
}

/// A key as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyEntry {
    name: String,
    tier: String,
    scopes: Option<Vec<String>>,
    created_at: Micros,
    rotated_at: Option<Micros>,
    /// Newest first; never more than two.
    pub(super) secrets: Vec<SecretHash>,
}

/// The hash of one secret, and its expiry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SecretHash {
    hash: String,
    pub(super) until: Option<Micros>,
}

/// One entry of the registry of keys.
pub(super) enum KeyRecord {
    Key(String, KeyEntry),
    Revoked(String),
}

impl KeyRecord {
    pub(super) fn read(entry: &Entry) -> Option<Self> {
        if let Some(hash) = entry.id.strip_prefix(REVOKED_PREFIX) {
            return Some(Self::Revoked(hash.to_owned()));
        }
        let key = serde_json::from_slice(&entry.bytes).ok()?;
        Some(Self::Key(entry.id.clone(), key))
    }
}

impl KeyEntry {
    /// Registers every secret that is valid at `now`; usage is counted under `id`.
    pub(super) fn register(&self, id: &str, now: Micros, all: &mut RegisteredCredentials) {
        let valid = |secret: &&SecretHash| secret.until.is_none_or(|until| until > now);
        for secret in self.secrets.iter().filter(valid) {
            let key = ApiKey {
                tier: self.tier.as_str().into(),
                scopes: self.scopes.clone(),
                usage_of: Some(id.into()),
            };
            all.api_keys
                .insert(secret.hash.as_str().into(), (key, Origin::Admin));
        }
        if let Some(newest) = self.secrets.first() {
            all.newest.insert(id.into(), newest.hash.as_str().into());
        }
    }

    fn overlap_until(&self, now: Micros) -> Option<Micros> {
        let ends = self.secrets.iter().filter_map(|secret| secret.until);
        ends.filter(|end| *end > now).max()
    }
}

/// A registered API key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ApiKey))]
pub struct KeyView {
    /// Id of the key in requests about it: the hash of its first secret. It stays the same when the
    /// secret is replaced.
    pub key: String,
    /// Name that the operator chose; absent if the key was not created over the admin API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tier in force.
    pub tier: String,
    /// Scopes of the key; null if it covers every route.
    pub scopes: Option<Vec<String>>,
    /// Origin of the registration: `file`, `source` or `admin`.
    pub origin: &'static str,
    /// Time of creation, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// Time at which the secret was last replaced, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotated_at: Option<String>,
    /// Time until which the replaced secret is still valid, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap_until: Option<String>,
}

/// A key that was just created or rotated. No other answer contains the secret.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IssuedKey {
    /// The secret. It is not stored and cannot be shown again.
    pub api_key: String,
    /// The key as it is registered.
    pub registration: KeyView,
}

impl std::fmt::Debug for IssuedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedKey")
            .field("registration", &self.registration)
            .finish_non_exhaustive()
    }
}

/// A page of keys, ordered by `key`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ApiKeys))]
pub struct KeyPage {
    /// The keys.
    pub keys: Vec<KeyView>,
    /// Value of `after` for the next page; null on the last page.
    pub next: Option<String>,
}

impl Engine {
    /// Registered API keys of every origin after `after`, in order. With `search` only those
    /// whose name contains it or whose hash begins with it.
    pub fn api_keys(&self, after: Option<&str>, count_max: usize, search: Option<&str>) -> KeyPage {
        let policy = self.policy.load_full();
        let search = search.map(str::to_lowercase);
        let mut all = BTreeMap::new();
        for (hash, _) in policy.api_keys() {
            let Some(view) = self.key_view(&policy, hash) else {
                continue;
            };
            let is_wanted = after.is_none_or(|after| view.key.as_str() > after)
                && search.as_ref().is_none_or(|search| view.is_named(search));
            if is_wanted {
                all.insert(view.key.clone(), view);
            }
        }
        let count_max = count_max.clamp(1, CREDENTIALS_PAGE_MAX);
        let is_last = all.len() <= count_max;
        let keys: Vec<KeyView> = all.into_values().take(count_max).collect();
        let next = keys
            .last()
            .filter(|_| !is_last)
            .map(|last| last.key.clone());
        KeyPage { keys, next }
    }

    /// A key as operators see it, found by its id or by the hash of one of its secrets.
    fn key_view(&self, policy: &PolicySet, hash: &str) -> Option<KeyView> {
        let found = policy.key_registration(hash)?;
        let tier = self.tier_of(policy, found.usage);
        let mut view = KeyView {
            key: found.usage.to_owned(),
            name: None,
            tier: tier.map_or_else(|| found.key.tier.to_string(), |tier| tier.name.to_string()),
            scopes: found.key.scopes.clone(),
            origin: found.origin.name(),
            created_at: None,
            rotated_at: None,
            overlap_until: None,
        };
        let held = self.registries.credentials.held.lock();
        let entry = held.keys.get(found.usage);
        if let Some(entry) = entry.filter(|_| found.origin == Origin::Admin) {
            view.name = Some(entry.name.clone());
            view.created_at = Some(entry.created_at.to_rfc3339());
            view.rotated_at = entry.rotated_at.map(Micros::to_rfc3339);
            view.overlap_until = entry.overlap_until(self.now()).map(Micros::to_rfc3339);
        }
        Some(view)
    }
}

impl KeyView {
    fn is_named(&self, search: &str) -> bool {
        let name = self.name.as_ref();
        self.key.starts_with(search)
            || name.is_some_and(|name| name.to_lowercase().contains(search))
    }
}

impl Admin<'_> {
    /// Makes an API key. It is valid here at once, on other nodes within a second.
    ///
    /// # Errors
    /// A field that is not valid, too many keys, or an error of the store.
    pub async fn create_key(&self, new: NewApiKey) -> Result<IssuedKey, AdminError> {
        let engine = self.engine;
        check_name(&new.name)?;
        new.scopes.as_deref().map_or(Ok(()), check_scopes)?;
        new.reason.as_deref().map_or(Ok(()), check_reason)?;
        if engine.policy.load().tier(&new.tier).is_none() {
            return Err(invalid("tier", "is not a tier of this policy"));
        }
        // Read first, so that keys made on other nodes are counted as well.
        engine.refresh_credentials().await?;
        if engine.registries.credentials.held.lock().keys.len() >= KEYS_MAX {
            return Err(invalid(
                "name",
                "is one too many: revoke keys that are not used",
            ));
        }
        let (api_key, hash) = make_secret();
        let entry = KeyEntry {
            name: new.name,
            tier: new.tier,
            scopes: new.scopes,
            created_at: engine.now(),
            rotated_at: None,
            secrets: vec![SecretHash {
                hash: hash.clone(),
                until: None,
            }],
        };
        engine.put_key(&hash, &entry).await?;
        self.issued(KeyChange::Created, api_key, &hash, new.reason.as_deref())
    }

    /// Replaces a key's secret. The previous secret stays valid for `overlap`; one that was
    /// replaced earlier ends at once. The use counted so far is kept.
    ///
    /// # Errors
    /// No such key, a key that was not created over the admin API, an overlap that is too long, or
    /// an error of the store.
    pub async fn rotate_key(
        &self,
        key: &str,
        overlap: Duration,
        reason: Option<&str>,
    ) -> Result<IssuedKey, AdminError> {
        reason.map_or(Ok(()), check_reason)?;
        if overlap > OVERLAP_MAX {
            return Err(invalid("overlap_seconds", "must not be over 30 days"));
        }
        let engine = self.engine;
        engine.refresh_credentials().await?;
        let (id, mut entry) = engine.own_key(key)?;
        let now = engine.now();
        let (api_key, hash) = make_secret();
        // At most one replaced secret stays valid.
        entry.secrets.truncate(1);
        for before in &mut entry.secrets {
            let overlap = u64::try_from(overlap.as_micros()).unwrap_or(u64::MAX);
            before.until = Some(Micros(now.0.saturating_add(overlap)));
        }
        entry.secrets.insert(0, SecretHash { hash, until: None });
        entry.rotated_at = Some(now);
        engine.put_key(&id, &entry).await?;
        // Another node may have revoked the key between our read and our write: its
        // revocation was written before its removal, so it is seen here.
        if engine
            .registries
            .credentials
            .held
            .lock()
            .revoked
            .contains(&id)
        {
            engine.remove_entry(Registry::ApiKeys, &id).await?;
            return Err(AdminError::NotFound("API key"));
        }
        self.issued(KeyChange::Rotated, api_key, &id, reason)
    }

    /// Revokes a key with all its secrets, whatever its origin.
    ///
    /// # Errors
    /// No such key, or an error of the store.
    pub async fn revoke_key(&self, key: &str, reason: &str) -> Result<(), AdminError> {
        check_reason(reason)?;
        let engine = self.engine;
        engine.refresh_credentials().await?;
        let policy = engine.policy.load_full();
        let found = policy.key_registration(key);
        let found = found.ok_or(AdminError::NotFound("API key"))?;
        let is_own = found.origin == Origin::Admin;
        // A key of the admin API is revoked under its id, any other under the hash itself, because
        // its file or source will go on registering that hash.
        let id = if is_own { found.usage } else { found.hash };
        let expires_at = is_own.then(|| Micros(engine.now().0 + REVOCATION_KEPT_US));
        let revocation = Entry {
            id: format!("{REVOKED_PREFIX}{id}"),
            bytes: Vec::new(),
            expires_at,
        };
        // Written before the key is removed, so that `rotate_key` on another node cannot miss it.
        engine
            .link
            .operate(|store| store.put_entry(Registry::ApiKeys, revocation))
            .await?;
        if is_own {
            engine.remove_entry(Registry::ApiKeys, id).await?;
            engine.remove_entry(Registry::Tiers, id).await?;
        }
        engine.refresh_credentials().await?;
        self.record(Change::ApiKey {
            what: KeyChange::Revoked,
            api_key: id,
            reason: Some(reason),
        });
        Ok(())
    }

    fn issued(
        &self,
        what: KeyChange,
        api_key: String,
        id: &str,
        reason: Option<&str>,
    ) -> Result<IssuedKey, AdminError> {
        self.record(Change::ApiKey {
            what,
            api_key: id,
            reason,
        });
        let policy = self.engine.policy.load_full();
        let registration = self.engine.key_view(&policy, id);
        let registration = registration.ok_or(AdminError::NotFound("API key"))?;
        Ok(IssuedKey {
            api_key,
            registration,
        })
    }
}

impl Engine {
    /// A key that the admin API made, with its id.
    fn own_key(&self, key: &str) -> Result<(String, KeyEntry), AdminError> {
        let policy = self.policy.load_full();
        let found = policy.key_registration(key);
        let found = found.ok_or(AdminError::NotFound("API key"))?;
        let held = self.registries.credentials.held.lock();
        match (found.origin, held.keys.get(found.usage)) {
            (Origin::Admin, Some(entry)) => Ok((found.usage.to_owned(), entry.clone())),
            (Origin::Admin, None) => Err(AdminError::NotFound("API key")),
            (Origin::File, _) => Err(invalid("key", "is of the policy file: replace it there")),
            (Origin::Source, _) => Err(invalid("key", "is of the policy source: replace it there")),
        }
    }

    async fn put_key(&self, id: &str, key: &KeyEntry) -> Result<(), AdminError> {
        let entry = Entry {
            id: id.to_owned(),
            bytes: serde_json::to_vec(key).unwrap_or_default(),
            expires_at: None,
        };
        self.link
            .operate(|store| store.put_entry(Registry::ApiKeys, entry))
            .await?;
        Ok(self.refresh_credentials().await?)
    }

    pub(super) async fn remove_entry(
        &self,
        registry: Registry,
        id: &str,
    ) -> Result<bool, AdminError> {
        let removed = self.link.operate(|store| store.remove_entry(registry, id));
        Ok(removed.await?)
    }
}

/// A new key and its hash.
fn make_secret() -> (String, String) {
    let random = URL_SAFE_NO_PAD.encode(rand::random::<[u8; KEY_BYTES]>());
    let key = format!("{KEY_PREFIX}{random}");
    let hash = hash_api_key(&key);
    (key, hash)
}

pub(super) const fn invalid(field: &'static str, problem: &'static str) -> AdminError {
    AdminError::Invalid { field, problem }
}

fn check_name(name: &str) -> Result<(), AdminError> {
    let is_valid = !name.trim().is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.chars().any(char::is_control);
    match is_valid {
        true => Ok(()),
        false => Err(invalid(
            "name",
            "must be 1 to 100 bytes without control characters",
        )),
    }
}

/// A scope is a `scope-token` of OAuth (RFC 6749): no space, quote or backslash.
fn check_scopes(scopes: &[String]) -> Result<(), AdminError> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    let is_valid = |scope: &String| {
        !scope.is_empty() && scope.len() <= SCOPE_BYTES_MAX && scope.bytes().all(is_plain)
    };
    match scopes.len() <= SCOPES_MAX && scopes.iter().all(is_valid) {
        true => Ok(()),
        false => Err(invalid(
            "scopes",
            "must be at most 32 texts of 1 to 64 letters, digits and marks",
        )),
    }
}
