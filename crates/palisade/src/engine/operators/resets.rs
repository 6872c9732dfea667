//! Clears the buckets of named subjects in one transaction and announces it to other nodes.

use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use palisade_core::Id;
use palisade_core::facts::RequestFacts;
use palisade_core::geo::Geo;
use palisade_core::key::{Keyring, Prefix, SEGMENTS_MAX, Segment, SegmentKind};
use palisade_core::limit::{BucketSpec, CountsFrom};
use palisade_core::plan::{BucketName, Charge};
use palisade_core::policy::{
    Dimension, Limit, PolicySet, TenantPolicy, api_key_segment, asn_segment, country_segment,
    quota_charge,
};
use palisade_store::{Buckets, StoreError};

use super::super::counters::{Layer, both_names};
use super::super::{Change, Engine};
use super::quotas::check_reason;
use super::{Admin, AdminError, announcements};

/// Most subjects of one reset.
pub const SELECTORS_MAX: usize = 100;

/// Most buckets of one reset.
const BUCKETS_MAX: usize = 10_000;

/// Subject whose buckets to clear. Together with a user or token, an organisation says where they
/// belong; alone it means the organisation's own buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResetSelector {
    /// An address; an IPv6 address stands for its /64.
    pub ip: Option<IpAddr>,
    /// An organisation.
    pub org: Option<Id>,
    /// A user.
    pub user: Option<Id>,
    /// A token.
    pub token: Option<Id>,
    /// An OAuth client.
    pub client: Option<Id>,
    /// The hash of an API key, to clear its quota.
    pub api_key: Option<String>,
    /// For limits by endpoint: only this path or route pattern.
    pub path: Option<String>,
    /// Only limits of this class.
    pub class: Option<String>,
    /// Only this limit.
    pub limit: Option<String>,
}

/// One bucket of a reset.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ResetLine {
    /// Position, among the selectors of the request, of the one that named the bucket.
    pub selector: usize,
    /// The limit.
    pub limit: Arc<str>,
    /// Whether it was cleared. A cluster may do some and not others.
    pub done: bool,
}

impl ResetSelector {
    fn is_given(&self, dimension: &Dimension) -> bool {
        match dimension {
            Dimension::Ip | Dimension::Country | Dimension::Asn => self.ip.is_some(),
            Dimension::Org => self.org.is_some(),
            Dimension::User => self.user.is_some(),
            Dimension::Token => self.token.is_some(),
            Dimension::Client => self.client.is_some(),
            Dimension::ApiKey => self.api_key.is_some(),
            Dimension::Endpoint => true,
            Dimension::Account | Dimension::Descriptor(_) => false,
        }
    }

    /// Whether this selector covers a limit: it gives everything that the limit counts by, and the
    /// limit counts by everyone that it names.
    fn means(&self, limit: &Limit) -> bool {
        let by = &limit.def.by;
        let named = [
            (Dimension::Ip, self.ip.is_some()),
            (Dimension::User, self.user.is_some()),
            (Dimension::Token, self.token.is_some()),
            (Dimension::Client, self.client.is_some()),
            (Dimension::ApiKey, self.api_key.is_some()),
        ];
        let names_person = named.iter().any(|(_, is_given)| *is_given);
        let counted = |dimension: &Dimension| by.contains(dimension);
        by.iter().all(|dimension| self.is_given(dimension))
            && named.iter().all(|(d, is_given)| !is_given || counted(d))
            && (names_person || (self.org.is_some() && counted(&Dimension::Org)))
            && self
                .class
                .as_ref()
                .is_none_or(|c| limit.def.classes.contains(c))
            && self.limit.as_ref().is_none_or(|name| **name == *limit.name)
            && limit.is_of_requests()
    }
}

