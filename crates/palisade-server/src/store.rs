//! Builds the store from the configuration.

pub mod risks;

use std::path::Path;
use std::sync::Arc;

use palisade::setup::{OpeningError, StoreConfig};
use palisade::store::Store;
use palisade::store::postgres::{PostgresConfig, StartError};
use palisade::store::redis::Tls;
use palisade_core::time::Clock;

use crate::config;
use crate::failure::Failure;

pub use palisade::setup::PreparedStore;

/// The configured store, not opened yet. Needs a Tokio runtime.
pub fn opening(config: &config::Store) -> Result<PreparedStore, Failure> {
    Ok(PreparedStore::of(&settings(config)?)?)
}

/// Opens the configured store.
pub async fn open(
    config: &config::Store,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Store>, Failure> {
    Ok(opening(config)?.open(clock).await?)
}

/// The connection settings of a Postgres at `url`.
pub fn postgres_config(config: &config::Store, url: &str) -> Result<PostgresConfig, Failure> {
    palisade::setup::postgres_config(&settings(config)?, url).map_err(|error| refused(&error))
}

fn settings(config: &config::Store) -> Result<StoreConfig, Failure> {
    Ok(StoreConfig {
        url: config.url.clone(),
        timeout: config.timeout,
        connect_timeout: config.connect_timeout,
        pool_max: config.pool_max,
        keys_max: config.keys_max,
        sync_interval: config.sync_interval,
        key_prefix: config.key_prefix.clone(),
        wait_replicas: config.wait_replicas,
        tls: certificates(config)?,
    })
}

fn certificates(config: &config::Store) -> Result<Option<Tls>, Failure> {
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

impl From<OpeningError> for Failure {
    fn from(error: OpeningError) -> Self {
        match &error {
            OpeningError::Directory { .. } => Self::unavailable(
                error.to_string(),
                "or choose another directory with `--store embedded:DIR`",
            ),
            OpeningError::Postgres(error) => refused(error),
            OpeningError::Redis(_) | OpeningError::FeatureOff(_) => {
                Self::usage(error.to_string(), "correct `store.url` (`--store`)")
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_opens_stores_with_the_defaults_of_the_configuration() {
        let env = palisade_policy::Env::default();
        let config = crate::config::load(None, &env, &palisade_policy::Overrides::default());
        let server = settings(&config.unwrap().store).unwrap();
        let library = StoreConfig::new(server.url.clone());
        let shown = |config: &StoreConfig| {
            let StoreConfig {
                url,
                timeout,
                connect_timeout,
                pool_max,
                keys_max,
                sync_interval,
                key_prefix,
                wait_replicas,
                tls,
            } = config;
            let tls = tls.is_some();
            format!(
                "{url:?} {timeout:?} {connect_timeout:?} {pool_max} {keys_max} {sync_interval:?} {key_prefix:?} {wait_replicas} {tls}"
            )
        };
        assert_eq!(shown(&server), shown(&library));
    }
}
