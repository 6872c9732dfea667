//! Resolves facts into a plan, in the order of L-ORDER.

mod amount;
mod held;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::num::NonZeroU64;

use arrayvec::ArrayVec;
use sha2::{Digest as _, Sha256};

use super::{ClassKind, Dimension, Limit, PolicySet, Role, RouteMatch, Scope, TenantPolicy};
use crate::adaptive::load::Priority;
use crate::facts::{ClientType, Layers, RequestFacts, RequestKind};
use crate::geo::{Asn, Country, UNKNOWN};
use crate::key::{Digest, Keyring, Prefix, SEGMENTS_MAX, Segment, SegmentKind};
use crate::limit::{COUNT_MAX, CountsFrom};
use crate::plan::{BucketName, Charge, OnExceed, Plan, QuotaPlan, Refusal};
use amount::{Amount, amount};

pub use amount::weight_in;

/// Turns the facts of a request into its plan.
///
/// `tier_of` returns the tier that an API key is on now: an operator may have changed it since the
/// policy was written.
pub fn resolve<'p>(
    policy: &'p PolicySet,
    tenant: Option<&'p TenantPolicy>,
    keyring: &Keyring,
    facts: &RequestFacts,
    tier_of: impl FnOnce(&str) -> Option<&'p super::Tier>,
) -> Plan<'p> {
    let route = find_route(policy, facts);
    resolve_on(policy, tenant, keyring, facts, route, tier_of)
}

/// [`resolve`] for an outage: an exempt route is counted like any other of its class, since no
/// request may be unbounded then (F-BOUNDED).
pub fn resolve_without_exemption<'p>(
    policy: &'p PolicySet,
    tenant: Option<&'p TenantPolicy>,
    keyring: &Keyring,
    facts: &RequestFacts,
    tier_of: impl FnOnce(&str) -> Option<&'p super::Tier>,
) -> Plan<'p> {
    let route = RouteMatch {
        exempt: false,
        ..find_route(policy, facts)
    };
    resolve_on(policy, tenant, keyring, facts, route, tier_of)
}

fn resolve_on<'p>(
    policy: &'p PolicySet,
    tenant: Option<&'p TenantPolicy>,
    keyring: &Keyring,
    facts: &RequestFacts,
    route: RouteMatch<'p>,
    tier_of: impl FnOnce(&str) -> Option<&'p super::Tier>,
) -> Plan<'p> {
    let mut identity = Identity::new(policy, keyring, facts, route.pattern);
    // The throttle counts requests, whatever they cost: a request that costs more than the
    // throttle holds would be told to retry for ever (L-COST).
    let throttle = policy
        .throttle_limits()
        .filter_map(|limit| identity.charge(limit, None, None))
        .collect();
    let mut plan = Plan {
        route,
        throttle,
        refusal: None,
        charges: Vec::new(),
        idle: Vec::new(),
        not_asked: Vec::new(),
        quota: None,
        attack: None,
    };
    plan.refusal = scope_refusal(&plan.route, &identity)
        .or_else(|| unknown_class(policy, facts))
        .or_else(|| unknown_unit(policy, facts));
    match plan.refusal {
        None if plan.route.exempt => charge_guess(policy, &mut identity, facts, &mut plan),
        None => charge_who(policy, tenant, &mut identity, facts, &mut plan, tier_of),
        // A guess is not a token that lacks a scope: it counts against its address, whatever scope
        // its route would have required (I-JWT).
        Some(Refusal::TokenScope) if facts.guess => {
            charge_limits(policy, tenant, &mut identity, facts, &mut plan);
            plan.charges.retain(is_at_the_edge);
        }
        Some(_) => {}
    }
    keep_layers(&mut plan, facts);
    plan
}

/// Charges the limits, and last the quota of an API key.
#[inline]
fn charge_who<'p>(
    policy: &'p PolicySet,
    tenant: Option<&'p TenantPolicy>,
    identity: &mut Identity<'_>,
    facts: &RequestFacts,
    plan: &mut Plan<'p>,
    tier_of: impl FnOnce(&str) -> Option<&'p super::Tier>,
) {
    charge_limits(policy, tenant, identity, facts, plan);
    let refused = charge_quota(policy, identity, facts, plan, tier_of).or_else(|| uncovered(plan));
    if facts.report {
        overdraw(plan);
    }
    settle(plan, refused, facts.layers);
}

