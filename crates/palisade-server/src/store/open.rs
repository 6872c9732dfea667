//! Configuration → store.

use std::num::{NonZeroU8, NonZeroU32};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use palisade::store::memory::{JournalConfig, MemoryConfig, MemoryStore};
use palisade::store::postgres::{PostgresConfig, PostgresStore, StartError};
use palisade::store::redis::{RedisConfig, RedisStore, Tls};
use palisade_core::time::Clock;

use super::AnyStore;
use crate::config::{Store, StoreUrl};
use crate::failure::Failure;

/// A store that can be opened: its address and certificates are read, nothing is touched.
pub enum Opening {
    /// In this process, gone at its end.
    Memory(MemoryConfig),
    /// In this process, kept in a directory.
    Embedded(MemoryConfig, PathBuf),
    /// Redis or a Redis Cluster; it connects when it is first used.
    Redis(RedisStore),
    /// Postgres.
    Postgres(Box<PostgresConfig>),
}

impl Opening {
    /// What the configuration names. Needs a Tokio runtime.
    pub fn of(config: &Store) -> Result<Self, Failure> {
        Ok(match &config.url {
            StoreUrl::Memory => Self::Memory(bounds(config)),
            StoreUrl::Embedded(directory) => Self::Embedded(bounds(config), directory.clone()),
            StoreUrl::Redis(url) | StoreUrl::RedisCluster(url) => {
                let store = RedisStore::new(redis_config(config, url.as_str())?);
                Self::Redis(store.map_err(|error| {
                    Failure::usage(error.to_string(), "correct `store.url` (`--store`)")
                })?)
            }
            StoreUrl::Postgres(url) => {
                Self::Postgres(Box::new(postgres_config(config, url.as_str())?))
            }
        })
    }

    /// Opens it. A shared one may be down: the service then starts degraded and
    /// recovers with it.
    pub async fn open(self, clock: &Arc<dyn Clock>) -> Result<AnyStore, Failure> {
        match self {
            Self::Memory(bounds) => {
                let store = MemoryStore::new(Arc::clone(clock), &bounds);
                Ok(AnyStore::Embedded(store))
            }
            Self::Embedded(bounds, directory) => embedded(&bounds, &directory, clock),
            Self::Redis(store) => Ok(AnyStore::Remote(store.into())),
            Self::Postgres(config) => postgres(&config).await,
        }
    }
}

/// Opens the configured store.
pub async fn open(config: &Store, clock: &Arc<dyn Clock>) -> Result<AnyStore, Failure> {
    Opening::of(config)?.open(clock).await
}

/// Each thread has a connection that all of its requests share: more are only a cost.
fn redis_config(config: &Store, url: &str) -> Result<RedisConfig, Failure> {
    let defaults = RedisConfig::new(url);
    let allowed = u8::try_from(config.pool_max).ok().and_then(NonZeroU8::new);
    Ok(RedisConfig {
        deadline: config.timeout,
        connect_timeout: config.connect_timeout,
        connections: allowed.map_or(defaults.connections, |max| max.min(defaults.connections)),
        key_prefix: config.key_prefix.clone().unwrap_or_default(),
        wait_replicas: NonZeroU32::new(config.wait_replicas),
        tls: certificates(config)?,
        ..defaults
    })
}

fn certificates(config: &Store) -> Result<Option<Tls>, Failure> {
    let client = match (&config.certificate, &config.certificate_key) {
        (Some(chain), Some(key)) => Some((
            pem("store.certificate", chain)?,
            pem("store.certificate_key", key)?,
        )),
        (None, None) => None,
        _ => {
            return Err(Failure::usage(
                "`store.certificate` and `store.certificate_key` go together",
                "give both or neither",
            ));
        }
    };
    let root = config.ca.as_ref().map(|ca| pem("store.ca", ca));
    let root = root.transpose()?;
    Ok((root.is_some() || client.is_some()).then_some(Tls { root, client }))
}

fn pem(key: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| {
        Failure::usage(
            format!("`{key}` cannot be read ({})", error.kind()),
            "name a readable file in PEM form",
        )
    })
}

fn bounds(config: &Store) -> MemoryConfig {
    let defaults = MemoryConfig::default();
    MemoryConfig {
        keys_max: config.keys_max,
        journal: JournalConfig {
            commit_every: config.sync_interval,
            ..defaults.journal
        },
        ..defaults
    }
}

fn embedded(
    bounds: &MemoryConfig,
    directory: &Path,
    clock: &Arc<dyn Clock>,
) -> Result<AnyStore, Failure> {
    let opened = MemoryStore::open(directory, Arc::clone(clock), bounds);
    let (store, report) = opened.map_err(|error| {
        Failure::unavailable(
            format!("`{}`: {error}", directory.display()),
            "or choose another directory with `--store embedded:DIR`",
        )
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
    Ok(AnyStore::Embedded(store))
}

async fn postgres(config: &PostgresConfig) -> Result<AnyStore, Failure> {
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
    store
        .map(|store| AnyStore::Remote(store.into()))
        .map_err(|error| refused(&error))
}

/// How the configured Postgres is reached.
pub fn postgres_config(config: &Store, url: &str) -> Result<PostgresConfig, Failure> {
    let mut postgres = PostgresConfig::parse(url).map_err(|error| refused(&error))?;
    postgres.deadline = config.timeout;
    postgres.connect_timeout = config.connect_timeout;
    postgres.connections = usize::try_from(config.pool_max).unwrap_or(usize::MAX);
    postgres.lanes = postgres.lanes.min(postgres.connections);
    Ok(postgres)
}

fn refused(error: &StartError) -> Failure {
    let hint = "correct `--store`, or run `palisade migrate` with the same one";
    match error {
        StartError::Address(_) | StartError::Tls(_) => Failure::usage(error.to_string(), hint),
        StartError::Pooled => Failure::usage(
            error.to_string(),
            "in pgbouncer set `pool_mode = session` for this database, or name the Postgres server in `store.url`",
        ),
        _ => Failure::unavailable(error.to_string(), hint),
    }
}
