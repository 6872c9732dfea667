//! OAuth clients registered by operators.

use std::collections::BTreeMap;

use palisade_core::facts::{ClientType, Id};
use palisade_core::policy::{Origin, hash_api_key};
use palisade_store::{Entry, Registry};
use serde::{Deserialize, Serialize};

use super::super::super::{Change, Engine};
use super::super::quotas::check_reason;
use super::super::{Admin, AdminError};
use super::CREDENTIALS_PAGE_MAX;
use super::keys::invalid;

/// Most clients that the admin API keeps.
pub const CLIENTS_MAX: usize = 10_000;

/// A client as the store keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ClientEntry {
    pub(super) id: String,
    is_confidential: bool,
}

impl ClientEntry {
    pub(super) fn read(entry: &Entry) -> Option<Self> {
        serde_json::from_slice(&entry.bytes).ok()
    }

    pub(super) const fn kind(&self) -> ClientType {
        match self.is_confidential {
            true => ClientType::Confidential,
            false => ClientType::Public,
        }
    }
}

/// A registered OAuth client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = OAuthClient))]
pub struct ClientView {
    /// The client's `client_id`.
    pub id: String,
    /// `public` or `confidential`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Origin of the registration: `file`, `source` or `admin`.
    pub origin: &'static str,
    /// False if the policy file registers the same client, because the file takes precedence.
    pub in_force: bool,
}

/// A page of clients, ordered by id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = OAuthClients))]
pub struct ClientPage {
    /// The clients.
    pub clients: Vec<ClientView>,
    /// Value of `after` for the next page; null on the last page.
    pub next: Option<String>,
}

const fn word(kind: ClientType) -> &'static str {
    match kind {
        ClientType::Public => "public",
        ClientType::Confidential => "confidential",
    }
}

/// Id of a client's registry entry. It is a hash, because ids in registries are never identifiers.
fn entry_id(id: &str) -> String {
    hash_api_key(id)
}

impl Engine {
    /// OAuth clients of every origin after `after`, in the order of their ids.
    pub fn clients(&self, after: Option<&str>, count_max: usize) -> ClientPage {
        let policy = self.policy.load_full();
        let mut all = BTreeMap::new();
        for (id, kind, origin) in policy.clients() {
            if after.is_none_or(|after| id > after) {
                all.insert((id, origin), kind);
            }
        }
        let count_max = count_max.clamp(1, CREDENTIALS_PAGE_MAX);
        let mut page = ClientPage::default();
        let mut last: Option<&str> = None;
        for ((id, origin), kind) in all {
            if page.clients.len() >= count_max && last != Some(id) {
                page.next = last.map(str::to_owned);
                break;
            }
            // Origins sort by precedence: the first one of an id is in force.
            page.clients.push(ClientView {
                id: id.to_owned(),
                kind: word(kind),
                origin: origin.name(),
                in_force: last != Some(id),
            });
            last = Some(id);
        }
        page
    }
}

impl Admin<'_> {
    /// Registers an OAuth client, or changes the type of one that the admin API registered.
    ///
    /// # Errors
    /// A client that the file or the source registers, too many clients, or an error of the store.
    pub async fn add_client(
        &self,
        id: &Id,
        kind: ClientType,
        reason: Option<&str>,
    ) -> Result<ClientView, AdminError> {
        reason.map_or(Ok(()), check_reason)?;
        let engine = self.engine;
        engine.refresh_credentials().await?;
        let text = id.as_str();
        let known = engine.client_origin(text);
        if known.is_some_and(|origin| origin != Origin::Admin) {
            return Err(invalid(
                "id",
                "is registered by the policy file or its source",
            ));
        }
        let count = engine.registries.credentials.held.lock().clients.len();
        if known.is_none() && count >= CLIENTS_MAX {
            return Err(invalid(
                "id",
                "is one too many: remove clients that are not used",
            ));
        }
        let client = ClientEntry {
            id: text.to_owned(),
            is_confidential: kind == ClientType::Confidential,
        };
        let entry = Entry {
            id: entry_id(text),
            bytes: serde_json::to_vec(&client).unwrap_or_default(),
            expires_at: None,
        };
        engine
            .link
            .operate(|store| store.put_entry(Registry::Clients, entry))
            .await?;
        engine.refresh_credentials().await?;
        self.record(Change::Client {
            id: &entry_id(text),
            is_added: true,
            reason,
        });
        Ok(ClientView {
            id: client.id,
            kind: word(kind),
            origin: Origin::Admin.name(),
            in_force: true,
        })
    }

    /// Removes an OAuth client that the admin API registered.
    ///
    /// # Errors
    /// No such client, or an error of the store.
    pub async fn remove_client(&self, id: &Id, reason: Option<&str>) -> Result<(), AdminError> {
        reason.map_or(Ok(()), check_reason)?;
        let entry = entry_id(id.as_str());
        let engine = self.engine;
        if !engine.remove_entry(Registry::Clients, &entry).await? {
            return Err(AdminError::NotFound("client"));
        }
        engine.refresh_credentials().await?;
        self.record(Change::Client {
            id: &entry,
            is_added: false,
            reason,
        });
        Ok(())
    }
}

impl Engine {
    fn client_origin(&self, id: &str) -> Option<Origin> {
        let policy = self.policy.load();
        let of_id = policy.clients().filter(|(own, ..)| *own == id);
        of_id.map(|(.., origin)| origin).min()
    }
}
