//! The engine in this process, on any store.

use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade::core::facts::{Id, RequestFacts};
use palisade::core::key::Keyring;
use palisade::core::limit::{Algorithm, BucketSpec, Window};
use palisade::core::policy::{Dimension, LimitDef, PolicyParts, PolicySet, Route, Settings};
use palisade::core::time::{Clock, DAY};
use palisade::engine::{DecisionEvent, ModeChange, Observer};
use palisade::store::StoreError;
use palisade::{Engine, EngineConfig, SystemClock};
use palisade_policy::{Env, Overrides};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Report, Tally};
use crate::failure::Failure;

/// Deadline of store calls. It is long because slow answers are to be measured here: they must not
/// count as an outage and open a breaker.
const DEADLINE: Duration = Duration::from_secs(10);

/// Parameters of a load on an engine.
#[derive(Clone, Debug)]
pub struct Load {
    /// URL of the store.
    pub store: String,
    /// Distinct callers.
    pub keys: u32,
    /// Limit of each caller, in a window that is longer than the load.
    pub limit: u32,
    /// Requests under way at once.
    pub concurrency: u32,
    /// Threads of the runtime, which the report names.
    pub threads: usize,
    /// Duration of the load.
    pub seconds: u64,
}

/// Runs a load on an engine in this process and removes what it counted. The future is boxed so
/// that it is compiled here and not where it is called.
///
/// # Errors
/// A message that names what could not be opened or removed.
pub fn run(load: &Load) -> Pin<Box<dyn Future<Output = Result<Report, Failure>> + Send + '_>> {
    Box::pin(measured(load))
}

async fn measured(load: &Load) -> Result<Report, Failure> {
    let overrides = Overrides::default().with("--store", "store.url", Some(load.store.clone()));
    let mut config = crate::config::load(None, &Env::from_process(), &overrides)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    // Before anything is written: a signal from now on ends the load, and not the process.
    let signals = Signals::listen()?;
    config.store.timeout = DEADLINE;
    let store = crate::store::open(&config.store, &clock).await?;
    store.probe().await.map_err(|error| {
        Failure::unavailable(error.to_string(), "start the server, or correct `--store`")
    })?;
    let calls = Arc::new(Calls::default());
    // A new secret for each run: buckets of an earlier run do not count.
    let keyring = Keyring::new(&rand::random::<[u8; 32]>(), None)
        .map_err(|error| Failure::unavailable(error.to_string(), "try again"))?;
    let mut engine = EngineConfig::new(store, policy(load.limit)?, keyring, Arc::clone(&clock));
    engine.observer = Arc::<Calls>::clone(&calls);
    engine.deadline = DEADLINE;
    let engine = Arc::new(Engine::new(engine));
    let tally = Arc::new(Tally::new(load.keys, &*clock, load.seconds));
    let tasks: Vec<_> = (0..load.concurrency)
        .map(|task| {
            let work = work(Arc::clone(&engine), Arc::clone(&tally), task, load.keys);
            tokio::spawn(work)
        })
        .collect();
    let interrupted = tokio::spawn(interrupt(signals, Arc::clone(&tally)));
    for task in tasks {
        let _ = task.await;
    }
    interrupted.abort();
    let ended = clock.now();
    clean(&engine, &tally, load.concurrency).await?;
    let scheme = load.store.split(':').next().unwrap_or_default();
    let what = format!(
        "engine on {scheme}, one exact limit, {} keys, {} at once, {} threads",
        load.keys, load.concurrency, load.threads
    );
    let mut report = tally.report(what, Some(load.limit), ended);
    report.store_calls = Some(calls.0.load(Ordering::Relaxed));
    Ok(report)
}

/// The signals that end a load.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::unavailable(format!("cannot receive signals: {error}"), "try again")
            })
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }
}

