//! The data directory and the secret in it.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use palisade_core::key::{Keyring, SECRET_BYTES_MIN};
use palisade_policy::Env;
use zeroize::Zeroizing;

use crate::config::{Config, Secret, SecretRef, StoreUrl};
use crate::failure::Failure;

/// Where the secret is kept in a data directory, if the configuration names none.
pub const SECRET_FILE: &str = "secret";
const SECRET_BYTES: usize = 32;
/// More than what a file system may keep beside the name of a file.
const PROBE_BYTES: usize = 64 * 1024;
/// Written in a data directory with each copy of it.
const BACKUP_MARK: &str = "backed-up";

/// The data directory of a store that has one, created if it is not there.
pub(crate) fn directory(store: &StoreUrl) -> Result<Option<PathBuf>, Failure> {
    let StoreUrl::Embedded(directory) = store else {
        return Ok(None);
    };
    let refused = |error: std::io::Error| unusable(directory, &error);
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(directory);
    made.map_err(refused)?;
    try_write(directory).map_err(refused)?;
    Ok(Some(directory.clone()))
}

/// Finds out, before something is to be kept, that nothing can be. An empty file would fit on a
/// full disk: bytes are written, and on the disk before it is said.
pub fn try_write(directory: &Path) -> std::io::Result<()> {
    let probe = directory.join(format!(".probe-{}", std::process::id()));
    let mut file = std::fs::File::create(&probe)?;
    let written = file.write_all(&[0; PROBE_BYTES]);
    let kept = written.and_then(|()| file.sync_all());
    let removed = std::fs::remove_file(&probe);
    kept.and(removed)
}

/// Notes in a data directory that it was copied.
pub fn mark_backup(directory: &Path, taken_at: &str) -> std::io::Result<()> {
    let mark = directory.join(BACKUP_MARK);
    // Another user's, from an earlier copy, can be replaced but not written.
    match std::fs::remove_file(&mark) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => std::fs::write(&mark, taken_at),
    }
}

/// When a data directory was last copied, in Unix seconds; 0 if it never was. The mark's own
/// time is asked for: whoever took the copy may have made it unreadable for this user.
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

/// The secrets of all digests.
pub struct Secrets {
    current: Zeroizing<Vec<u8>>,
    previous: Option<Secret>,
}

impl Secrets {
    /// Configured, else kept in the data directory, else random for as long as the
    /// process lives.
    pub fn of(given: GivenSecrets, directory: Option<&Path>) -> Result<Self, Failure> {
        let current = match (given.current, directory) {
            (Some(secret), _) => secret.expose().to_vec(),
            (None, Some(directory)) => {
                kept_secret(directory).map_err(|error| unusable(directory, &error))?
            }
            (None, None) => fresh_secret(),
        };
        Ok(Self {
            current: Zeroizing::new(current),
            previous: given.previous,
        })
    }

    /// Configured, else kept in the data directory; none is made.
    pub fn known(given: GivenSecrets, directory: Option<&Path>) -> Result<Self, Failure> {
        let current = match (given.current, directory) {
            (Some(secret), _) => Some(secret.expose().to_vec()),
            (None, Some(directory)) => read_secret(&directory.join(SECRET_FILE)).ok(),
            (None, None) => None,
        };
        let current = current.ok_or_else(|| {
            Failure::usage(
                "there is no secret, and what is stored can only be named with it",
                "set PALISADE_KEY or `[secrets] key`; a data directory keeps its own in the file `secret`: `key = \"file:DIR/secret\"`",
            )
        })?;
        Ok(Self {
            current: Zeroizing::new(current),
            previous: given.previous,
        })
    }

    /// The secrets, expanded.
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
    /// True if the configuration names the secret: it is not the data directory's.
    pub const fn is_configured(&self) -> bool {
        self.current.is_some()
    }

    /// Reads them from where they are.
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

/// It does not end like a line: a configuration that names the file as `file:PATH` takes a
/// final line break for none of the secret.
fn fresh_secret() -> Vec<u8> {
    loop {
        let secret = rand::random::<[u8; SECRET_BYTES]>();
        if !secret.ends_with(b"\n") && !secret.ends_with(b"\r") {
            return secret.to_vec();
        }
    }
}

/// Reads the secret, or makes one that only this user can read.
fn kept_secret(directory: &Path) -> std::io::Result<Vec<u8>> {
    let path = directory.join(SECRET_FILE);
    match read_secret(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => create_secret(directory, &path),
        other => other,
    }
}

fn read_secret(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut secret = Vec::new();
    std::fs::File::open(path)?
        .take(4096)
        .read_to_end(&mut secret)?;
    if secret.len() < SECRET_BYTES_MIN {
        return Err(std::io::Error::new(
            ErrorKind::InvalidData,
            "the file `secret` in it is too short to be one; restore it, or remove it to start with a new secret (blocks and counters are then forgotten)",
        ));
    }
    Ok(secret)
}

/// The file appears whole or not at all, and never replaces one of another process.
fn create_secret(directory: &Path, path: &Path) -> std::io::Result<Vec<u8>> {
    use std::os::unix::fs::OpenOptionsExt;
    let secret = fresh_secret();
    let draft = directory.join(format!(".secret-{}", std::process::id()));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(&secret)?;
    file.sync_all()?;
    let linked = std::fs::hard_link(&draft, path);
    std::fs::remove_file(&draft)?;
    match linked {
        Ok(()) => {
            std::fs::File::open(directory)?.sync_all()?;
            Ok(secret)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => read_secret(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_made_once_and_only_its_owner_reads_it() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let first = kept_secret(directory.path()).unwrap();
        assert_eq!(kept_secret(directory.path()).unwrap(), first);
        let meta = std::fs::metadata(directory.path().join(SECRET_FILE)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_fresh_secret_is_the_same_read_as_a_line() {
        for _ in 0..5_000 {
            let last = fresh_secret().pop();
            assert!(last != Some(b'\n') && last != Some(b'\r'));
        }
    }

    #[test]
    fn a_truncated_secret_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(SECRET_FILE), b"short").unwrap();
        assert!(kept_secret(directory.path()).is_err());
        let kept = std::fs::read(directory.path().join(SECRET_FILE)).unwrap();
        assert_eq!(kept, b"short");
    }
}