/// Lets every limit be overdrawn: what is reported has been used (B-OVERDRAFT).
fn overdraw(plan: &mut Plan<'_>) {
    let denying = plan.charges.iter_mut();
    for charge in denying.filter(|charge| charge.on_exceed == OnExceed::Deny) {
        charge.on_exceed = OnExceed::Overdraft;
    }
}

/// Finds the route. A job that names no path has none: it has the class of other requests, and
/// needs nothing that a route requires.
#[inline]
fn find_route<'p>(policy: &'p PolicySet, facts: &RequestFacts) -> RouteMatch<'p> {
    let route = policy.route_of(facts);
    if !facts.path.is_empty() {
        return route;
    }
    RouteMatch {
        scope: None,
        api_key_required: false,
        ..route
    }
}

/// Enters a refusal into the plan and drops the charges that it cancels. Before authentication no
/// request is refused for its identity.
#[inline]
fn settle(plan: &mut Plan<'_>, refused: Option<Refusal>, layers: Layers) {
    match refused {
        None => {}
        // Guessed keys still count against their address.
        Some(Refusal::UnknownKey) => plan.charges.retain(is_at_the_edge),
        Some(_) if layers == Layers::Edge => {}
        Some(_) => plan.charges.clear(),
    }
    let is_too_dear = plan.refusal == Some(Refusal::TooDear);
    let too_dear = too_dear(plan).or(is_too_dear.then_some(Refusal::TooDear));
    plan.refusal = too_dear.or_else(|| refused.filter(|_| layers != Layers::Edge));
    if plan.refusal == Some(Refusal::TooDear) {
        plan.charges.clear();
    }
    if plan.refusal.is_some() {
        plan.idle.clear();
        plan.not_asked.clear();
    }
}

#[inline]
fn is_at_the_edge(charge: &Charge<'_>) -> bool {
    charge.limit.scope <= Scope::Client
}

/// L-LAYERS: cuts the plan to the requested layers. A plan is made whole and cut afterwards, so
/// that two calls with the same facts charge together what one call would have charged.
#[inline]
fn keep_layers(plan: &mut Plan<'_>, facts: &RequestFacts) {
    match facts.layers {
        Layers::All => return,
        Layers::Edge => plan.charges.retain(is_at_the_edge),
        Layers::Identity => {
            plan.throttle.clear();
            let (class, operation) = judged_as(&plan.route, facts);
            plan.charges.retain(|charge| {
                !is_at_the_edge(charge) || is_for_a_guess(charge, class, operation)
            });
        }
    }
    let is_edge = facts.layers == Layers::Edge;
    plan.idle.retain(|charge| is_at_the_edge(charge) == is_edge);
    plan.not_asked
        .retain(|limit| (limit.scope <= Scope::Client) == is_edge);
    // The quota is the last charge of a plan: it has moved if charges before it were cut.
    let last = plan.charges.len().checked_sub(1);
    plan.quota = plan.quota.and_then(|quota| {
        let is_kept = facts.layers == Layers::Identity;
        let charge = last.filter(|_| is_kept)?;
        Some(QuotaPlan { charge, ..quota })
    });
}

/// L-DEFAULT-DENY: refuses a class that the policy does not know, because it has no limits of its
/// own.
#[inline]
fn unknown_class(policy: &PolicySet, facts: &RequestFacts) -> Option<Refusal> {
    let class = facts.class.as_ref()?;
    (!policy.knows_class(class.as_str())).then_some(Refusal::NoLimit)
}

/// B-UNIT: refuses a unit that no limit names. Surfaces refuse it by name beforehand
/// ([`PolicySet::knows_units`]); a caller that does not check gets no silent allow.
#[inline]
fn unknown_unit(policy: &PolicySet, facts: &RequestFacts) -> Option<Refusal> {
    let costs = facts.costs.as_ref()?;
    policy
        .knows_units(costs)
        .is_err()
        .then_some(Refusal::NoLimit)
}

/// Refuses a token without the route's scope. Scopes are known only after authentication. An API
/// key replaces them: a request's key is judged later, with its quota. A job's key is judged here,
/// because a job has no quota.
#[inline]
fn scope_refusal(route: &RouteMatch<'_>, identity: &Identity<'_>) -> Option<Refusal> {
    let facts = identity.facts;
    let needed = route.scope.filter(|_| facts.layers != Layers::Edge)?;
    let held = facts
        .scopes
        .as_ref()
        .is_some_and(|scopes| scopes.iter().any(|scope| scope.as_str() == needed));
    match &facts.api_key {
        _ if held => None,
        None => Some(Refusal::TokenScope),
        Some(_) if facts.kind == RequestKind::Http => None,
        Some(_) => match identity.known_key() {
            None => Some(Refusal::TokenScope),
            Some(key) => (!key.registered.covers(needed)).then_some(Refusal::KeyScope),
        },
    }
}

