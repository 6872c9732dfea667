//! `/admin/rate-limit/keys`: API keys made, replaced and revoked at run time.

use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderName, StatusCode};
use axum::{Extension, Json};
use palisade::engine::{
    AdminError, CREDENTIALS_PAGE_MAX, IssuedKey, KeyPage, NewApiKey, OVERLAP_DEFAULT, OVERLAP_MAX,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::input::{Body, Fields, is_key_hash};
use super::refusal::Refusal;
use super::{Caller, Operations};

const INVALID: &str = "Invalid API key request";
const MISSING: &str = "API key not found";
pub(super) const PAGE_DEFAULT: usize = 100;
const SEARCH_BYTES_MAX: usize = 100;

/// An API key to create.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = NewApiKey))]
#[serde(deny_unknown_fields)]
pub(super) struct NewKey {
    /// Name for people, such as the owner or the purpose; 1 to 100 bytes.
    #[cfg_attr(test, schema(value_type = String, example = "billing of example.com"))]
    name: Option<Value>,
    /// Name of a tier in the policy.
    #[cfg_attr(test, schema(value_type = String, example = "starter"))]
    tier: Option<Value>,
    /// At most 32 scopes of at most 64 bytes each. Without them the key covers every route.
    #[cfg_attr(test, schema(value_type = Option<Vec<String>>))]
    scopes: Option<Value>,
    /// Reason for the change, recorded in the audit.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    reason: Option<Value>,
}

/// Terms on which the secret of a key is replaced.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = KeyRotation))]
#[serde(deny_unknown_fields)]
pub(super) struct Rotation {
    /// Seconds for which the previous secret stays valid, 0 to 2592000; 86400 if absent.
    #[cfg_attr(test, schema(value_type = Option<u64>, example = 86400))]
    overlap_seconds: Option<Value>,
    /// Reason for the change, recorded in the audit.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    reason: Option<Value>,
}

/// Reason for revoking an API key.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = KeyRevocation))]
#[serde(deny_unknown_fields)]
pub(super) struct Revocation {
    /// Reason for the change, recorded in the audit.
    #[cfg_attr(test, schema(value_type = String, example = "found in a public repository"))]
    reason: Option<Value>,
}

/// Confirmation that an API key was revoked.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = KeyRevoked))]
pub(super) struct RevokedKey {
    /// Always true.
    revoked: bool,
}

/// The keys to list.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub(super) struct Search {
    /// Hash after which the page starts: `next` of the previous page.
    after: Option<String>,
    /// Keys per page, 1 to 1000.
    limit: Option<usize>,
    /// Part of a name or the start of a hash, at most 100 bytes.
    search: Option<String>,
}

fn refusal(error: &AdminError) -> Refusal {
    Refusal::from_admin(error, INVALID, MISSING)
}

/// Accepts only hashes: a raw key in a path would end up in logs.
fn hash(key: &str) -> Result<&str, Refusal> {
    match is_key_hash(key) {
        true => Ok(key),
        false => Err(Refusal::invalid_field(
            INVALID,
            "key",
            "must be the SHA-256 of the API key, lower-case hexadecimal",
        )),
    }
}

fn read_scopes(fields: &mut Fields, value: Option<Value>) -> Option<Vec<String>> {
    match serde_json::from_value(value?) {
        Ok(scopes) => scopes,
        Err(_) => {
            fields.wrong("scopes", "must be a list of texts");
            None
        }
    }
}

fn read_overlap(fields: &mut Fields, value: Option<Value>) -> Duration {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return OVERLAP_DEFAULT;
    };
    let overlap = value.as_u64().map(Duration::from_secs);
    overlap
        .filter(|overlap| *overlap <= OVERLAP_MAX)
        .unwrap_or_else(|| {
            fields.wrong("overlap_seconds", "must be a whole number up to 2592000");
            OVERLAP_DEFAULT
        })
}

