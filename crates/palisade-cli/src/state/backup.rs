//! `palisade backup`: copies the embedded store, also while its server runs.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::Args;
use palisade::store::memory::backup;
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;
use palisade_server::serve::{SECRET_FILE, mark_backup};
use serde_json::json;
use zeroize::Zeroizing;

use super::manifest::{Manifest, write_private};
use super::{NamedStore, StoreArgs, is_open_to_others, not_copied};

/// Copies the embedded store, also while its server runs.
///
/// The copy contains what a crash at that moment would have left: quotas, windows of 10 minutes and
/// longer, blocks and the allowlist, up to the last 100 ms. The secret is copied, too, unless the
/// configuration names one.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// Directory to write to; it is created, or must be empty and closed to other users
    #[arg(value_name = "DIR")]
    to: PathBuf,
    #[command(flatten)]
    place: StoreArgs,
    /// Leave out the data directory's secret. Keep it elsewhere: the copy is useless without it
    #[arg(long)]
    without_secret: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Backup {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let found = self.place.find()?;
        let data = found.directory()?;
        let keyring = found.keyring()?;
        self.prepare()?;
        let taken_at = found.now();
        let copied = backup::copy(data, &self.to).map_err(|error| not_copied(&error))?;
        let written = self.copy_secret(&found, data).and_then(|()| {
            Manifest::write(&self.to, taken_at, copied.changes, &keyring)
                .map_err(|error| self.refused(&error))
        })?;
        self.print(&written, copied.skipped_frames);
        // A damaged copy must not count as the last backup that was made.
        if copied.skipped_frames > 0 {
            return Ok(CommandStatus::Negative);
        }
        if let Err(error) = mark_backup(data, &written.taken_at) {
            output::error_line(&format!(
                "warning: the copy is whole, but its server will not know of it: `{}` cannot be \
                 written ({error}); run this as the server's user",
                data.display()
            ));
        }
        Ok(CommandStatus::Done)
    }

    /// Makes sure that the directory exists, is empty, and is open to this user only, as a new one
    /// is.
    fn prepare(&self) -> Result<(), Failure> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.to);
        let is_empty = made.and_then(|()| Ok(std::fs::read_dir(&self.to)?.next().is_none()));
        match is_empty {
            Ok(true) if is_open_to_others(&self.to) => Err(Failure::usage(
                format!(
                    "others may enter `{}`, and a copy is a secret",
                    self.to.display()
                ),
                "`chmod 700` it, or name a directory that is not there yet",
            )),
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::usage(
                format!("`{}` is not empty", self.to.display()),
                "name a directory of its own for each backup",
            )),
            Err(error) => Err(self.refused(&error)),
        }
    }

    fn copy_secret(&self, found: &NamedStore, data: &Path) -> Result<(), Failure> {
        if self.without_secret || found.given()?.is_configured() {
            return Ok(());
        }
        let copied = std::fs::read(data.join(SECRET_FILE))
            .map(Zeroizing::new)
            .and_then(|secret| write_private(&self.to.join(SECRET_FILE), &secret));
        copied.map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &std::io::Error) -> Failure {
        let hint = match error.kind() {
            ErrorKind::StorageFull => "make room, or name another directory",
            _ => "name a directory that this user can write",
        };
        Failure::unavailable(
            format!("`{}` cannot be written: {error}", self.to.display()),
            hint,
        )
    }

    fn print(&self, written: &Manifest, skipped: u32) {
        if self.json {
            output::json(&json!({
                "directory": self.to,
                "taken_at": written.taken_at,
                "bytes": written.bytes(),
                "changes": written.changes,
                "secret": written.has_secret(),
                "damaged_frames": skipped,
            }));
            return;
        }
        output::line(&format!(
            "{}: {} changes, {} bytes, as of {}",
            self.to.display(),
            written.changes,
            written.bytes(),
            written.taken_at
        ));
        if !written.has_secret() {
            output::line("  the secret is not in it: keep it where it is, the copy needs it");
        }
        if skipped > 0 {
            output::error_line(&format!(
                "warning: {skipped} damaged frames of the data directory are not in it; look at its disk"
            ));
        }
    }
}
