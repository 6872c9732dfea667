//! `palisade export`: writes what a store keeps of people to a file that another store can take.

use std::fs::{File, OpenOptions};
use std::io::BufWriter;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use palisade::state::{self, Counts};
use palisade::store::Store;
use palisade::store::memory::MemoryStore;
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;
use palisade_server::store::{PreparedStore, opening};
use serde_json::json;

use super::super::offline;
use super::{NamedStore, StoreArgs, failed};

/// Writes the lasting state of a store to a file that another store can import.
///
/// The file contains guard and lockout records, the allowlist, tiers, registered API keys and OAuth
/// clients, and the use of quotas, but not the windows of limits. Servers may run meanwhile. Names
/// in the file are digests under the secret, so that a store with another secret refuses it.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// File to write; it must not exist yet
    file: PathBuf,
    #[command(flatten)]
    place: StoreArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Export {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let found = self.place.find()?;
        let counts = offline::runtime()?.block_on(self.export(&found))?;
        if self.json {
            output::json(&json!({ "file": self.file, "exported": counts }));
        } else {
            output::line(&format!("{}: {}", self.file.display(), words(&counts)));
        }
        Ok(CommandStatus::Done)
    }

    async fn export(&self, found: &NamedStore) -> Result<Counts, Failure> {
        let keyring = found.keyring()?;
        let store = reader(found).await?;
        let file = self.create()?;
        let policy = found.config.policy();
        let counts = state::export(&*store, policy, &keyring, BufWriter::new(&file)).await;
        let counts = counts.map_err(|error| failed(&error))?;
        file.sync_all().map_err(|error| failed(&error.into()))?;
        Ok(counts)
    }

    fn create(&self) -> Result<File, Failure> {
        let mut options = OpenOptions::new();
        let created = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.file);
        created.map_err(|error| {
            Failure::usage(
                format!("cannot create `{}`: {error}", self.file.display()),
                "name a new file in a directory that this user can write",
            )
        })
    }
}

/// A store to read from. A data directory is only looked at: its server may hold it.
async fn reader(found: &NamedStore) -> Result<Arc<dyn Store>, Failure> {
    match opening(&found.config.store)? {
        PreparedStore::Embedded(bounds, directory) => {
            let looked = MemoryStore::look(&directory, Arc::clone(&found.clock), &bounds);
            let (store, report) = looked.map_err(|error| {
                Failure::unavailable(
                    format!("`{}`: {error}", directory.display()),
                    "`--store embedded:DIR` or `--config` names the data directory",
                )
            })?;
            if report.is_damaged() {
                output::error_line(&format!("warning: the journal is damaged: {report}"));
            }
            Ok(Arc::new(store))
        }
        PreparedStore::Memory(_) => Err(Failure::usage(
            "`memory:` keeps nothing that could be written",
            "name another store with `--store`",
        )),
        other => Ok(other.open(&found.clock).await?),
    }
}

/// Returns the counts in words.
pub(super) fn words(counts: &Counts) -> String {
    let Counts {
        records,
        entries,
        quotas,
    } = counts;
    format!("{records} records, {entries} registry entries, {quotas} quotas")
}
