//! Commands that copy, put back and move what a store keeps.

mod backup;
mod export;
mod import;
mod manifest;
mod restore;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use palisade::SystemClock;
use palisade::state::StateError;
use palisade::store::memory::backup::BackupError;
use palisade_core::key::Keyring;
use palisade_core::time::Clock;
use palisade_policy::{Env, Overrides};

use palisade_server::config::{self, Config, StoreUrl};
use palisade_server::failure::Failure;
use palisade_server::serve::{GivenSecrets, Secrets};

pub(super) use backup::Backup;
pub(super) use export::Export;
pub(super) use import::ImportState;
pub(super) use restore::Restore;

/// Shortest deadline of a call. A store that works in bulk may take longer than one that a request
/// waits for.
const PATIENCE_MIN: Duration = Duration::from_secs(10);

/// The store to work on.
#[derive(Debug, Args)]
struct StoreArgs {
    /// Configuration file of the server
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Store: embedded:DIR · redis://… · postgres://… [default: as configured]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

/// The store that was named, and everything needed to read it.
struct NamedStore {
    config: Config,
    env: Env,
    clock: Arc<dyn Clock>,
}

impl StoreArgs {
    fn find(&self) -> Result<NamedStore, Failure> {
        let env = Env::from_process();
        let flags = Overrides::default().with("--store", "store.url", self.store.clone());
        let mut config = config::load(self.config.as_deref(), &env, &flags)?;
        config.store.timeout = config.store.timeout.max(PATIENCE_MIN);
        Ok(NamedStore {
            config,
            env,
            clock: Arc::new(SystemClock::new()),
        })
    }
}

impl NamedStore {
    /// Returns the secrets that the configuration names.
    fn given(&self) -> Result<GivenSecrets, Failure> {
        GivenSecrets::read(&self.config, &self.env)
    }

    /// Returns the secrets in force.
    fn keyring(&self) -> Result<Keyring, Failure> {
        let directory = match &self.config.store.url {
            StoreUrl::Embedded(directory) => Some(directory.as_path()),
            _ => None,
        };
        Secrets::known(self.given()?, directory)?.keyring()
    }

    /// Returns the data directory; only the embedded store has one.
    fn directory(&self) -> Result<&Path, Failure> {
        match &self.config.store.url {
            StoreUrl::Embedded(directory) => Ok(directory),
            _ => Err(Failure::usage(
                "only the embedded store is copied: others have backups of their own",
                "use those of Redis or Postgres; `palisade export` writes what Palisade keeps there",
            )),
        }
    }

    fn now(&self) -> String {
        self.clock.now().to_rfc3339()
    }
}

/// Returns the failure that a command ends with after an error, including advice.
fn failed(error: &StateError) -> Failure {
    match error {
        StateError::Store(_) => Failure::unavailable(
            error.to_string(),
            "see that the store runs and takes writes, then run the command again: nothing is done twice",
        ),
        StateError::OtherSecret => Failure::usage(
            error.to_string(),
            "set PALISADE_KEY or `[secrets] key` to the secret of the store it came from (a data directory keeps its own in the file `secret`)",
        ),
        _ => Failure::usage(error.to_string(), "name a file of `palisade export`"),
    }
}

/// True if other users may enter a directory. One that cannot be looked at fails where it is used.
fn is_open_to_others(directory: &Path) -> bool {
    std::fs::metadata(directory).is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0)
}

fn not_copied(error: &BackupError) -> Failure {
    let message = error.to_string();
    match error {
        BackupError::Data(_) => Failure::unavailable(
            message,
            "`--store embedded:DIR` or `--config` names the data directory; a server that holds it must be stopped before it is restored",
        ),
        BackupError::NotEmpty => Failure::usage(
            message,
            "`--replace` moves what is there into a folder of its own first",
        ),
        BackupError::Copy(_) | BackupError::Damaged => {
            Failure::usage(message, "name a directory of `palisade backup`")
        }
    }
}
