//! Resolves a domain and descriptors into a plan: the limit that answers each descriptor of a
//! call, and its charge.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::{
    DescriptorRule, Dimension, Limit, LimitDef, PolicySet, Standing, TenantPolicy, ValueMatch,
};
use crate::facts::{
    Descriptor, DescriptorFacts, ENTRIES_MAX, Hits, ID_BYTES_MAX, OwnFigure, bounded,
};
use crate::key::{Keyring, SEGMENTS_MAX, Segment, SegmentKind};
use crate::limit::{Algorithm, BucketSpec, COUNT_MAX, CountsFrom, Window};
use crate::plan::{Charge, OnExceed};

/// Limits of each Envoy domain (R-DOMAIN).
#[derive(Clone, Debug, Default)]
pub(super) struct Domains(HashMap<Arc<str>, Keys>);

/// Tree of limits by the keys of their entries, one level for each entry: a descriptor of another
/// depth or order leads to another node (R-DEPTH).
#[derive(Clone, Debug, Default)]
struct Keys {
    next: HashMap<Box<[u8]>, Keys>,
    /// Patterns whose keys are exactly those on the way to this node, the most specific first
    /// (R-VALUE).
    patterns: Vec<Pattern>,
}

#[derive(Clone, Debug)]
struct Pattern {
    /// Position of the limit among the policy's limits.
    limit: usize,
    /// Positions of the entries whose values get buckets of their own.
    counted: Box<[usize]>,
    values: Box<[ValueMatch]>,
}

impl Domains {
    pub(super) fn of(limits: &[Limit]) -> Self {
        let mut domains = Self::default();
        for (position, limit) in limits.iter().enumerate() {
            if let Some(rule) = &limit.def.descriptor {
                domains.add(position, &limit.def, rule);
            }
        }
        domains
    }

    fn add(&mut self, limit: usize, def: &LimitDef, rule: &DescriptorRule) {
        let mut keys = self.0.entry(Arc::from(&*rule.domain)).or_default();
        for entry in &rule.entries {
            keys = keys.next.entry(entry.key.as_bytes().into()).or_default();
        }
        keys.patterns.push(Pattern {
            limit,
            counted: counted(&def.by, rule),
            values: rule.entries.iter().map(|e| e.value.clone()).collect(),
        });
        let specificity = |pattern: &Pattern| -> Vec<(u8, usize)> {
            pattern.values.iter().map(ValueMatch::specificity).collect()
        };
        keys.patterns
            .sort_by_key(|pattern| Reverse(specificity(pattern)));
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.keys()
    }
}

/// Returns the positions of the entries that `by` names. If a descriptor has a key twice, each
/// mention in `by` takes one of them, the open values first: an exact value is always the same.
fn counted(by: &[Dimension], rule: &DescriptorRule) -> Box<[usize]> {
    let mut positions: Vec<usize> = Vec::with_capacity(by.len());
    for dimension in by {
        let Dimension::Descriptor(key) = dimension else {
            continue;
        };
        let is_meant = |(position, entry): &(usize, &super::EntryMatch)| {
            entry.key == *key && !positions.contains(position)
        };
        let meant = || rule.entries.iter().enumerate().filter(is_meant);
        let open = meant().find(|(_, entry)| entry.value.is_open());
        let found = open.or_else(|| meant().next());
        positions.extend(found.map(|(position, _)| position));
    }
    positions.into()
}

impl Keys {
    fn find(&self, descriptor: &Descriptor<'_>) -> Option<&Pattern> {
        let mut keys = self;
        for entry in &descriptor.entries {
            keys = keys.next.get(entry.key)?;
        }
        keys.patterns.iter().find(|pattern| {
            let mut pairs = pattern.values.iter().zip(&descriptor.entries);
            pairs.all(|(wanted, entry)| wanted.matches_bytes(entry.value))
        })
    }
}

/// Treatment of one descriptor.
#[derive(Clone, Copy, Debug)]
pub enum DescriptorTreatment<'p> {
    /// No limit of its domain answers the descriptor: it is admitted, and counted as such
    /// (R-DOMAIN).
    Nothing,
    /// Nothing is counted: another limit of the call replaces the one that matches (R-REPLACES),
    /// or hits are given back to a limit that admits nothing.
    Replaced,
    /// Admitted without a count (R-UNLIMITED).
    Unlimited(&'p Limit),
    /// Denied without a count, by the charge at this position of [`DescriptorPlan::denied`].
    Denied(usize),
    /// Charged, at this position of [`DescriptorPlan::charges`].
    Charged(usize),
    /// Read without a charge, at this position of [`DescriptorPlan::looks`].
    Looked(usize),
    /// Given back, at this position of [`DescriptorPlan::refunds`].
    Refunded(usize),
}

