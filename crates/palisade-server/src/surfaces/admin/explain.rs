//! `/admin/explain`: why a subject is refused now.

use axum::Json;
use axum::extract::State;
use palisade::cases::DescriptorCall;
use palisade::engine::Explanation;
use palisade::wire::{RawGuard, RawRequest, WireError, parse};
use palisade_core::facts::{FieldError, GuardFacts, NO_ADDRESS, RequestFacts};
use serde::Deserialize;
use serde_json::Value;

use super::Operations;
use super::input::Body;
use super::refusal::Refusal;

const INVALID: &str = "Invalid subject";

/// Facts of the subject to explain, as the decision API would receive them.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = SubjectToExplain))]
#[serde(deny_unknown_fields)]
pub(super) struct Subject {
    /// Facts as for `/v1/check`.
    #[cfg_attr(test, schema(value_type = Option<Object>))]
    request: Option<Value>,
    /// Facts as for `/v1/guard/login/check`; `ip` is optional if there is an `account`.
    #[cfg_attr(test, schema(value_type = Option<Object>))]
    guard: Option<Value>,
    /// A call of Envoy: `domain`, `descriptors` (each a list of `key` and `value`) and `hits`,
    /// as in a policy case.
    #[cfg_attr(test, schema(value_type = Option<Object>))]
    rls: Option<Value>,
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

/// Parses the facts of a guard command. A person who asks about an account need not know its
/// address.
fn guard_facts(value: &Value) -> Result<GuardFacts, WireError> {
    let bytes = serde_json::to_vec(value).map_err(|_| WireError::Syntax)?;
    let mut raw: RawGuard<'_> = parse(&bytes)?;
    if raw.ip.is_none() && raw.username.is_some() {
        let problem = "is required beside `username`: a lockout is of a name at an address";
        return Err(FieldError::new("ip", problem).into());
    }
    let nowhere = NO_ADDRESS.to_string();
    if raw.ip.is_none() && raw.account.is_some() {
        raw.ip = Some(nowhere.into());
    }
    Ok(raw.into_facts()?)
}

fn call(value: &Value) -> Result<DescriptorCall, WireError> {
    let bytes = serde_json::to_vec(value).map_err(|_| WireError::Syntax)?;
    parse(&bytes)
}

/// Explains why a subject would be refused now. Nothing is counted.
#[cfg_attr(test, utoipa::path(
    post,
    path = "/admin/explain",
    request_body = Subject,
    responses((status = 200, body = Explanation), (status = 400, body = Refusal))
))]
pub(super) async fn explain(
    State(operations): State<Operations>,
    Body(subject): Body<Subject>,
) -> Result<Json<Explanation>, Refusal> {
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
    let mut explained = engine
        .explain(request.as_ref(), guard.as_ref())
        .await
        .map_err(|error| Refusal::store(&error))?;
    if let Some(facts) = &descriptors {
        explained = explained.and(engine.explain_call(facts).await);
    }
    Ok(Json(explained))
}
