//! `palisade migrate`.

use std::path::PathBuf;

use clap::Args;
use palisade::store::postgres::{SCHEMA_VERSION, migrate};
use palisade_policy::{Env, Overrides, StoreUrl};
use serde_json::json;

use super::offline;
use crate::failure::{Ending, Failure};
use crate::{output, store};

/// Brings the Postgres schema up to date.
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
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let flags = Overrides {
            store: self.store,
            ..Overrides::default()
        };
        let config = palisade_policy::load(self.config.as_deref(), &Env::from_process(), &flags)?;
        let StoreUrl::Postgres(url) = &config.store.url else {
            return Err(Failure::usage(
                "only a Postgres store has a schema",
                "name it with `--store postgres://…`",
            ));
        };
        let postgres = store::postgres_config(&config.store, url.as_str())?;
        let applied = offline::runtime()?
            .block_on(migrate(&postgres))
            .map_err(|error| {
                Failure::unavailable(
                    error.to_string(),
                    "check that the server runs and that this user may create tables",
                )
            })?;
        if self.json {
            output::json(&json!({ "version": SCHEMA_VERSION, "applied": applied }));
        } else if applied.is_empty() {
            output::line(&format!(
                "schema is at version {SCHEMA_VERSION}: nothing to do"
            ));
        } else {
            output::line(&format!("schema brought to version {SCHEMA_VERSION}"));
        }
        Ok(Ending::Done)
    }
}
