//! `/admin/rate-limit/clients`: OAuth clients registered at run time.

use axum::extract::{Query, State};
use axum::{Extension, Json};
use palisade::engine::{AdminError, CREDENTIALS_PAGE_MAX, ClientPage, ClientView};
use palisade_core::facts::{ClientType, Id};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::input::{Body, Fields};
use super::keys::PAGE_DEFAULT;
use super::refusal::Refusal;
use super::{Caller, Operations};

const INVALID: &str = "Invalid client request";
const MISSING: &str = "Client not found";

/// An OAuth client to register.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = NewOAuthClient))]
#[serde(deny_unknown_fields)]
pub(super) struct NewClient {
    /// The client's `client_id`.
    #[cfg_attr(test, schema(value_type = String, example = "mobile-app"))]
    id: Option<Value>,
    /// `public` or `confidential`.
    #[serde(rename = "type")]
    #[cfg_attr(test, schema(value_type = String, example = "confidential"))]
    kind: Option<Value>,
    /// Reason for the change, recorded in the audit.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    reason: Option<Value>,
}

/// An OAuth client to remove.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = OldOAuthClient))]
#[serde(deny_unknown_fields)]
pub(super) struct OldClient {
    /// The client's `client_id`.
    #[cfg_attr(test, schema(value_type = String, example = "mobile-app"))]
    id: Option<Value>,
    /// Reason for the change, recorded in the audit.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    reason: Option<Value>,
}

/// Confirmation that an OAuth client was removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = OAuthClientRemoved))]
pub(super) struct ClientRemoved {
    /// Always true.
    removed: bool,
}

/// The page to list.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub(super) struct ClientPageQuery {
    /// Id after which the page starts: `next` of the previous page.
    after: Option<String>,
    /// Clients per page, 1 to 1000.
    limit: Option<usize>,
}

fn refusal(error: &AdminError) -> Refusal {
    Refusal::from_admin(error, INVALID, MISSING)
}

fn read_id(fields: &mut Fields, value: Option<Value>) -> Option<Id> {
    let id = fields.id("id", value);
    if id.is_none() {
        fields.wrong("id", "is required");
    }
    id
}

fn read_kind(fields: &mut Fields, value: Option<Value>) -> ClientType {
    match fields.required("type", value).as_str() {
        "confidential" => ClientType::Confidential,
        "public" => ClientType::Public,
        _ => {
            fields.wrong("type", "must be public or confidential");
            ClientType::Public
        }
    }
}

/// Registers an OAuth client.
#[cfg_attr(test, utoipa::path(
    post,
    path = "/admin/rate-limit/clients",
    request_body = NewClient,
    responses((status = 200, body = ClientView), (status = 400, body = Refusal))
))]
pub(super) async fn add(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<NewClient>,
) -> Result<Json<ClientView>, Refusal> {
    let mut fields = Fields::new(INVALID);
    let id = read_id(&mut fields, body.id);
    let kind = read_kind(&mut fields, body.kind);
    let reason = fields.optional("reason", body.reason);
    fields.finish()?;
    let Some(id) = id else {
        return Err(Refusal::invalid_field(INVALID, "id", "is required"));
    };
    let admin = operations.administer(&caller);
    let added = admin.add_client(&id, kind, reason.as_deref()).await;
    Ok(Json(added.map_err(|error| refusal(&error))?))
}

/// Removes an OAuth client that was registered over this API.
#[cfg_attr(test, utoipa::path(
    delete,
    path = "/admin/rate-limit/clients",
    request_body = OldClient,
    responses((status = 200, body = ClientRemoved), (status = 404, body = Refusal))
))]
pub(super) async fn remove(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<OldClient>,
) -> Result<Json<ClientRemoved>, Refusal> {
    let mut fields = Fields::new(INVALID);
    let id = read_id(&mut fields, body.id);
    let reason = fields.optional("reason", body.reason);
    fields.finish()?;
    let Some(id) = id else {
        return Err(Refusal::invalid_field(INVALID, "id", "is required"));
    };
    let admin = operations.administer(&caller);
    let removed = admin.remove_client(&id, reason.as_deref()).await;
    removed.map_err(|error| refusal(&error))?;
    Ok(Json(ClientRemoved { removed: true }))
}

/// Lists OAuth clients of every origin, a page at a time.
#[cfg_attr(test, utoipa::path(
    get,
    path = "/admin/rate-limit/clients",
    params(ClientPageQuery),
    responses((status = 200, body = ClientPage))
))]
pub(super) async fn list(
    State(operations): State<Operations>,
    paging: Result<Query<ClientPageQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<ClientPage>, Refusal> {
    let Query(paging) =
        paging.map_err(|_| Refusal::invalid_field(INVALID, "limit", "must be 1 to 1000"))?;
    let count = paging
        .limit
        .unwrap_or(PAGE_DEFAULT)
        .min(CREDENTIALS_PAGE_MAX);
    Ok(Json(
        operations.engine.clients(paging.after.as_deref(), count),
    ))
}
