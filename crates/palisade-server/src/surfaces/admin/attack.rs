//! State of attacks: `/admin/attack`.

use axum::extract::State;
use axum::{Extension, Json};
use palisade::engine::{AttackMode, AttackReport};
use serde::Deserialize;
use serde_json::Value;

use super::input::{Body, Fields};
use super::refusal::Refusal;
use super::{Caller, Operations};

const INVALID: &str = "Invalid attack request";

/// The state to set.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct SetAttack {
    /// `on`, `off`, or `auto` for what the counts say.
    #[cfg_attr(test, schema(value_type = AttackMode))]
    mode: Option<Value>,
    /// The class, or `logins`; all classes if absent.
    #[cfg_attr(test, schema(value_type = Option<String>, example = "auth"))]
    class: Option<Value>,
    /// Reason for the change, recorded in the audit.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    reason: Option<Value>,
}

fn read_mode(fields: &mut Fields, value: Option<Value>) -> AttackMode {
    match fields.required("mode", value).as_str() {
        "on" => AttackMode::On,
        "off" => AttackMode::Off,
        "auto" => AttackMode::Auto,
        _ => {
            fields.wrong("mode", "must be on, off or auto");
            AttackMode::Auto
        }
    }
}

/// Shows the attacks that nodes have declared, with the numbers that led to them, and what
/// operators have set.
#[cfg_attr(test, utoipa::path(
    get,
    path = "/admin/attack",
    responses((status = 200, body = AttackReport))
))]
pub(super) async fn show(State(operations): State<Operations>) -> Json<AttackReport> {
    Json(operations.engine.attack_report())
}

/// Sets whether an attack is on, on every node within two seconds. Limits with `under_attack` are
/// tightened while it is.
#[cfg_attr(test, utoipa::path(
    put,
    path = "/admin/attack",
    request_body = SetAttack,
    responses((status = 200, body = AttackReport), (status = 400, body = Refusal))
))]
pub(super) async fn set(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<SetAttack>,
) -> Result<Json<AttackReport>, Refusal> {
    let mut fields = Fields::new(INVALID);
    let mode = read_mode(&mut fields, body.mode);
    let class = fields.optional("class", body.class);
    let reason = fields.optional("reason", body.reason);
    fields.finish()?;
    let admin = operations.administer(&caller);
    let set = admin.set_attack(class.as_deref(), mode, reason.as_deref());
    let report = set.await;
    let refusal = |error| Refusal::from_admin(&error, INVALID, INVALID);
    Ok(Json(report.map_err(refusal)?))
}
