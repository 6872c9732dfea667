//! `/admin/rate-limit/reset`: buckets of several subjects at once.

use axum::extract::State;
use axum::{Extension, Json};
use palisade::engine::ResetSelector;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::input::{Body, Fields};
use super::refusal::Refusal;
use super::{Caller, Operations};

const INVALID: &str = "Invalid reset request";

/// Subjects whose buckets are to be cleared.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Reset))]
#[serde(deny_unknown_fields)]
pub(super) struct Request {
    /// Reason for the reset, recorded in the audit.
    #[cfg_attr(test, schema(value_type = String, example = "support case"))]
    reason: Option<Value>,
    /// 1 to 100 subjects.
    #[serde(default)]
    subjects: Vec<Subject>,
}

/// A subject. `org` together with `user` or `token` is the organisation that they belong to.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = SubjectToReset))]
#[serde(deny_unknown_fields)]
pub(super) struct Subject {
    /// IP address; an IPv6 address stands for its /64.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    ip: Option<Value>,
    /// Id of an organisation.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    org: Option<Value>,
    /// Id of a user.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    user: Option<Value>,
    /// Id of a token.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    token: Option<Value>,
    /// `client_id` of an OAuth client.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    client: Option<Value>,
    /// Hash of an API key.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    api_key: Option<Value>,
    /// Path, for limits that count by endpoint: clears only its buckets.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    path: Option<Value>,
    /// Class: clears only the buckets of its limits.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    class: Option<Value>,
    /// Name of a limit: clears only its buckets.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    limit: Option<Value>,
}

impl Subject {
    fn selector(self, fields: &mut Fields) -> ResetSelector {
        ResetSelector {
            ip: fields.address("ip", self.ip),
            org: fields.id("org", self.org),
            user: fields.id("user", self.user),
            token: fields.id("token", self.token),
            client: fields.id("client", self.client),
            api_key: fields.optional("api_key", self.api_key),
            path: fields.optional("path", self.path),
            class: fields.optional("class", self.class),
            limit: fields.optional("limit", self.limit),
        }
    }
}

/// Result of a reset.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = ResetDone))]
pub(super) struct ClearedBuckets {
    /// True if every bucket was cleared.
    reset: bool,
    /// Every bucket with its result.
    buckets: Vec<Bucket>,
}

/// Result for one bucket.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(super) struct Bucket {
    /// Position of the bucket's subject in the request.
    subject: usize,
    /// Name of the limit.
    limit: String,
    /// Whether the bucket was cleared. A Redis Cluster may clear some buckets and not others.
    done: bool,
}

/// Clears the buckets of the given subjects in one transaction.
#[cfg_attr(test, utoipa::path(
    post,
    path = "/admin/rate-limit/reset",
    request_body = Request,
    responses((status = 200, body = ClearedBuckets), (status = 400, body = Refusal))
))]
pub(super) async fn reset(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<Request>,
) -> Result<Json<ClearedBuckets>, Refusal> {
    let mut fields = Fields::new(INVALID);
    let reason = fields.required("reason", request.reason);
    let selectors: Vec<ResetSelector> = request
        .subjects
        .into_iter()
        .map(|subject| subject.selector(&mut fields))
        .collect();
    fields.finish()?;
    let admin = operations.administer(&caller);
    let lines = admin
        .reset(&selectors, &reason)
        .await
        .map_err(|error| Refusal::from_admin(&error, INVALID, INVALID))?;
    Ok(Json(ClearedBuckets {
        reset: lines.iter().all(|line| line.done),
        buckets: lines
            .into_iter()
            .map(|line| Bucket {
                subject: line.selector,
                limit: line.limit.to_string(),
                done: line.done,
            })
            .collect(),
    }))
}
