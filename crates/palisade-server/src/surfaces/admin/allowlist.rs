//! `/admin/rate-limit/allowlist`.

use std::net::IpAddr;

use axum::extract::State;
use axum::{Extension, Json};
use ipnet::IpNet;
use palisade::engine::{AllowlistEntry, AllowlistKind, NewAllowlistEntry};
use palisade_core::Micros;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::input::{Body, Fields};
use super::refusal::Refusal;
use super::{Caller, Operations};

const INVALID: &str = "Invalid allowlist entry";
const MISSING: &str = "Identifier not found in allowlist";

/// An allowlist entry to add.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct NewEntry {
    /// `ip`, `cidr` or `user_id`.
    #[serde(rename = "type")]
    #[cfg_attr(test, schema(value_type = String, example = "ip"))]
    kind: Option<Value>,
    /// The IP address, network or user id.
    #[cfg_attr(test, schema(value_type = String, example = "192.0.2.7"))]
    identifier: Option<Value>,
    /// Id of the user's organisation. Without it, the entry holds for this user id in every
    /// organisation.
    #[cfg_attr(test, schema(value_type = Option<String>, example = "acme"))]
    org: Option<Value>,
    /// Reason for the entry.
    #[cfg_attr(test, schema(value_type = String, example = "Internal monitoring service"))]
    reason: Option<Value>,
    /// End of the entry, RFC 3339. Without it, the entry holds until it is removed.
    #[cfg_attr(test, schema(value_type = Option<String>, example = "2027-12-31T23:59:59Z"))]
    expires_at: Option<Value>,
}

/// An allowlist entry to remove.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct OldEntry {
    /// `ip`, `cidr` or `user_id`.
    #[serde(rename = "type")]
    #[cfg_attr(test, schema(value_type = String, example = "ip"))]
    kind: Option<Value>,
    /// The IP address, network or user id.
    #[cfg_attr(test, schema(value_type = String, example = "192.0.2.7"))]
    identifier: Option<Value>,
    /// Id of the organisation, if the entry has one.
    #[cfg_attr(test, schema(value_type = Option<String>, example = "acme"))]
    org: Option<Value>,
}

/// Confirmation that an entry was added.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = AllowlistAdded))]
pub(super) struct AddedEntry {
    allowlisted: bool,
    /// The identifier as given.
    identifier: String,
    /// End of the entry, RFC 3339; null if it holds until it is removed.
    expires_at: Option<String>,
}

/// Confirmation that an entry was removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = AllowlistRemoved))]
pub(super) struct RemovedEntry {
    removed: bool,
}

/// The allowlist.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Allowlist))]
pub(super) struct Listing {
    entries: Vec<EntryView>,
}

/// An allowlist entry. The identifier is shown as a digest, an address also by its anonymised
/// network.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(super) struct EntryView {
    /// Digest of the identifier.
    id: String,
    /// `ip`, `cidr` or `user_id`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Digest of the user's organisation; absent if the entry holds in every organisation.
    #[serde(skip_serializing_if = "Option::is_none")]
    org: Option<String>,
    /// Anonymised network of the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<String>,
    /// Prefix length of the entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix_len: Option<u8>,
    /// Reason for the entry.
    reason: String,
    /// End of the entry, RFC 3339; null if it holds until it is removed.
    expires_at: Option<String>,
}

impl From<AllowlistEntry> for EntryView {
    fn from(entry: AllowlistEntry) -> Self {
        Self {
            id: entry.id,
            kind: match entry.kind {
                AllowlistKind::Ip => "ip",
                AllowlistKind::Cidr => "cidr",
                AllowlistKind::UserId => "user_id",
            },
            org: entry.org,
            network: entry.network,
            prefix_len: entry.prefix_len,
            reason: entry.reason,
            expires_at: entry.expires_at.map(Micros::to_rfc3339),
        }
    }
}

