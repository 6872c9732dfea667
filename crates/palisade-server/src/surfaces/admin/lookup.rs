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

/// Whom to look up: one of them, a user with its organisation, a name with its address.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = SubjectToLookUp))]
#[serde(deny_unknown_fields)]
pub(super) struct Subject {
    /// An address; of IPv6, its /64.
    #[cfg_attr(test, schema(value_type = Option<String>, example = "192.0.2.7"))]
    ip: Option<Value>,
    /// An account of the guard, sought as typed and as the proxy counts it; with `ip`
    /// also its lockout there.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    account: Option<Value>,
    /// A name or email as typed, with `ip`: its lockout.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    username: Option<Value>,
    /// A user.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    user: Option<Value>,
    /// An organisation, or the one that the user belongs to.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    org: Option<Value>,
    /// An OAuth client.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    client: Option<Value>,
    /// An API key, or its hash.
    #[cfg_attr(test, schema(value_type = Option<String>))]
    api_key: Option<Value>,
}

/// How a subject stands.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Found))]
pub(super) struct SubjectStanding {
    /// What the strictest finding asks for.
    decision: &'static str,
    /// The spellings of the account that were looked up.
    looked_up: Vec<LookedUp>,
    /// What stands against it, the strictest first.
    findings: Vec<Finding>,
    /// Blocks that run on it.
    blocks: Vec<BlockView>,
    /// Scores that may lead to the next block.
    scores: Vec<ScoreView>,
    /// Its buckets.
    buckets: Vec<BucketView>,
    /// Whether it has more buckets than were read.
    truncated: bool,
    /// Whether an allowlist entry lets it pass its limits.
    allowlisted: bool,
    /// Whole seconds until nothing stands against it, if nothing is added.
    free_in: Option<u64>,
    /// Of an API key: its hash, tier and quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<QuotaUsage>,
    /// What the audit has of it, the newest first: as far back as this process remembers.
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

/// How a subject stands now, and what became of it lately. Nothing is counted.
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
