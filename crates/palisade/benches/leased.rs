//! Leased buckets on Redis compared with the embedded store: the same engine and requests, in
//! alternating rounds of one run.
//!
//! `cargo bench -p palisade --bench leased [-- seconds]`
#![allow(
    clippy::disallowed_methods,
    reason = "how long something takes is what is measured"
)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints what it measured and stops at the first error"
)]

#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use palisade::core::facts::{Id, RequestFacts};
use palisade::core::{Clock, Keyring, PolicySet};
use palisade::store::Store;
use palisade::store::memory::{MemoryConfig, MemoryStore};
use palisade::store::redis::{RedisConfig, RedisStore};
use palisade::{Engine, EngineConfig, SystemClock};
use palisade_policy::{Env, Overrides};
use redis_server::RedisServer;
use tokio::time::Instant;

const ROUNDS: usize = 5;
const TASKS: usize = 8;
const CALLERS: [usize; 2] = [1, 100];

fn policy(accuracy: &str) -> PolicySet {
    let text = format!(
        "[policy]\ndefaults = false\n[[limit]]\nname = \"all\"\nby = [\"org\"]\n\
         rate = \"100000000/s\"\nalgorithm = \"token-bucket\"\naccuracy = \"{accuracy}\"\n"
    );
    let env = Env::default();
    let loaded =
        palisade_policy::load_text(Path::new("bench.toml"), &text, &env, &Overrides::default());
    (*loaded.unwrap().policy).clone()
}

fn engine(store: impl Store, accuracy: &str, clock: &Arc<dyn Clock>) -> Arc<Engine> {
    let keyring = Keyring::new(&[7; 32], None).unwrap();
    let mut config = EngineConfig::new(
        Arc::new(store),
        policy(accuracy),
        keyring,
        Arc::clone(clock),
    );
    config.deadline = Duration::from_secs(5);
    Arc::new(Engine::new(config))
}

fn caller(number: usize) -> RequestFacts {
    let mut facts = RequestFacts::new([127, 0, 0, 1].into(), "GET", "/bench");
    facts.org = Id::new("org", &format!("org-{number}")).ok();
    facts
}

/// Decisions a second.
async fn measure(engine: &Arc<Engine>, callers: usize, time: Duration) -> f64 {
    let begun = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let engine = Arc::clone(engine);
            tokio::spawn(async move {
                let facts: Vec<_> = (0..callers).map(caller).collect();
                let mut done = 0_u64;
                while begun.elapsed() < time {
                    for turn in 0..64 {
                        let at = (task + turn + usize::try_from(done).unwrap()) % callers;
                        assert!(engine.check(&facts[at]).await.decision.is_allowed());
                    }
                    done += 64;
                    tokio::task::yield_now().await;
                }
                done
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.unwrap();
    }
    done as f64 / begun.elapsed().as_secs_f64()
}

async fn run(time: Duration) {
    let server = RedisServer::start();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let memory = || MemoryStore::new(Arc::clone(&clock), &MemoryConfig::default());
    let exact = engine(memory(), "exact", &clock);
    let embedded = engine(memory(), "leased", &clock);
    let config = RedisConfig {
        deadline: Duration::from_secs(5),
        ..RedisConfig::new(server.url())
    };
    let shared = engine(RedisStore::new(config).unwrap(), "leased", &clock);
    let (supplied, supplied_too) = (Arc::clone(&embedded), Arc::clone(&shared));
    tokio::spawn(async move { supplied.refill_forever().await });
    tokio::spawn(async move { supplied_too.refill_forever().await });
    for callers in CALLERS {
        println!("{callers} callers                 decisions/s   of embedded");
        for _ in 0..ROUNDS {
            let base = measure(&embedded, callers, time).await;
            let shared = measure(&shared, callers, time).await;
            let exact = measure(&exact, callers, time).await;
            for (name, rate) in [
                ("embedded, leased", base),
                ("redis, leased", shared),
                ("embedded, exact", exact),
            ] {
                println!("  {name:<24} {rate:>12.0} {:>12.2}", rate / base);
            }
        }
    }
}

fn main() {
    let mut seconds = std::env::args().filter_map(|arg| arg.parse::<f64>().ok());
    let time = Duration::from_secs_f64(seconds.next_back().unwrap_or(1.0));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(time));
}
