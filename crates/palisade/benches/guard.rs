//! Cost of one guard command on the embedded store, on a single thread.
//!
//! `cargo bench -p palisade --bench guard` prints microseconds per command: each has an
//! id of its own, as over HTTP, so a check that is allowed writes (G-PENDING);
//! `valgrind --tool=callgrind` on the built binary with `check` or `failure` and a
//! count as arguments gives instructions.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints what it measured and stops at the first error"
)]

use std::sync::Arc;

use palisade::core::facts::{Confidence, GuardFacts, GuardOp, Id};
use palisade::core::{Clock, Keyring};
use palisade::store::memory::{MemoryConfig, MemoryStore};
use palisade::{Engine, EngineConfig, SystemClock};
use palisade_policy::{Env, Overrides};

type Memory = Engine;

const ACCOUNTS: u32 = 10_000;

fn engine(clock: &Arc<dyn Clock>) -> Memory {
    let store = MemoryStore::new(Arc::clone(clock), &MemoryConfig::default());
    let config = palisade_policy::load(None, &Env::default(), &Overrides::default()).unwrap();
    let policy = (*config.policy).clone();
    let keyring = Keyring::new(&[7; 32], None).unwrap();
    Engine::new(EngineConfig::new(
        Arc::new(store),
        policy,
        keyring,
        Arc::clone(clock),
    ))
}

/// Every account has its own address and device, as on a busy login page.
fn facts(n: u32) -> GuardFacts {
    let [a, b, c, d] = (n % ACCOUNTS).to_be_bytes();
    let mut facts = GuardFacts::new(std::net::IpAddr::from([10 + a, b, c, d]));
    facts.account = Id::new("account", &format!("account-{}", n % ACCOUNTS)).ok();
    facts.user_agent =
        Some("Mozilla/5.0 (X11; Linux x86_64) Chrome/123.0.0.0 Safari/537.36".into());
    facts.device.fingerprint = Id::new("fingerprint", &format!("device-{}", n % ACCOUNTS)).ok();
    facts.device.confidence = Some(Confidence::Medium);
    facts
}

fn measure(name: &str, op: GuardOp, count: u32) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let engine = engine(&clock);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let all: Vec<GuardFacts> = (0..ACCOUNTS).map(facts).collect();
    let took = runtime.block_on(async {
        for facts in &all {
            engine.guard(GuardOp::LoginCheck, facts).await.unwrap();
        }
        let mut took = 0;
        for (n, facts) in all.iter().cycle().take(count as usize).enumerate() {
            let mut facts = facts.clone();
            facts.request_id = Id::new("request_id", &format!("request-{n}")).ok();
            let started = clock.now();
            engine.guard(op, &facts).await.unwrap();
            took += clock.now().since(started);
            if op == GuardOp::LoginCheck {
                // Ends the attempt. Otherwise the next check of this account would be answered by
                // it and write nothing.
                engine.guard(GuardOp::LoginSuccess, &facts).await.unwrap();
            }
        }
        took
    });
    println!(
        "{name:<14} {:.2} µs per command ({count} commands, {ACCOUNTS} accounts)",
        took as f64 / f64::from(count)
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = arguments.iter().find_map(|word| word.parse().ok());
    let wants = |name: &str| {
        let named = arguments
            .iter()
            .any(|word| word == "check" || word == "failure");
        !named || arguments.iter().any(|word| word == name)
    };
    if wants("check") {
        measure("login.check", GuardOp::LoginCheck, count.unwrap_or(300_000));
    }
    if wants("failure") {
        measure(
            "login.failure",
            GuardOp::LoginFailure,
            count.unwrap_or(300_000),
        );
    }
}