/// Validates type and identifier together, because the type decides which identifiers are valid.
fn identify(
    fields: &mut Fields,
    kind: Option<&Value>,
    identifier: Option<Value>,
    org: Option<Value>,
) -> (AllowlistKind, String, Option<String>) {
    let kind = match kind.and_then(Value::as_str) {
        Some("ip") => Some(AllowlistKind::Ip),
        Some("cidr") => Some(AllowlistKind::Cidr),
        Some("user_id") => Some(AllowlistKind::UserId),
        _ => {
            fields.wrong("type", "must be 'ip', 'cidr' or 'user_id'");
            None
        }
    };
    let identifier = fields.required("identifier", identifier);
    let is_valid = match kind {
        Some(AllowlistKind::Ip) => identifier.parse::<IpAddr>().is_ok(),
        Some(AllowlistKind::Cidr) => identifier.parse::<IpNet>().is_ok(),
        Some(AllowlistKind::UserId) => true,
        None => !identifier.is_empty(),
    };
    if !is_valid {
        fields.wrong("identifier", "invalid format");
    }
    let org = fields.optional("org", org);
    if org.is_some() && matches!(kind, Some(AllowlistKind::Ip | AllowlistKind::Cidr)) {
        fields.wrong("org", "belongs to a user_id only");
    }
    (kind.unwrap_or(AllowlistKind::UserId), identifier, org)
}

/// Adds an address, a network or a user to the allowlist.
#[cfg_attr(test, utoipa::path(
    post,
    path = "/admin/rate-limit/allowlist",
    request_body = NewEntry,
    responses(
        (status = 200, body = AddedEntry),
        (status = 400, body = Refusal),
        (status = 401, body = Refusal),
        (status = 403, body = Refusal),
    )
))]
pub(super) async fn add(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Body(new): Body<NewEntry>,
) -> Result<Json<AddedEntry>, Refusal> {
    let mut fields = Fields::new(INVALID);
    let (kind, identifier, org) = identify(&mut fields, new.kind.as_ref(), new.identifier, new.org);
    let reason = fields.required("reason", new.reason);
    if reason.len() > 500 {
        fields.wrong("reason", "must be 1 to 500 characters");
    }
    let expires_at = fields.instant("expires_at", new.expires_at);
    if expires_at.is_some_and(|until| until <= operations.now()) {
        fields.wrong("expires_at", "must be in the future");
    }
    fields.finish()?;
    let entry = NewAllowlistEntry {
        kind,
        identifier: identifier.clone(),
        org,
        reason,
        expires_at,
    };
    let admin = operations.administer(&caller);
    let added = admin.allowlist_add(entry).await;
    added.map_err(|error| Refusal::from_admin(&error, INVALID, MISSING))?;
    Ok(Json(AddedEntry {
        allowlisted: true,
        identifier,
        expires_at: expires_at.map(Micros::to_rfc3339),
    }))
}

/// Removes an entry from the allowlist.
#[cfg_attr(test, utoipa::path(
    delete,
    path = "/admin/rate-limit/allowlist",
    request_body = OldEntry,
    responses(
        (status = 200, body = RemovedEntry),
        (status = 400, body = Refusal),
        (status = 404, body = Refusal),
    )
))]
pub(super) async fn remove(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Body(old): Body<OldEntry>,
) -> Result<Json<RemovedEntry>, Refusal> {
    let mut fields = Fields::new(INVALID);
    let (kind, identifier, org) = identify(&mut fields, old.kind.as_ref(), old.identifier, old.org);
    fields.finish()?;
    let admin = operations.administer(&caller);
    let removed = admin
        .allowlist_remove(kind, &identifier, org.as_deref())
        .await;
    removed.map_err(|error| Refusal::from_admin(&error, INVALID, MISSING))?;
    Ok(Json(RemovedEntry { removed: true }))
}

/// Lists all entries in force.
#[cfg_attr(test, utoipa::path(
    get,
    path = "/admin/rate-limit/allowlist",
    responses((status = 200, body = Listing))
))]
pub(super) async fn list(State(operations): State<Operations>) -> Result<Json<Listing>, Refusal> {
    let entries = operations.engine.allowlist().await;
    let entries = entries.map_err(|error| Refusal::store(&error))?;
    Ok(Json(Listing {
        entries: entries.into_iter().map(Into::into).collect(),
    }))
}