impl Engine {
    /// The buckets of a subject, with the amounts of its tenant's own policy if there is one.
    pub(super) fn selected<'p>(
        &self,
        policy: &'p PolicySet,
        tenant: Option<&'p TenantPolicy>,
        one: &ResetSelector,
    ) -> Vec<Charge<'p>> {
        let quota = one.api_key.as_deref().and_then(|hash| {
            let (tier, hash) = self.tier_in_force(policy, hash).ok()?;
            quota_charge(tier, hash).filter(|_| one.means(&tier.limit))
        });
        let limits = policy.limits().iter().filter(|limit| one.means(limit));
        limits
            .flat_map(|limit| {
                let own = tenant.and_then(|tenant| tenant.spec(limit));
                self.charges_of(policy, limit, own.unwrap_or(&limit.def.spec), one)
            })
            .chain(quota)
            .collect()
    }

    fn charges_of<'p>(
        &self,
        policy: &'p PolicySet,
        limit: &'p Limit,
        spec: &'p BucketSpec,
        one: &ResetSelector,
    ) -> Vec<Charge<'p>> {
        let endpoints = match &one.path {
            // Such a limit has one bucket for all paths.
            _ if !limit.def.by.contains(&Dimension::Endpoint) => vec![None],
            Some(path) => patterns_of(policy, path).into_iter().map(Some).collect(),
            None => policy.routes().iter().map(|r| Some(r.pattern())).collect(),
        };
        let geo = match limit.asks_for_geo() {
            true => policy.geo_of_address(one.ip),
            false => Geo::UNKNOWN,
        };
        endpoints
            .into_iter()
            .filter_map(|endpoint| {
                let previous = self.keyring.previous().and_then(|previous| {
                    let segments = segments_of(previous, limit, (one, geo), endpoint)?;
                    Some(Box::new(previous.bucket(limit.digest, segments)))
                });
                let segments = segments_of(&self.keyring, limit, (one, geo), endpoint)?;
                Some((self.keyring.bucket(limit.digest, segments), previous))
            })
            .map(|(BucketName { id, segments }, previous)| Charge {
                limit,
                spec,
                id,
                segments,
                previous,
                cost: 1,
                on_exceed: limit.def.on_exceed,
                from: CountsFrom::Now,
            })
            .collect()
    }

    /// Clears the buckets of these subjects. A subject without buckets in this policy is no error.
    pub(in crate::engine) async fn reset_selected(
        &self,
        selectors: &[ResetSelector],
    ) -> Result<(), StoreError> {
        let policy = self.policy.load_full();
        let all = selectors
            .iter()
            .flat_map(|one| self.selected(&policy, None, one));
        let charges: Vec<Charge<'_>> = all.take(BUCKETS_MAX).collect();
        self.reset_charges(&charges).await.map(drop)
    }

    pub(in crate::engine) async fn reset_charges(
        &self,
        charges: &[Charge<'_>],
    ) -> Result<Vec<bool>, StoreError> {
        let is_local = |charge: &&Charge<'_>| self.counters.layer(charge) == Layer::Process;
        let local: Vec<Charge<'_>> = charges.iter().filter(is_local).cloned().collect();
        // The same buckets may also be counted in this process.
        self.counters.process.reset(&local).await?;
        self.link.stand_in().reset(charges).await?;
        let reset = self.link.operate(|store| both_names::reset(store, charges));
        let done = reset.await?.done;
        Ok(done)
    }

    /// Drops what this node remembers of buckets and tells other nodes to do so too.
    pub(super) async fn announce_reset(&self) -> Result<(), StoreError> {
        self.counters.forget_cached();
        self.announce(announcements::of_reset).await
    }

    /// Clears every bucket that a request with these facts would be charged to.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn reset(&self, facts: &RequestFacts) -> Result<Vec<(Arc<str>, bool)>, StoreError> {
        let cleared = self.clear(facts).await?;
        self.announce_reset().await?;
        Ok(cleared)
    }

    /// Like [`Engine::reset`], without telling other nodes: for buckets that only this node uses.
    #[doc(hidden)]
    pub async fn clear(&self, facts: &RequestFacts) -> Result<Vec<(Arc<str>, bool)>, StoreError> {
        let policy = self.policy.load_full();
        let tenant = self.tenant(facts);
        let plan = self.plan(&policy, tenant.as_deref(), facts);
        let reset = self
            .link
            .operate(|store| both_names::reset(store, &plan.charges))
            .await?;
        let _ = self.counters.process.reset(&plan.charges).await;
        let _ = self.link.stand_in().reset(&plan.charges).await;
        let names = plan.charges.iter().map(|c| Arc::clone(&c.limit.name));
        Ok(names.zip(reset.done).collect())
    }
}

