//! API keys, and the monthly quotas of the tiers they are on.

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use super::limits::{Dimension, Family, Limit, LimitDef};
use crate::limit::{Algorithm, BucketSpec, SpecError, Window};
use crate::plan::OnExceed;

/// Treatment of an API key beyond its quota.
#[derive(Clone, Debug, PartialEq)]
pub enum Overage {
    /// Requests are denied.
    Blocked,
    /// Requests are allowed, counted, and billed elsewhere at this price each.
    Priced(f64),
}

/// A tier of API-key quotas.
#[derive(Clone, Debug)]
pub struct Tier {
    /// Name of the tier.
    pub name: Arc<str>,
    /// Monthly quota; `None` is unlimited.
    pub quota: Option<NonZeroU64>,
    /// Treatment of requests beyond the quota.
    pub overage: Overage,
    /// The bound quota limit of this tier.
    pub limit: Limit,
}

/// A registered API key; only its hash is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Tier name.
    pub tier: Arc<str>,
    /// Scopes; `None` covers every route.
    pub scopes: Option<Vec<String>>,
    /// Hash under which the key's usage is counted, if not its own: a key that replaces another
    /// goes on with the other's quota.
    pub usage_of: Option<Box<str>>,
}

impl ApiKey {
    /// Whether the key may use a route that needs this scope.
    #[must_use]
    pub fn covers(&self, needed: &str) -> bool {
        let scopes = self.scopes.as_ref();
        scopes.is_none_or(|scopes| scopes.iter().any(|scope| scope == needed))
    }
}

pub(super) fn bind_tiers(
    tiers: Vec<(String, Option<NonZeroU64>, Overage)>,
) -> Result<HashMap<Arc<str>, Tier>, SpecError> {
    let mut bound = HashMap::new();
    for (name, quota, overage) in tiers {
        let spec = BucketSpec::new(
            Algorithm::FixedWindow,
            quota.unwrap_or(NonZeroU32::MAX.into()),
            Window::Month,
            None,
        )?;
        // All tiers share one name: a change of tier keeps what was used.
        let mut def = LimitDef::new("api-key-quota", vec![Dimension::ApiKey], spec);
        def.family = Family::Quota;
        def.on_exceed = match (quota, &overage) {
            (None, _) | (_, Overage::Priced(_)) => OnExceed::Count,
            (Some(_), Overage::Blocked) => OnExceed::Deny,
        };
        let name: Arc<str> = name.into();
        bound.insert(
            Arc::clone(&name),
            Tier {
                name,
                quota,
                overage,
                limit: Limit::bind(def),
            },
        );
    }
    Ok(bound)
}
