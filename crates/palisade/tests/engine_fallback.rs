//! F-FALLBACK: an outage is never laxer than the policy (D32), for any policy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use engine_support::shared::Shared;
use engine_support::{Model, START, keyring};
use palisade::cases::{FaultStore, StoreState};
use palisade::core::facts::{Id, Layers};
use palisade::core::limit::{Algorithm, BucketSpec, Window};
use palisade::core::plan::OnExceed;
use palisade::core::policy::{
    Accuracy, Class, ClassKind, Dimension, LimitDef, OnStoreFailure, PolicyParts, Route, Settings,
    WhenProlonged, resolve,
};
use palisade::core::time::{Clock, MINUTE, Micros, SECOND};
use palisade::core::{PolicySet, RequestFacts};
use palisade::{Engine, EngineConfig, VirtualClock};
use proptest::prelude::*;

fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::SlidingLog),
        Just(Algorithm::SlidingWheel),
        Just(Algorithm::TokenBucket),
        Just(Algorithm::FixedWindow),
    ]
}

fn accuracy() -> impl Strategy<Value = Accuracy> {
    prop_oneof![
        Just(Accuracy::Exact),
        Just(Accuracy::Leased),
        Just(Accuracy::Local),
    ]
}

fn by() -> impl Strategy<Value = Vec<Dimension>> {
    prop_oneof![
        Just(vec![]),
        Just(vec![Dimension::Ip]),
        Just(vec![Dimension::Org]),
        Just(vec![Dimension::User]),
    ]
}

fn on_failure() -> impl Strategy<Value = OnStoreFailure> {
    prop_oneof![
        4 => Just(OnStoreFailure::Fallback),
        2 => Just(OnStoreFailure::OpenBounded),
        1 => Just(OnStoreFailure::Closed),
    ]
}

prop_compose! {
    fn limit()(
        by in by(),
        algorithm in algorithm(),
        accuracy in accuracy(),
        on_store_failure in on_failure(),
        limit in 1_u32..30,
        burst in proptest::option::of(1_u32..30),
        window in prop_oneof![Just(SECOND), Just(10 * SECOND), Just(MINUTE)],
        cost in 1_u32..4,
        is_shadow in proptest::bool::weighted(0.1),
        throttle in proptest::bool::weighted(0.15),
    ) -> LimitDef {
        let burst = burst.filter(|_| algorithm == Algorithm::TokenBucket);
        let burst = burst.and_then(NonZeroU32::new);
        let limit = NonZeroU32::new(limit).unwrap();
        let spec = BucketSpec::new(algorithm, limit, Window::Span(window), burst).unwrap();
        let mut def = LimitDef::new("", if throttle { Vec::new() } else { by }, spec);
        def.accuracy = accuracy;
        def.on_store_failure = on_store_failure;
        def.cost = NonZeroU32::new(if throttle { 1 } else { cost }).unwrap();
        def.throttle = throttle;
        if is_shadow {
            def.on_exceed = OnExceed::Report;
        }
        def
    }
}

prop_compose! {
    fn policy()(
        limits in proptest::collection::vec(limit(), 1..5),
        is_auth in any::<bool>(),
    ) -> PolicySet {
        let mut route = Route::new("/*").unwrap();
        route.class = Some("any".into());
        let kind = if is_auth { ClassKind::Auth } else { ClassKind::Ordinary };
        let named = limits.into_iter().enumerate().map(|(at, mut limit)| {
            limit.name = format!("limit-{at}");
            limit
        });
        PolicySet::new(1, PolicyParts {
            enabled: true,
            settings: Settings::default(),
            routes: vec![route],
            classes: vec![Class { name: "any".into(), kind, prolonged: WhenProlonged::Local, priority: Default::default() }],
            limits: named.collect(),
            clients: HashMap::new(),
            api_keys: HashMap::new(),
            tiers: Vec::new(),
            bot_patterns: Vec::new(),
        }).unwrap()
    }
}

fn facts(cost: u64, is_tenant: bool, layers: Layers) -> RequestFacts {
    RequestFacts {
        org: is_tenant.then(|| Id::new("org", "acme").unwrap()),
        user: Some(Id::new("user", "u").unwrap()),
        cost: NonZeroU64::new(cost),
        layers,
        ..RequestFacts::new([192, 0, 2, 1].into(), "GET", "/x")
    }
}

/// One admission, and whether it was in the outage.
#[derive(Clone, Copy, Debug)]
struct Hit {
    at: Micros,
    cost: u64,
    in_outage: bool,
}

/// The most that a bucket may admit in the time between two of its hits.
fn most(spec: &BucketSpec, from: Micros, to: Micros) -> Option<u64> {
    let window = spec.window_us();
    let limit = spec.limit();
    match spec.algorithm() {
        Algorithm::TokenBucket => {
            let inflow = u128::from(limit) * u128::from(to.since(from)) / u128::from(window);
            Some(spec.capacity() + u64::try_from(inflow).unwrap())
        }
        Algorithm::FixedWindow => (from.0 / window == to.0 / window).then_some(limit),
        Algorithm::SlidingLog | Algorithm::SlidingWheel => {
            (to.since(from) < window).then_some(limit)
        }
    }
}

/// The first run of hits that exceeds the bucket's limit.
fn excess(spec: &BucketSpec, hits: &[Hit]) -> Option<String> {
    for (index, first) in hits.iter().enumerate() {
        let mut sum = 0;
        for hit in &hits[index..] {
            sum += hit.cost;
            if most(spec, first.at, hit.at).is_some_and(|most| sum > most) {
                return Some(format!("{sum} in {} µs", hit.at.since(first.at)));
            }
        }
    }
    None
}

