//! Three engines on one real store, with clocks that are an hour apart.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test file uses its part of it"
)]

pub mod holds;
pub mod load;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use palisade::core::time::{Clock, HOUR, Micros};
use palisade::core::{Decision, PolicySet};
use palisade::store::Store;
use palisade::store::memory::{MemoryConfig, MemoryStore};
use palisade::store::postgres::{PostgresConfig, PostgresStore};
use palisade::store::redis::{RedisConfig, RedisStore, TimeSource};
use palisade::{Engine, EngineConfig};
use palisade_policy::Env;

use crate::engine_support::{Heard, keyring, policy, request};

/// Long, so that no request is refused because the machine is busy.
pub const PATIENT: Duration = Duration::from_secs(60);

/// Offsets of the nodes' clocks from the store's, in microseconds.
pub const APART: [i64; 3] = [-(HOUR as i64), 0, HOUR as i64];

/// A node's clock with an offset.
struct Wrong {
    right: Arc<dyn Clock>,
    by_us: i64,
}

impl Clock for Wrong {
    fn now(&self) -> Micros {
        Micros(self.right.now().0.saturating_add_signed(self.by_us))
    }
}

/// The clock by which the store judges.
#[derive(Clone)]
pub enum StoreTime {
    /// The server's own. Nodes have the system's clock, each with its offset.
    Server,
    /// A clock that the test moves. Nodes have it, too, each with its offset.
    Moved(Arc<dyn Clock>),
}

impl StoreTime {
    fn right(&self) -> Arc<dyn Clock> {
        match self {
            Self::Server => Arc::new(palisade::SystemClock::new()),
            Self::Moved(clock) => Arc::clone(clock),
        }
    }
}

pub struct Nodes {
    pub engines: Vec<Arc<Engine>>,
    pub heard: Vec<Arc<Heard>>,
    pub policy: Arc<PolicySet>,
}

impl Nodes {
    fn new(stores: Vec<impl Store>, text: &str, time: &StoreTime, wrong_us: &[i64]) -> Self {
        let policy = policy(text, &Env::default());
        let right = time.right();
        let mut nodes = Self {
            engines: Vec::new(),
            heard: Vec::new(),
            policy: Arc::clone(&policy),
        };
        for (store, by_us) in stores.into_iter().zip(wrong_us) {
            let clock = Arc::new(Wrong {
                right: Arc::clone(&right),
                by_us: *by_us,
            });
            let heard = Arc::new(Heard::default());
            let config = EngineConfig {
                policy: Arc::clone(&policy),
                deadline: PATIENT,
                observer: Arc::<Heard>::clone(&heard),
                ..EngineConfig::new(Arc::new(store), PolicySet::empty(), keyring(), clock)
            };
            nodes.engines.push(Arc::new(Engine::new(config)));
            nodes.heard.push(heard);
        }
        nodes
    }

    /// Sends `count` equal requests to every node in turn, and returns the answers.
    pub async fn check(&self, facts: &str, count: usize) -> Vec<Decision> {
        let facts = request(facts);
        let mut answers = Vec::new();
        for engine in self.engines.iter().cycle().take(count) {
            answers.push(*engine.check(&facts).await.decision);
        }
        answers
    }

    pub async fn admitted(&self, facts: &str, count: usize) -> usize {
        let answers = self.check(facts, count).await;
        answers.iter().filter(|answer| answer.is_allowed()).count()
    }

    /// Number of store calls of each node so far.
    pub fn store_calls(&self) -> Vec<usize> {
        let calls = |heard: &Arc<Heard>| heard.store_calls.load(Ordering::SeqCst);
        self.heard.iter().map(calls).collect()
    }
}

/// Nodes with connections of their own, on data that no other test uses.
pub fn redis(url: &str, text: &str, time: &StoreTime, wrong_us: &[i64]) -> Nodes {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let store = |_: &i64| {
        let config = RedisConfig {
            deadline: PATIENT,
            connect_timeout: PATIENT,
            key_prefix: format!("n{number}:"),
            time: match time {
                StoreTime::Server => TimeSource::Store,
                StoreTime::Moved(clock) => TimeSource::Injected(Arc::clone(clock)),
            },
            ..RedisConfig::new(url)
        };
        RedisStore::new(config).unwrap()
    };
    Nodes::new(wrong_us.iter().map(store).collect(), text, time, wrong_us)
}

/// One node on the embedded store.
pub fn embedded(text: &str) -> Nodes {
    let time = StoreTime::Server;
    let store = MemoryStore::new(time.right(), &MemoryConfig::default());
    Nodes::new(vec![store], text, &time, &[0])
}

/// Nodes on a Postgres database of their own.
pub async fn postgres(
    config: &PostgresConfig,
    text: &str,
    time: &StoreTime,
    wrong_us: &[i64],
) -> Nodes {
    let mut config = config.clone();
    config.deadline = PATIENT;
    config.connect_timeout = PATIENT;
    let mut stores = Vec::new();
    for _ in wrong_us {
        let store = match time {
            StoreTime::Server => PostgresStore::connect(&config).await,
            StoreTime::Moved(clock) => {
                PostgresStore::connect_with_clock(&config, Arc::clone(clock)).await
            }
        };
        stores.push(store.unwrap());
    }
    Nodes::new(stores, text, time, wrong_us)
}
