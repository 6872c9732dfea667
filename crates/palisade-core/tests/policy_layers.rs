//! L-LAYERS: two calls together charge what one call would have charged, for any policy and facts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking and says why"
)]

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroU64};

use palisade_core::facts::{ClientFacts, Id, Layers, RequestFacts};
use palisade_core::key::Keyring;
use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::plan::{Charge, Plan};
use palisade_core::policy::{
    ApiKey, Dimension, LimitDef, Overage, PolicyParts, PolicySet, Route, Scope, Settings,
    hash_api_key, resolve,
};
use palisade_core::time::MINUTE;
use proptest::prelude::*;

const KEY: &str = "a key that is known";

fn dimension() -> impl Strategy<Value = Dimension> {
    prop_oneof![
        Just(Dimension::Ip),
        Just(Dimension::Client),
        Just(Dimension::Org),
        Just(Dimension::Token),
        Just(Dimension::User),
        Just(Dimension::ApiKey),
        Just(Dimension::Endpoint),
    ]
}

prop_compose! {
    fn limit()(
        by in proptest::collection::btree_set(0_usize..7, 0..3),
        dimensions in proptest::collection::vec(dimension(), 7),
        limit in 1_u32..6,
        class in proptest::option::of("[ab]"),
        bots_only in any::<bool>(),
        throttle in proptest::bool::weighted(0.2),
    ) -> LimitDef {
        let limit = NonZeroU32::new(limit).unwrap();
        let window = Window::Span(MINUTE);
        let spec = BucketSpec::new(Algorithm::SlidingLog, limit, window, None).unwrap();
        let mut by: Vec<Dimension> = by.iter().map(|at| dimensions[*at].clone()).collect();
        by.dedup();
        let mut def = LimitDef::new("", if throttle { Vec::new() } else { by }, spec);
        def.classes = class.into_iter().collect();
        def.bots_only = bots_only && !throttle;
        def.throttle = throttle;
        def
    }
}

prop_compose! {
    fn policy()(
        limits in proptest::collection::vec(limit(), 0..8),
        classed in any::<bool>(),
        scope in proptest::bool::weighted(0.3),
        api_key_required in proptest::bool::weighted(0.3),
    ) -> PolicySet {
        let mut route = Route::new("/*").unwrap();
        route.class = classed.then(|| "a".into());
        route.scope = scope.then(|| "needed".into());
        route.api_key_required = api_key_required;
        let named = limits.into_iter().enumerate().map(|(at, mut limit)| {
            limit.name = format!("limit-{at}");
            limit
        });
        let known = ApiKey { tier: "free".into(), scopes: None , usage_of: None};
        PolicySet::new(1, PolicyParts {
            enabled: true,
            settings: Settings::default(),
            routes: vec![route],
            classes: Vec::new(),
            limits: named.collect(),
            clients: HashMap::new(),
            api_keys: HashMap::from([(hash_api_key(KEY).into(), known)]),
            tiers: vec![("free".to_owned(), NonZeroU64::new(5), Overage::Blocked)],
            bot_patterns: Vec::new(),
        }).unwrap()
    }
}

fn id(given: bool, text: &str) -> Option<Id> {
    given.then(|| Id::new("id", text).unwrap())
}

prop_compose! {
    fn facts()(
        given in proptest::array::uniform6(any::<bool>()),
        known_key in any::<bool>(),
        class in proptest::option::of("[abc]"),
        cost in proptest::option::of(1_u64..8),
        bot in any::<bool>(),
    ) -> RequestFacts {
        let [org, token, user, client, api_key, scopes] = given;
        RequestFacts {
            class: class.map(|class| Id::new("class", &class).unwrap()),
            org: id(org, "acme"),
            token: id(token, "t"),
            user: id(user, "u"),
            client: id(client, "spa").map(|id| ClientFacts { id, kind: None }),
            api_key: id(api_key, if known_key { KEY } else { "a guess" }),
            scopes: scopes.then(|| vec![Id::new("scopes", "needed").unwrap()]),
            cost: cost.and_then(NonZeroU64::new),
            bot,
            ..RequestFacts::new([192, 0, 2, 1].into(), "GET", "/x")
        }
    }
}

fn plan<'p>(policy: &'p PolicySet, facts: &RequestFacts, layers: Layers) -> Plan<'p> {
    let ring = Keyring::new(&[1; 32], None).unwrap();
    let facts = RequestFacts {
        layers,
        ..facts.clone()
    };
    resolve(policy, None, &ring, &facts, |_| None)
}

/// The amount taken from each bucket.
fn taken(charges: &[Charge<'_>]) -> Vec<(String, u64)> {
    let taken = charges.iter().map(|charge| (charge.key(), charge.cost));
    taken.collect()
}

fn status(plan: &Plan<'_>) -> Option<u16> {
    plan.refusal.map(|refusal| refusal.error().status())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn l_layers_edge_and_identity_charge_together_what_all_charges(
        policy in policy(),
        facts in facts(),
    ) {
        let all = plan(&policy, &facts, Layers::All);
        let edge = plan(&policy, &facts, Layers::Edge);
        let identity = plan(&policy, &facts, Layers::Identity);

        prop_assert_eq!(taken(&edge.throttle), taken(&all.throttle));
        prop_assert!(identity.throttle.is_empty());
        prop_assert!(edge.charges.iter().all(|charge| charge.limit.scope <= Scope::Client));
        prop_assert!(identity.charges.iter().all(|charge| charge.limit.scope > Scope::Client));
        // The order of the layers is kept over both calls (L-ORDER), and what the later
        // one would refuse is refused.
        let both = [taken(&edge.charges), taken(&identity.charges)].concat();
        if status(&all) == Some(403) {
            // A missing scope is known only after the address was charged.
            prop_assert_eq!(status(&identity), Some(403));
            prop_assert!(identity.charges.is_empty());
        } else {
            prop_assert_eq!(both, taken(&all.charges));
            prop_assert_eq!(status(&edge).or_else(|| status(&identity)), status(&all));
        }
        prop_assert!(!matches!(status(&edge), Some(401 | 403)));
    }

    #[test]
    fn l_layers_the_quota_is_found_where_it_is_charged(policy in policy(), facts in facts()) {
        for layers in [Layers::All, Layers::Identity] {
            let plan = plan(&policy, &facts, layers);
            if let Some(quota) = plan.quota.filter(|_| plan.refusal.is_none()) {
                prop_assert_eq!(&*plan.charges[quota.charge].limit.name, "api-key-quota");
            }
        }
        prop_assert!(plan(&policy, &facts, Layers::Edge).quota.is_none());
    }
}
