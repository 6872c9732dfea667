//! Overrides of one tenant in place of the policy's own limits.

use std::sync::Arc;

use super::companions::share_spec;
use super::limits::{Dimension, Limit};
use crate::limit::BucketSpec;

/// A tenant's own limits, from the policy source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantPolicy {
    /// Version, as the source states it.
    pub version: u64,
    overrides: Box<[Override]>,
}

/// A tenant's own spec of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The limit's name.
    pub limit: Arc<str>,
    /// Dimensions of the limit when the override was checked against it.
    by: Arc<[Dimension]>,
    /// The spec in place of the limit's own.
    pub spec: BucketSpec,
    /// The spec of what one caller may hold reserved, in place of the limit's own.
    share: Option<BucketSpec>,
    /// The share of it that is in force while an attack is on (AD-ATTACK).
    tightened: Option<BucketSpec>,
}

impl Override {
    /// Whether the override can be used for the limit as the policy in force has it. A policy that
    /// changed meanwhile may count by something that tenants share, over another window, or with
    /// another kind of algorithm.
    fn fits(&self, limit: &Limit) -> bool {
        self.limit == limit.name
            && self.by == limit.def.by
            && !limit.def.concurrency
            && self.spec.can_stand_in_for(&limit.def.spec)
    }
}

impl TenantPolicy {
    /// A policy that replaces the specs of these limits.
    #[must_use]
    pub fn new<'p>(
        version: u64,
        figures: impl IntoIterator<Item = (&'p Limit, BucketSpec)>,
    ) -> Self {
        let overrides = figures.into_iter().map(|(limit, spec)| Override {
            limit: Arc::clone(&limit.name),
            by: Arc::clone(&limit.def.by),
            share: share_spec(&limit.def, &spec),
            tightened: limit.def.tightened(&spec),
            spec,
        });
        Self {
            version,
            overrides: overrides.collect(),
        }
    }

    /// The overrides.
    #[must_use]
    pub const fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    /// Returns the tenant's override of a limit. The policy may have changed since: an override that
    /// does not fit the limit any more is ignored until it has been checked against the new limit.
    #[must_use]
    pub fn spec(&self, limit: &Limit) -> Option<&BucketSpec> {
        let found = self.overrides.iter().find(|own| own.fits(limit))?;
        Some(&found.spec)
    }

    /// Returns the tenant's spec of what one caller may hold reserved of the limit.
    pub(super) fn share_spec(&self, limit: &Limit) -> Option<&BucketSpec> {
        let found = self.overrides.iter().find(|own| own.fits(limit))?;
        found.share.as_ref()
    }

    /// Returns the share of the tenant's own figures for a limit that is in force while an attack is
    /// on.
    #[must_use]
    pub fn tightened(&self, limit: &Limit) -> Option<&BucketSpec> {
        let found = self.overrides.iter().find(|own| own.fits(limit))?;
        found.tightened.as_ref()
    }
}