/// Number of charges that a plan has room for at first; most plans have no more.
const CHARGES_AT_FIRST: usize = 4;

fn charge_limits<'p>(
    policy: &'p PolicySet,
    tenant: Option<&'p TenantPolicy>,
    identity: &mut Identity<'_>,
    facts: &RequestFacts,
    plan: &mut Plan<'p>,
) {
    let (class, operation) = judged_as(&plan.route, facts);
    let cost = weight(&plan.route, facts);
    let candidates = policy.candidates(class);
    // A charge is large: reserving for every candidate would be an expensive allocation.
    let most = candidates.size_hint().0.min(CHARGES_AT_FIRST);
    plan.charges.reserve_exact(most);
    for limit in candidates {
        // T-JOBS: a background job counts for its organisation and token only.
        let in_kind =
            facts.kind == RequestKind::Http || matches!(limit.scope, Scope::Org | Scope::Token);
        if in_kind && limit.applies_to(class, operation) {
            charge_limit(limit, tenant, identity, (facts, cost), plan);
        }
    }
    charge_guess(policy, identity, facts, plan);
}

/// Adds the charge on a limit that applies, in the limit's unit. A limit on requests in progress
/// is charged only if a slot is requested.
#[inline]
fn charge_limit<'p>(
    limit: &'p Limit,
    tenant: Option<&'p TenantPolicy>,
    identity: &mut Identity<'_>,
    (facts, cost): (&RequestFacts, Option<NonZeroU64>),
    plan: &mut Plan<'p>,
) {
    let is_plain = facts.costs.is_none() && !limit.def.unit.is_named() && !limit.def.concurrency;
    if is_plain {
        plan.charges.extend(identity.charge(limit, tenant, cost));
        return;
    }
    let Some(mut charge) = identity.charge(limit, tenant, None) else {
        return;
    };
    match amount(limit, &plan.route, facts) {
        Amount::NotAsked if limit.def.concurrency => plan.not_asked.push(limit),
        Amount::NotAsked => {}
        Amount::Whole(cost) => {
            charge.cost = cost;
            // Where a limit may be overdrawn, a cost of zero asks whether anything is left.
            let is_idle = cost == 0 && charge.on_exceed != OnExceed::Overdraft;
            let beside = match facts.slots {
                true => held::companions(identity, tenant, &charge),
                false => ArrayVec::new(),
            };
            let list = match is_idle {
                true => &mut plan.idle,
                false => &mut plan.charges,
            };
            list.push(charge);
            list.extend(beside);
        }
        Amount::TooLarge => plan.refusal = Some(Refusal::TooDear),
    }
}

/// The weight of a request: the cost that its caller states, times that of its route (I-ROUTE).
#[inline]
fn weight(route: &RouteMatch<'_>, facts: &RequestFacts) -> Option<NonZeroU64> {
    match (route.cost, facts.cost) {
        (Some(of_route), Some(of_caller)) => {
            Some(NonZeroU64::from(of_route).saturating_mul(of_caller))
        }
        (of_route, of_caller) => of_route.map(NonZeroU64::from).or(of_caller),
    }
}

/// The class and the operation that a request counts as.
#[inline]
fn judged_as<'a>(route: &RouteMatch<'a>, facts: &'a RequestFacts) -> (&'a str, Option<&'a str>) {
    let class = facts.class.as_ref().map_or_else(
        || route.class.map_or("", |class| &**class),
        |class| class.as_str(),
    );
    (class, route.operation.map(|operation| &**operation))
}

/// Whether the charge is due to a guessed token alone: its bucket counts by address, and the limit
/// does not apply to the request's own class.
fn is_for_a_guess(charge: &Charge<'_>, class: &str, operation: Option<&str>) -> bool {
    charge.limit.scope <= Scope::Ip && !charge.limit.applies_to(class, operation)
}

