//! Three nodes on one real Redis, Redis Cluster or Postgres.
//!
//! A flood of five seconds offers at least 10,000 decisions a second to each store through three
//! nodes. It fails if one request too many was admitted, or if less was offered. For a longer one:
//! `PALISADE_LOAD_SECONDS=30 cargo test --release -p palisade --test engine_nodes load --
//! --nocapture`.
#![allow(
    clippy::disallowed_methods,
    reason = "how long something takes is part of what is tested"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;
mod nodes_support;
#[path = "../../palisade-store/tests/common/postgres_server.rs"]
mod postgres_server;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use engine_support::replay::{attack, replay};
use engine_support::{START, command, request};
use nodes_support::{APART, Nodes, StoreTime, embedded, holds, load, postgres, redis};
use palisade::core::PolicySet;
use palisade::core::facts::GuardOp;
use palisade::core::policy::{TenantPolicy, hash_api_key};
use palisade::core::time::{Clock, MINUTE, SECOND};
use palisade::core::{Decision, Mode, Rule};
use palisade::engine::{AllowlistKind, NewAllowlistEntry, Operator, ResetSelector, Tenants};
use palisade::store::redis::{RedisConfig, RedisStore};
use palisade::{Engine, EngineConfig, VirtualClock};
use postgres_server::PostgresServer;
use redis_server::{RedisCluster, RedisServer};
use tokio::time::Instant;

const AUTH: &str = r#"{"ip":"203.0.113.1","method":"POST","path":"/auth/token"}"#;
const READ: &str = r#"{"ip":"203.0.113.2","method":"GET","path":"/things","api_key":"k-1"}"#;

/// A quota of seven a month for the key `k-1`.
fn quota() -> String {
    format!(
        "[[tier]]\nname = \"free\"\nquota = 7\noverage = \"blocked\"\n\
         [[api_key]]\nhash = \"{}\"\ntier = \"free\"\n",
        hash_api_key("k-1")
    )
}

fn moved() -> (Arc<VirtualClock>, StoreTime) {
    let clock = Arc::new(VirtualClock::at(START));
    let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
    (clock, StoreTime::Moved(time))
}

// ---------------------------------------------------------------- clocks an hour apart

async fn failure(engine: &Engine, account: &str) -> Decision {
    let facts = command(&format!(
        r#"{{"ip":"198.51.100.{}","account":"{account}","username":"{account}",
            "user_agent":"Firefox/124.0","device":{{"fingerprint":"f-{account}","confidence":"medium"}}}}"#,
        account.len()
    ));
    let answer = engine.guard(GuardOp::LoginFailure, &facts).await;
    *answer.unwrap().decision
}

/// One failure on every node in turn.
async fn failures(nodes: &Nodes, account: &str, count: usize) -> Vec<Decision> {
    let mut answers = Vec::new();
    for engine in nodes.engines.iter().cycle().take(count) {
        answers.push(failure(engine, account).await);
    }
    answers
}

