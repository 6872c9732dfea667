//! Decisions per second on a real Redis, compared with what `redis-benchmark` achieves on the same
//! server in the same run, and bytes per key compared with a sorted set. Processor time per
//! decision is given too: on a busy machine it says more than decisions per second.
//!
//! `cargo bench -p palisade-store --bench redis [-- seconds [tasks=16,64] [single]]`
#![allow(
    clippy::disallowed_methods,
    reason = "how long something takes is what is measured"
)]
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
use palisade_core::time::{HOUR, MINUTE};
use palisade_store::conformance::{Rng, TestLimits, spec};
use palisade_store::redis::{RedisConfig, RedisStore};
use palisade_store::{Buckets, Take};
use redis_server::{RedisCluster, RedisServer};
use tokio::time::Instant;

const KEYS: usize = 10_000;

/// Token buckets in the fewest commands, neither exact nor all or nothing: what a bare
/// script can do.
const BARE: &str = "local now = redis.call('TIME') \
    now = now[1] * 1000000 + now[2] \
    local admitted, tat = 1, 0 \
    for i = 1, #KEYS do \
      tat = tonumber(redis.call('GET', KEYS[i])) or now \
      if tat < now then tat = now end \
      if tat - now > 60000000 then \
        admitted = 0 \
      else \
        redis.call('SET', KEYS[i], string.format('%.0f', tat + 60000), 'PX', 60000) \
      end \
    end \
    return {admitted, tat}";

/// Selection of what to measure.
struct Scope {
    time: Duration,
    tasks: Vec<u64>,
    with_cluster: bool,
}

impl Scope {
    fn of_arguments() -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let mut seconds = arguments.iter().filter_map(|arg| arg.parse().ok());
        let tasks = arguments.iter().find_map(|arg| arg.strip_prefix("tasks="));
        let tasks = tasks.unwrap_or("1,16,64,256,1024").split(',');
        Self {
            time: Duration::from_secs(seconds.next_back().unwrap_or(3)),
            tasks: tasks.map(|number| number.parse().unwrap()).collect(),
            with_cluster: !arguments.iter().any(|arg| arg == "single"),
        }
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(Scope::of_arguments()));
}

async fn run(scope: Scope) {
    let server = RedisServer::start();
    bytes_per_key(&server).await;
    println!(
        "\n{:<46} {:>10} {:>9} {:>9} {:>10} {:>10}",
        "one server", "per second", "of 1 key", "of 5 keys", "server µs", "client µs"
    );
    let mut bare = Bare::measure(&server, 16);
    redis_benchmark(&server, 1, 1).print("redis-benchmark, bare script, -P 1", &bare);
    for tasks in scope.tasks {
        // In turns: on a busy machine only measurements close in time can be compared.
        bare = Bare::measure(&server, 16);
        bare.one.print("redis-benchmark, bare script, -P 16", &bare);
        bare.five
            .print("redis-benchmark, bare script of 5 keys, -P 16", &bare);
        for (name, load) in loads() {
            let store = store(&server.url(), 2);
            let measured = measure(&store, &load, tasks, scope.time, &[&server]).await;
            measured.print(&format!("{name}, {tasks} tasks"), &bare);
        }
    }
    drop(server);
    if scope.with_cluster {
        cluster(scope.time, &bare).await;
    }
}

async fn cluster(time: Duration, bare: &Bare) {
    println!("\ncluster of three masters");
    let cluster = RedisCluster::start();
    let nodes: Vec<&RedisServer> = cluster.nodes.iter().collect();
    for tasks in [64, 256] {
        for (name, load) in loads() {
            let store = store(&cluster.url(), 1);
            let measured = measure(&store, &load, tasks, time, &nodes).await;
            measured.print(&format!("{name}, {tasks} tasks"), bare);
        }
    }
}

/// Processor time of a process so far, in µs.
fn cpu_us(pid: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks: f64 = [11, 12]
        .iter()
        .filter_map(|field| fields.get(*field)?.parse::<f64>().ok())
        .sum();
    ticks * 10_000.0
}

fn server_us(servers: &[&RedisServer]) -> f64 {
    let pids = servers.iter().filter_map(|server| server.pid());
    pids.map(|pid| cpu_us(&pid.to_string())).sum()
}

fn store(url: &str, connections: u8) -> Arc<RedisStore> {
    let config = RedisConfig {
        deadline: Duration::from_secs(5),
        connections: NonZeroU8::new(connections).unwrap(),
        ..RedisConfig::new(url)
    };
    Arc::new(RedisStore::new(config).unwrap())
}

