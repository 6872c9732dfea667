//! Tenants' cached policies: `/debug/cache/{tenant}`, `/admin/cache/invalidate`.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use palisade::tenants::CachedTenant;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::input::{Body, Fields};
use super::refusal::Refusal;
use super::{Caller, Operations};

const INVALID: &str = "Invalid cache request";

/// Cached policy of a tenant.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Cached))]
pub(super) struct CacheEntry {
    /// Time since the policy was fetched, in milliseconds.
    age_ms: u64,
    /// Version at the source; null while the default policy stands in.
    version: Option<u64>,
    /// Source of the policy.
    source: &'static str,
    /// `fresh`, `stale` or `default`.
    state: &'static str,
    /// Reason that the source's latest document was refused; null if it is in force.
    refused: Option<String>,
}

impl From<CachedTenant> for CacheEntry {
    fn from(cached: CachedTenant) -> Self {
        Self {
            age_ms: u64::try_from(cached.age.as_millis()).unwrap_or(u64::MAX),
            version: cached.version,
            source: cached.source,
            state: cached.state.name(),
            refused: cached.refused,
        }
    }
}

/// Tenant whose policy is to be fetched again.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Invalidate {
    /// Id of the tenant; all tenants if absent.
    #[cfg_attr(test, schema(value_type = Option<String>, example = "acme"))]
    tenant_id: Option<Value>,
}

/// Whether a cached policy was invalidated.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Invalidated))]
pub(super) struct InvalidationResult {
    invalidated: bool,
}

/// Shows age, version and source of a tenant's cached policy.
#[cfg_attr(test, utoipa::path(
    get,
    path = "/debug/cache/{tenant}",
    params(("tenant" = String, Path, description = "Id of the tenant")),
    responses((status = 200, body = CacheEntry), (status = 404, body = Refusal))
))]
pub(super) async fn show(
    State(operations): State<Operations>,
    Path(tenant): Path<String>,
) -> Result<Json<CacheEntry>, Refusal> {
    let cached = operations.engine.tenants().cached(&tenant);
    let cached = cached.ok_or(Refusal::not_found("Nothing is cached for this tenant"))?;
    Ok(Json(cached.into()))
}

/// Fetches policies from the source again: here at once, on other nodes within a second. A cached
/// policy stays in force until the source answers.
#[cfg_attr(test, utoipa::path(
    post,
    path = "/admin/cache/invalidate",
    request_body = Invalidate,
    responses((status = 200, body = InvalidationResult), (status = 400, body = Refusal))
))]
pub(super) async fn invalidate(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<Invalidate>,
) -> Result<Json<InvalidationResult>, Refusal> {
    let mut fields = Fields::new(INVALID);
    let tenant = fields.optional("tenant_id", body.tenant_id);
    fields.finish()?;
    let invalidated = operations
        .administer(&caller)
        .invalidate_cache(tenant.as_deref())
        .await
        .map_err(|error| Refusal::from_admin(&error, INVALID, INVALID))?;
    Ok(Json(InvalidationResult { invalidated }))
}
