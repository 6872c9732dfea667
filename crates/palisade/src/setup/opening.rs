//! Opens stores by their addresses and settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use palisade_core::time::Clock;
use palisade_store::Store;
use palisade_store::memory::{self, JournalConfig, MemoryConfig, MemoryStore};
#[cfg(feature = "postgres")]
use palisade_store::postgres::{PostgresConfig, PostgresStore, StartError};
#[cfg(feature = "redis")]
use palisade_store::redis::{RedisConfig, RedisConfigError, RedisStore, Tls};

use super::StoreUrl;

/// The address of a store, and its settings.
#[derive(Clone)]
pub struct StoreConfig {
    /// Address.
    pub url: StoreUrl,
    /// Time after which a call counts as failed.
    pub timeout: Duration,
    /// Time to connect to a shared store.
    pub connect_timeout: Duration,
    /// Most connections to a shared store.
    pub pool_max: u32,
    /// Most buckets that the embedded store keeps.
    pub keys_max: u64,
    /// Longest time that a change of the embedded store waits to be on disk.
    pub sync_interval: Duration,
    /// Prefix of every key in Redis.
    pub key_prefix: Option<String>,
    /// Replicas of Redis that confirm each write; 0 waits for none.
    pub wait_replicas: u32,
    /// Certificates for a `rediss` store.
    #[cfg(feature = "redis")]
    pub tls: Option<Tls>,
}

impl StoreConfig {
    /// A store at `url` with the defaults of the configuration reference.
    pub fn new(url: StoreUrl) -> Self {
        let memory = MemoryConfig::default();
        Self {
            url,
            timeout: palisade_store::DEADLINE_DEFAULT,
            connect_timeout: palisade_store::CONNECT_TIMEOUT_DEFAULT,
            pool_max: 16,
            keys_max: memory.keys_max,
            sync_interval: memory.journal.commit_every,
            key_prefix: None,
            wait_replicas: 0,
            #[cfg(feature = "redis")]
            tls: None,
        }
    }

    fn bounds(&self) -> MemoryConfig {
        let defaults = MemoryConfig::default();
        MemoryConfig {
            keys_max: self.keys_max,
            journal: JournalConfig {
                commit_every: self.sync_interval,
                ..defaults.journal
            },
            ..defaults
        }
    }
}

/// A store that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpeningError {
    /// The data directory is in use, damaged or not readable.
    #[error("`{}`: {error}", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The reason.
        error: memory::OpenError,
    },
    /// The address or the settings of Redis are not valid.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] RedisConfigError),
    /// The address of Postgres is not valid, or its schema does not fit.
    #[cfg(feature = "postgres")]
    #[error(transparent)]
    Postgres(#[from] StartError),
    /// The library was built without the client.
    #[error("`palisade` was built without the feature `{0}`")]
    FeatureOff(&'static str),
}

/// A store that is ready to be opened: its address and certificates have been read, but nothing is
/// connected or created yet.
pub enum PreparedStore {
    /// A store in this process, gone when the process ends.
    Memory(MemoryConfig),
    /// A store in this process, kept in a directory.
    Embedded(MemoryConfig, PathBuf),
    /// Redis or a Redis Cluster; it connects when it is first used.
    #[cfg(feature = "redis")]
    Redis(RedisStore),
    /// Postgres.
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresConfig>),
}

impl PreparedStore {
    /// The store that `config` names. Needs a Tokio runtime.
    ///
    /// # Errors
    /// An address that cannot be used.
    pub fn of(config: &StoreConfig) -> Result<Self, OpeningError> {
        match &config.url {
            StoreUrl::Memory => Ok(Self::Memory(config.bounds())),
            StoreUrl::Embedded(directory) => Ok(Self::Embedded(config.bounds(), directory.clone())),
            #[cfg(feature = "redis")]
            StoreUrl::Redis(url) | StoreUrl::RedisCluster(url) => {
                let store = RedisStore::new(redis_config(config, url.as_str()))?;
                Ok(Self::Redis(store))
            }
            #[cfg(not(feature = "redis"))]
            StoreUrl::Redis(_) | StoreUrl::RedisCluster(_) => {
                Err(OpeningError::FeatureOff("redis"))
            }
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(url) => {
                let config = postgres_config(config, url.as_str())?;
                Ok(Self::Postgres(Box::new(config)))
            }
            #[cfg(not(feature = "postgres"))]
            StoreUrl::Postgres(_) => Err(OpeningError::FeatureOff("postgres")),
        }
    }

    /// Opens the store. A shared store may be down: the engine then starts degraded and recovers
    /// with it.
    ///
    /// # Errors
    /// The data directory cannot be used, or the schema of Postgres does not fit.
    pub async fn open(self, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>, OpeningError> {
        match self {
            Self::Memory(bounds) => Ok(Arc::new(MemoryStore::new(Arc::clone(clock), &bounds))),
            Self::Embedded(bounds, directory) => embedded(&bounds, &directory, clock),
            #[cfg(feature = "redis")]
            Self::Redis(store) => Ok(Arc::new(store)),
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => postgres(&config).await,
        }
    }
}

/// Redis settings. All requests of a thread share one connection; more connections would cost time
/// and gain nothing.
#[cfg(feature = "redis")]
fn redis_config(config: &StoreConfig, url: &str) -> RedisConfig {
    use std::num::{NonZeroU8, NonZeroU32};
    let defaults = RedisConfig::new(url);
    let allowed = u8::try_from(config.pool_max).ok().and_then(NonZeroU8::new);
    RedisConfig {
        deadline: config.timeout,
        connect_timeout: config.connect_timeout,
        connections: allowed.map_or(defaults.connections, |max| max.min(defaults.connections)),
        key_prefix: config.key_prefix.clone().unwrap_or_default(),
        wait_replicas: NonZeroU32::new(config.wait_replicas),
        tls: config.tls.clone(),
        ..defaults
    }
}

fn embedded(
    bounds: &MemoryConfig,
    directory: &Path,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Store>, OpeningError> {
    let opened = MemoryStore::open(directory, Arc::clone(clock), bounds);
    let (store, report) = opened.map_err(|error| OpeningError::Directory {
        directory: directory.to_owned(),
        error,
    })?;
    tracing::info!(
        directory = %directory.display(),
        buckets = report.buckets,
        records = report.records,
        entries = report.entries,
        changes = report.changes,
        torn_bytes = report.torn_bytes,
        "the data directory was read"
    );
    Ok(Arc::new(store))
}

#[cfg(feature = "postgres")]
async fn postgres(config: &PostgresConfig) -> Result<Arc<dyn Store>, OpeningError> {
    let store = match PostgresStore::connect(config).await {
        Err(StartError::Store(error)) => {
            tracing::warn!(
                hosts = config.hosts(),
                kind = error.kind().name(),
                "starting without an answer from Postgres"
            );
            PostgresStore::open(config, None)
        }
        other => other,
    };
    Ok(Arc::new(store?))
}

/// The connection settings of a Postgres at `url`.
///
/// # Errors
/// An address that cannot be used.
#[cfg(feature = "postgres")]
pub fn postgres_config(config: &StoreConfig, url: &str) -> Result<PostgresConfig, StartError> {
    let mut postgres = PostgresConfig::parse(url)?;
    postgres.deadline = config.timeout;
    postgres.connect_timeout = config.connect_timeout;
    postgres.connections = usize::try_from(config.pool_max).unwrap_or(usize::MAX);
    postgres.lanes = postgres.lanes.min(postgres.connections);
    Ok(postgres)
}