/// The limits of one decision. Those in `common` count a caller's organisation.
struct Load {
    limits: Arc<TestLimits>,
    names: &'static [&'static str],
    common: &'static [&'static str],
}

/// Organisations that all callers belong to.
const COMMON: usize = 100;

fn loads() -> Vec<(&'static str, Load)> {
    let tokens = BucketSpec::new(
        Algorithm::TokenBucket,
        NonZeroU32::new(1_000).unwrap(),
        Window::Span(MINUTE),
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
            spec(Algorithm::FixedWindow, u64::from(u32::MAX), Window::Month),
        ),
    ]));
    let of = |names, common| Load {
        limits: Arc::clone(&limits),
        names,
        common,
    };
    const FIVE: &[&str] = &["tokens", "log", "wheel", "hour", "quota"];
    vec![
        ("1 token bucket", of(&["tokens"], &[])),
        ("1 sliding log", of(&["log"], &[])),
        ("5 buckets", of(FIVE, &[])),
        ("5 buckets, 2 of 100 orgs", of(FIVE, &["wheel", "quota"])),
    ]
}

#[derive(Default)]
struct Measured {
    per_second: f64,
    server_us: f64,
    client_us: f64,
    p50_us: u64,
    p99_us: u64,
}

/// Results of a bare script in the same run.
struct Bare {
    one: Measured,
    five: Measured,
}

impl Bare {
    fn measure(server: &RedisServer, pipeline: u32) -> Self {
        Self {
            one: redis_benchmark(server, pipeline, 1),
            five: redis_benchmark(server, pipeline, 5),
        }
    }
}

impl Measured {
    fn print(&self, what: &str, bare: &Bare) {
        println!(
            "{what:<46} {:>10.0} {:>9.2} {:>9.2} {:>10.1} {:>10.1}   p50 {:>6} µs  p99 {:>6} µs",
            self.per_second,
            self.per_second / bare.one.per_second,
            self.per_second / bare.five.per_second,
            self.server_us,
            self.client_us,
            self.p50_us,
            self.p99_us
        );
    }
}

async fn measure(
    store: &Arc<RedisStore>,
    load: &Load,
    tasks: u64,
    time: Duration,
    servers: &[&RedisServer],
) -> Measured {
    let (server, client) = (server_us(servers), cpu_us("self"));
    let end = Instant::now() + time;
    let count = Arc::new(AtomicU64::new(0));
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let (store, limits) = (Arc::clone(store), Arc::clone(&load.limits));
            let (names, common) = (load.names, load.common);
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut rng = Rng::new(task + 1);
                let mut waits = Vec::new();
                while Instant::now() < end {
                    let caller = rng.index(KEYS);
                    let (subject, org) = (format!("{caller}"), format!("o{}", caller % COMMON));
                    let charges: Vec<Charge<'_>> = names
                        .iter()
                        .map(|name| {
                            let whose = if common.contains(name) {
                                &org
                            } else {
                                &subject
                            };
                            limits.charge(name, whose)
                        })
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
    let count = count.load(Relaxed) as f64;
    Measured {
        per_second: count / time.as_secs_f64(),
        server_us: (server_us(servers) - server) / count,
        client_us: (cpu_us("self") - client) / count,
        p50_us: quantile(50),
        p99_us: quantile(99),
    }
}

/// Result of the server's own tool with 50 clients, a pipeline, and this many keys per call.
fn redis_benchmark(server: &RedisServer, pipeline: u32, keys: usize) -> Measured {
    const CALLS: u32 = 100_000;
    let before = server_us(&[server]);
    let answer = server.says(&["SCRIPT", "LOAD", BARE]);
    let sha = answer.lines().nth(1).unwrap().to_owned();
    let output = Command::new("redis-benchmark")
        .args([
            "-p",
            &server.port.to_string(),
            "-c",
            "50",
            "-n",
            &CALLS.to_string(),
        ])
        .args([
            "-P",
            &pipeline.to_string(),
            "-r",
            &KEYS.to_string(),
            "--csv",
        ])
        .args(["EVALSHA", &sha, &keys.to_string()])
        .args((0..keys).map(|key| format!("bare:{key}:__rand_int__")))
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let row = text.lines().last().unwrap();
    Measured {
        per_second: row.split("\",\"").nth(1).unwrap().parse().unwrap(),
        server_us: (server_us(&[server]) - before) / f64::from(CALLS),
        ..Measured::default()
    }
}

/// Prints bytes per key as Redis counts them, for our buckets and for a sorted set of instants.
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
