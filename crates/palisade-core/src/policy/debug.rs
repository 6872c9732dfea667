//! `Debug` of policies. It shows how many clients and API keys there are, and never their names or
//! hashes.

use std::fmt;

use super::{PolicyParts, PolicySet};

/// Shows the fields that both types share, after those that one of them has alone.
macro_rules! finish {
    ($shown:expr, $policy:ident) => {
        $shown
            .field("enabled", &$policy.enabled)
            .field("settings", &$policy.settings)
            .field("routes", &$policy.routes)
            .field("classes", &$policy.classes)
            .field("limits", &$policy.limits)
            .field("clients", &$policy.clients.len())
            .field("api_keys", &$policy.api_keys.len())
            .field("tiers", &$policy.tiers)
            .finish_non_exhaustive()
    };
}

impl fmt::Debug for PolicySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("PolicySet");
        finish!(shown.field("revision", &self.revision), self)
    }
}

impl fmt::Debug for PolicyParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        finish!(f.debug_struct("PolicyParts"), self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::ClientType;
    use crate::policy::{ApiKey, Overage, hash_api_key};

    #[test]
    fn privacy_debug_of_a_policy_counts_clients_and_keys_and_names_none() {
        let hash = hash_api_key("key");
        let key = ApiKey {
            tier: "free".into(),
            scopes: None,
            usage_of: None,
        };
        let parts = PolicyParts {
            enabled: true,
            settings: Default::default(),
            routes: vec![],
            classes: vec![],
            limits: vec![],
            clients: [("canary-client".into(), ClientType::Public)].into(),
            api_keys: [(hash.as_str().into(), key)].into(),
            tiers: vec![("free".into(), None, Overage::Blocked)],
            bot_patterns: vec![],
        };
        let shown = format!("{parts:?}{:?}", PolicySet::new(1, parts.clone()));
        assert!(shown.contains("clients: 1") && shown.contains("api_keys: 1"));
        assert!(
            !shown.contains("canary") && !shown.contains(&hash),
            "{shown}"
        );
    }
}