/// Keeps only the buckets that guessed tokens count in. Nothing else is left to charge if the edge
/// half of the check came first, when nobody had verified the token yet (I-JWT).
pub fn keep_guesses(plan: &mut Plan<'_>, facts: &RequestFacts) {
    let (class, operation) = judged_as(&plan.route, facts);
    plan.throttle.clear();
    plan.charges
        .retain(|charge| is_for_a_guess(charge, class, operation));
}

/// Class of a request and its priority while requests are shed (AD-LOAD). An exempt route, such as a
/// health check, is shed last.
#[must_use]
pub fn load_class<'a>(policy: &'a PolicySet, facts: &'a RequestFacts) -> (&'a str, Priority) {
    let route = find_route(policy, facts);
    let (class, _) = judged_as(&route, facts);
    match route.exempt {
        true => (class, Priority::HIGHEST),
        false => (class, policy.priority(class)),
    }
}

/// Class whose limits count guessed tokens.
const GUESS_CLASS: &str = "auth";

/// I-JWT: a token that proves nothing counts like a guessed password, in addition to the request's
/// own class, and in no bucket twice. An exempt route is no exception: it would be the place to
/// guess tokens at.
fn charge_guess<'p>(
    policy: &'p PolicySet,
    identity: &mut Identity<'_>,
    facts: &RequestFacts,
    plan: &mut Plan<'p>,
) {
    if !facts.guess || policy.class_kind(GUESS_CLASS) != ClassKind::Auth {
        return;
    }
    for limit in policy.candidates(GUESS_CLASS) {
        let is_new = plan
            .charges
            .iter()
            .all(|known| known.limit.name != limit.name);
        let counts_requests = !limit.def.unit.is_named() && !limit.def.concurrency;
        if is_new
            && counts_requests
            && limit.scope <= Scope::Ip
            && limit.applies_to(GUESS_CLASS, None)
            && let Some(charge) = identity.charge(limit, None, facts.cost)
        {
            plan.charges.push(charge);
        }
    }
    // Stable: the added buckets go to their layers, and the rest keeps its order (L-ORDER).
    plan.charges.sort_by_key(|charge| charge.limit.scope);
}

fn charge_quota<'p>(
    policy: &'p PolicySet,
    identity: &mut Identity<'_>,
    facts: &RequestFacts,
    plan: &mut Plan<'p>,
    tier_of: impl FnOnce(&str) -> Option<&'p super::Tier>,
) -> Option<Refusal> {
    if facts.kind == RequestKind::Job {
        return None;
    }
    if facts.api_key.is_none() {
        return plan.route.api_key_required.then_some(Refusal::UnknownKey);
    }
    let Some(key) = identity.known_key() else {
        return Some(Refusal::UnknownKey);
    };
    let needed = plan.route.scope;
    if needed.is_some_and(|needed| !key.registered.covers(needed)) {
        return Some(Refusal::KeyScope);
    }
    let Some(tier) = tier_of(&key.usage).or_else(|| policy.tier(&key.registered.tier)) else {
        return Some(Refusal::NoLimit);
    };
    let cost = match &facts.costs {
        None => weight(&plan.route, facts),
        Some(_) => match amount(&tier.limit, &plan.route, facts) {
            Amount::Whole(cost @ 1..) => NonZeroU64::new(cost),
            Amount::Whole(_) | Amount::NotAsked => return None,
            Amount::TooLarge => return Some(Refusal::TooDear),
        },
    };
    if let Some(mut charge) = identity.charge(&tier.limit, None, cost) {
        charge.id = quota_id(&tier.limit, &charge.segments);
        charge.previous = None;
        plan.quota = Some(QuotaPlan {
            charge: plan.charges.len(),
            unlimited: tier.quota.is_none(),
        });
        plan.charges.push(charge);
    }
    None
}

/// The id of a quota's bucket. It is made of the key's own hash only, because a quota outlives a
/// rotation of the secret.
fn quota_id(limit: &Limit, segments: &[Segment]) -> Digest {
    let sum = segments.iter().fold(limit.digest.0, |sum, segment| {
        sum.wrapping_add(segment.digest.0)
    });
    Digest(sum)
}

/// The segment that stands for an API key: the first half of its SHA-256.
#[must_use]
pub fn api_key_segment(hash: &str) -> Option<Segment> {
    let digest = Digest::from_hex(hash.get(..32)?)?;
    Some(Segment {
        kind: SegmentKind::ApiKey,
        digest,
    })
}

