//! `/admin/explain`: why a subject is refused now.

use axum::Json;
use axum::extract::State;
use palisade::cases::DescriptorCall;
use palisade::engine::{CalledBucket, Explanation, Finding as Found};
use palisade::wire::{RawGuard, RawRequest, WireError, parse};
use palisade_core::decision::Level;
use palisade_core::facts::{GuardFacts, RequestFacts};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Operations;
use super::input::Body;
use super::refusal::Refusal;

const INVALID: &str = "Invalid subject";

/// The subject, as the decision API would see it.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = SubjectToExplain))]
#[serde(deny_unknown_fields)]
pub(super) struct Subject {
    /// Facts as for `/v1/check`.
    #[cfg_attr(test, schema(value_type = Option<Object>))]
    request: Option<Value>,
    /// Facts as for `/v1/guard/login/check`.
    #[cfg_attr(test, schema(value_type = Option<Object>))]
    guard: Option<Value>,
    /// A call of Envoy: `domain`, `descriptors` (each a list of `key` and `value`) and `hits`,
    /// as in a policy case.
    #[cfg_attr(test, schema(value_type = Option<Object>))]
    rls: Option<Value>,
}

/// What stands against the subject, and what does not.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(super) struct Explained {
    /// What the strictest finding asks for.
    decision: &'static str,
    /// The strictest first.
    findings: Vec<Finding>,
}

/// One finding.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct Finding {
    /// What it asks for.
    decision: &'static str,
    /// The rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'static str>,
    /// For people.
    words: String,
    /// Level of a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(value_type = Option<String>))]
    level: Option<Level>,
    /// Whole seconds to wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    /// The command that ends it before its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
    /// The bucket that it is about, of a call of Envoy.
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<Called>,
}

/// A descriptor's bucket.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = CalledBucket))]
pub(crate) struct Called {
    /// Which descriptor of the call it is of, from 1.
    descriptor: usize,
    /// The limit.
    name: String,
    /// What is used.
    used: u64,
    /// What it allows.
    limit: u32,
    /// What is left.
    remaining: u32,
    /// Whole seconds until all of it is free again.
    reset: u64,
}

impl From<CalledBucket> for Called {
    fn from(bucket: CalledBucket) -> Self {
        Self {
            descriptor: bucket.descriptor,
            name: bucket.name,
            used: bucket.used,
            limit: bucket.limit,
            remaining: bucket.remaining,
            reset: bucket.reset,
        }
    }
}

impl From<Found> for Finding {
    fn from(found: Found) -> Self {
        Self {
            decision: found.decision,
            rule: found.rule,
            words: found.words,
            level: found.level,
            retry_after: found.retry_after,
            help: found.help,
            bucket: found.bucket.map(Into::into),
        }
    }
}

fn refused(part: &'static str, error: &WireError) -> Refusal {
    match error {
        WireError::Field(error) => Refusal::invalid_field(INVALID, error.field, error.problem),
        WireError::Syntax | WireError::Shape { .. } => {
            Refusal::invalid_field(INVALID, part, "is not of the documented form")
        }
    }
}

fn request_facts(value: &Value) -> Result<RequestFacts, WireError> {
    let bytes = serde_json::to_vec(value).map_err(|_| WireError::Syntax)?;
    let raw: RawRequest<'_> = parse(&bytes)?;
    Ok(raw.into_facts()?)
}

fn guard_facts(value: &Value) -> Result<GuardFacts, WireError> {
    let bytes = serde_json::to_vec(value).map_err(|_| WireError::Syntax)?;
    let raw: RawGuard<'_> = parse(&bytes)?;
    Ok(raw.into_facts()?)
}

fn call(value: &Value) -> Result<DescriptorCall, WireError> {
    let bytes = serde_json::to_vec(value).map_err(|_| WireError::Syntax)?;
    parse(&bytes)
}

/// Why a subject would be refused now. Nothing is counted.
#[cfg_attr(test, utoipa::path(
    post,
    path = "/admin/explain",
    request_body = Subject,
    responses((status = 200, body = Explained), (status = 400, body = Refusal))
))]
pub(super) async fn explain(
    State(operations): State<Operations>,
    Body(subject): Body<Subject>,
) -> Result<Json<Explained>, Refusal> {
    let request = subject.request.as_ref().map(request_facts).transpose();
    let request = request.map_err(|error| refused("request", &error))?;
    let guard = subject.guard.as_ref().map(guard_facts).transpose();
    let guard = guard.map_err(|error| refused("guard", &error))?;
    let call = subject.rls.as_ref().map(call).transpose();
    let call = call.map_err(|error| refused("rls", &error))?;
    let descriptors = call.as_ref().map(DescriptorCall::facts).transpose();
    let descriptors = descriptors.map_err(|error| refused("rls", &WireError::Field(error)))?;
    if request.is_none() && guard.is_none() && descriptors.is_none() {
        let problem = "is required, or `guard`, or `rls`";
        return Err(Refusal::invalid_field(INVALID, "request", problem));
    }
    let engine = &operations.engine;
    let mut explained: Explanation = engine
        .explain(request.as_ref(), guard.as_ref())
        .await
        .map_err(|error| Refusal::store(&error))?;
    if let Some(facts) = &descriptors {
        explained = explained.and(engine.explain_call(facts).await);
    }
    Ok(Json(Explained {
        decision: explained.decision,
        findings: explained.findings.into_iter().map(Into::into).collect(),
    }))
}
