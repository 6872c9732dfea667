//! Decisions per second on a real Redis, beside what `redis-benchmark` gets out of the
//! same server in the same run, and bytes per key beside a sorted set.
//!
//! `cargo bench -p palisade-store --bench redis [-- seconds]`

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints its figures and ends if it cannot run"
)]

#[path = "../tests/common/redis_server.rs"]
mod redis_server;

use std::io::Write;
use std::num::{NonZeroU8, NonZeroU32};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::plan::Charge;
use palisade_core::time::{HOUR, MINUTE, SECOND};
use palisade_store::conformance::{Rng, TestLimits, spec};
use palisade_store::redis::{RedisConfig, RedisStore};
use palisade_store::{Store, Take};
use redis_server::{RedisCluster, RedisServer};
use tokio::time::Instant;

const KEYS: usize = 100_000;

/// A token bucket in the fewest commands: what a bare script can do.
const BARE: &str = "local now = redis.call('TIME') \
    now = now[1] * 1000000 + now[2] \
    local tat = tonumber(redis.call('GET', KEYS[1])) or now \
    if tat < now then tat = now end \
    if tat - now > 1000000 then return {0, tat} end \
    redis.call('SET', KEYS[1], string.format('%.0f', tat + 100), 'PX', 2000) \
    return {1, tat}";

fn main() {
    let seconds = std::env::args()
        .filter_map(|arg| arg.parse::<u64>().ok())
        .next_back()
        .unwrap_or(3);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(Duration::from_secs(seconds)));
}

async fn run(time: Duration) {
    let server = RedisServer::start();
    bytes_per_key(&server).await;
    println!("\n{:<44} {:>12}", "one server", "per second");
    let bare = redis_benchmark(&server, 16);
    println!(
        "{:<44} {bare:>12.0}",
        "redis-benchmark, bare script, -c 50 -P 16"
    );
    let alone = redis_benchmark(&server, 1);
    println!(
        "{:<44} {alone:>12.0}",
        "redis-benchmark, bare script, -c 50 -P 1"
    );
    for connections in [1, 2] {
        for tasks in [1, 16, 64, 256, 1024] {
            for (name, load) in loads() {
                let store = store(&server.url(), connections);
                let measured = measure(&store, &load, tasks, time).await;
                let what = format!("{name}, {tasks} tasks, {connections} connections");
                let ratio = measured.per_second / bare;
                println!(
                    "{what:<44} {:>12.0} {ratio:>6.2} × bare  p50 {:>5} µs  p99 {:>6} µs",
                    measured.per_second, measured.p50_us, measured.p99_us
                );
            }
        }
    }
    let again = redis_benchmark(&server, 16);
    println!(
        "{:<44} {again:>12.0}",
        "redis-benchmark, bare script, -P 16, again"
    );
    drop(server);
    cluster(time).await;
}

async fn cluster(time: Duration) {
    println!("\n{:<44} {:>12}", "cluster of three masters", "per second");
    let cluster = RedisCluster::start();
    for tasks in [64, 256] {
        for (name, load) in loads() {
            let store = store(&cluster.url(), 1);
            let measured = measure(&store, &load, tasks, time).await;
            let what = format!("{name}, {tasks} tasks");
            println!("{what:<44} {:>12.0}", measured.per_second);
        }
    }
}

fn store(url: &str, connections: u8) -> Arc<RedisStore> {
    let config = RedisConfig {
        deadline: Duration::from_secs(5),
        connections: NonZeroU8::new(connections).unwrap(),
        ..RedisConfig::new(url)
    };
    Arc::new(RedisStore::new(config).unwrap())
}

/// The limits of one decision.
struct Load {
    limits: Arc<TestLimits>,
    names: &'static [&'static str],
}

fn loads() -> Vec<(&'static str, Load)> {
    let tokens = BucketSpec::new(
        Algorithm::TokenBucket,
        NonZeroU32::new(10_000).unwrap(),
        Window::Span(SECOND),
        None,
    );
    let limits = Arc::new(TestLimits::new([
        ("tokens", tokens.unwrap()),
        (
            "log",
            spec(Algorithm::SlidingLog, 100, Window::Span(MINUTE)),
        ),
        (
            "wheel",
            spec(Algorithm::SlidingWheel, 6_000, Window::Span(MINUTE)),
        ),
        (
            "hour",
            spec(Algorithm::SlidingWheel, 100_000, Window::Span(HOUR)),
        ),
        (
            "quota",
            spec(Algorithm::FixedWindow, u32::MAX, Window::Month),
        ),
    ]));
    let of = |names| Load {
        limits: Arc::clone(&limits),
        names,
    };
    vec![
        ("1 token bucket", of(&["tokens"])),
        ("1 sliding log", of(&["log"])),
        (
            "5 buckets",
            of(&["tokens", "log", "wheel", "hour", "quota"]),
        ),
    ]
}

