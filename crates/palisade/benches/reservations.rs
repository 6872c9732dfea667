//! Reservations: what a reserve and a settle cost beside a check on the same store and beside a
//! bare semaphore of two Redis scripts, in alternating rounds of one run; then callers that hold
//! slots through three nodes, some of which die.
//!
//! `cargo bench -p palisade --bench reservations [-- seconds]`
#![allow(
    clippy::disallowed_methods,
    reason = "how long something takes is what is measured"
)]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints what it measured and stops at the first error"
)]

#[path = "../tests/engine_support/mod.rs"]
mod engine_support;
#[path = "../tests/nodes_support/mod.rs"]
mod nodes_support;
#[path = "../../palisade-store/tests/common/postgres_server.rs"]
mod postgres_server;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, Script};
use engine_support::request;
use nodes_support::{Nodes, StoreTime, embedded, holds, postgres, redis};
use palisade::Engine;
use palisade::core::budget::Costs;
use palisade::core::facts::RequestFacts;
use palisade::engine::Hold;
use postgres_server::PostgresServer;
use redis_server::RedisServer;
use tokio::time::Instant;

const ROUNDS: usize = 5;
/// Callers at once: one alone, and as many as the stores batch.
const TASKS: [usize; 2] = [1, 64];

/// Two limits of an organisation, as checks and reservations are charged to them.
const POLICY: &str = "[policy]\ndefaults = false\n\
    [[limit]]\nname = 'requests'\nby = ['org']\nrate = '1000000000/h'\n\
    [[limit]]\nname = 'tokens'\nby = ['org']\nrate = '4000000000/h'\nunit = 'tokens'\n";

/// Takes one of so many places until an instant, unless they are taken.
const ACQUIRE: &str = "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
    if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[4]) then return 0 end
    redis.call('ZADD', KEYS[1], ARGV[2], ARGV[3])
    redis.call('PEXPIRE', KEYS[1], 60000)
    return 1";
const RELEASE: &str = "return redis.call('ZREM', KEYS[1], ARGV[1])";

fn facts(task: usize) -> RequestFacts {
    let mut facts = request(&format!(
        r#"{{"ip":"192.0.2.1","method":"POST","path":"/x","org":"org-{task}"}}"#
    ));
    let costs = Costs::new([("requests", 1), ("tokens", 100)]).unwrap();
    facts.costs = Some(Box::new(costs));
    facts
}

/// Runs `work` in a number of tasks; returns how often each second.
async fn rate<F, Fut>(tasks: usize, time: Duration, work: F) -> f64
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = u64> + Send + 'static,
{
    let begun = Instant::now();
    let running: Vec<_> = (0..tasks).map(|task| tokio::spawn(work(task))).collect();
    let mut done = 0;
    for task in running {
        done += task.await.unwrap();
    }
    assert!(begun.elapsed() >= time);
    done as f64 / begun.elapsed().as_secs_f64()
}

async fn checks(engine: Arc<Engine>, task: usize, time: Duration) -> u64 {
    let (facts, begun, mut done) = (facts(task), Instant::now(), 0);
    while begun.elapsed() < time {
        assert!(engine.check(&facts).await.decision.is_allowed());
        done += 1;
        tokio::task::yield_now().await;
    }
    done
}

async fn reservations(engine: Arc<Engine>, task: usize, time: Duration) -> u64 {
    let (facts, begun, mut done) = (facts(task), Instant::now(), 0);
    let used = Costs::new([("requests", 1), ("tokens", 30)]).unwrap();
    while begun.elapsed() < time {
        let answer = engine.reserve(&facts, Hold::default()).await.unwrap();
        let settled = engine.settle(&answer.held.unwrap().token, &used).await;
        assert!(settled.unwrap().recorded);
        done += 1;
        tokio::task::yield_now().await;
    }
    done
}

async fn semaphore(mut connection: MultiplexedConnection, task: usize, time: Duration) -> u64 {
    let (acquire, release) = (Script::new(ACQUIRE), Script::new(RELEASE));
    let (key, begun, mut done) = (format!("semaphore-{task}"), Instant::now(), 0_u64);
    while begun.elapsed() < time {
        let now = u64::try_from(begun.elapsed().as_millis()).unwrap();
        let mut call = acquire.key(&key);
        let call = call.arg(now).arg(now + 60_000).arg(done).arg(1_000_000);
        let taken: u64 = call.invoke_async(&mut connection).await.unwrap();
        assert_eq!(taken, 1);
        let mut call = release.key(&key);
        let _: u64 = call.arg(done).invoke_async(&mut connection).await.unwrap();
        done += 1;
    }
    done
}

/// Rates of checks and of pairs of reserve and settle.
async fn compare(name: &str, nodes: &Nodes, server: Option<&RedisServer>, time: Duration) {
    for tasks in TASKS {
        let (mut ratios, mut rates) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let engine = |_| Arc::clone(&nodes.engines[0]);
            let check = rate(tasks, time, |task| checks(engine(task), task, time)).await;
            let pair = rate(tasks, time, |task| reservations(engine(task), task, time)).await;
            let bare = match server {
                Some(server) => {
                    let client = Client::open(server.url()).unwrap();
                    let connection = client.get_multiplexed_async_connection().await.unwrap();
                    let work = |task| semaphore(connection.clone(), task, time);
                    Some(rate(tasks, time, work).await)
                }
                None => None,
            };
            ratios.push(check / pair);
            rates.push((check, pair, bare));
        }
        ratios.sort_unstable_by(f64::total_cmp);
        let (check, pair, bare) = rates[ROUNDS / 2];
        let bare = bare.map_or_else(String::new, |bare| {
            format!(", a bare semaphore {bare:.0} pairs/s")
        });
        println!(
            "{name}, {tasks} at once: {check:.0} checks/s, {pair:.0} reserve and settle/s{bare}; \
             a pair costs {:.2} checks ({:.2} to {:.2})",
            ratios[ROUNDS / 2],
            ratios[0],
            ratios[ROUNDS - 1],
        );
    }
}

async fn run(seconds: u64) {
    let time = Duration::from_millis(500);
    let server = RedisServer::start();
    let database = PostgresServer::start(&[]).await;
    let config = database.database().await;
    let here = [0];
    compare("embedded", &embedded(POLICY), None, time).await;
    let nodes = redis(&server.url(), POLICY, &StoreTime::Server, &here);
    compare("Redis", &nodes, Some(&server), time).await;
    let nodes = postgres(&config, POLICY, &StoreTime::Server, &here).await;
    compare("Postgres", &nodes, None, time).await;
    let nodes = redis(&server.url(), &holds::policy(), &StoreTime::Server, &[0; 3]);
    holds::run("Redis", &nodes, seconds).await;
}

fn main() {
    let mut seconds = std::env::args().filter_map(|arg| arg.parse::<u64>().ok());
    let seconds = seconds.next_back().unwrap_or(30);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(seconds));
}
