//! `palisade import-state`: puts an export into a store.

use std::path::PathBuf;

use clap::Args;
use palisade::state::{self, ExistingItems, ImportSummary, VerifiedFile};
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;
use palisade_server::store::{self, PreparedStore};
use serde_json::json;

use super::super::offline;
use super::export::words;
use super::{NamedStore, StoreArgs, failed};

/// Imports a file of `palisade export` into another store.
///
/// The whole file is read first. A file that is damaged or belongs to another secret changes
/// nothing. Expired entries are left out, existing ones are kept, and the use of a quota is only
/// raised, so that a second import changes nothing. Redis and Postgres may be in use meanwhile. The
/// server of an embedded store must be stopped. The exit code is 1 if the policy does not know all
/// API keys of the file.
#[derive(Debug, Args)]
pub(crate) struct ImportState {
    /// File that `palisade export` wrote
    file: PathBuf,
    #[command(flatten)]
    place: StoreArgs,
    /// Replace records and entries that the store already has
    #[arg(long)]
    replace: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ImportState {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let found = self.place.find()?;
        let (verified, imported) = offline::runtime()?.block_on(self.import(&found))?;
        self.print(&verified, &imported);
        Ok(match imported.unknown_api_keys {
            0 => CommandStatus::Done,
            _ => CommandStatus::Negative,
        })
    }

    async fn import(&self, found: &NamedStore) -> Result<(VerifiedFile, ImportSummary), Failure> {
        let keyring = found.keyring()?;
        let verified = VerifiedFile::read(offline::lines(&self.file)?, &keyring)
            .map_err(|error| failed(&error))?;
        if matches!(
            store::opening(&found.config.store)?,
            PreparedStore::Memory(_)
        ) {
            return Err(Failure::usage(
                "`memory:` would forget it at once",
                "name another store with `--store`",
            ));
        }
        let store = store::open(&found.config.store, &found.clock).await?;
        let existing = match self.replace {
            true => ExistingItems::Replace,
            false => ExistingItems::Keep,
        };
        let policy = found.config.policy();
        let lines = offline::lines(&self.file)?;
        let imported = state::import(&*store, policy, &keyring, lines, existing).await;
        Ok((verified, imported.map_err(|error| failed(&error))?))
    }

    fn print(&self, verified: &VerifiedFile, imported: &ImportSummary) {
        if self.json {
            output::json(&json!({ "file": verified.counts, "imported": imported }));
            return;
        }
        output::line(&format!(
            "written        {}\nkept           {}\nended since    {}",
            words(&imported.written),
            words(&imported.kept),
            words(&imported.expired)
        ));
        if imported.unknown_api_keys > 0 {
            output::error_line(&format!(
                "warning: {} API keys of the file are not in this policy: what they used is not moved; name the policy file with `--config`",
                imported.unknown_api_keys
            ));
        }
    }
}