/// The segment that stands for a country. The unknown one is a value: nobody escapes a limit by
/// having no country.
#[must_use]
pub fn country_segment(keyring: &Keyring, country: Option<Country>) -> Segment {
    match country {
        Some(country) => keyring.segment(SegmentKind::Country, &[&country.bytes()]),
        None => keyring.segment(SegmentKind::Country, &[UNKNOWN.as_bytes()]),
    }
}

/// The segment that stands for a network, as [`country_segment`].
#[must_use]
pub fn asn_segment(keyring: &Keyring, asn: Option<Asn>) -> Segment {
    match asn {
        Some(asn) => keyring.segment(SegmentKind::Asn, &[&asn.number().to_be_bytes()]),
        None => keyring.segment(SegmentKind::Asn, &[UNKNOWN.as_bytes()]),
    }
}

/// The charge on an API key's quota, for administration: read, reset, bill.
#[must_use]
pub fn quota_charge<'p>(tier: &'p super::Tier, hash: &str) -> Option<Charge<'p>> {
    let segments: ArrayVec<Segment, SEGMENTS_MAX> = [api_key_segment(hash)?].into_iter().collect();
    Some(Charge {
        limit: &tier.limit,
        spec: &tier.limit.def.spec,
        id: quota_id(&tier.limit, &segments),
        segments,
        previous: None,
        cost: 1,
        on_exceed: tier.limit.def.on_exceed,
        from: CountsFrom::Now,
    })
}

/// L-DEFAULT-DENY: refuses a request that no limit covers.
fn uncovered(plan: &Plan<'_>) -> Option<Refusal> {
    (plan.charges.is_empty() && plan.idle.is_empty()).then_some(Refusal::NoLimit)
}

/// L-COST: refuses a plan with a cost that its bucket can never admit.
#[inline]
fn too_dear(plan: &Plan<'_>) -> Option<Refusal> {
    let is_too_dear = plan
        .charges
        .iter()
        // More than a caller may hold is refused by its share, which says so.
        .filter(|charge| charge.limit.role == Role::Usage)
        .any(|charge| charge.on_exceed == OnExceed::Deny && charge.cost > charge.spec.capacity());
    is_too_dear.then_some(Refusal::TooDear)
}

/// The only form in which an API key is kept: lower-case hexadecimal SHA-256.
///
/// Plain SHA-256 is enough because keys are random and long; it is no way to keep a
/// password.
#[must_use]
pub fn hash_api_key(key: &str) -> String {
    use std::fmt::Write;
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(key.as_bytes()) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// An API key that the policy knows.
struct KnownKey<'a> {
    registered: &'a super::ApiKey,
    /// Hash under which the key's usage is counted.
    usage: Cow<'a, str>,
}

/// Identifiers of a request, each digested at most once.
struct Identity<'a> {
    policy: &'a PolicySet,
    keyring: &'a Keyring,
    facts: &'a RequestFacts,
    pattern: Option<&'a str>,
    client_type: Option<ClientType>,
    /// The API key, if the policy knows it; empty until it is needed.
    api_key: OnceCell<Option<KnownKey<'a>>>,
    digested: ArrayVec<Segment, 8>,
    /// The identifiers of the same request under the previous secret (L-ROTATE).
    previous: Option<Box<Self>>,
}

impl<'a> Identity<'a> {
    fn new(
        policy: &'a PolicySet,
        keyring: &'a Keyring,
        facts: &'a RequestFacts,
        pattern: Option<&'a str>,
    ) -> Self {
        Self {
            policy,
            keyring,
            facts,
            pattern,
            client_type: facts.client.as_ref().map(|client| {
                client
                    .kind
                    .unwrap_or_else(|| policy.client_type(client.id.as_str()))
            }),
            api_key: OnceCell::new(),
            digested: ArrayVec::new(),
            previous: keyring
                .previous()
                .map(|previous| Box::new(Self::new(policy, previous, facts, pattern))),
        }
    }

    fn name(&mut self, limit: &Limit) -> Option<Box<BucketName>> {
        let segments = self.segments(&limit.def.by)?;
        Some(Box::new(self.keyring.bucket(limit.digest, segments)))
    }

