//! L-ROTATE: during a rotation of the secret no bucket is forgotten or admitted twice.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;
#[path = "../../palisade-store/tests/common/postgres_server.rs"]
mod postgres_server;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::sync::Arc;
use std::time::Duration;

use engine_support::shared::{MemoryInTurn, SharedMemory};
use engine_support::{START, policy, request};
use palisade::core::facts::RequestFacts;
use palisade::core::time::{Clock, DAY, MINUTE, SECOND};
use palisade::core::{Keyring, PolicySet};
use palisade::engine::{Keyed, RefundOutcome, ResetSelector};
use palisade::store::memory::{MemoryConfig, MemoryStore};
use palisade::store::postgres::PostgresStore;
use palisade::store::redis::{RedisConfig, RedisStore, TimeSource};
use palisade::store::{Store, Take};
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::Env;
use postgres_server::PostgresServer;
use redis_server::{RedisCluster, RedisServer};

const PATIENT: Duration = Duration::from_secs(60);

const POLICY: &str = "[policy]\ndefaults = false\n\
    [[limit]]\nname = \"address\"\nby = [\"ip\"]\nrate = \"50/min\"\n\
    [[limit]]\nname = \"organisation\"\nby = [\"org\"]\nrate = \"30/day\"\nfamily = \"quota\"\n\
    [[limit]]\nname = \"leased\"\nby = [\"user\"]\nrate = \"400/min\"\naccuracy = \"leased\"\n";

/// The secrets that a node has.
#[derive(Clone, Copy)]
enum Secrets {
    Old,
    Both,
    New,
}

fn keyring(secrets: Secrets) -> Keyring {
    let (old, new) = ([1; 32], [2; 32]);
    match secrets {
        Secrets::Old => Keyring::new(&old, None),
        Secrets::Both => Keyring::new(&new, Some(&old)),
        Secrets::New => Keyring::new(&new, None),
    }
    .unwrap()
}

fn node(store: impl Store, clock: &Arc<VirtualClock>, secrets: Secrets) -> Engine {
    let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(clock);
    Engine::new(EngineConfig {
        policy: policy(POLICY, &Env::default()),
        deadline: PATIENT,
        ..EngineConfig::new(Arc::new(store), PolicySet::empty(), keyring(secrets), time)
    })
}

fn facts(org: &str) -> RequestFacts {
    let address = 100 + org.len();
    request(&format!(
        r#"{{"ip":"203.0.113.{address}","method":"GET","path":"/x","org":"{org}"}}"#
    ))
}