struct Measured {
    per_second: f64,
    p50_us: u64,
    p99_us: u64,
}

async fn measure(store: &Arc<RedisStore>, load: &Load, tasks: u64, time: Duration) -> Measured {
    let end = Instant::now() + time;
    let count = Arc::new(AtomicU64::new(0));
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let (store, limits, names) = (Arc::clone(store), Arc::clone(&load.limits), load.names);
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut rng = Rng::new(task + 1);
                let mut waits = Vec::new();
                while Instant::now() < end {
                    let subject = format!("{}", rng.index(KEYS));
                    let charges: Vec<Charge<'_>> = names
                        .iter()
                        .map(|name| limits.charge(name, &subject))
                        .collect();
                    let asked = Instant::now();
                    store.charge(&charges, Take::Consume).await.unwrap();
                    waits.push(u64::try_from(asked.elapsed().as_micros()).unwrap());
                    count.fetch_add(1, Relaxed);
                }
                waits
            })
        })
        .collect();
    let mut waits = Vec::new();
    for task in running {
        waits.extend(task.await.unwrap());
    }
    waits.sort_unstable();
    let quantile = |of: usize| waits.get(waits.len() * of / 100).copied().unwrap_or(0);
    Measured {
        per_second: count.load(Relaxed) as f64 / time.as_secs_f64(),
        p50_us: quantile(50),
        p99_us: quantile(99),
    }
}

/// What the server's own tool gets, with a pipeline of so many.
fn redis_benchmark(server: &RedisServer, pipeline: u32) -> f64 {
    let answer = server.says(&["SCRIPT", "LOAD", BARE]);
    let sha = answer.lines().nth(1).unwrap().to_owned();
    let output = Command::new("redis-benchmark")
        .args(["-p", &server.port.to_string(), "-c", "50", "-n", "300000"])
        .args([
            "-P",
            &pipeline.to_string(),
            "-r",
            &KEYS.to_string(),
            "--csv",
        ])
        .args(["EVALSHA", &sha, "1", "bare:__rand_int__"])
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let row = text.lines().last().unwrap();
    row.split("\",\"").nth(1).unwrap().parse().unwrap()
}

/// Bytes per key as Redis counts them, ours beside a sorted set of instants.
async fn bytes_per_key(server: &RedisServer) {
    println!("{:<44} {:>8} {:>12}", "bytes per key", "ours", "sorted set");
    let store = store(&server.url(), 1);
    let limits = TestLimits::new([
        (
            "log",
            spec(Algorithm::SlidingLog, 256, Window::Span(MINUTE)),
        ),
        (
            "tokens",
            spec(Algorithm::TokenBucket, 256, Window::Span(MINUTE)),
        ),
        ("quota", spec(Algorithm::FixedWindow, 256, Window::Month)),
        (
            "wheel",
            spec(Algorithm::SlidingWheel, 6_000, Window::Span(MINUTE)),
        ),
    ]);
    for (name, hits) in [
        ("log", 1),
        ("log", 10),
        ("log", 100),
        ("log", 256),
        ("wheel", 256),
        ("tokens", 256),
        ("quota", 256),
    ] {
        let charge = limits.charge(name, &format!("{hits}"));
        let mut commands = Vec::new();
        let key = format!("set{}", charge.key());
        for hit in 0..hits {
            store
                .charge(std::slice::from_ref(&charge), Take::Consume)
                .await
                .unwrap();
            let at = 1_771_027_200_000_u64 + hit;
            commands.push(format!("ZADD {key} {at} {at}\n"));
        }
        feed(server, &commands);
        let what = format!("{name}, {hits} hits");
        let (ours, theirs) = (usage(server, &charge.key()), usage(server, &key));
        println!("{what:<44} {ours:>8} {theirs:>12}");
    }
}

fn usage(server: &RedisServer, key: &str) -> u64 {
    let answer = server.says(&["MEMORY", "USAGE", key]);
    answer.trim_matches([':', '\r', '\n']).parse().unwrap()
}

fn feed(server: &RedisServer, commands: &[String]) {
    let mut client = Command::new("redis-cli")
        .args(["-p", &server.port.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = client.stdin.take().unwrap();
    for command in commands {
        stdin.write_all(command.as_bytes()).unwrap();
    }
    drop(stdin);
    client.wait().unwrap();
}