/// The first signal ends the load, so that what it counted is removed; a second one
/// ends the process.
async fn interrupt(mut signals: Signals, tally: Arc<Tally>) {
    tokio::select! {
        _ = signals.interrupt.recv() => {}
        _ = signals.terminate.recv() => {}
    }
    tally.interrupt();
    let _ = signals.interrupt.recv().await;
    std::process::exit(130);
}

/// Removes every bucket that the load has made, so that none stays behind in a store that others
/// use.
async fn clean(engine: &Arc<Engine>, tally: &Tally, concurrency: u32) -> Result<(), Failure> {
    let callers = tally.callers();
    let share = callers.len().div_ceil(concurrency as usize).max(1);
    let mut tasks = tokio::task::JoinSet::new();
    for callers in callers.chunks(share).map(<[u32]>::to_vec) {
        let engine = Arc::clone(engine);
        tasks.spawn(async move {
            for key in callers {
                engine.clear(&facts(key)).await?;
            }
            Ok::<(), StoreError>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        if !matches!(ended, Ok(Ok(()))) {
            return Err(Failure::unavailable(
                "the buckets of this run could not be removed; they end by themselves within 30 hours",
                "see that the store answers",
            ));
        }
    }
    Ok(())
}

fn facts(key: u32) -> RequestFacts {
    let mut facts = RequestFacts::new(std::net::IpAddr::from([127, 0, 0, 1]), "GET", "/bench");
    facts.user = Id::new("user", &format!("user-{key:011}")).ok();
    facts
}

/// Counts store calls.
#[derive(Default)]
struct Calls(AtomicU64);

impl Observer for Calls {
    fn decided(&self, _seen: &DecisionEvent<'_>) {}
    fn failure(&self, _change: &ModeChange<'_>) {}
    fn store_call(&self, _took_us: Option<u64>, _error: Option<&StoreError>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn policy(limit: u32) -> Result<PolicySet, Failure> {
    let broken = |what: String| Failure::usage(what, "choose another `--limit`");
    let amount = NonZeroU32::new(limit).unwrap_or(NonZeroU32::MIN);
    let algorithm = Algorithm::default_for(limit.into());
    let spec = BucketSpec::new(algorithm, amount, Window::Span(DAY), None)
        .map_err(|error| broken(error.to_string()))?;
    let mut route = Route::new("/*").map_err(|error| broken(error.to_string()))?;
    route.class = Some("bench".into());
    let parts = PolicyParts {
        enabled: true,
        settings: Settings::default(),
        routes: vec![route],
        classes: Vec::new(),
        limits: vec![LimitDef::new("bench", vec![Dimension::User], spec)],
        clients: std::collections::HashMap::new(),
        api_keys: std::collections::HashMap::new(),
        tiers: Vec::new(),
        bot_patterns: Vec::new(),
    };
    PolicySet::new(1, parts).map_err(|error| broken(error.to_string()))
}

async fn work(engine: Arc<Engine>, tally: Arc<Tally>, task: u32, keys: u32) {
    let clock = Arc::clone(engine.clock());
    // Tasks start at keys far apart, so that they do not follow each other on the same buckets.
    let mut key = task.wrapping_mul(2_654_435_761) % keys;
    let mut facts = facts(key);
    let mut turn = 0_u32;
    loop {
        let started = clock.now();
        if tally.is_over(started) {
            return;
        }
        facts.user = Id::new("user", &format!("user-{key:011}")).ok();
        let answer = engine.check(&facts).await;
        let took = clock.now().since(started);
        let is_normal = answer.decision.mode == palisade::core::Mode::Normal;
        if is_normal {
            tally.decided(key, answer.decision.is_allowed(), took);
        } else {
            tally.errors.fetch_add(1, Ordering::Relaxed);
        }
        key = key.wrapping_add(1) % keys;
        turn = turn.wrapping_add(1);
        // A store that answers at once never yields to the runtime: let other tasks run.
        if turn.is_multiple_of(64) {
            tokio::task::yield_now().await;
        }
    }
}
