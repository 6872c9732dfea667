//! Throughput with the store alive and with the store dead: the same policy and requests, in
//! alternating rounds of one run. A dead store should cost nothing.
//!
//! `cargo bench -p palisade --bench failure [-- seconds]` prints a line for each store
//! and kind of command: decisions per second, processor time for each, and the ratio
//! to the same with the store alive.
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
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use palisade::core::facts::{Confidence, GuardFacts, GuardOp, Id, RequestFacts};
use palisade::core::{Clock, Keyring, PolicySet};
use palisade::store::Store;
use palisade::store::memory::{MemoryConfig, MemoryStore};
use palisade::store::redis::{RedisConfig, RedisStore};
use palisade::wire::{self, RawRequest};
use palisade::{Engine, EngineConfig, SystemClock};
use palisade_policy::{Env, Overrides};
use redis_server::RedisServer;
use tokio::time::Instant;

/// Two buckets a request, as with the default policy, and no throttle to shed load.
const POLICY: &str = r#"
[policy]
defaults = false
default_class = "read"
[[limit]]
name = "ip-read"
by = ["ip"]
class = "read"
rate = "100/min"
[[limit]]
name = "ip-all"
by = ["ip"]
rate = "1000/h"
"#;

/// Long, so that a busy machine does not look like an outage.
const DEADLINE: Duration = Duration::from_secs(2);
/// Number of concurrent requests.
const CALLERS: usize = 64;
/// Addresses and accounts are used in turn: few enough to be remembered, and so many that hardly
/// any meets its limit, whether the store is alive or dead.
const CALLERS_SEEN: u32 = 100_000;
const ROUNDS: usize = 5;

/// Kind of command that a round sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Request,
    Login,
}

struct Load {
    requests: Vec<RequestFacts>,
    logins: Vec<GuardFacts>,
}

impl Load {
    fn new() -> Self {
        Self {
            requests: (0..CALLERS_SEEN).map(request).collect(),
            logins: (0..CALLERS_SEEN).map(login).collect(),
        }
    }
}

fn address(n: u32) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from((10 << 24) + n)
}

fn request(n: u32) -> RequestFacts {
    let json = format!(
        r#"{{"ip":"{}","method":"GET","path":"/things"}}"#,
        address(n)
    );
    let raw: RawRequest<'_> = wire::parse(json.as_bytes()).unwrap();
    raw.into_facts().unwrap()
}

fn login(n: u32) -> GuardFacts {
    let mut facts = GuardFacts::new(address(n).into());
    facts.account = Id::new("account", &format!("account-{n}")).ok();
    facts.user_agent = Some("Mozilla/5.0 (X11; Linux x86_64) Firefox/124.0".into());
    facts.device.fingerprint = Id::new("fingerprint", &format!("device-{n}")).ok();
    facts.device.confidence = Some(Confidence::Medium);
    facts
}

fn engine(store: impl Store, clock: &Arc<dyn Clock>) -> Arc<Engine> {
    let (path, env) = (Path::new("bench.toml"), Env::default());
    let loaded = palisade_policy::load_text(path, POLICY, &env, &Overrides::default()).unwrap();
    let keyring = Keyring::new(&[7; 32], None).unwrap();
    Arc::new(Engine::new(EngineConfig {
        policy: loaded.policy,
        deadline: DEADLINE,
        ..EngineConfig::new(
            Arc::new(store),
            PolicySet::empty(),
            keyring,
            Arc::clone(clock),
        )
    }))
}

/// Results of a round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    per_second: f64,
    cpu_us: f64,
    admitted_percent: f64,
}

/// Processor time of this process, in microseconds.
fn processor_us() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = text.rsplit(')').next().unwrap().split_whitespace();
    let ticks: u64 = fields
        .skip(11)
        .take(2)
        .map(|n| n.parse::<u64>().unwrap())
        .sum();
    ticks * 10_000
}

