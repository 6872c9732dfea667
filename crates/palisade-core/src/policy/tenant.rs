//! Overrides of one tenant in place of the policy's own limits.

use std::sync::Arc;

use super::limits::Limit;
use crate::limit::BucketSpec;

/// A tenant's own limits, from the policy source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantPolicy {
    /// Version, as the source states it.
    pub version: u64,
    limits: Box<[(Arc<str>, BucketSpec)]>,
}

impl TenantPolicy {
    /// A policy that replaces the limits of the same names by these.
    #[must_use]
    pub fn new(version: u64, limits: impl IntoIterator<Item = (Arc<str>, BucketSpec)>) -> Self {
        Self {
            version,
            limits: limits.into_iter().collect(),
        }
    }

    /// Overridden limits, by name.
    #[must_use]
    pub const fn limits(&self) -> &[(Arc<str>, BucketSpec)] {
        &self.limits
    }

    /// Returns the tenant's override of a limit. The policy may have changed since, so that the
    /// limit counts over another window or by another kind of algorithm: the override is then
    /// ignored until it has been checked against the new limit.
    #[must_use]
    pub fn spec(&self, limit: &Limit) -> Option<&BucketSpec> {
        let (_, spec) = self.limits.iter().find(|(name, _)| *name == limit.name)?;
        spec.can_stand_in_for(&limit.def.spec).then_some(spec)
    }
}
