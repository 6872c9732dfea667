//! `palisade restore`: puts a backup into the data directory of a stopped server.

use std::path::{Path, PathBuf};

use clap::Args;
use palisade::store::memory::backup;
use palisade_core::key::Keyring;
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;
use palisade_server::serve::SECRET_FILE;
use serde_json::json;
use zeroize::Zeroizing;

use super::manifest::{Manifest, write_private};
use super::{NamedStore, StoreArgs, is_open_to_others, not_copied};

/// Puts a copy of `palisade backup` into the data directory of a stopped server.
///
/// The whole copy is read first. A copy that is incomplete or belongs to another secret changes
/// nothing.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// Directory that `palisade backup` wrote
    #[arg(value_name = "DIR")]
    from: PathBuf,
    #[command(flatten)]
    place: StoreArgs,
    /// First move the present content of the data directory into a folder `before-TIME` in it
    #[arg(long)]
    replace: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Restore {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let found = self.place.find()?;
        let data = found.directory()?;
        let manifest = Manifest::read(&self.from)?;
        // All that can be refused is refused here, before anything is moved.
        self.check_secret(&found, &manifest)?;
        backup::check(&self.from).map_err(|error| not_copied(&error))?;
        let aside = match self.replace {
            true => self.set_aside(&found, data)?,
            false => None,
        };
        self.restore_secret(&found, &manifest, data)?;
        let restored = backup::restore(&self.from, data).map_err(|error| not_copied(&error))?;
        if is_open_to_others(data) {
            let data = data.display();
            output::error_line(&format!(
                "warning: others may enter the data directory `{data}`\n  help: chmod 700 {data}"
            ));
        }
        if self.json {
            output::json(&json!({
                "directory": data,
                "taken_at": manifest.taken_at,
                "changes": restored.changes,
                "moved_to": aside,
            }));
            return Ok(CommandStatus::Done);
        }
        output::line(&format!(
            "{}: restored as of {}; start the server",
            data.display(),
            manifest.taken_at
        ));
        if let Some(aside) = aside {
            output::line(&format!(
                "  the previous content is in {}: remove it when all is well",
                aside.display()
            ));
        }
        Ok(CommandStatus::Done)
    }

    /// Checks that a configured secret is the copy's; without one the copy must contain its own.
    fn check_secret(&self, found: &NamedStore, manifest: &Manifest) -> Result<(), Failure> {
        let keyring = match found.given()?.is_configured() {
            true => found.keyring()?,
            false if manifest.has_secret() => {
                let secret = std::fs::read(self.from.join(SECRET_FILE)).map(Zeroizing::new);
                let secret = secret.map_err(|error| unwritable(&self.from, &error))?;
                Keyring::new(&secret, None)
                    .map_err(|error| Failure::usage(error.to_string(), "use another backup"))?
            }
            false => found.keyring()?,
        };
        match manifest.fits(&keyring) {
            true => Ok(()),
            false => Err(Failure::usage(
                "the backup was taken under another secret: nothing in it would be found",
                "set PALISADE_KEY or `[secrets] key` to the secret of that time",
            )),
        }
    }

    fn set_aside(&self, found: &NamedStore, data: &Path) -> Result<Option<PathBuf>, Failure> {
        let stamp = found.now().replace(':', "");
        backup::set_aside(data, &format!("before-{stamp}"), &[SECRET_FILE])
            .map_err(|error| not_copied(&error))
    }

    fn restore_secret(
        &self,
        found: &NamedStore,
        manifest: &Manifest,
        data: &Path,
    ) -> Result<(), Failure> {
        if !manifest.has_secret() || found.given()?.is_configured() {
            return Ok(());
        }
        backup::prepare(data).map_err(|error| not_copied(&error))?;
        let secret = std::fs::read(self.from.join(SECRET_FILE)).map(Zeroizing::new);
        let secret = secret.map_err(|error| unwritable(&self.from, &error))?;
        let path = data.join(SECRET_FILE);
        match std::fs::read(&path).map(Zeroizing::new) {
            Ok(there) if there == secret => Ok(()),
            Ok(_) => Err(Failure::usage(
                format!("`{}` holds another secret", data.display()),
                "`--replace` moves what is there into a folder of its own first",
            )),
            Err(_) => write_private(&path, &secret).map_err(|error| unwritable(data, &error)),
        }
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::unavailable(
        format!("`{}` cannot be read or written: {error}", path.display()),
        "look at its owner and mode",
    )
}