async fn round(engine: &Arc<Engine>, asked: Asked, load: &Arc<Load>, lasts: Duration) -> Round {
    let (count, admitted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (next, over) = (
        Arc::new(AtomicU32::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (began, cpu) = (Instant::now(), processor_us());
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (engine, load) = (Arc::clone(engine), Arc::clone(load));
            let (count, admitted) = (Arc::clone(&count), Arc::clone(&admitted));
            let (next, over) = (Arc::clone(&next), Arc::clone(&over));
            tokio::spawn(async move {
                while !over.load(Relaxed) {
                    let n = (next.fetch_add(1, Relaxed) % CALLERS_SEEN) as usize;
                    let answer = match asked {
                        Asked::Request => engine.check(&load.requests[n]).await,
                        Asked::Login => {
                            let checked = engine.guard(GuardOp::LoginCheck, &load.logins[n]);
                            checked.await.unwrap()
                        }
                    };
                    admitted.fetch_add(u64::from(answer.decision.is_allowed()), Relaxed);
                    count.fetch_add(1, Relaxed);
                    // Answers that need no store never yield to the runtime: let the others run.
                    if n.is_multiple_of(64) {
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(lasts).await;
    over.store(true, Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    let (count, admitted) = (count.load(Relaxed) as f64, admitted.load(Relaxed) as f64);
    Round {
        per_second: count / began.elapsed().as_secs_f64(),
        cpu_us: (processor_us() - cpu) as f64 / count,
        admitted_percent: 100.0 * admitted / count,
    }
}

/// Makes calls until every breaker of the engine is open.
async fn give_up(engine: &Engine, load: &Load) {
    while engine
        .health()
        .circuits
        .iter()
        .any(|(name, state)| matches!(*name, "login" | "limits") && *state == "closed")
    {
        engine.check(&load.requests[0]).await;
        let _ = engine.guard(GuardOp::LoginCheck, &load.logins[0]).await;
    }
}

fn median(rounds: &mut [Round]) -> Round {
    rounds.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    rounds[rounds.len() / 2]
}

async fn compare(asked: Asked, load: &Arc<Load>, lasts: Duration) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let embedded = MemoryStore::new(Arc::clone(&clock), &MemoryConfig::default());
    let embedded = engine(embedded, &clock);
    let (alive, mut dead) = (RedisServer::start(), RedisServer::start());
    let store = |server: &RedisServer| {
        RedisStore::new(RedisConfig {
            deadline: DEADLINE,
            ..RedisConfig::new(server.url())
        })
        .unwrap()
    };
    let redis = engine(store(&alive), &clock);
    let gone = engine(store(&dead), &clock);
    round(&gone, asked, load, lasts / 4).await;
    dead.kill();
    give_up(&gone, load).await;
    let mut rounds = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        rounds[0].push(round(&redis, asked, load, lasts).await);
        rounds[1].push(round(&embedded, asked, load, lasts).await);
        rounds[2].push(round(&gone, asked, load, lasts).await);
    }
    let [redis, embedded, dead] = rounds.each_mut().map(|rounds| median(rounds));
    println!("{asked:?}, {CALLERS} at once, medians of {ROUNDS} rounds");
    for (name, seen) in [
        ("redis alive", redis),
        ("embedded alive", embedded),
        ("redis dead", dead),
    ] {
        println!(
            "  {name:<15} {:>9.0}/s {:>7.2} µs of processor time, {:>3.0} % admitted, dead is {:.2} times",
            seen.per_second,
            seen.cpu_us,
            seen.admitted_percent,
            dead.per_second / seen.per_second
        );
    }
}

fn main() {
    let seconds = std::env::args()
        .filter_map(|word| word.parse::<f64>().ok())
        .next_back();
    let lasts = Duration::from_secs_f64(seconds.unwrap_or(1.0));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let load = Arc::new(Load::new());
    runtime.block_on(async {
        for asked in [Asked::Request, Asked::Login] {
            compare(asked, &load, lasts).await;
        }
    });
}