/// Limits, quotas and guard behave like those of a single node, by the store's time.
async fn apart(nodes: Nodes) {
    let real = palisade::SystemClock::new();
    let begun = real.now();
    assert_eq!(nodes.admitted(AUTH, 60).await, 10, "a limit of ten");
    assert_eq!(nodes.admitted(READ, 30).await, 7, "a quota of seven");
    let mut seen = Vec::new();
    for answer in failures(&nodes, "victim", 12).await {
        assert_eq!(answer.mode, Mode::Normal);
        assert!(
            answer.at.plus(SECOND) >= begun && answer.at <= real.now().plus(SECOND),
            "judged at the store's time"
        );
        seen.push((answer.outcome, answer.level, answer.rule));
    }
    let one = Nodes {
        engines: vec![Arc::clone(&nodes.engines[1])],
        heard: Vec::new(),
        policy: Arc::clone(&nodes.policy),
    };
    let alone = failures(&one, "someone", 12).await;
    let alone: Vec<_> = alone.iter().map(|a| (a.outcome, a.level, a.rule)).collect();
    assert_eq!(seen, alone, "as on one node whose clock is right");
    assert!(seen.iter().any(|(.., rule)| rule.is_some()), "a block");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_clock_nodes_an_hour_apart_on_redis() {
    let server = RedisServer::start();
    apart(redis(&server.url(), &quota(), &StoreTime::Server, &APART)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_clock_nodes_an_hour_apart_on_a_cluster() {
    let cluster = RedisCluster::start();
    apart(redis(&cluster.url(), &quota(), &StoreTime::Server, &APART)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_clock_nodes_an_hour_apart_on_postgres() {
    let server = PostgresServer::start(&[]).await;
    let config = server.database().await;
    apart(postgres(&config, &quota(), &StoreTime::Server, &APART).await).await;
}

/// Makes requests, failures and peeks over two hours of the store's time.
async fn scripted(nodes: &Nodes, clock: &VirtualClock) -> Vec<Decision> {
    let mut answers = Vec::new();
    for (step, engine) in (0..40).zip(nodes.engines.iter().cycle()) {
        clock.advance(7 * SECOND + step * 3 * SECOND);
        answers.push(*engine.check(&request(AUTH)).await.decision);
        answers.push(*engine.check(&request(READ)).await.decision);
        answers.push(failure(engine, "victim").await);
    }
    // A remembered denial shows only the bucket that denies, which is the first.
    for answer in answers.iter_mut().filter(|answer| !answer.is_allowed()) {
        answer.limits.truncate(1);
    }
    answers
}

fn assert_same(got: &[Decision], expected: &[Decision], store: &str) {
    assert_eq!(got.len(), expected.len());
    for (step, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got, expected, "{store}, answer {step}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_clock_three_nodes_an_hour_apart_answer_as_one() {
    let redis_server = RedisServer::start();
    let (clock, time) = moved();
    let one = redis(&redis_server.url(), &quota(), &time, &[0]);
    let expected = scripted(&one, &clock).await;
    let (clock, time) = moved();
    let three = redis(&redis_server.url(), &quota(), &time, &APART);
    assert_same(&scripted(&three, &clock).await, &expected, "redis");
    let server = PostgresServer::start(&[]).await;
    let (clock, time) = moved();
    let three = postgres(&server.database().await, &quota(), &time, &APART).await;
    assert_same(&scripted(&three, &clock).await, &expected, "postgres");
}

/// An entry of the allowlist ends at its second of the store's time, on every node.
async fn allowed_for_a_while(nodes: &Nodes, clock: &VirtualClock) {
    assert_eq!(nodes.admitted(AUTH, 60).await, 10, "a limit of ten");
    let entry = |expires_at| NewAllowlistEntry {
        kind: AllowlistKind::Ip,
        identifier: "203.0.113.1".to_owned(),
        org: None,
        reason: "a test".to_owned(),
        expires_at: Some(expires_at),
    };
    // One node's clock is past that instant, another's is far before it.
    let until = clock.now().plus(10 * SECOND);
    let added = nodes.engines[2].allowlist_add(entry(until)).await;
    assert_eq!(added.unwrap().expires_at, Some(until));
    for engine in &nodes.engines {
        assert!(engine.allowlist_add(entry(clock.now())).await.is_err());
        engine.refresh_allowlist().await.unwrap();
    }
    clock.advance(10 * SECOND - 1);
    assert_eq!(nodes.admitted(AUTH, 60).await, 60, "still allowed");
    clock.advance(1);
    assert_eq!(nodes.admitted(AUTH, 60).await, 0, "no longer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w_expiry_an_entry_ends_by_the_stores_clock_on_redis() {
    let server = RedisServer::start();
    let (clock, time) = moved();
    let nodes = redis(&server.url(), "", &time, &APART);
    allowed_for_a_while(&nodes, &clock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w_expiry_an_entry_ends_by_the_stores_clock_on_postgres() {
    let server = PostgresServer::start(&[]).await;
    let (clock, time) = moved();
    let nodes = postgres(&server.database().await, "", &time, &APART).await;
    allowed_for_a_while(&nodes, &clock).await;
}

// ---------------------------------------------------------------- one account, three nodes

/// No update is lost: sorted by the account's revisions, the answers are those of the pure rules
/// applied one after the other. Commands that could not write were refused.
async fn attacked(nodes: Nodes) {
    let answers = attack(&nodes.engines, 64, 40, || ()).await;
    assert_eq!(answers.len(), 2_560);
    let (applied, refused): (Vec<_>, Vec<_>) = answers
        .into_iter()
        .partition(|answered| answered.decision.mode == Mode::Normal);
    for answered in &refused {
        assert_eq!(answered.decision.rule, Some(Rule::F_CONFLICT));
    }
    assert!(applied.len() > 1_000, "{} were applied", applied.len());
    replay(&nodes.policy, nodes.engines[0].store(), applied).await;
    for engine in &nodes.engines {
        let circuits = engine.health().circuits;
        assert!(circuits.iter().all(|(_, state)| *state == "closed"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_conflict_three_nodes_lose_no_failure_on_redis() {
    let server = RedisServer::start();
    attacked(redis(&server.url(), "", &StoreTime::Server, &APART)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_conflict_three_nodes_lose_no_failure_on_postgres() {
    let server = PostgresServer::start(&[]).await;
    let config = server.database().await;
    attacked(postgres(&config, "", &StoreTime::Server, &APART).await).await;
}

// ---------------------------------------------------------------- remembered denials

const FEW: &str = "[policy]\ndefaults = false\n\
    [[limit]]\nname = \"few\"\nby = [\"ip\"]\nrate = \"5/min\"\n";
const CALLER: &str = r#"{"ip":"203.0.113.7","method":"GET","path":"/things"}"#;

fn caller() -> ResetSelector {
    ResetSelector {
        ip: Some([203, 0, 113, 7].into()),
        ..ResetSelector::default()
    }
}

async fn reset(nodes: &Nodes, by: usize) {
    let admin = nodes.engines[by].administer(Operator::Local, None);
    admin.reset(&[caller()], "a test").await.unwrap();
}

/// Uses all five units, so that every node remembers a denial.
async fn exhaust(nodes: &Nodes) {
    nodes
        .engines
        .iter()
        .for_each(|engine| engine.forget_cached());
    nodes.admitted(CALLER, 6).await;
    assert_eq!(nodes.admitted(CALLER, 6).await, 0);
}

async fn remembered(nodes: &Nodes, clock: &VirtualClock) {
    let begun = clock.now();
    assert_eq!(nodes.admitted(CALLER, 5).await, 5);
    assert_eq!(nodes.admitted(CALLER, 3).await, 0, "each node is told");
    let calls = nodes.store_calls();
    assert_eq!(nodes.admitted(CALLER, 150).await, 0);
    clock.advance_to(begun.plus(MINUTE - 1));
    assert_eq!(nodes.admitted(CALLER, 3).await, 0);
    assert_eq!(nodes.store_calls(), calls, "the store was not asked");
    clock.advance(1);
    assert_eq!(nodes.admitted(CALLER, 9).await, 5, "at the time, not later");
}

async fn told_by_others(nodes: &Nodes) {
    exhaust(nodes).await;
    reset(nodes, 2).await;
    let calls = nodes.store_calls();
    let own = nodes.engines[2].check(&request(CALLER)).await.decision;
    assert!(own.is_allowed(), "at once where it was asked for");
    for node in [0, 1] {
        let engine = &nodes.engines[node];
        let before = engine.check(&request(CALLER)).await.decision;
        assert!(!before.is_allowed());
        assert_eq!(nodes.store_calls()[node], calls[node], "still remembered");
        engine.refresh_resets().await.unwrap();
        let after = engine.check(&request(CALLER)).await.decision;
        assert!(after.is_allowed(), "one look at the notices is enough");
    }
}

/// Time until every node, which follows the store by itself, admits the caller.
async fn until_admitted(nodes: &Nodes) -> Duration {
    let begun = Instant::now();
    for engine in &nodes.engines {
        while !engine.check(&request(CALLER)).await.decision.is_allowed() {
            assert!(begun.elapsed() < Duration::from_secs(60), "never told");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    begun.elapsed()
}

/// Node 0 gives two of the five back: one by its receipt, one as a correction without a receipt.
/// The other nodes learn of it and admit as many, not more.
async fn refunded(nodes: &Nodes) {
    exhaust(nodes).await;
    reset(nodes, 0).await;
    for engine in &nodes.engines {
        engine.refresh_resets().await.unwrap();
    }
    let mut facts = request(CALLER);
    facts.receipt = true;
    let first = nodes.engines[0].check(&facts).await.decision;
    let receipt = first.receipt.unwrap();
    assert_eq!(nodes.admitted(CALLER, 7).await, 4);
    nodes.engines[0].refund(&receipt).await.unwrap();
    nodes.engines[0].refund_facts(&facts).await;
    nodes.engines[0].announce_refunds().await.unwrap();
    for node in [1, 2] {
        let engine = &nodes.engines[node];
        let before = engine.check(&facts).await.decision;
        assert!(!before.is_allowed(), "still remembered");
        engine.refresh_resets().await.unwrap();
        let after = engine.check(&facts).await.decision;
        assert!(after.is_allowed(), "node {node} has heard of the refund");
    }
    assert_eq!(nodes.admitted(CALLER, 6).await, 0, "two were given back");
    let calls = nodes.store_calls();
    nodes.engines[0].announce_refunds().await.unwrap();
    assert_eq!(nodes.store_calls(), calls, "nothing new to tell");
}

/// A refund is known to other nodes within a second. The best of several tries counts, because the
/// machine may be busy.
async fn within_a_second(nodes: &Nodes) {
    let follow = |engine: &Arc<Engine>| {
        let engine = Arc::clone(engine);
        tokio::spawn(async move { engine.follow_registries().await })
    };
    let following: Vec<_> = nodes.engines.iter().map(follow).collect();
    let mut best = [Duration::MAX; 3];
    for _ in 0..10 {
        exhaust(nodes).await;
        reset(nodes, 0).await;
        best[0] = best[0].min(until_admitted(nodes).await);
        exhaust(nodes).await;
        for _ in 0..nodes.engines.len() {
            nodes.engines[0].refund_facts(&request(CALLER)).await;
        }
        best[2] = best[2].min(until_admitted(nodes).await);
        exhaust(nodes).await;
        let entry = NewAllowlistEntry {
            kind: AllowlistKind::Ip,
            identifier: "203.0.113.7".to_owned(),
            org: None,
            reason: "a test".to_owned(),
            expires_at: None,
        };
        nodes.engines[1].allowlist_add(entry).await.unwrap();
        best[1] = best[1].min(until_admitted(nodes).await);
        let removed = nodes.engines[1].allowlist_remove(AllowlistKind::Ip, "203.0.113.7", None);
        assert!(removed.await.unwrap());
        for engine in &nodes.engines {
            engine.refresh_allowlist().await.unwrap();
        }
        if best.iter().all(|took| *took < Duration::from_secs(1)) {
            break;
        }
    }
    following.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(
        best.iter().all(|took| *took < Duration::from_secs(1)),
        "{best:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_clock_remembered_denials_end_in_time_on_redis() {
    let server = RedisServer::start();
    let (clock, time) = moved();
    let nodes = redis(&server.url(), FEW, &time, &APART);
    remembered(&nodes, &clock).await;
    told_by_others(&nodes).await;
    refunded(&nodes).await;
    within_a_second(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_clock_remembered_denials_end_in_time_on_postgres() {
    let server = PostgresServer::start(&[]).await;
    let (clock, time) = moved();
    let nodes = postgres(&server.database().await, FEW, &time, &APART).await;
    remembered(&nodes, &clock).await;
    told_by_others(&nodes).await;
    refunded(&nodes).await;
    within_a_second(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x5_a_refund_reaches_every_node_of_a_cluster() {
    let cluster = RedisCluster::start();
    let nodes = redis(&cluster.url(), FEW, &StoreTime::Server, &APART);
    refunded(&nodes).await;
    within_a_second(&nodes).await;
}

/// A source of tenants' policies that only counts how often it was asked to refresh.
#[derive(Default)]
struct AskedAgain(AtomicUsize);

impl Tenants for AskedAgain {
    fn find(&self, _org: &str) -> Option<Arc<TenantPolicy>> {
        None
    }

    fn invalidate(&self, _org: Option<&str>) -> bool {
        self.0.fetch_add(1, SeqCst);
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m12_every_node_asks_again_when_one_is_told_to() {
    let server = RedisServer::start();
    let node = || {
        let tenants = Arc::new(AskedAgain::default());
        let store = Arc::new(RedisStore::new(RedisConfig::new(server.url())).unwrap());
        let clock: Arc<dyn Clock> = Arc::new(palisade::SystemClock::new());
        let engine = Engine::new(EngineConfig {
            tenants: Arc::<AskedAgain>::clone(&tenants),
            deadline: Duration::from_secs(20),
            ..EngineConfig::new(store, PolicySet::empty(), engine_support::keyring(), clock)
        });
        (engine, tenants)
    };
    let [(one, own), (two, others)] = [node(), node()];
    for engine in [&one, &two] {
        engine.connect().await;
        engine.refresh_resets().await.unwrap();
    }
    let admin = one.administer(Operator::Local, None);
    assert!(admin.invalidate_cache(Some("acme")).await.unwrap());
    assert_eq!(own.0.load(SeqCst), 1);
    assert_eq!(others.0.load(SeqCst), 0);
    for _ in 0..3 {
        two.refresh_resets().await.unwrap();
    }
    assert_eq!(
        others.0.load(SeqCst),
        1,
        "once, of an announcement that stays a minute"
    );
}

// ---------------------------------------------------------------- two buckets

const TWO: &str = "[policy]\ndefaults = false\n\
    [[limit]]\nname = \"few\"\nby = [\"org\"]\nrate = \"5/min\"\n\
    [[limit]]\nname = \"many\"\nby = [\"ip\"]\nrate = \"1000/h\"\n";
const MEMBER: &str = r#"{"ip":"203.0.113.8","org":"o-1","method":"GET","path":"/things"}"#;

fn left(decision: &Decision, name: &str) -> u64 {
    let found = decision.limits.iter().find(|limit| &*limit.name == name);
    found.unwrap().remaining
}

/// L-ATOMIC: if one bucket denies, nothing is taken from the other, on any node.
async fn all_or_nothing(nodes: &Nodes) {
    assert_eq!(nodes.admitted(MEMBER, 5).await, 5);
    for _ in 0..10 {
        // Every denial is made by the store and not from memory.
        nodes
            .engines
            .iter()
            .for_each(|engine| engine.forget_cached());
        assert_eq!(nodes.admitted(MEMBER, 3).await, 0);
    }
    for engine in &nodes.engines {
        engine.forget_cached();
        let seen = engine.peek(&request(MEMBER)).await.decision;
        assert_eq!((left(&seen, "few"), left(&seen, "many")), (0, 995));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_atomic_a_denied_plan_takes_nothing_on_redis_and_postgres() {
    let redis_server = RedisServer::start();
    all_or_nothing(&redis(&redis_server.url(), TWO, &moved().1, &APART)).await;
    let server = PostgresServer::start(&[]).await;
    let config = server.database().await;
    all_or_nothing(&postgres(&config, TWO, &moved().1, &APART).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_atomic_a_denied_plan_takes_nothing_on_a_cluster() {
    let cluster = RedisCluster::start();
    all_or_nothing(&redis(&cluster.url(), TWO, &moved().1, &APART)).await;
}

// ---------------------------------------------------------------- local and shared

const BOTH: &str = "[policy]\ndefaults = false\n\
    [[limit]]\nname = \"instance\"\nby = [\"ip\"]\nrate = \"100/min\"\naccuracy = \"local\"\n\
    [[limit]]\nname = \"shared\"\nby = [\"ip\"]\nrate = \"250/min\"\n";

/// Every node is offered far more than its limit of a hundred, all at once.
async fn offered_at_once(nodes: &Nodes) -> Vec<usize> {
    let offer = |engine: &Arc<Engine>| {
        let engine = Arc::clone(engine);
        tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..300 {
                admitted += usize::from(engine.check(&request(CALLER)).await.decision.is_allowed());
            }
            admitted
        })
    };
    let mut admitted = Vec::new();
    for task in nodes.engines.iter().map(offer).collect::<Vec<_>>() {
        admitted.push(task.await.unwrap());
    }
    admitted
}

async fn local_and_shared(nodes: Nodes, clock: &VirtualClock) {
    for _ in 0..3 {
        let admitted = offered_at_once(&nodes).await;
        assert!(admitted.iter().all(|one| *one <= 100), "{admitted:?}");
        assert_eq!(admitted.iter().sum::<usize>(), 250, "{admitted:?}");
        clock.advance(MINUTE);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_global_a_local_and_a_shared_limit_hold_together() {
    let redis_server = RedisServer::start();
    let (clock, time) = moved();
    local_and_shared(redis(&redis_server.url(), BOTH, &time, &APART), &clock).await;
    let server = PostgresServer::start(&[]).await;
    let (clock, time) = moved();
    let nodes = postgres(&server.database().await, BOTH, &time, &APART).await;
    local_and_shared(nodes, &clock).await;
}

// ---------------------------------------------------------------- a flood

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_atomic_load_never_one_too_many_on_redis() {
    let _alone = load::ALONE.lock().await;
    let server = RedisServer::start();
    let nodes = redis(&server.url(), &load::policy(), &StoreTime::Server, &APART);
    load::run("redis", &nodes, 40, load::seconds()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_atomic_load_never_one_too_many_on_postgres() {
    let _alone = load::ALONE.lock().await;
    let server = PostgresServer::start(&["fsync=on", "shared_buffers=256MB"]).await;
    let config = server.database().await;
    let nodes = postgres(&config, &load::policy(), &StoreTime::Server, &APART).await;
    load::run("postgres", &nodes, 8, load::seconds()).await;
}

// ---------------------------------------------------------------- callers that hold slots

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b_exact_64_callers_on_redis_never_hold_one_slot_too_many_and_leave_none() {
    let _alone = load::ALONE.lock().await;
    let server = RedisServer::start();
    let nodes = redis(&server.url(), &holds::policy(), &StoreTime::Server, &[0; 3]);
    holds::run("Redis", &nodes, holds::seconds()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b_exact_64_callers_on_a_cluster_never_hold_one_slot_too_many_and_leave_none() {
    let _alone = load::ALONE.lock().await;
    let cluster = RedisCluster::start();
    let nodes = redis(
        &cluster.url(),
        &holds::policy(),
        &StoreTime::Server,
        &[0; 3],
    );
    holds::run("Redis Cluster", &nodes, holds::seconds().min(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b_exact_64_callers_on_postgres_never_hold_one_slot_too_many_and_leave_none() {
    let _alone = load::ALONE.lock().await;
    let server = PostgresServer::start(&[]).await;
    let config = server.database().await;
    let nodes = postgres(&config, &holds::policy(), &StoreTime::Server, &[0; 3]).await;
    holds::run("Postgres", &nodes, holds::seconds().min(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b_exact_64_callers_on_the_embedded_store_never_hold_one_slot_too_many_and_leave_none() {
    let _alone = load::ALONE.lock().await;
    let nodes = embedded(&holds::policy());
    holds::run("embedded", &nodes, holds::seconds().min(1)).await;
}
