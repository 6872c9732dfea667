//! `palisade migrate`: brings the Postgres schema up to date.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use palisade::store::postgres::{PostgresConfig, SCHEMA_VERSION, migrate};
use palisade_policy::{Env, Overrides, SourceUrl};
use palisade_server::config::{self, Config, PostgresUrl, StoreUrl};
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::{output, store};
use serde_json::json;

use super::offline;

/// Brings the Postgres schema up to date in every database that the configuration names: those of
/// the store, the policy source and the audit.
#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The store, `postgres://…`
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Migrate {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let flags = Overrides::default().with("--store", "store.url", self.store);
        let config = config::load(self.config.as_deref(), &Env::from_process(), &flags)?;
        let databases = databases(&config)?;
        let runtime = offline::runtime()?;
        let mut applied = BTreeSet::new();
        for database in &databases {
            let new = runtime.block_on(migrate(database)).map_err(|error| {
                Failure::unavailable(
                    error.to_string(),
                    "check that the server runs and that this user may create tables",
                )
            })?;
            applied.extend(new);
        }
        if self.json {
            output::json(&json!({ "version": SCHEMA_VERSION, "applied": applied }));
        } else if applied.is_empty() {
            output::line(&format!(
                "schema is at version {SCHEMA_VERSION}: nothing to do"
            ));
        } else {
            output::line(&format!("schema brought to version {SCHEMA_VERSION}"));
        }
        Ok(CommandStatus::Done)
    }
}

/// Returns every database once.
fn databases(config: &Config) -> Result<Vec<PostgresConfig>, Failure> {
    let mut urls = BTreeSet::new();
    if let StoreUrl::Postgres(url) = &config.store.url {
        urls.insert(url.as_str());
    }
    if let SourceUrl::Postgres(url) = &config.source.source {
        urls.insert(url.as_str());
    }
    urls.extend(config.audit.postgres.as_ref().map(PostgresUrl::as_str));
    if urls.is_empty() {
        return Err(Failure::usage(
            "only Postgres has a schema, and the configuration names none",
            "name it with `--store postgres://…`, `policy.source` or `audit.postgres`",
        ));
    }
    let parse = |url| store::postgres_config(&config.store, url);
    urls.into_iter().map(parse).collect()
}
