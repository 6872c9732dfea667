//! `/admin/rate-limit/quota/{key}` and `/admin/rate-limit/quotas`.

use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use palisade::engine::{AdminError, QUOTAS_PAGE_MAX, QuotaPage, QuotaUsage};
use serde::Deserialize;
use serde_json::Value;

use super::input::{Body, Fields, is_key_hash};
use super::refusal::Refusal;
use super::{Caller, Operations};

const INVALID: &str = "Invalid quota request";
const MISSING: &str = "API key not found";
const PAGE_DEFAULT: usize = 100;

/// Reason for resetting a quota.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Reason {
    /// Reason for the change, recorded in the audit.
    #[cfg_attr(test, schema(value_type = String, example = "credit after an outage"))]
    reason: Option<Value>,
}

/// Tier to give to an API key.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct NewTier {
    /// Name of a tier in the policy.
    #[cfg_attr(test, schema(value_type = String, example = "business"))]
    tier: Option<Value>,
    /// Reason for the change, recorded in the audit.
    #[cfg_attr(test, schema(value_type = Option<String>, example = "upgrade"))]
    reason: Option<Value>,
}

/// The page to list.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub(super) struct QuotaPageQuery {
    /// Hash after which the page starts: `next` of the previous page.
    after: Option<String>,
    /// Quotas per page, 1 to 1000.
    limit: Option<usize>,
}

fn refusal(error: &AdminError) -> Refusal {
    Refusal::from_admin(error, INVALID, MISSING)
}

/// Accepts only hashes: a raw key in a path would end up in logs.
fn hash(key: &str) -> Result<&str, Refusal> {
    if !is_key_hash(key) {
        let problem = "must be the SHA-256 of the API key, lower-case hexadecimal";
        return Err(Refusal::invalid_field(INVALID, "key", problem));
    }
    Ok(key)
}

/// Shows the use of an API key this month.
#[cfg_attr(test, utoipa::path(
    get,
    path = "/admin/rate-limit/quota/{key}",
    params(("key" = String, Path, description = "SHA-256 of the API key, hexadecimal")),
    responses((status = 200, body = QuotaUsage), (status = 404, body = Refusal))
))]
pub(super) async fn get(
    State(operations): State<Operations>,
    Path(key): Path<String>,
) -> Result<Json<QuotaUsage>, Refusal> {
    let usage = operations.engine.quota(hash(&key)?).await;
    Ok(Json(usage.map_err(|error| refusal(&error))?))
}

/// Resets the use of an API key this month to zero.
#[cfg_attr(test, utoipa::path(
    post,
    path = "/admin/rate-limit/quota/{key}/reset",
    params(("key" = String, Path, description = "SHA-256 of the API key, hexadecimal")),
    request_body = Reason,
    responses((status = 200, body = QuotaUsage), (status = 404, body = Refusal))
))]
pub(super) async fn reset(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Path(key): Path<String>,
    Body(body): Body<Reason>,
) -> Result<Json<QuotaUsage>, Refusal> {
    let mut fields = Fields::new(INVALID);
    let reason = fields.required("reason", body.reason);
    fields.finish()?;
    let admin = operations.administer(&caller);
    let usage = admin.quota_reset(hash(&key)?, &reason).await;
    Ok(Json(usage.map_err(|error| refusal(&error))?))
}

/// Moves an API key to another tier, with immediate effect.
#[cfg_attr(test, utoipa::path(
    put,
    path = "/admin/rate-limit/quota/{key}/tier",
    params(("key" = String, Path, description = "SHA-256 of the API key, hexadecimal")),
    request_body = NewTier,
    responses((status = 200, body = QuotaUsage), (status = 404, body = Refusal))
))]
pub(super) async fn tier(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Path(key): Path<String>,
    Body(body): Body<NewTier>,
) -> Result<Json<QuotaUsage>, Refusal> {
    let mut fields = Fields::new(INVALID);
    let tier = fields.required("tier", body.tier);
    let reason = fields.optional("reason", body.reason);
    fields.finish()?;
    let admin = operations.administer(&caller);
    let changed = admin.change_tier(hash(&key)?, &tier, reason.as_deref());
    let usage = changed.await;
    Ok(Json(usage.map_err(|error| refusal(&error))?))
}

/// Lists the use of every API key this month, a page at a time.
#[cfg_attr(test, utoipa::path(
    get,
    path = "/admin/rate-limit/quotas",
    params(QuotaPageQuery),
    responses((status = 200, body = QuotaPage))
))]
pub(super) async fn list(
    State(operations): State<Operations>,
    paging: Result<Query<QuotaPageQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<QuotaPage>, Refusal> {
    let Query(paging) =
        paging.map_err(|_| Refusal::invalid_field(INVALID, "limit", "must be 1 to 1000"))?;
    let count = paging.limit.unwrap_or(PAGE_DEFAULT).min(QUOTAS_PAGE_MAX);
    let page = operations.engine.quotas(paging.after.as_deref(), count);
    Ok(Json(page.await.map_err(|error| refusal(&error))?))
}
