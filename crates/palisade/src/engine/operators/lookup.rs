//! Lookup of a subject that an operator names: its blocks and when they end, its scores and its
//! buckets.

use std::net::IpAddr;

use palisade_core::Id;
use palisade_core::decide::rule_of;
use palisade_core::decision::Outcome;
use palisade_core::facts::{NO_ADDRESS, RequestFacts};
use palisade_core::limit::Reading;
use palisade_core::plan::Charge;
use palisade_core::time::retry_after_seconds;
use palisade_store::{Buckets, ChargeReadings, StoreError, Take};
use serde::Serialize;

use super::super::Engine;
use super::super::counters::{Layer, both_names};
use super::explain::{of_block, of_bucket};
use super::{BlockView, Finding, LiftSubject, LookedUp, ResetSelector, ScoreView};

/// Most buckets that one lookup reads.
pub const BUCKETS_READ_MAX: usize = 200;

/// Subject to look up. Only its digests are used from here on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupSubject {
    /// An address; of IPv6, its /64.
    pub ip: Option<IpAddr>,
    /// An account of the guard, looked up as typed and as the proxy counts it. Together with an
    /// address also its lockout there.
    pub account: Option<Id>,
    /// A name or email as typed; requires the address.
    pub username: Option<Id>,
    /// A user.
    pub user: Option<Id>,
    /// An organisation. Together with a user, the one that the user belongs to.
    pub org: Option<Id>,
    /// An OAuth client.
    pub client: Option<Id>,
    /// The hash of an API key.
    pub api_key: Option<String>,
}

/// State of a subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Outcome of the strictest finding.
    pub decision: &'static str,
    /// The spellings of the account that were looked up.
    pub looked_up: Vec<LookedUp>,
    /// Blocks and limits that refuse the subject, the strictest first.
    pub findings: Vec<Finding>,
    /// Active blocks.
    pub blocks: Vec<BlockView>,
    /// Current scores, which may lead to the next block.
    pub scores: Vec<ScoreView>,
    /// Buckets of the subject.
    pub buckets: Vec<BucketView>,
    /// Whether there are more buckets than were read.
    pub truncated: bool,
    /// Whether an allowlist entry lets it pass its limits.
    pub allowlisted: bool,
    /// Whole seconds until nothing refuses the subject any more, if nothing is added.
    pub free_in: Option<u64>,
}

/// State of one bucket of the subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = FilledBucket))]
pub struct BucketView {
    /// Name of the limit.
    pub name: String,
    /// Fact that the limit counts by.
    pub scope: &'static str,
    /// Classes that the limit applies to; empty for all.
    pub classes: Vec<String>,
    /// Size of the limit, in units.
    pub limit: u64,
    /// Units used.
    pub used: u64,
    /// Unix time in seconds at which the whole limit is available again.
    pub reset: u64,
    /// Seconds until a request fits; null if one fits now.
    pub retry_after: Option<u64>,
    /// True for a limit in shadow mode: it reports and never denies.
    pub shadow: bool,
}

impl LookupSubject {
    fn subject(&self) -> LiftSubject {
        LiftSubject {
            account: self.account.clone(),
            ip: self.ip,
            username: self.username.clone(),
        }
    }

    fn selector(&self) -> ResetSelector {
        ResetSelector {
            ip: self.ip,
            org: self.org.clone(),
            user: self.user.clone(),
            client: self.client.clone(),
            api_key: self.api_key.clone(),
            ..ResetSelector::default()
        }
    }
}

impl Engine {
    /// Looks up the current state of a subject. Nothing is counted.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn look_up(&self, sought: &LookupSubject) -> Result<Standing, StoreError> {
        let (blocks, scores) = self.records_seen(&sought.subject()).await?;
        let policy = self.policy.load_full();
        let tenant = sought.org.as_ref().map(Id::as_str);
        let tenant = tenant.and_then(|org| self.tenants.find(org));
        let mut charges = self.selected(&policy, tenant.as_deref(), &sought.selector());
        let truncated = charges.len() > BUCKETS_READ_MAX;
        charges.truncate(BUCKETS_READ_MAX);
        let mut findings: Vec<Finding> = blocks.iter().map(of_block).collect();
        let mut buckets = Vec::new();
        for charge in &charges {
            let charged = self.look_at(charge).await?;
            let Some(reading) = charged.readings.first() else {
                continue;
            };
            let bucket = view(charge, reading, &charged);
            if bucket.retry_after.is_some() && !bucket.shadow {
                findings.push(of_bucket(rule_of(charge), &bucket));
            }
            buckets.push(bucket);
        }
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.strictness()));
        let strictest = findings.first().map_or(Outcome::Allow, Finding::strictness);
        Ok(Standing {
            decision: strictest.name(),
            looked_up: self.looked_up(sought.account.as_ref()),
            free_in: findings
                .iter()
                .filter_map(|finding| finding.retry_after)
                .max(),
            findings,
            blocks,
            scores,
            buckets,
            truncated,
            allowlisted: self.is_allowlisted(sought),
        })
    }

    async fn look_at(&self, charge: &Charge<'_>) -> Result<ChargeReadings, StoreError> {
        let charges = std::slice::from_ref(charge);
        if self.counters.layer(charge) == Layer::Process {
            return self.counters.process.charge(charges, Take::Peek).await;
        }
        self.link
            .operate(|store| both_names::charge(store, charges, Take::Peek))
            .await
    }

    fn is_allowlisted(&self, sought: &LookupSubject) -> bool {
        if sought.ip.is_none() && sought.user.is_none() {
            return false;
        }
        let mut facts = RequestFacts::new(sought.ip.unwrap_or(NO_ADDRESS), "GET", "/");
        facts.user.clone_from(&sought.user);
        facts.org.clone_from(&sought.org);
        self.allowlisted(&facts).is_some()
    }
}

fn view(charge: &Charge<'_>, reading: &Reading, charged: &ChargeReadings) -> BucketView {
    let retry_at = reading.retry_at;
    BucketView {
        name: charge.limit.name.to_string(),
        scope: charge.limit.scope.name(),
        classes: charge.limit.def.classes.clone(),
        limit: charge.spec.capacity(),
        used: reading.used,
        reset: reading.reset_at.unix_seconds_ceil(),
        retry_after: retry_at.map(|at| retry_after_seconds(at.since(charged.judged_at(0)))),
        shadow: !charge.on_exceed.denies(),
    }
}