struct Bench {
    engine: Engine,
    store: Arc<FaultStore>,
    clock: Arc<VirtualClock>,
    policy: PolicySet,
}

impl Bench {
    fn new(policy: PolicySet) -> Self {
        let clock = Arc::new(VirtualClock::at(START));
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let model = Shared(Arc::new(Model::new(Arc::clone(&time))));
        let store = Arc::new(FaultStore::new(Arc::new(model)));
        let config = EngineConfig::new(
            Arc::<FaultStore>::clone(&store),
            policy.clone(),
            keyring(),
            time,
        );
        Self {
            engine: Engine::new(config),
            store,
            clock,
            policy,
        }
    }

    /// Sends requests after gaps in milliseconds, the first `healthy` of them while the store
    /// answers.
    async fn admitted(&self, facts: &RequestFacts, gaps: &[u64], healthy: usize) -> Vec<Hit> {
        let mut hits = Vec::new();
        for (index, gap) in gaps.iter().enumerate() {
            if index == healthy {
                self.store.set(StoreState::Down);
            }
            self.clock.advance(gap * 1_000);
            let decision = self.engine.check(facts).await.decision;
            if decision.is_allowed() {
                hits.push(Hit {
                    at: self.clock.now(),
                    cost: facts.cost.map_or(1, NonZeroU64::get),
                    in_outage: index >= healthy,
                });
            }
        }
        hits
    }

    /// For every bucket of the request, the admissions that the policy would have refused.
    fn violations(&self, facts: &RequestFacts, hits: &[Hit]) -> Vec<String> {
        let ring = keyring();
        let plan = resolve(&self.policy, None, &ring, facts, |_| None);
        let throttle = plan.throttle.iter().map(|charge| (charge, 1));
        let charges = plan
            .charges
            .iter()
            .map(|charge| (charge, facts_cost(facts)));
        let denying = throttle
            .chain(charges)
            .filter(|(charge, _)| charge.on_exceed == OnExceed::Deny);
        denying
            .filter_map(|(charge, per_request)| {
                let own = charge.cost / per_request;
                let is_local = charge.limit.def.accuracy == Accuracy::Local;
                let is_throttle = charge.limit.def.throttle;
                let counted: Vec<Hit> = hits
                    .iter()
                    // In an outage the earlier count of a shared bucket is not available.
                    .filter(|hit| is_local || hit.in_outage)
                    .map(|hit| Hit {
                        cost: if is_throttle {
                            charge.cost
                        } else {
                            own * hit.cost
                        },
                        ..*hit
                    })
                    .collect();
                let found = excess(charge.spec, &counted)?;
                Some(format!("{}: {found}", charge.limit.name))
            })
            .collect()
    }
}

fn facts_cost(facts: &RequestFacts) -> u64 {
    facts.cost.map_or(1, NonZeroU64::get)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn f_fallback_an_outage_admits_no_more_than_the_policy(
        policy in policy(),
        cost in 1_u64..4,
        is_tenant in any::<bool>(),
        layers in prop_oneof![
            4 => Just(Layers::All), 1 => Just(Layers::Edge), 1 => Just(Layers::Identity),
        ],
        gaps in proptest::collection::vec(prop_oneof![3 => Just(0), 2 => 1_u64..2_000], 1..120),
        healthy in 0_usize..40,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        let bench = Bench::new(policy);
        let facts = facts(cost, is_tenant, layers);
        let hits = runtime.block_on(bench.admitted(&facts, &gaps, healthy));
        let violations = bench.violations(&facts, &hits);
        prop_assert!(violations.is_empty(), "{violations:?}");
    }
}

/// A bench whose store is down and whose breaker of limits is open.
async fn in_outage(text: &str) -> engine_support::Bench {
    let bench = engine_support::Bench::with(text);
    bench.store(palisade::cases::StoreState::Down);
    for n in 0..5 {
        let facts = format!(r#"{{"ip":"192.0.2.{n}","method":"GET","path":"/x"}}"#);
        bench.check(&facts).await;
    }
    bench
}

async fn passed(bench: &engine_support::Bench, method: &str, path: &str, count: usize) -> usize {
    let facts = format!(r#"{{"ip":"203.0.113.9","method":"{method}","path":"{path}"}}"#);
    let mut passed = 0;
    for _ in 0..count {
        passed += usize::from(bench.check(&facts).await["decision"] == "allow");
    }
    passed
}

#[tokio::test]
async fn f_fallback_health_has_60_a_minute_of_each_address_and_other_methods_their_class() {
    let bench = in_outage("").await;
    assert_eq!(passed(&bench, "GET", "/health/ready", 600).await, 60);
    assert_eq!(passed(&bench, "HEAD", "/metrics", 10).await, 0, "one cap");
    assert_eq!(passed(&bench, "POST", "/health/ready", 600).await, 50);
    bench.sleep(MINUTE).await;
    assert_eq!(passed(&bench, "GET", "/health/ready", 600).await, 60);
}

#[tokio::test]
async fn f_fallback_auth_keeps_its_half_however_long_the_outage_lasts() {
    let closed = "[[class]]\nname = \"auth\"\nkind = \"auth\"\nprolonged = \"closed\"\n";
    for (text, after) in [("", 5), (closed, 0)] {
        let bench = in_outage(text).await;
        assert_eq!(passed(&bench, "POST", "/auth/login", 20).await, 5);
        bench.sleep(10 * MINUTE).await;
        assert_eq!(passed(&bench, "POST", "/auth/login", 20).await, after);
        assert_eq!(passed(&bench, "GET", "/admin/users", 3).await, 0);
    }
}
