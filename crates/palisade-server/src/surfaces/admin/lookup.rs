//! `/admin/lookup`: everything that is known of a subject that an operator names. Only digests of
//! the name are used after it has been read.

use axum::Json;
use axum::extract::State;
use palisade::engine::{
    BlockView, BucketView, Finding, LookedUp, LookupSubject, QuotaUsage, ScoreView, Standing,
};
use palisade::observe::audit::{Past, Whose};
use palisade_core::Id;
use palisade_core::policy::hash_api_key;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Operations;
use super::input::{Body, Fields, is_key_hash};
use super::refusal::Refusal;

const INVALID: &str = "Invalid subject";
/// Most events in an answer.
const EVENTS_SHOWN: usize = 50;

/// Subject to look up: one of these members, or `user` with `org`, `account` with `ip`, or
/// `username` with `ip`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = SubjectToLookUp))]
#[serde(deny_unknown_fields)]
pub(super) struct Subject {
    /// IP address; an IPv6 address stands for its /64.
    #[cfg_attr(test, schema(value_type = Option<String>, example = "192.0.2.7"))]
    ip: Option<Value>,
    /// Account of the guard, looked up as typed and as the proxy counts it. With `ip` its lockout
    /// at that address, too.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    account: Option<Value>,
    /// Name or email as typed, together with `ip`: shows its lockout.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    username: Option<Value>,
    /// Id of a user.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    user: Option<Value>,
    /// Id of an organisation; with `user`, the one that the user belongs to.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    org: Option<Value>,
    /// `client_id` of an OAuth client.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    client: Option<Value>,
    /// API key or its hash.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    api_key: Option<Value>,
}

/// Current state of a subject.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Found))]
pub(super) struct SubjectStanding {
    /// Outcome of the strictest finding.
    decision: &'static str,
    /// Spellings of the account that were looked up.
    looked_up: Vec<LookedUp>,
    /// Blocks and limits that refuse the subject, the strictest first.
    findings: Vec<Finding>,
    /// Active blocks of the subject.
    blocks: Vec<BlockView>,
    /// Current scores, which may lead to the next block.
    scores: Vec<ScoreView>,
    /// Buckets of the subject.
    buckets: Vec<BucketView>,
    /// True if the subject has more buckets than the 200 that were read.
    truncated: bool,
    /// True if an allowlist entry lets the subject pass its limits.
    allowlisted: bool,
    /// Whole seconds until nothing refuses the subject, unless more is counted.
    free_in: Option<u64>,
    /// For an API key: its hash, tier and quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<QuotaUsage>,
    /// Audit events about the subject, the newest first, as far back as this process remembers.
    timeline: Vec<Past>,
}

impl SubjectStanding {
    fn of(standing: Standing, quota: Option<QuotaUsage>, timeline: Vec<Past>) -> Self {
        Self {
            decision: standing.decision,
            looked_up: standing.looked_up,
            findings: standing.findings,
            blocks: standing.blocks,
            scores: standing.scores,
            buckets: standing.buckets,
            truncated: standing.truncated,
            allowlisted: standing.allowlisted,
            free_in: standing.free_in,
            quota,
            timeline,
        }
    }
}

/// A valid subject. A raw API key is kept only for the audit's digest of it.
struct ValidSubject {
    sought: LookupSubject,
    raw_key: Option<Id>,
}

impl Subject {
    fn read(self) -> Result<ValidSubject, Refusal> {
        let mut fields = Fields::new(INVALID);
        let key = fields.id("api_key", self.api_key);
        let is_hash = |key: &Id| is_key_hash(key.as_str());
        let hash = key.as_ref().map(|key| match is_hash(key) {
            true => key.as_str().to_owned(),
            false => hash_api_key(key.as_str()),
        });
        let sought = LookupSubject {
            ip: fields.address("ip", self.ip),
            account: fields.id("account", self.account),
            username: fields.id("username", self.username),
            user: fields.id("user", self.user),
            org: fields.id("org", self.org),
            client: fields.id("client", self.client),
            api_key: hash,
        };
        if sought == LookupSubject::default() {
            fields.wrong("ip", "is required, or another field that names somebody");
        }
        if sought.username.is_some() && sought.ip.is_none() {
            fields.wrong(
                "ip",
                "is required beside `username`: a lockout is of a name at an address",
            );
        }
        fields.finish()?;
        Ok(ValidSubject {
            raw_key: key.filter(|key| !is_hash(key)),
            sought,
        })
    }
}

impl ValidSubject {
    /// The identity whose events are taken from the audit.
    fn whose(&self) -> Option<Whose<'_>> {
        let sought = &self.sought;
        let of_person = sought
            .account
            .as_ref()
            .map(Whose::Account)
            .or(sought.user.as_ref().map(Whose::User))
            .or(self.raw_key.as_ref().map(Whose::ApiKey));
        of_person
            .or(sought.client.as_ref().map(Whose::Client))
            .or(sought.org.as_ref().map(Whose::Org))
            .or(sought.ip.map(Whose::Ip))
    }
}

/// Shows the current state of a subject and its recent audit events. Nothing is counted.
#[cfg_attr(test, utoipa::path(
    post,
    path = "/admin/lookup",
    request_body = Subject,
    responses((status = 200, body = SubjectStanding), (status = 400, body = Refusal))
))]
pub(super) async fn look_up(
    State(operations): State<Operations>,
    Body(subject): Body<Subject>,
) -> Result<Json<SubjectStanding>, Refusal> {
    let named = subject.read()?;
    let engine = &operations.engine;
    let standing = engine.look_up(&named.sought).await;
    let standing = standing.map_err(|error| Refusal::store(&error))?;
    let quota = match &named.sought.api_key {
        Some(hash) => engine.quota(hash).await.ok(),
        None => None,
    };
    let audit = operations.audit.as_ref().zip(named.whose());
    let events = audit.map(|(audit, whose)| audit.recent_of(whose, EVENTS_SHOWN));
    Ok(Json(SubjectStanding::of(
        standing,
        quota,
        events.unwrap_or_default(),
    )))
}