fn of_address() -> RequestFacts {
    request(r#"{"ip":"203.0.113.1","method":"GET","path":"/x"}"#)
}

/// A request of one user, from an address that changes every second.
fn of_user(second: u32) -> RequestFacts {
    request(&format!(
        r#"{{"ip":"198.51.100.{second}","method":"GET","path":"/x","user":"ann"}}"#
    ))
}

async fn admitted(nodes: &[&Engine], facts: &RequestFacts, count: usize) -> usize {
    let mut admitted = 0;
    for engine in nodes.iter().cycle().take(count) {
        admitted += usize::from(engine.check(facts).await.decision.is_allowed());
    }
    admitted
}

/// Remaining units of a limit, as a node sees it in the store.
async fn left(engine: &Engine, facts: &RequestFacts, limit: &str) -> u64 {
    let looked = engine.peek(facts).await.decision;
    let found = looked.limits.iter().find(|one| &*one.name == limit);
    found.unwrap().remaining
}

async fn rotation<S: Store>(mut store: impl AsyncFnMut() -> S, clock: &Arc<VirtualClock>) {
    let old = node(store().await, clock, Secrets::Old);
    let both = node(store().await, clock, Secrets::Both);
    let new = node(store().await, clock, Secrets::New);

    assert_eq!(admitted(&[&old], &facts("before"), 20).await, 20);
    assert_eq!(
        admitted(&[&both], &facts("before"), 20).await,
        10,
        "what was used before the rotation stays used"
    );
    assert_eq!(admitted(&[&old, &both], &of_address(), 120).await, 50);
    assert_eq!(admitted(&[&both, &old], &facts("mixed"), 60).await, 30);

    clock.advance(MINUTE);
    refunds(&old, &both).await;
    clock.advance(MINUTE);
    resets(&old, &both).await;
    clock.advance(MINUTE);
    keyed(&old, &both, &new).await;

    clock.advance(DAY);
    assert_eq!(admitted(&[&both], &facts("after"), 12).await, 12);
    assert_eq!(
        admitted(&[&new, &both], &facts("after"), 40).await,
        18,
        "the longest window has passed: the previous secret can go"
    );
    assert_eq!(admitted(&[&new, &both], &of_address(), 120).await, 50);
}

/// A refund of a charge that a node made under both names is credited under both.
async fn refunds(old: &Engine, both: &Engine) {
    let mut asked = facts("refunds");
    assert_eq!(admitted(&[old, both], &asked, 29).await, 29);
    asked.receipt = true;
    let charged = both.check(&asked).await.decision;
    asked.receipt = false;
    let receipt = charged.receipt.as_ref().unwrap();
    let given = both.refund(receipt).await.unwrap();
    assert!(matches!(given, RefundOutcome::Done(_)), "{given:?}");
    assert_eq!(admitted(&[old], &asked, 3).await, 1, "one was given back");
}

/// A reset clears a bucket for nodes with either secret.
async fn resets(old: &Engine, both: &Engine) {
    let asked = facts("resets");
    assert_eq!(admitted(&[old, both], &asked, 20).await, 20);
    both.reset(&asked).await.unwrap();
    assert_eq!(left(old, &asked, "organisation").await, 30);
    assert_eq!(admitted(&[both, old], &asked, 40).await, 30);
}

async fn keyed(old: &Engine, both: &Engine, new: &Engine) {
    let limit = policy(POLICY, &Env::default());
    let spec = limit.limit("address").unwrap().def.spec;
    let asked = Keyed {
        key: b"k",
        spec,
        cost: 20,
        take: Take::Consume,
    };
    let mut admitted = 0;
    for engine in [old, both, old, both] {
        admitted += usize::from(engine.check_keyed(&[asked]).await[0].admitted);
    }
    assert_eq!(admitted, 2, "fifty hold two of twenty");
    let answer = new.check_keyed(&[Keyed { cost: 31, ..asked }]).await;
    assert!(!answer[0].admitted, "the new name has counted twenty");
}

fn moved() -> (Arc<VirtualClock>, Arc<dyn Clock>) {
    let clock = Arc::new(VirtualClock::at(START));
    let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
    (clock, time)
}

#[tokio::test]
async fn l_rotate_the_embedded_store_keeps_every_bucket_through_restarts() {
    let (clock, time) = moved();
    // The nodes run one at a time, each on the store that the one before has left.
    let store = MemoryInTurn(Arc::new(MemoryStore::new(time, &MemoryConfig::default())));
    let restarted = |secrets| node(store.clone(), &clock, secrets);
    assert_eq!(
        admitted(&[&restarted(Secrets::Old)], &facts("a"), 20).await,
        20
    );
    assert_eq!(
        admitted(&[&restarted(Secrets::Both)], &facts("a"), 20).await,
        10
    );
    assert_eq!(
        admitted(&[&restarted(Secrets::Old)], &of_address(), 40).await,
        40
    );
    assert_eq!(
        admitted(&[&restarted(Secrets::Both)], &of_address(), 20).await,
        10
    );
    clock.advance(DAY);
    assert_eq!(
        admitted(&[&restarted(Secrets::Both)], &facts("a"), 12).await,
        12
    );
    assert_eq!(
        admitted(&[&restarted(Secrets::New)], &facts("a"), 30).await,
        18
    );
}

#[tokio::test]
async fn l_rotate_nodes_with_either_secret_share_their_buckets() {
    let (clock, time) = moved();
    let store = SharedMemory(Arc::new(MemoryStore::new(time, &MemoryConfig::default())));
    rotation(async || store.clone(), &clock).await;
}

#[tokio::test]
async fn l_rotate_leases_of_nodes_with_either_secret_add_up() {
    let (clock, time) = moved();
    let store = SharedMemory(Arc::new(MemoryStore::new(time, &MemoryConfig::default())));
    let old = node(store.clone(), &clock, Secrets::Old);
    let both = node(store.clone(), &clock, Secrets::Both);
    let mut used = 0;
    for second in 0..30 {
        used += admitted(&[&old, &both], &of_user(second), 40).await;
        clock.advance(SECOND);
    }
    assert!((350..=400).contains(&used), "{used} of 400");
}

#[tokio::test]
async fn l_rotate_an_operators_reset_clears_both_names() {
    let (clock, time) = moved();
    let store = SharedMemory(Arc::new(MemoryStore::new(time, &MemoryConfig::default())));
    let old = node(store.clone(), &clock, Secrets::Old);
    let both = node(store.clone(), &clock, Secrets::Both);
    assert_eq!(admitted(&[&old, &both], &of_address(), 40).await, 40);
    let selector = ResetSelector {
        ip: Some("203.0.113.1".parse().unwrap()),
        ..ResetSelector::default()
    };
    let lines = both
        .administer(palisade::engine::Operator::Local, None)
        .reset(&[selector], "a test")
        .await;
    assert!(lines.unwrap().iter().all(|line| line.done));
    assert_eq!(left(&old, &of_address(), "address").await, 50);
}

async fn on_redis(url: &str) {
    let (clock, time) = moved();
    let make = async || {
        RedisStore::new(RedisConfig {
            deadline: PATIENT,
            connect_timeout: PATIENT,
            time: TimeSource::Injected(Arc::clone(&time)),
            ..RedisConfig::new(url)
        })
        .unwrap()
    };
    rotation(make, &clock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_rotate_holds_on_redis() {
    let server = RedisServer::start();
    on_redis(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_rotate_holds_on_a_cluster() {
    let cluster = RedisCluster::start();
    on_redis(&cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_rotate_holds_on_postgres() {
    let (clock, time) = moved();
    let server = PostgresServer::start(&[]).await;
    let mut config = server.database().await;
    config.deadline = PATIENT;
    config.connect_timeout = PATIENT;
    let make = async || {
        let store = PostgresStore::connect_with_clock(&config, Arc::clone(&time)).await;
        store.unwrap()
    };
    rotation(make, &clock).await;
}
