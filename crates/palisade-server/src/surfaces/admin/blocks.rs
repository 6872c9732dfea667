//! `/admin/blocks`: what the guard and the lockout block now, and lifting it.

use axum::extract::State;
use axum::{Extension, Json};
use palisade::engine::{BlockView, Change, LiftTarget};
use palisade_core::Digest;
use palisade_core::decision::{KeyKind, Level};
use palisade_core::record::{RecordKey, RecordKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::input::{Body, Fields};
use super::refusal::Refusal;
use super::{Caller, Operations};

const INVALID: &str = "Invalid block";

/// Blocks that run now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Blocks)]
pub(super) struct Listing {
    blocks: Vec<Block>,
    /// Whether there are more than fit.
    truncated: bool,
}

/// One block. Whom it is on is a digest.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Block {
    /// The record it is in, for example `account-login`.
    record: &'static str,
    /// The record's digest.
    id: String,
    /// The key it is on, for example `K4`.
    #[schema(value_type = String)]
    key: KeyKind,
    /// Which device or user agent of the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<String>,
    /// The rule that issued it.
    rule: &'static str,
    /// `soft_block`, `hard_block` or `deny`.
    decision: &'static str,
    /// L1 to L6.
    #[schema(value_type = Option<String>)]
    level: Option<Level>,
    /// When it ends, RFC 3339.
    until: String,
    /// Whole seconds until then.
    retry_after: u64,
}

impl From<BlockView> for Block {
    fn from(view: BlockView) -> Self {
        Self {
            record: view.record,
            id: view.id,
            key: view.key,
            member: view.member,
            rule: view.rule.id(),
            decision: view.decision.name(),
            level: view.level,
            until: view.until,
            retry_after: view.retry_after,
        }
    }
}

/// Which block to lift, as it is listed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BlockToLift)]
pub(super) struct Target {
    /// The record.
    #[schema(value_type = String, example = "account-login")]
    record: Option<Value>,
    /// The record's digest.
    #[schema(value_type = String)]
    id: Option<Value>,
    /// Only the block on this key.
    #[schema(value_type = Option<String>, example = "K4")]
    key: Option<KeyKind>,
    /// And of this device or user agent.
    #[schema(value_type = Option<String>)]
    member: Option<Value>,
}

/// What was lifted.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Lifted {
    /// Blocks that were running.
    lifted: usize,
}

/// Blocks that run now, at most 1000.
#[utoipa::path(get, path = "/admin/blocks", responses((status = 200, body = Listing)))]
pub(super) async fn list(State(operations): State<Operations>) -> Result<Json<Listing>, Refusal> {
    let (blocks, truncated) = operations
        .engine
        .blocks()
        .await
        .map_err(|error| Refusal::store(&error))?;
    Ok(Json(Listing {
        blocks: blocks.into_iter().map(Into::into).collect(),
        truncated,
    }))
}

/// Ends the blocks of a record, or one of them.
#[utoipa::path(
    delete,
    path = "/admin/blocks",
    request_body = Target,
    responses((status = 200, body = Lifted), (status = 404, body = Refusal))
)]
pub(super) async fn lift(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Body(target): Body<Target>,
) -> Result<Json<Lifted>, Refusal> {
    let mut fields = Fields::new(INVALID);
    let record = fields.required("record", target.record);
    let kind = RecordKind::ALL.into_iter().find(|k| k.name() == record);
    if kind.is_none() {
        fields.wrong("record", "is not a kind of record");
    }
    let id = fields.required("id", target.id);
    let digest = Digest::from_hex(&id);
    if digest.is_none() {
        fields.wrong("id", "must be 32 hexadecimal digits");
    }
    let member = fields.optional("member", target.member);
    fields.finish()?;
    let (Some(kind), Some(digest)) = (kind, digest) else {
        return Err(Refusal::invalid(INVALID, Default::default()));
    };
    let lifted = operations
        .engine
        .lift(&LiftTarget {
            record: RecordKey { kind, digest },
            only: target.key.map(|key| (key, member)),
        })
        .await
        .map_err(|error| Refusal::store(&error))?;
    if lifted == 0 {
        return Err(Refusal::not_found("Block not found"));
    }
    operations
        .administer(&caller)
        .record(Change::BlockLifted(&id));
    Ok(Json(Lifted { lifted }))
}
