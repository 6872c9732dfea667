//! I-JWT and I-COST at the engine's interface: how a guessed token is counted, and what is refused
//! before it costs anything.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;

use std::num::NonZeroU32;
use std::sync::Arc;

use engine_support::shared::Shared;
use engine_support::{Bench, Model, START, keyring, policy, remaining, render, request};
use palisade::cases::{FaultStore, StoreState};
use palisade::core::facts::Layers;
use palisade::core::limit::{Algorithm, BucketSpec, Window};
use palisade::core::time::{Clock, MINUTE};
use palisade::core::{PolicySet, RequestFacts};
use palisade::engine::{AllowlistKind, Keyed, NewAllowlistEntry};
use palisade::store::Take;
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::Env;

const READ: &str = r#"{"ip":"203.0.113.1","method":"GET","path":"/things"}"#;
const ADMIN: &str = r#"{"ip":"203.0.113.1","method":"GET","path":"/admin/users"}"#;

fn guess(facts: &str) -> RequestFacts {
    RequestFacts {
        guess: true,
        ..request(facts)
    }
}

#[tokio::test]
async fn i_jwt_a_guess_counts_in_the_auth_class_besides_its_own_and_nowhere_twice() {
    let bench = Bench::with("");
    let answer = render(&bench.engine.check(&guess(READ)).await);
    assert_eq!(answer["decision"], "allow");
    assert_eq!(remaining(&answer, "ip-read"), 99);
    assert_eq!(remaining(&answer, "ip-auth"), 9);
    assert_eq!(remaining(&answer, "ip-all"), 999);
    for _ in 0..9 {
        assert!(bench.engine.check(&guess(READ)).await.decision.is_allowed());
    }
    let denied = bench.engine.check(&guess(READ)).await.decision;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.class.as_deref(), Some("read"));
    let honest = bench.check(READ).await;
    assert_eq!(honest["decision"], "allow");
    assert_eq!(remaining(&honest, "ip-read"), 89);
}

#[tokio::test]
async fn i_jwt_a_guess_at_a_route_that_needs_a_scope_counts_too() {
    let scoped = "[[route]]\npath = \"/reports/*\"\nclass = \"read\"\nscope = \"reports\"\n";
    let bench = Bench::with(scoped);
    let facts = r#"{"ip":"203.0.113.1","method":"GET","path":"/reports/1"}"#;
    for _ in 0..20 {
        assert_eq!(
            bench.check(facts).await["status"],
            403,
            "T-SCOPE counts nothing"
        );
    }
    for _ in 0..10 {
        assert_eq!(bench.engine.check(&guess(facts)).await.decision.status, 403);
    }
    assert_eq!(bench.engine.check(&guess(facts)).await.decision.status, 429);
    assert!(bench.engine.foresee(&guess(facts)).await.is_some());
    assert_eq!(remaining(&bench.check(READ).await, "ip-read"), 89);
}

#[tokio::test]
async fn i_jwt_behind_the_edge_a_guess_counts_in_the_auth_class_only_and_is_foreseen() {
    let bench = Bench::with("");
    let behind = RequestFacts {
        layers: Layers::Identity,
        ..guess(READ)
    };
    for _ in 0..10 {
        assert!(bench.engine.foresee(&behind).await.is_none());
        assert!(bench.engine.check(&behind).await.decision.is_allowed());
    }
    let refusal = bench.engine.foresee(&behind).await.unwrap();
    assert_eq!(refusal.decision.status, 429);
    assert_eq!(bench.engine.check(&behind).await.decision.status, 429);
    let honest = bench.check(READ).await;
    assert_eq!(remaining(&honest, "ip-read"), 99, "the edge's are its own");
}

#[tokio::test]
async fn i_jwt_a_guess_opens_no_class_that_an_outage_closes() {
    let bench = Bench::with("");
    bench.store(StoreState::Down);
    let status = bench.engine.check(&guess(ADMIN)).await.decision.status;
    assert_eq!(status, bench.check(ADMIN).await["status"]);
    assert_eq!(status, 503);
}

#[tokio::test]
async fn i_cost_a_refusal_that_is_coming_is_seen_beforehand_and_charges_nothing() {
    let bench = Bench::with("");
    for _ in 0..10 {
        assert!(bench.engine.foresee(&guess(READ)).await.is_none());
        assert!(bench.engine.check(&guess(READ)).await.decision.is_allowed());
    }
    assert_eq!(bench.engine.check(&guess(READ)).await.decision.status, 429);
    for _ in 0..50 {
        let refusal = bench.engine.foresee(&guess(READ)).await.unwrap();
        assert_eq!(refusal.decision.status, 429);
        assert!(bench.engine.foresee(&request(READ)).await.is_none());
    }
    assert_eq!(remaining(&bench.check(READ).await, "ip-read"), 89);
    bench.sleep(MINUTE).await;
    assert!(bench.engine.foresee(&guess(READ)).await.is_none());
}

