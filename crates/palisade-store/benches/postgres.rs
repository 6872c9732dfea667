//! Decisions per second through the Postgres store, compared with pgbench's upsert of one row per
//! statement on the same server, in turns:
//!
//!     cargo bench -p palisade-store --bench postgres -- [TASKS] [SECONDS] [KEYS]
#![allow(
    clippy::disallowed_methods,
    reason = "how long something takes is what is measured"
)]
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a program for a person at a terminal"
)]

#[path = "../tests/common/postgres_server.rs"]
mod postgres_server;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade_core::limit::{Algorithm, Window};
use palisade_core::time::MINUTE;
use palisade_store::conformance::{Rng, TestLimits, spec};
use palisade_store::postgres::PostgresStore;
use palisade_store::{Buckets, Take};
use postgres_server::{PostgresServer, binary, ticks};
use tokio::time::Instant;

const ROUNDS: usize = 3;
const PLANS: [&[&str]; 4] = [
    &["bucket"],
    &["log"],
    &["window"],
    &["bucket", "log", "window"],
];

struct Load {
    tasks: u64,
    seconds: u64,
    keys: usize,
}

#[tokio::main]
async fn main() {
    let mut figures = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let load = Load {
        tasks: figures.next().unwrap_or(512),
        seconds: figures.next().unwrap_or(5),
        keys: usize::try_from(figures.next().unwrap_or(100_000)).unwrap(),
    };
    let server =
        PostgresServer::start(&["fsync=on", "shared_buffers=512MB", "max_wal_size=4GB"]).await;
    let config = server.database().await;
    let database = server.last_database();
    let store = Arc::new(PostgresStore::connect(&config).await.unwrap());
    prepare_upsert(&server, &database, load.keys).await;
    println!(
        "{} tasks, {} s, {} keys",
        load.tasks, load.seconds, load.keys
    );
    warm_up(&store, load.keys, PLANS[3]).await;
    for _ in 0..ROUNDS {
        let spent = Spent::start(&server);
        let peer = upserts(&server, &database, &load);
        println!(
            "pgbench upsert, 16 clients        {peer:>9.0} /s  {}",
            spent.per(peer, &load)
        );
        for names in PLANS {
            let spent = Spent::start(&server);
            let (rate, p50, p99) = decisions(&store, &load, names).await;
            println!(
                "decisions on {:<20} {rate:>9.0} /s  {}  {:>5.1} x  p50 {p50:.1} ms  p99 {p99:.1} ms",
                names.join("+"),
                spent.per(rate, &load),
                rate / peer,
            );
        }
    }
    let lone = Load { tasks: 1, ..load };
    let (rate, p50, p99) = decisions(&store, &lone, &["bucket"]).await;
    println!("one at a time                     {rate:>9.0} /s  p50 {p50:.2} ms  p99 {p99:.2} ms");
}

/// Processor time: on a shared machine it says more than elapsed time.
struct Spent<'a> {
    server: &'a PostgresServer,
    server_before: f64,
    client_before: u64,
}

impl<'a> Spent<'a> {
    fn start(server: &'a PostgresServer) -> Self {
        Self {
            server,
            server_before: server.cpu_seconds(),
            client_before: own_ticks(),
        }
    }

    fn per(&self, rate: f64, load: &Load) -> String {
        let done = rate * load.seconds as f64;
        let server = (self.server.cpu_seconds() - self.server_before) / done * 1e6;
        let client = (own_ticks() - self.client_before) as f64 / 100.0 / done * 1e6;
        format!("CPU us {server:>5.1} server {client:>5.1} client")
    }
}

/// Processor time of this process and of the programs that it has run, in hundredths of a second.
fn own_ticks() -> u64 {
    ticks(std::process::id(), 13..17)
}

/// Creates every bucket, because the upsert's table is full too.
async fn warm_up(store: &Arc<PostgresStore>, keys: usize, names: &'static [&'static str]) {
    let limits = Arc::new(limits());
    let tasks: Vec<_> = (0..256)
        .map(|task| {
            let (store, limits) = (Arc::clone(store), Arc::clone(&limits));
            tokio::spawn(async move {
                for key in (task..keys).step_by(256) {
                    let subject = format!("{key}");
                    let charges: Vec<_> = names
                        .iter()
                        .map(|name| limits.charge(name, &subject))
                        .collect();
                    store.charge(&charges, Take::Consume).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

fn limits() -> TestLimits {
    let of = |algorithm| spec(algorithm, 100, Window::Span(MINUTE));
    TestLimits::new([
        ("bucket", of(Algorithm::TokenBucket)),
        ("log", of(Algorithm::SlidingLog)),
        ("window", of(Algorithm::FixedWindow)),
    ])
}

/// Rate, and median and 99th percentile of the latency in milliseconds.
async fn decisions(
    store: &Arc<PostgresStore>,
    load: &Load,
    names: &'static [&'static str],
) -> (f64, f64, f64) {
    let limits = Arc::new(limits());
    let done = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let until = started + Duration::from_secs(load.seconds);
    let keys = load.keys;
    let tasks: Vec<_> = (0..load.tasks)
        .map(|task| {
            let (store, limits, done) = (Arc::clone(store), Arc::clone(&limits), Arc::clone(&done));
            tokio::spawn(async move {
                let mut rng = Rng::new(task);
                let mut waits = Vec::new();
                while Instant::now() < until {
                    let subject = format!("{}", rng.index(keys));
                    let charges: Vec<_> = names
                        .iter()
                        .map(|name| limits.charge(name, &subject))
                        .collect();
                    let asked = Instant::now();
                    store.charge(&charges, Take::Consume).await.unwrap();
                    waits.push(asked.elapsed().as_secs_f64() * 1e3);
                    done.fetch_add(1, Ordering::Relaxed);
                }
                waits
            })
        })
        .collect();
    let mut waits = Vec::new();
    for task in tasks {
        waits.extend(task.await.unwrap());
    }
    let rate = waits.len() as f64 / started.elapsed().as_secs_f64();
    waits.sort_by(f64::total_cmp);
    (rate, waits[waits.len() / 2], waits[waits.len() * 99 / 100])
}

async fn prepare_upsert(server: &PostgresServer, database: &str, keys: usize) {
    let sql = format!(
        "CREATE TABLE upserts (key text PRIMARY KEY, n bigint NOT NULL, window_end bigint NOT NULL)
           WITH (fillfactor = 60);
         INSERT INTO upserts SELECT md5(x::text), 0, 0 FROM generate_series(1, {keys}) x;
         VACUUM ANALYZE upserts"
    );
    for statement in sql.split(';') {
        server.sql(database, statement).await;
    }
}

fn upserts(server: &PostgresServer, database: &str, load: &Load) -> f64 {
    let script = server.folder().join("upsert.sql");
    let text = format!(
        "\\set x random(1, {})\n\
         INSERT INTO upserts AS u VALUES (md5(cast(:x as text)), 1, 1)\n\
         ON CONFLICT (key) DO UPDATE SET n = u.n + 1, window_end = 1 RETURNING n;\n",
        load.keys
    );
    std::fs::write(&script, text).unwrap();
    let seconds = load.seconds.to_string();
    let run = Command::new(binary("pgbench"))
        .arg("-h")
        .arg(server.folder())
        .args(["-p", "5432", "-U", "palisade", "-n", "-M", "prepared"])
        .args(["-c", "16", "-j", "2", "-T", &seconds, "-f"])
        .arg(&script)
        .arg(database)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    text.lines()
        .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("pgbench gave no figure: {text}"))
}
