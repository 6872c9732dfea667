//! Limits with `under_attack` (AD-ATTACK).

use std::sync::Arc;

use palisade::core::PolicySet;
use palisade::core::policy::TenantPolicy;
use palisade::core::time::{Clock, HOUR, MINUTE};
use palisade::engine::{AttackMode, Operator, Tenants};
use palisade::store::model::ModelStore;
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::Env;
use serde_json::json;

use crate::engine_support::shared::Shared;
use crate::engine_support::{Bench, START, keyring, policy, render, request};

const POLICY: &str = r#"
[adaptive]
surge = 2
surge_min = 50
[[route]]
path = "/api/*"
class = "api"
[[limit]]
name = "per-address"
by = ["ip"]
class = "api"
rate = "10/min"
under_attack = "50%"
[[limit]]
name = "per-org"
by = ["org"]
class = "api"
rate = "100/h"
under_attack = "10%"
[[limit]]
name = "sign-in"
by = ["ip"]
class = "auth"
rate = "4/min"
under_attack = "50%"
[[limit]]
name = "scanners"
by = ["ip"]
class = "api"
rate = "1/h"
bot = true
"#;

const API: &str = r#"{"ip":"192.0.2.1","method":"GET","path":"/api/things"}"#;

/// A request of a scanner, of which all but the first in an hour are refused.
fn scan(number: u32) -> String {
    format!(
        r#"{{"ip":"203.0.113.{}","method":"GET","path":"/api/x","user_agent":"sqlmap"}}"#,
        number % 100
    )
}

/// A minute with a hundred refusals or more, from a hundred addresses.
async fn scans(engine: &Engine) {
    for number in 0..200 {
        engine.check(&request(&scan(number))).await;
    }
}

async fn set(engine: &Engine, class: Option<&str>, mode: AttackMode) {
    let admin = engine.administer(Operator::Local, None);
    admin.set_attack(class, mode, Some("drill")).await.unwrap();
}

#[tokio::test]
async fn ad_attack_what_was_used_stays_when_a_limit_is_tightened_and_when_it_is_not() {
    let bench = Bench::with(POLICY);
    assert_eq!(bench.admitted(API, 6).await, 6);
    set(&bench.engine, None, AttackMode::On).await;
    let denied = bench.check(API).await;
    assert_eq!(
        (&denied["attack"], &denied["limit_in_force"]),
        (&json!(true), &json!(5))
    );
    assert_eq!(denied["headers"]["X-RateLimit-Limit"], "5");
    set(&bench.engine, None, AttackMode::Auto).await;
    assert_eq!(bench.admitted(API, 6).await, 4, "of ten, six were used");
}

#[tokio::test]
async fn ad_attack_an_operator_wins_over_the_counts_and_the_class_over_all() {
    let bench = Bench::with(POLICY);
    set(&bench.engine, Some("api"), AttackMode::Off).await;
    for _ in 0..3 {
        scans(&bench.engine).await;
        bench.sleep(MINUTE).await;
    }
    let report = bench.engine.attack_report();
    assert_eq!(
        report.attacks.len(),
        1,
        "declared, and refused by the operator"
    );
    assert_eq!(report.tightened, Vec::<String>::new());
    assert_eq!(bench.check(API).await["attack"], false);
    set(&bench.engine, None, AttackMode::On).await;
    assert_eq!(bench.check(API).await["attack"], false, "the class is off");
    set(&bench.engine, Some("api"), AttackMode::Auto).await;
    assert_eq!(bench.check(API).await["attack"], true);
    bench.sleep(3 * HOUR).await;
    assert_eq!(
        bench.check(API).await["attack"],
        true,
        "until an operator ends it"
    );
}

#[tokio::test]
async fn ad_attack_that_is_set_for_a_class_wins_over_logins_and_logins_over_all() {
    const AUTH: &str = r#"{"ip":"192.0.2.1","method":"POST","path":"/auth/token"}"#;
    let bench = Bench::with(POLICY);
    set(&bench.engine, Some("logins"), AttackMode::On).await;
    set(&bench.engine, None, AttackMode::Off).await;
    assert_eq!(bench.check(AUTH).await["attack"], true);
    assert_eq!(bench.check(API).await["attack"], false);
    set(&bench.engine, Some("auth"), AttackMode::Off).await;
    assert_eq!(bench.check(AUTH).await["attack"], false);
}

#[tokio::test]
async fn ad_attack_without_an_operator_lasts_an_hour_at_most() {
    let bench = Bench::with(POLICY);
    let mut minutes = 0;
    for _ in 0..120 {
        scans(&bench.engine).await;
        minutes += u32::from(bench.check(API).await["attack"] == true);
        bench.sleep(MINUTE).await;
    }
    assert_eq!(minutes, 60);
}

