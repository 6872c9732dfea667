//! Limits and charges for tests.

use std::collections::HashMap;
use std::num::NonZeroU64;

use palisade_core::key::{Keyring, SegmentKind};
use palisade_core::limit::{Algorithm, BucketSpec, CountsFrom, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::{Dimension, Family, LimitDef, PolicyParts, PolicySet};

/// A limit of `limit` per `window`, without a burst of its own.
///
/// # Panics
/// If there is no such limit.
#[must_use]
#[expect(clippy::unwrap_used, reason = "part of a test suite")]
pub fn spec(algorithm: Algorithm, limit: u64, window: Window) -> BucketSpec {
    BucketSpec::new(algorithm, NonZeroU64::new(limit).unwrap(), window, None).unwrap()
}

/// A policy for a test, with the keys to charge it.
pub struct TestLimits {
    policy: PolicySet,
    keyring: Keyring,
}

impl TestLimits {
    /// A policy of these limits, by name.
    #[must_use]
    pub fn new<'a>(limits: impl IntoIterator<Item = (&'a str, BucketSpec)>) -> Self {
        Self::with_family(limits, Family::Limit)
    }

    /// A policy of quotas, which every store keeps durably.
    #[must_use]
    pub fn quotas<'a>(limits: impl IntoIterator<Item = (&'a str, BucketSpec)>) -> Self {
        Self::with_family(limits, Family::Quota)
    }

    #[expect(clippy::unwrap_used, reason = "part of a test suite")]
    fn with_family<'a>(
        limits: impl IntoIterator<Item = (&'a str, BucketSpec)>,
        family: Family,
    ) -> Self {
        let bind = |(name, spec): (&str, BucketSpec)| {
            let mut def = LimitDef::new(name, vec![Dimension::Org, Dimension::User], spec);
            def.family = family;
            def
        };
        let parts = PolicyParts {
            enabled: true,
            settings: palisade_core::policy::Settings::default(),
            routes: Vec::new(),
            classes: Vec::new(),
            limits: limits.into_iter().map(bind).collect(),
            clients: HashMap::new(),
            api_keys: HashMap::new(),
            tiers: Vec::new(),
            bot_patterns: Vec::new(),
        };
        Self {
            policy: PolicySet::new(1, parts).unwrap(),
            keyring: Keyring::new(&[9; 32], None).unwrap(),
        }
    }

    /// A charge of one on `subject`'s bucket of the limit. All subjects are of one
    /// organisation, so that a cluster keeps them in one slot.
    ///
    /// # Panics
    /// If there is no such limit.
    #[must_use]
    #[expect(clippy::unwrap_used, reason = "part of a test suite")]
    pub fn charge(&self, limit: &str, subject: &str) -> Charge<'_> {
        let limit = self.policy.limit(limit).unwrap();
        let segments = [
            self.keyring.segment(SegmentKind::Org, &[b"conformance"]),
            self.keyring
                .segment(SegmentKind::User, &[subject.as_bytes()]),
        ];
        Charge {
            limit,
            spec: &limit.def.spec,
            id: self.keyring.combine(limit.digest, &segments),
            segments: segments.into_iter().collect(),
            previous: None,
            cost: 1,
            on_exceed: OnExceed::Deny,
            from: CountsFrom::Now,
        }
    }

    /// Like [`TestLimits::charge`], with a cost and a behaviour on a full bucket.
    #[must_use]
    pub fn charge_of(
        &self,
        limit: &str,
        subject: &str,
        cost: u64,
        on_exceed: OnExceed,
    ) -> Charge<'_> {
        Charge {
            cost,
            on_exceed,
            ..self.charge(limit, subject)
        }
    }
}