/// The segments of a bucket's name, in the order in which requests build them.
fn segments_of(
    keyring: &Keyring,
    limit: &Limit,
    (one, geo): (&ResetSelector, Geo),
    endpoint: Option<&str>,
) -> Option<ArrayVec<Segment, SEGMENTS_MAX>> {
    let by = &*limit.def.by;
    let digest = |kind, bytes: &[u8]| keyring.segment(kind, &[bytes]);
    let mut segments = ArrayVec::new();
    // Users and tokens are counted within their organisation.
    let nests = by.contains(&Dimension::User) || by.contains(&Dimension::Token);
    if by.contains(&Dimension::Org) || nests {
        let org = one.org.as_ref();
        segments.extend(org.map(|org| digest(SegmentKind::Org, org.as_bytes())));
    }
    let id = |kind, id: &Option<Id>| Some(digest(kind, id.as_ref()?.as_bytes()));
    for dimension in by {
        let segment = match dimension {
            Dimension::Org => continue,
            Dimension::Ip => digest(SegmentKind::Ip, Prefix::of(one.ip?).bytes()),
            Dimension::User => id(SegmentKind::User, &one.user)?,
            Dimension::Token => id(SegmentKind::Token, &one.token)?,
            Dimension::Client => id(SegmentKind::Client, &one.client)?,
            Dimension::ApiKey => api_key_segment(one.api_key.as_deref()?)?,
            Dimension::Endpoint => digest(SegmentKind::Endpoint, endpoint?.as_bytes()),
            Dimension::Country => country_segment(keyring, geo.country),
            Dimension::Asn => asn_segment(keyring, geo.asn),
            Dimension::Account | Dimension::Descriptor(_) => return None,
        };
        segments.try_push(segment).ok()?;
    }
    Some(segments)
}

/// The patterns under which requests to `path` are counted, whatever their method.
fn patterns_of<'a>(policy: &'a PolicySet, path: &'a str) -> Vec<&'a str> {
    let routes = policy.routes();
    if routes.iter().any(|route| route.pattern() == path) {
        return vec![path];
    }
    let methods = routes.iter().filter_map(|route| route.method.as_deref());
    let mut found: Vec<&str> = methods
        // Stands for every method that no route names.
        .chain([""])
        .map(|method| routes.find(method, None, path).pattern.unwrap_or(path))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

impl Admin<'_> {
    /// Clears every bucket of the named subjects at once.
    ///
    /// # Errors
    /// A selector without buckets, too many selectors or buckets, no reason, or an error of the
    /// store.
    pub async fn reset(
        &self,
        selectors: &[ResetSelector],
        reason: &str,
    ) -> Result<Vec<ResetLine>, AdminError> {
        check_reason(reason)?;
        let invalid = |problem| AdminError::Invalid {
            field: "subjects",
            problem,
        };
        if selectors.is_empty() || selectors.len() > SELECTORS_MAX {
            return Err(invalid("must be 1 to 100 subjects"));
        }
        let policy = self.engine.policy.load_full();
        let mut asked: Vec<(usize, Charge<'_>)> = Vec::new();
        for (index, one) in selectors.iter().enumerate() {
            // Buckets are cleared by name, and a name does not depend on a tenant's amounts.
            let charges = self.engine.selected(&policy, None, one);
            if charges.is_empty() {
                return Err(invalid("a subject has no bucket in this policy"));
            }
            asked.extend(charges.into_iter().map(|charge| (index, charge)));
            if asked.len() > BUCKETS_MAX {
                return Err(invalid("have too many buckets; name fewer, or a limit"));
            }
        }
        let charges: Vec<Charge<'_>> = asked.iter().map(|(_, charge)| charge.clone()).collect();
        let done = self.engine.reset_charges(&charges).await?;
        self.engine.announce_reset().await?;
        if let Some(candidate) = self.engine.beside() {
            candidate.reset(selectors).await;
        }
        self.record(Change::Reset {
            buckets: done.iter().filter(|done| **done).count(),
            reason: Some(reason),
            api_key: None,
        });
        let line = |((selector, charge), done): (&(usize, Charge<'_>), bool)| ResetLine {
            selector: *selector,
            limit: Arc::clone(&charge.limit.name),
            done,
        };
        Ok(asked.iter().zip(done).map(line).collect())
    }
}