#[tokio::test]
async fn i_cost_an_allowlisted_address_is_heard_and_shed_load_is_not() {
    let throttle = "[[limit]]\nname = \"global-instance\"\nby = []\nrate = \"20/s\"\n\
        algorithm = \"token-bucket\"\naccuracy = \"local\"\nthrottle = true\n";
    let bench = Bench::with(throttle);
    let entry = NewAllowlistEntry {
        kind: AllowlistKind::Ip,
        identifier: "203.0.113.1".to_owned(),
        org: None,
        reason: "test".to_owned(),
        expires_at: None,
    };
    for _ in 0..11 {
        bench.engine.check(&guess(READ)).await;
    }
    assert!(bench.engine.foresee(&guess(READ)).await.is_some());
    bench.engine.allowlist_add(entry).await.unwrap();
    assert!(bench.engine.foresee(&guess(READ)).await.is_none());
    while bench.engine.check(&guess(READ)).await.decision.status != 503 {}
    let shed = bench.engine.foresee(&guess(READ)).await.unwrap();
    assert_eq!(shed.decision.status, 503);
}

/// An engine on a shared store, with five requests a minute for each address.
fn shared(accuracy: &str) -> (Engine, Arc<FaultStore>, Arc<VirtualClock>) {
    let clock = Arc::new(VirtualClock::at(START));
    let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
    let text = format!(
        "[policy]\ndefaults = false\n[[limit]]\nname = \"few\"\nby = [\"ip\"]\n\
         rate = \"5/min\"\naccuracy = \"{accuracy}\"\n"
    );
    let model = Shared(Arc::new(Model::new(Arc::clone(&time))));
    let store = Arc::new(FaultStore::new(Arc::new(model)));
    let config = EngineConfig {
        policy: policy(&text, &Env::default()),
        ..EngineConfig::new(
            Arc::<FaultStore>::clone(&store),
            PolicySet::empty(),
            keyring(),
            time,
        )
    };
    (Engine::new(config), store, clock)
}

const ACCURACIES: [&str; 3] = ["exact", "leased", "local"];

#[tokio::test]
async fn i_cost_on_a_shared_store_a_refusal_is_seen_beforehand_wherever_it_is_counted() {
    for accuracy in ACCURACIES {
        let (engine, _, clock) = shared(accuracy);
        for _ in 0..5 {
            assert!(engine.foresee(&request(READ)).await.is_none(), "{accuracy}");
            assert!(engine.check(&request(READ)).await.decision.is_allowed());
        }
        assert_eq!(engine.check(&request(READ)).await.decision.status, 429);
        let refusal = engine.foresee(&request(READ)).await.expect(accuracy);
        assert_eq!(refusal.decision.status, 429, "{accuracy}");
        assert!(refusal.decision.retry_after.is_some(), "{accuracy}");
        let other = READ.replace("203.0.113.1", "198.51.100.7");
        assert!(engine.foresee(&request(&other)).await.is_none());
        clock.advance(2 * MINUTE);
        assert!(engine.foresee(&request(READ)).await.is_none(), "{accuracy}");
    }
}

#[tokio::test]
async fn i_cost_in_an_outage_the_counters_that_stand_in_are_asked_beforehand() {
    for accuracy in ACCURACIES {
        let (engine, store, _) = shared(accuracy);
        store.set(StoreState::Down);
        // A local limit makes no store calls; these requests open the breaker.
        for address in 1..=5 {
            let other = READ.replace("203.0.113.1", &format!("198.51.100.{address}"));
            engine.check_keyed(&[keyed(&other)]).await;
        }
        for _ in 0..5 {
            assert!(engine.foresee(&request(READ)).await.is_none(), "{accuracy}");
            assert!(engine.check(&request(READ)).await.decision.is_allowed());
        }
        let refusal = engine.foresee(&request(READ)).await.expect(accuracy);
        assert_eq!(refusal.decision.status, 429, "{accuracy}");
        store.set(StoreState::Up);
    }
}

fn keyed(key: &str) -> Keyed<'_> {
    let window = Window::Span(MINUTE);
    Keyed {
        key: key.as_bytes(),
        spec: BucketSpec::new(Algorithm::TokenBucket, NonZeroU32::MIN, window, None).unwrap(),
        cost: 1,
        take: Take::Consume,
    }
}
