//! The data directory and the secret in it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use palisade::setup::{create_data_dir, read_secret, starting_secret};
use palisade_core::key::{Keyring, SECRET_BYTES_MIN};
use palisade_policy::Env;
use zeroize::Zeroizing;

use crate::config::{Config, Secret, SecretRef, StoreUrl};
use crate::failure::Failure;

pub use palisade::setup::{SECRET_FILE, try_write};

/// Name of the file that marks a data directory as copied, and when.
const BACKUP_MARK: &str = "backed-up";

/// Returns the data directory of a store that has one, and creates it if it is missing.
pub(crate) fn directory(store: &StoreUrl) -> Result<Option<PathBuf>, Failure> {
    let StoreUrl::Embedded(directory) = store else {
        return Ok(None);
    };
    create_data_dir(directory).map_err(|error| unusable(directory, &error))?;
    Ok(Some(directory.clone()))
}

/// Notes in a data directory that it was copied.
pub fn mark_backup(directory: &Path, taken_at: &str) -> std::io::Result<()> {
    let mark = directory.join(BACKUP_MARK);
    // A mark that another user left with an earlier copy can be replaced but not written.
    match std::fs::remove_file(&mark) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => std::fs::write(&mark, taken_at),
    }
}

/// Time of the last copy of a data directory in Unix seconds; 0 if it was never copied. It is the
/// time of the mark file and not its content, because the file may be unreadable for this user.
pub(super) fn last_backup(directory: &Path) -> u64 {
    let written = std::fs::metadata(directory.join(BACKUP_MARK)).and_then(|mark| mark.modified());
    let since = written.map(|at| at.duration_since(UNIX_EPOCH).unwrap_or_default());
    since.map_or(0, |since| since.as_secs())
}

fn unusable(directory: &Path, error: &std::io::Error) -> Failure {
    Failure::unavailable(
        format!(
            "the data directory `{}` cannot be written: {error}",
            directory.display()
        ),
        "make it writable for this user, choose another with `--store embedded:DIR`, or keep nothing with `--store memory:`",
    )
}

/// The secrets that key all digests.
pub struct Secrets {
    current: Zeroizing<Vec<u8>>,
    previous: Option<Secret>,
}

impl Secrets {
    /// Returns the configured secret, or that of the data directory, which is created if it is
    /// missing. Without either the secret is random and lasts as long as the process.
    pub fn of(given: GivenSecrets, directory: Option<&Path>) -> Result<Self, Failure> {
        let current = given.current.as_ref().map(Secret::to_bytes);
        let current = starting_secret(current, directory)
            .map_err(|error| unusable(directory.unwrap_or(Path::new("")), &error))?;
        Ok(Self {
            current,
            previous: given.previous,
        })
    }

    /// Returns the configured secret, or that of the data directory, and creates none.
    pub fn known(given: GivenSecrets, directory: Option<&Path>) -> Result<Self, Failure> {
        let current = match (given.current, directory) {
            (Some(secret), _) => Some(secret.to_bytes()),
            (None, Some(directory)) => read_secret(directory).ok(),
            (None, None) => None,
        };
        let current = current.ok_or_else(|| {
            Failure::usage(
                "there is no secret, and stored records can only be found with it",
                "set PALISADE_KEY or `[secrets] key`; a data directory keeps its own in the file `secret`: `key = \"file:DIR/secret\"`",
            )
        })?;
        Ok(Self {
            current,
            previous: given.previous,
        })
    }

    /// Derives the keys of digests from the secrets.
    pub fn keyring(&self) -> Result<Keyring, Failure> {
        let previous = self.previous.as_ref().map(Secret::expose);
        Keyring::new(&self.current, previous)
            .map_err(|error| Failure::usage(error.to_string(), TOO_SHORT))
    }
}

const TOO_SHORT: &str = "`openssl rand -hex 32` makes a good one";

/// The secrets that the configuration names.
pub struct GivenSecrets {
    current: Option<Secret>,
    previous: Option<Secret>,
}

impl GivenSecrets {
    /// True if the secret comes from the configuration and not from the data directory.
    pub const fn is_configured(&self) -> bool {
        self.current.is_some()
    }

    /// Reads the secrets from the variables or files that the configuration refers to.
    pub fn read(config: &Config, env: &Env) -> Result<Self, Failure> {
        let read = |key: &str, reference: &Option<SecretRef>| {
            let secret = reference.as_ref().map(|reference| reference.read(key, env));
            match secret.transpose()? {
                Some(secret) if secret.expose().len() < SECRET_BYTES_MIN => Err(Failure::usage(
                    format!("`{key}` refers to a secret shorter than {SECRET_BYTES_MIN} bytes"),
                    TOO_SHORT,
                )),
                secret => Ok(secret),
            }
        };
        Ok(Self {
            current: read("secrets.key", &config.secrets.key)?,
            previous: read("secrets.previous_key", &config.secrets.previous_key)?,
        })
    }
}