    /// The request's API key, if the policy knows it.
    fn known_key(&self) -> Option<&KnownKey<'a>> {
        let found = self.api_key.get_or_init(|| {
            let hash = hash_api_key(self.facts.api_key.as_ref()?.as_str());
            let registered = self.policy.api_key(&hash)?;
            let usage = match &registered.usage_of {
                Some(usage) => Cow::Borrowed(&**usage),
                None => Cow::Owned(hash),
            };
            Some(KnownKey { registered, usage })
        });
        found.as_ref()
    }

    /// Whether the user agent matches the policy's bot patterns; it is searched only where a limit
    /// needs it.
    fn is_bot(&self) -> bool {
        let agent = self.facts.user_agent.as_deref();
        self.facts.bot || agent.is_some_and(|agent| self.policy.is_bot(agent))
    }

    /// The charge on `limit`, if the request has every identifier that the limit counts by.
    fn charge<'p>(
        &mut self,
        limit: &'p Limit,
        tenant: Option<&'p TenantPolicy>,
        cost: Option<NonZeroU64>,
    ) -> Option<Charge<'p>> {
        if limit.def.bots_only && !self.is_bot() {
            return None;
        }
        if limit.def.client_type.is_some() && limit.def.client_type != self.client_type {
            return None;
        }
        if let Some(filter) = &limit.def.geo
            && !filter.matches(self.policy.geo_of(self.facts))
        {
            return None;
        }
        let segments = self.segments(&limit.def.by)?;
        let spec = tenant
            .and_then(|tenant| tenant.spec(limit))
            .unwrap_or(&limit.def.spec);
        Some(Charge {
            limit,
            spec,
            id: self.keyring.combine(limit.digest, &segments),
            segments,
            previous: match &mut self.previous {
                Some(previous) => previous.name(limit),
                None => None,
            },
            cost: u64::from(limit.def.cost.get())
                .saturating_mul(cost.map_or(1, NonZeroU64::get))
                .min(COUNT_MAX),
            on_exceed: limit.def.on_exceed,
            from: CountsFrom::Now,
        })
    }

    /// The segments of a limit's bucket, organisation first. Users and tokens nest
    /// under their organisation where one is known (T-ORG).
    fn segments(&mut self, by: &[Dimension]) -> Option<ArrayVec<Segment, SEGMENTS_MAX>> {
        let mut segments = ArrayVec::new();
        let nests = by
            .iter()
            .any(|d| matches!(d, Dimension::User | Dimension::Token));
        if by.contains(&Dimension::Org) || (nests && self.facts.org.is_some()) {
            segments.push(self.segment(SegmentKind::Org)?);
        }
        for dimension in by {
            let kind = match dimension {
                Dimension::Org => continue,
                Dimension::Ip => SegmentKind::Ip,
                Dimension::User => SegmentKind::User,
                Dimension::Token => SegmentKind::Token,
                Dimension::Client => SegmentKind::Client,
                Dimension::ApiKey => SegmentKind::ApiKey,
                Dimension::Endpoint => SegmentKind::Endpoint,
                Dimension::Country => SegmentKind::Country,
                Dimension::Asn => SegmentKind::Asn,
                Dimension::Account | Dimension::Descriptor(_) => return None,
            };
            segments.try_push(self.segment(kind)?).ok()?;
        }
        Some(segments)
    }

    fn segment(&mut self, kind: SegmentKind) -> Option<Segment> {
        if let Some(known) = self.digested.iter().find(|segment| segment.kind == kind) {
            return Some(*known);
        }
        let facts = self.facts;
        let digest = |bytes: &[u8]| Some(self.keyring.segment(kind, &[bytes]));
        let segment = match kind {
            SegmentKind::Ip => digest(Prefix::of(facts.address()?).bytes()),
            SegmentKind::Org => digest(facts.org.as_ref()?.as_bytes()),
            SegmentKind::User => digest(facts.user.as_ref()?.as_bytes()),
            SegmentKind::Token => digest(facts.token.as_ref()?.as_bytes()),
            SegmentKind::Client => digest(facts.client.as_ref()?.id.as_bytes()),
            SegmentKind::ApiKey => api_key_segment(&self.known_key()?.usage),
            SegmentKind::Endpoint => digest(self.pattern.unwrap_or(&facts.path).as_bytes()),
            SegmentKind::Country => {
                let country = self.policy.geo_of(facts).country;
                Some(country_segment(self.keyring, country))
            }
            SegmentKind::Asn => Some(asn_segment(self.keyring, self.policy.geo_of(facts).asn)),
            SegmentKind::Account | SegmentKind::Descriptor => None,
        }?;
        let _ = self.digested.try_push(segment);
        Some(segment)
    }
}