/// The plan of one call.
#[derive(Clone, Debug)]
pub struct DescriptorPlan<'p> {
    /// The domain, if the policy knows it.
    pub domain: Option<&'p Arc<str>>,
    /// Treatment of each descriptor, in order.
    pub asked: Vec<DescriptorTreatment<'p>>,
    /// Buckets that are charged, all or nothing.
    pub charges: Vec<Charge<'p>>,
    /// Buckets that are read for one hit and not charged.
    pub looks: Vec<Charge<'p>>,
    /// Buckets that hits are given back to.
    pub refunds: Vec<Charge<'p>>,
    /// Charges that are denied without a store: a limit of zero (R-ZERO), or more hits than a limit
    /// ever admits (L-COST).
    pub denied: Vec<Charge<'p>>,
}

/// A limit that answers a descriptor.
#[derive(Clone, Copy)]
struct MatchedLimit<'p> {
    limit: &'p Limit,
    counted: &'p [usize],
    /// Limit of a tenant in place of the policy's.
    spec: Option<&'p BucketSpec>,
}

fn find<'p>(
    policy: &'p PolicySet,
    keys: Option<&'p Keys>,
    descriptor: &Descriptor<'_>,
) -> Option<MatchedLimit<'p>> {
    let pattern = keys?.find(descriptor)?;
    Some(MatchedLimit {
        limit: &policy.limits[pattern.limit],
        counted: &pattern.counted,
        spec: None,
    })
}

/// The limits that replace the policy's where descriptors carry a limit of their own, by position
/// (R-OVERRIDE); empty if none does. [`resolve_descriptors`] borrows them.
#[must_use]
pub fn own_figures(policy: &PolicySet, facts: &DescriptorFacts<'_>) -> Vec<Option<Limit>> {
    let descriptors = facts.descriptors();
    if descriptors.iter().all(|one| one.figure.is_none()) {
        return Vec::new();
    }
    let keys = policy.domains.0.get(facts.domain());
    let own = |descriptor: &Descriptor<'_>| {
        let figure = descriptor.figure?;
        let found = find(policy, keys, descriptor)?;
        with_figure(found.limit, figure)
    };
    descriptors.iter().map(own).collect()
}

fn with_figure(limit: &Limit, figure: OwnFigure) -> Option<Limit> {
    let amount = NonZeroU64::new(figure.amount);
    let standing = match amount {
        Some(_) => Standing::Counted,
        None => Standing::Denies,
    };
    let amount = amount.unwrap_or(NonZeroU64::MIN);
    let spec = spec_like(&limit.def.spec, amount, figure.window)?;
    let mut own = limit.with_figure(spec);
    if let Some(rule) = &mut own.def.descriptor {
        rule.standing = standing;
    }
    Some(own)
}

/// A spec for `amount` per `window` with the algorithm of `like`, where the window allows it.
fn spec_like(like: &BucketSpec, amount: NonZeroU64, window: Window) -> Option<BucketSpec> {
    let default = match window {
        Window::Span(_) => Algorithm::default_for(amount.get()),
        Window::Month | Window::Year => Algorithm::FixedWindow,
    };
    let algorithm = match (window, like.algorithm()) {
        (Window::Span(_), kept @ (Algorithm::TokenBucket | Algorithm::FixedWindow)) => kept,
        _ => default,
    };
    BucketSpec::new(algorithm, amount, window, None)
        .or_else(|_| BucketSpec::new(default, amount, window, None))
        .ok()
}

/// The organisation that each descriptor names, by position; empty if the policy has no entry that
/// names organisations.
#[must_use]
pub fn orgs_of<'f>(policy: &PolicySet, facts: &'f DescriptorFacts<'_>) -> Vec<Option<&'f str>> {
    let Some(key) = &policy.settings.rls.org_key else {
        return Vec::new();
    };
    let org = |descriptor: &'f Descriptor<'_>| {
        let mut entries = descriptor.entries.iter();
        let named = entries.find(|entry| entry.key == key.as_bytes())?;
        let org = std::str::from_utf8(named.value).ok()?;
        bounded("org", org, ID_BYTES_MAX).ok().map(|()| org)
    };
    facts.descriptors().iter().map(org).collect()
}

/// Limits in place of the policy's own, by the position of descriptors: those that a call carries
/// ([`own_figures`]), and those of tenants ([`orgs_of`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Instead<'p> {
    /// Limits that the call carries; empty if there are none.
    pub figures: &'p [Option<Limit>],
    /// Policies of tenants; empty if there are none.
    pub tenants: &'p [Option<Arc<TenantPolicy>>],
}

