//! `/admin/blocks`: the running blocks of guard and lockout, and lifting them.

use axum::extract::{Query, State};
use axum::{Extension, Json};
use palisade::engine::{
    AdminError, BlockCursor, BlockView, LiftSubject, LiftTarget, LookedUp, Score,
};
use palisade_core::Digest;
use palisade_core::decision::KeyKind;
use palisade_core::record::{RecordKey, RecordKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::input::{Body, Fields};
use super::refusal::Refusal;
use super::{Caller, Operations};

const INVALID: &str = "Invalid block";
const PAGE_DEFAULT: usize = 100;

/// Active blocks.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Blocks))]
pub(super) struct Listing {
    blocks: Vec<BlockView>,
    /// True if there are more blocks than the answer can hold.
    truncated: bool,
    /// Value of `after` for the next page, if `after` or `limit` was given; null on the last page.
    next: Option<String>,
}

/// Blocks to lift: those of a record, as listed, or those of a subject. A subject's identifiers are
/// hashed and never stored.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = BlockToLift))]
#[serde(deny_unknown_fields)]
pub(super) struct Target {
    /// Reason for the change, recorded in the audit.
    #[cfg_attr(test, schema(value_type = String, example = "support case"))]
    reason: Option<Value>,
    /// Kind of the record, as listed.
    #[cfg_attr(test, schema(value_type = Option<String>, example = "account-login"))]
    record: Option<Value>,
    /// Digest of the record, as listed.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    id: Option<Value>,
    /// Guard key: lifts only its block.
    #[cfg_attr(test, schema(value_type = Option<String>, example = "K4"))]
    key: Option<KeyKind>,
    /// Device or user agent, as listed: lifts only its block.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    member: Option<Value>,
    /// Account, instead of a record: lifts its blocks in login and OTP, as typed and as the proxy
    /// counts it. With `ip` its lockout at that address, too.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    account: Option<Value>,
    /// IP address; with `username`, the one from which the name was typed.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    ip: Option<Value>,
    /// Name or email as typed, together with `ip`: lifts its lockout.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    username: Option<Value>,
    /// Whether the score of the account or name is cleared, too, so that the next failure counts as
    /// the first.
    #[serde(default)]
    score: bool,
}

/// A valid request to lift blocks.
enum LiftRequest {
    Record(LiftTarget),
    Subject(LiftSubject),
}

impl Target {
    fn read(self) -> Result<(LiftRequest, Score, String), Refusal> {
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
            return Ok((LiftRequest::Subject(subject), score, reason));
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
        Ok((LiftRequest::Record(target), score, reason))
    }
}

/// Result of lifting blocks.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Lifted))]
pub(super) struct Report {
    /// Number of active blocks that were lifted.
    lifted: usize,
    /// Whether the score was cleared, too.
    score_forgotten: bool,
    /// Spellings of the account that were looked up.
    looked_up: Vec<LookedUp>,
}

/// The page to list.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub(super) struct BlockPageQuery {
    /// Position at which the page starts: `next` of the previous page.
    after: Option<String>,
    /// Approximate number of blocks per page, 1 to 1000. A page may have fewer.
    limit: Option<usize>,
}

/// Lists active blocks: at most 1000, or a page at a time if `after` or `limit` is given.
#[cfg_attr(test, utoipa::path(
    get,
    path = "/admin/blocks",
    params(BlockPageQuery),
    responses((status = 200, body = Listing), (status = 400, body = Refusal))
))]
pub(super) async fn list(
    State(operations): State<Operations>,
    paging: Result<Query<BlockPageQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Listing>, Refusal> {
    let Query(paging) =
        paging.map_err(|_| Refusal::invalid_field(INVALID, "limit", "must be 1 to 1000"))?;
    let engine = &operations.engine;
    let (blocks, truncated, next) = if paging.after.is_some() || paging.limit.is_some() {
        let after: Option<BlockCursor> = paging
            .after
            .map(|after| after.parse())
            .transpose()
            .map_err(refused)?;
        let count = paging.limit.unwrap_or(PAGE_DEFAULT);
        let page = engine.blocks_after(after.as_ref(), count).await;
        let page = page.map_err(|error| Refusal::store(&error))?;
        let next = page.next.map(|next| next.to_string());
        (page.blocks, next.is_some(), next)
    } else {
        let listed = engine.blocks().await;
        let (blocks, truncated) = listed.map_err(|error| Refusal::store(&error))?;
        (blocks, truncated, None)
    };
    Ok(Json(Listing {
        blocks,
        truncated,
        next,
    }))
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
fn refused(error: AdminError) -> Refusal {
    Refusal::from_admin(&error, INVALID, "Block not found")
}

/// Lifts the blocks of a record, one of them, or those of a subject.
#[cfg_attr(test, utoipa::path(
    delete,
    path = "/admin/blocks",
    request_body = Target,
    responses((status = 200, body = Report), (status = 404, body = Refusal))
))]
pub(super) async fn lift(
    State(operations): State<Operations>,
    Extension(caller): Extension<Caller>,
    Body(target): Body<Target>,
) -> Result<Json<Report>, Refusal> {
    let (lifting, score, reason) = target.read()?;
    let admin = operations.administer(&caller);
    let lifted = match &lifting {
        LiftRequest::Record(target) => admin.lift(target, &reason).await,
        LiftRequest::Subject(subject) => admin.lift_of(subject, score, &reason).await,
    };
    let lifted = lifted.map_err(|error| Refusal::from_admin(&error, INVALID, "Block not found"))?;
    Ok(Json(Report {
        lifted: lifted.blocks,
        score_forgotten: score == Score::Forget,
        looked_up: match &lifting {
            LiftRequest::Record(_) => Vec::new(),
            LiftRequest::Subject(subject) => operations.engine.looked_up(subject.account.as_ref()),
        },
    }))
}
