//! Leased limits on a store that only this node uses, where nothing needs a lease.

use std::sync::Arc;

use palisade::core::PolicySet;
use palisade::core::time::Clock;
use palisade::engine::{LookupSubject, Operator, ResetSelector};
use palisade::store::memory::{MemoryConfig, MemoryStore};
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::Env;

use super::READ;
use super::engine_support::{Bench, START, keyring, policy, request};

#[tokio::test]
async fn a_leased_limit_on_a_store_of_ones_own_is_looked_up_and_reset_where_it_counts() {
    let text = "[policy]\ndefaults = false\n[[route]]\npath = \"/*\"\nclass = \"all\"\n\
                [[limit]]\nname = \"near\"\nby = [\"ip\"]\nrate = \"3/min\"\naccuracy = \"leased\"\n";
    let bench = Bench::with(text);
    let facts = r#"{"ip":"192.0.2.1","method":"GET","path":"/a"}"#;
    assert_eq!(bench.admitted(facts, 5).await, 3);
    let ip = Some("192.0.2.1".parse().unwrap());
    let sought = LookupSubject {
        ip,
        ..LookupSubject::default()
    };
    let standing = bench.engine.look_up(&sought).await.unwrap();
    assert_eq!((standing.decision, standing.buckets[0].used), ("deny", 3));
    let one = ResetSelector {
        ip,
        ..ResetSelector::default()
    };
    let admin = bench.engine.administer(Operator::Local, None);
    admin.reset(&[one], "test").await.unwrap();
    assert_eq!(bench.admitted(facts, 5).await, 3);
}

#[tokio::test]
async fn l_durable_a_leased_limit_on_a_store_of_ones_own_outlives_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let policy = policy(
        "[policy]\ndefaults = false\n[[limit]]\nname = \"near\"\nby = [\"ip\"]\n\
         rate = \"3/h\"\naccuracy = \"leased\"\n",
        &Env::default(),
    );
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::at(START));
    let started = || {
        let opened = MemoryStore::open(home.path(), Arc::clone(&clock), &MemoryConfig::default());
        Engine::new(EngineConfig {
            policy: Arc::clone(&policy),
            ..EngineConfig::new(
                Arc::new(opened.unwrap().0),
                PolicySet::empty(),
                keyring(),
                Arc::clone(&clock),
            )
        })
    };
    let first = started();
    for _ in 0..3 {
        assert!(first.check(&request(READ)).await.decision.is_allowed());
    }
    assert_eq!(first.check(&request(READ)).await.decision.status, 429);
    drop(first);
    let again = started();
    assert_eq!(again.check(&request(READ)).await.decision.status, 429);
}