/// An answer with a secret in it, which no cache may store.
type IssuedKeyAnswer = ([(HeaderName, &'static str); 1], Json<IssuedKey>);

fn issued(key: IssuedKey) -> IssuedKeyAnswer {
    ([(CACHE_CONTROL, "no-store")], Json(key))
}

/// Creates an API key. The answer is the only one that shows its secret.
#[cfg_attr(test, utoipa::path(
    post,
    path = "/admin/rate-limit/keys",
    request_body = NewKey,
    responses((status = 201, body = IssuedKey), (status = 400, body = Refusal))
))]
pub(super) async fn create(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<NewKey>,
) -> Result<(StatusCode, IssuedKeyAnswer), Refusal> {
    let mut fields = Fields::new(INVALID);
    let new = NewApiKey {
        name: fields.required("name", body.name),
        tier: fields.required("tier", body.tier),
        scopes: read_scopes(&mut fields, body.scopes),
        reason: fields.optional("reason", body.reason),
    };
    fields.finish()?;
    let made = operations.administer(&caller).create_key(new).await;
    let key = made.map_err(|error| refusal(&error))?;
    Ok((StatusCode::CREATED, issued(key)))
}

/// Replaces the secret of an API key. The answer is the only one that shows the new secret. The
/// key's use so far is kept.
#[cfg_attr(test, utoipa::path(
    post,
    path = "/admin/rate-limit/keys/{key}/rotate",
    params(("key" = String, Path, description = "Id of the key, as listed")),
    request_body = Rotation,
    responses((status = 200, body = IssuedKey), (status = 404, body = Refusal))
))]
pub(super) async fn rotate(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Path(key): Path<String>,
    Body(body): Body<Rotation>,
) -> Result<IssuedKeyAnswer, Refusal> {
    let mut fields = Fields::new(INVALID);
    let overlap = read_overlap(&mut fields, body.overlap_seconds);
    let reason = fields.optional("reason", body.reason);
    fields.finish()?;
    let admin = operations.administer(&caller);
    let replaced = admin.rotate_key(hash(&key)?, overlap, reason.as_deref());
    Ok(issued(replaced.await.map_err(|error| refusal(&error))?))
}

/// Revokes an API key with all its secrets, whatever its origin.
#[cfg_attr(test, utoipa::path(
    post,
    path = "/admin/rate-limit/keys/{key}/revoke",
    params(("key" = String, Path, description = "Id of the key, as listed")),
    request_body = Revocation,
    responses((status = 200, body = RevokedKey), (status = 404, body = Refusal))
))]
pub(super) async fn revoke(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Path(key): Path<String>,
    Body(body): Body<Revocation>,
) -> Result<Json<RevokedKey>, Refusal> {
    let mut fields = Fields::new(INVALID);
    let reason = fields.required("reason", body.reason);
    fields.finish()?;
    let admin = operations.administer(&caller);
    let revoked = admin.revoke_key(hash(&key)?, &reason).await;
    revoked.map_err(|error| refusal(&error))?;
    Ok(Json(RevokedKey { revoked: true }))
}

/// Lists API keys of every origin, without secrets, a page at a time.
#[cfg_attr(test, utoipa::path(
    get,
    path = "/admin/rate-limit/keys",
    params(Search),
    responses((status = 200, body = KeyPage))
))]
pub(super) async fn list(
    State(operations): State<Operations>,
    search: Result<Query<Search>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<KeyPage>, Refusal> {
    let wrong = |field, problem| Refusal::invalid_field(INVALID, field, problem);
    let Query(asked) = search.map_err(|_| wrong("limit", "must be 1 to 1000"))?;
    if asked
        .search
        .as_ref()
        .is_some_and(|text| text.len() > SEARCH_BYTES_MAX)
    {
        return Err(wrong("search", "must not be over 100 bytes"));
    }
    let count = asked
        .limit
        .unwrap_or(PAGE_DEFAULT)
        .min(CREDENTIALS_PAGE_MAX);
    let (after, search) = (asked.after.as_deref(), asked.search.as_deref());
    Ok(Json(operations.engine.api_keys(after, count, search)))
}