/// Turns a call into its plan.
#[must_use]
pub fn resolve_descriptors<'p>(
    policy: &'p PolicySet,
    instead: Instead<'p>,
    keyring: &Keyring,
    facts: &DescriptorFacts<'_>,
) -> DescriptorPlan<'p> {
    let known = policy.domains.0.get_key_value(facts.domain());
    let keys = known.map(|(_, keys)| keys);
    let descriptors = facts.descriptors();
    let found: Vec<Option<MatchedLimit<'p>>> = descriptors
        .iter()
        .map(|descriptor| find(policy, keys, descriptor))
        .collect();
    let mut planner = Planner {
        keyring,
        shadow: policy.settings.rls.shadow,
        plan: DescriptorPlan {
            domain: known.map(|(domain, _)| domain),
            asked: Vec::with_capacity(descriptors.len()),
            charges: Vec::with_capacity(descriptors.len()),
            looks: Vec::new(),
            refunds: Vec::new(),
            denied: Vec::new(),
        },
    };
    for (position, descriptor) in descriptors.iter().enumerate() {
        let asked = match found[position] {
            None => DescriptorTreatment::Nothing,
            Some(one) if is_replaced(one.limit, &found) => DescriptorTreatment::Replaced,
            Some(one) => {
                let own = instead.figures.get(position).and_then(Option::as_ref);
                let tenant = instead.tenants.get(position).and_then(Option::as_deref);
                let spec = tenant.and_then(|tenant| tenant.spec(one.limit));
                let found = MatchedLimit {
                    limit: own.unwrap_or(one.limit),
                    spec: spec.filter(|_| own.is_none()),
                    ..one
                };
                planner.ask(found, descriptor, facts.hits_of(descriptor))
            }
        };
        planner.plan.asked.push(asked);
    }
    planner.plan
}

/// R-REPLACES: whether a limit of the same call replaces this one.
fn is_replaced(limit: &Limit, found: &[Option<MatchedLimit<'_>>]) -> bool {
    let names = |other: &MatchedLimit<'_>| {
        let rule = other.limit.def.descriptor.as_ref();
        rule.is_some_and(|rule| rule.replaces.iter().any(|name| **name == *limit.name))
    };
    found.iter().flatten().any(names)
}

struct Planner<'k, 'p> {
    keyring: &'k Keyring,
    /// True if all limits only report (R-SHADOW).
    shadow: bool,
    plan: DescriptorPlan<'p>,
}

impl<'p> Planner<'_, 'p> {
    fn ask(
        &mut self,
        found: MatchedLimit<'p>,
        descriptor: &Descriptor<'_>,
        hits: Hits,
    ) -> DescriptorTreatment<'p> {
        let limit = found.limit;
        let rule = limit.def.descriptor.as_ref();
        let standing = rule.map_or(Standing::Counted, |rule| rule.standing);
        if standing == Standing::Admits {
            return DescriptorTreatment::Unlimited(limit);
        }
        let charge = self.charge(found, descriptor, hits);
        let plan = &mut self.plan;
        let is_too_much = charge.cost > charge.spec.capacity();
        let is_dear = charge.on_exceed == OnExceed::Deny && is_too_much;
        match hits {
            Hits::Refund(_) if standing == Standing::Denies => DescriptorTreatment::Replaced,
            Hits::Refund(_) => DescriptorTreatment::Refunded(put(&mut plan.refunds, charge)),
            _ if standing == Standing::Denies || is_dear => {
                DescriptorTreatment::Denied(put(&mut plan.denied, charge))
            }
            Hits::Look => DescriptorTreatment::Looked(put(&mut plan.looks, charge)),
            Hits::Charge(_) => DescriptorTreatment::Charged(put(&mut plan.charges, charge)),
        }
    }

    fn charge(
        &self,
        found: MatchedLimit<'p>,
        descriptor: &Descriptor<'_>,
        hits: Hits,
    ) -> Charge<'p> {
        let limit = found.limit;
        let segments = segments_under(self.keyring, found.counted, descriptor);
        let previous = self.keyring.previous().map(|previous| {
            let segments = segments_under(previous, found.counted, descriptor);
            Box::new(previous.bucket(limit.digest, segments))
        });
        let hits = match hits {
            Hits::Charge(hits) | Hits::Refund(hits) => hits.get(),
            Hits::Look => 1,
        };
        Charge {
            limit,
            spec: found.spec.unwrap_or(&limit.def.spec),
            id: self.keyring.combine(limit.digest, &segments),
            segments,
            previous,
            cost: u64::from(limit.def.cost.get())
                .saturating_mul(hits)
                .min(COUNT_MAX),
            on_exceed: match self.shadow {
                true => OnExceed::Report,
                false => limit.def.on_exceed,
            },
            from: CountsFrom::Now,
        }
    }
}

/// Returns one segment for all values that get buckets of their own, as a keyed digest (R-IDS), or
/// none if all share one bucket.
fn segments_under(
    keyring: &Keyring,
    counted: &[usize],
    descriptor: &Descriptor<'_>,
) -> ArrayVec<Segment, SEGMENTS_MAX> {
    let values = counted
        .iter()
        .filter_map(|position| descriptor.entries.get(*position))
        .map(|entry| entry.value);
    let values: ArrayVec<&[u8], ENTRIES_MAX> = values.take(ENTRIES_MAX).collect();
    let segment = (!values.is_empty()).then(|| keyring.segment(SegmentKind::Descriptor, &values));
    segment.into_iter().collect()
}

fn put<'p>(charges: &mut Vec<Charge<'p>>, charge: Charge<'p>) -> usize {
    charges.push(charge);
    charges.len() - 1
}

#[cfg(test)]
mod tests;
