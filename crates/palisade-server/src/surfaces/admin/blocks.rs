//! `/admin/blocks`: what the guard and the lockout block now, and lifting it.

use axum::extract::State;
use axum::{Extension, Json};
use palisade::engine::{BlockView, LiftSubject, LiftTarget, Score};
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

/// What to lift: a record as it is listed, or a subject as a person names it, which is
/// hashed and never kept.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BlockToLift)]
pub(super) struct Target {
    /// For the audit.
    #[schema(value_type = String, example = "support case")]
    reason: Option<Value>,
    /// The record.
    #[schema(value_type = Option<String>, example = "account-login")]
    record: Option<Value>,
    /// The record's digest.
    #[schema(value_type = Option<String>)]
    id: Option<Value>,
    /// Only the block on this key.
    #[schema(value_type = Option<String>, example = "K4")]
    key: Option<KeyKind>,
    /// And of this device or user agent.
    #[schema(value_type = Option<String>)]
    member: Option<Value>,
    /// Instead of a record: an account, in login and OTP.
    #[schema(value_type = Option<String>)]
    account: Option<Value>,
    /// An address; beside `username` where the name was typed.
    #[schema(value_type = Option<String>)]
    ip: Option<Value>,
    /// A name or email as typed, with `ip`: its lockout.
    #[schema(value_type = Option<String>)]
    username: Option<Value>,
    /// Whether the account's or the name's score is forgotten too, so that the next
    /// failure is a first one.
    #[serde(default)]
    score: bool,
}

/// What is to be lifted, read and valid.
enum Lifting {
    Record(LiftTarget),
    Subject(LiftSubject),
}

impl Target {
    fn read(self) -> Result<(Lifting, Score, String), Refusal> {
        let mut fields = Fields::new(INVALID);
        let score = if self.score {
            Score::Forget
        } else {
            Score::Keep
        };
        let reason = fields.required("reason", self.reason);
        if self.record.is_none() && self.id.is_none() {
            let subject = LiftSubject {
                account: fields.id("account", self.account),
                ip: fields.address("ip", self.ip),
                username: fields.id("username", self.username),
            };
            fields.finish()?;
            return Ok((Lifting::Subject(subject), score, reason));
        }
        let record = fields.required("record", self.record);
        let kind = RecordKind::ALL.into_iter().find(|k| k.name() == record);
        if kind.is_none() {
            fields.wrong("record", "is not a kind of record");
        }
        let digest = Digest::from_hex(&fields.required("id", self.id));
        if digest.is_none() {
            fields.wrong("id", "must be 32 hexadecimal digits");
        }
        let member = fields.optional("member", self.member);
        fields.finish()?;
        let (Some(kind), Some(digest)) = (kind, digest) else {
            return Err(Refusal::invalid(INVALID, Default::default()));
        };
        let target = LiftTarget {
            record: RecordKey { kind, digest },
            only: self.key.map(|key| (key, member)),
            score,
        };
        Ok((Lifting::Record(target), score, reason))
    }
}

/// What was lifted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lifted)]
pub(super) struct Report {
    /// Blocks that were running.
    lifted: usize,
    /// Whether the score was forgotten too.
    score_forgotten: bool,
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

/// Ends the blocks of a record, one of them, or those of a subject.
#[utoipa::path(
    delete,
    path = "/admin/blocks",
    request_body = Target,
    responses((status = 200, body = Report), (status = 404, body = Refusal))
)]
pub(super) async fn lift(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Body(target): Body<Target>,
) -> Result<Json<Report>, Refusal> {
    let (lifting, score, reason) = target.read()?;
    let admin = operations.administer(&caller);
    let lifted = match &lifting {
        Lifting::Record(target) => admin.lift(target, &reason).await,
        Lifting::Subject(subject) => admin.lift_of(subject, score, &reason).await,
    };
    let lifted = lifted.map_err(|error| Refusal::from_admin(&error, INVALID, "Block not found"))?;
    Ok(Json(Report {
        lifted: lifted.blocks,
        score_forgotten: score == Score::Forget,
    }))
}
