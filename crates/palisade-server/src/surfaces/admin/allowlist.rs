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

/// An entry to add.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct NewEntry {
    /// `ip`, `cidr` or `user_id`.
    #[serde(rename = "type")]
    #[cfg_attr(test, schema(value_type = String, example = "ip"))]
    kind: Option<Value>,
    /// Address, network or user.
    #[cfg_attr(test, schema(value_type = String, example = "192.0.2.7"))]
    identifier: Option<Value>,
    /// The organisation a user belongs to; absent: a user of that name in any.
    #[cfg_attr(test, schema(value_type = Option<String>, example = "acme"))]
    org: Option<Value>,
    /// Why.
    #[cfg_attr(test, schema(value_type = String, example = "Internal monitoring service"))]
    reason: Option<Value>,
    /// Until when, RFC 3339; absent: until it is removed.
    #[cfg_attr(test, schema(value_type = Option<String>, example = "2027-12-31T23:59:59Z"))]
    expires_at: Option<Value>,
}

/// An entry to remove.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct OldEntry {
    /// `ip`, `cidr` or `user_id`.
    #[serde(rename = "type")]
    #[cfg_attr(test, schema(value_type = String, example = "ip"))]
    kind: Option<Value>,
    /// Address, network or user.
    #[cfg_attr(test, schema(value_type = String, example = "192.0.2.7"))]
    identifier: Option<Value>,
    /// The organisation that the entry names, if it does.
    #[cfg_attr(test, schema(value_type = Option<String>, example = "acme"))]
    org: Option<Value>,
}

/// An entry was added.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = AllowlistAdded))]
pub(super) struct AddedEntry {
    allowlisted: bool,
    /// What was given.
    identifier: String,
    /// Until when, RFC 3339.
    expires_at: Option<String>,
}

/// An entry was removed.
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

/// An entry. Whom it names is a digest; of an address, the network it is in.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(super) struct EntryView {
    /// Its digest.
    id: String,
    /// `ip`, `cidr` or `user_id`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The digest of a user's organisation; absent: of any.
    #[serde(skip_serializing_if = "Option::is_none")]
    org: Option<String>,
    /// The anonymised network.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<String>,
    /// Prefix length of the entry itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix_len: Option<u8>,
    /// Why.
    reason: String,
    /// Until when, RFC 3339.
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

/// Lets an address, a network or a user pass.
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

/// Takes an entry away.
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

/// Every live entry.
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