#[tokio::test]
async fn ad_attack_a_known_device_keeps_the_whole_figure() {
    let bench = Bench::with(POLICY);
    set(&bench.engine, None, AttackMode::On).await;
    let known = API.replace('}', r#","known_device":true}"#);
    assert_eq!(bench.admitted(API, 20).await, 5);
    assert_eq!(
        bench.admitted(&known, 20).await,
        5,
        "of ten, five were used"
    );
}

struct Tenant(Arc<TenantPolicy>);

impl Tenants for Tenant {
    fn find(&self, org: &str) -> Option<Arc<TenantPolicy>> {
        (org == "large").then(|| Arc::clone(&self.0))
    }
}

#[tokio::test]
async fn ad_attack_tightens_a_tenants_own_figure_by_the_same_share() {
    let policy = policy(POLICY, &Env::default());
    let limit = policy.limit("per-org").unwrap();
    let spec = with_amount(400, limit);
    let tenants = Tenant(Arc::new(TenantPolicy::new(1, [(limit, spec)])));
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::at(START));
    let store = Arc::new(ModelStore::new(Arc::clone(&clock)));
    let engine = Engine::new(EngineConfig {
        tenants: Arc::new(tenants),
        policy: Arc::clone(&policy),
        ..EngineConfig::new(store, PolicySet::empty(), keyring(), clock)
    });
    set(&engine, Some("api"), AttackMode::On).await;
    for (org, figure) in [("large", 40), ("small", 10)] {
        let facts = format!(r#"{{"ip":"192.0.2.9","method":"GET","path":"/api/x","org":"{org}"}}"#);
        let answer = render(&engine.check(&request(&facts)).await);
        let limit = crate::engine_support::bucket(&answer, "per-org");
        assert_eq!(limit["limit"], figure, "{org}");
    }
}

/// The limit's spec with another amount.
fn with_amount(
    amount: u32,
    limit: &palisade::core::policy::Limit,
) -> palisade::core::limit::BucketSpec {
    let spec = &limit.def.spec;
    let amount = std::num::NonZeroU32::new(amount).unwrap();
    palisade::core::limit::BucketSpec::new(spec.algorithm(), amount, spec.window(), None).unwrap()
}

/// Two nodes on one store.
fn nodes() -> (Arc<VirtualClock>, [Engine; 2]) {
    let clock = Arc::new(VirtualClock::at(START));
    let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
    let store = Shared(Arc::new(ModelStore::new(Arc::clone(&time))));
    let node = || {
        Engine::new(EngineConfig {
            policy: policy(POLICY, &Env::default()),
            ..EngineConfig::new(
                Arc::new(store.clone()),
                PolicySet::empty(),
                keyring(),
                Arc::clone(&time),
            )
        })
    };
    (clock, [node(), node()])
}

/// What each node does twice a second.
async fn copy(nodes: &[Engine; 2]) {
    for node in nodes {
        node.share_attacks().await.unwrap();
        node.refresh_attacks().await.unwrap();
    }
}

async fn is_on(node: &Engine) -> bool {
    render(&node.check(&request(API)).await)["attack"] == true
}

#[tokio::test]
async fn ad_attack_that_one_node_declares_is_on_and_over_on_the_others() {
    let (clock, nodes) = nodes();
    for _ in 0..2 {
        scans(&nodes[0]).await;
        clock.advance(MINUTE);
    }
    copy(&nodes).await;
    assert!(is_on(&nodes[0]).await && is_on(&nodes[1]).await);
    let view = &nodes[1].attack_report().attacks[0];
    let numbers = (view.count, view.prefixes, view.threshold);
    assert_eq!((&*view.class, numbers), ("api", (100, 100, 100)));
    for _ in 0..5 {
        clock.advance(MINUTE);
        copy(&nodes).await;
    }
    assert!(!is_on(&nodes[0]).await, "five quiet minutes");
    copy(&nodes).await;
    assert!(!is_on(&nodes[1]).await);
}

#[tokio::test]
async fn ad_attack_of_a_node_that_is_gone_is_forgotten() {
    let (clock, nodes) = nodes();
    for _ in 0..2 {
        scans(&nodes[0]).await;
        clock.advance(MINUTE);
    }
    copy(&nodes).await;
    assert!(is_on(&nodes[1]).await);
    clock.advance(2 * MINUTE);
    nodes[1].refresh_attacks().await.unwrap();
    assert!(!is_on(&nodes[1]).await, "its entry has expired");
}

#[tokio::test]
async fn ad_attack_that_an_operator_sets_holds_on_every_node() {
    let (_, nodes) = nodes();
    set(&nodes[0], None, AttackMode::On).await;
    assert!(is_on(&nodes[0]).await && !is_on(&nodes[1]).await);
    copy(&nodes).await;
    assert!(is_on(&nodes[1]).await);
    set(&nodes[1], None, AttackMode::Auto).await;
    copy(&nodes).await;
    assert!(!is_on(&nodes[0]).await);
}
