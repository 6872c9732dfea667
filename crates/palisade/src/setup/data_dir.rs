//! The data directory of an embedded store, and the secret in it.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use palisade_core::key::SECRET_BYTES_MIN;
use zeroize::Zeroizing;

/// File of the secret in a data directory.
pub const SECRET_FILE: &str = "secret";
/// Variable of the secret, unless the configuration names another.
pub const SECRET_VARIABLE: &str = "PALISADE_KEY";
const SECRET_BYTES: usize = 32;
/// More bytes than a file system may store inline, in the entry of the file.
const PROBE_BYTES: usize = 64 * 1024;

/// Creates a data directory if it is not there, readable by this user only.
///
/// # Errors
/// The directory cannot be created or written, which is found out here and not at the first write.
pub fn create_data_dir(directory: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory)?;
    try_write(directory)
}

/// Checks that the directory can be written, before the first change has to be stored. An empty
/// file would fit on a full disk, so bytes are written and synced.
///
/// # Errors
/// No file can be created in the directory, or not all bytes can be written.
pub fn try_write(directory: &Path) -> Result<()> {
    let probe = directory.join(format!(".probe-{}", std::process::id()));
    let mut file = std::fs::File::create(&probe)?;
    let written = file.write_all(&[0; PROBE_BYTES]);
    let kept = written.and_then(|()| file.sync_all());
    let removed = std::fs::remove_file(&probe);
    kept.and(removed)
}

/// Returns a random secret that does not end with a line break, which [`without_line_end`] would
/// cut off.
fn fresh_secret() -> Zeroizing<Vec<u8>> {
    loop {
        let secret = rand::random::<[u8; SECRET_BYTES]>();
        if !secret.ends_with(b"\n") && !secret.ends_with(b"\r") {
            return Zeroizing::new(secret.to_vec());
        }
    }
}

/// The secret as text files and variables hold it, without a final line break.
pub fn without_line_end(secret: &[u8]) -> &[u8] {
    let end = secret.strip_suffix(b"\n").unwrap_or(secret);
    end.strip_suffix(b"\r").unwrap_or(end)
}

/// The secret to start with: the given one, otherwise that of the data directory, otherwise a
/// random one for the life of the process.
///
/// # Errors
/// The secret of the data directory cannot be read or written, or is too short to be one.
pub fn starting_secret(
    given: Option<Zeroizing<Vec<u8>>>,
    directory: Option<&Path>,
) -> Result<Zeroizing<Vec<u8>>> {
    match (given, directory) {
        (Some(secret), _) => Ok(secret),
        (None, Some(directory)) => kept_secret(directory),
        (None, None) => Ok(fresh_secret()),
    }
}

/// The secret of a data directory. The first call creates it, readable by this user only.
///
/// # Errors
/// The secret cannot be read or written, or the file is too short to be a secret.
fn kept_secret(directory: &Path) -> Result<Zeroizing<Vec<u8>>> {
    match read_secret(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => create_secret(directory),
        other => other,
    }
}

/// The secret of a data directory, if there is one.
///
/// # Errors
/// The secret cannot be read, or the file is too short to be a secret.
pub fn read_secret(directory: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let mut secret = Zeroizing::new(Vec::new());
    std::fs::File::open(directory.join(SECRET_FILE))?
        .take(4096)
        .read_to_end(&mut secret)?;
    if secret.len() < SECRET_BYTES_MIN {
        return Err(Error::new(
            ErrorKind::InvalidData,
            "the file `secret` in it is too short to be one; restore it, or remove it to start with a new secret (blocks and counters are then forgotten)",
        ));
    }
    Ok(secret)
}

/// Creates the secret's file. The file appears whole or not at all, and never replaces one of
/// another process.
fn create_secret(directory: &Path) -> Result<Zeroizing<Vec<u8>>> {
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
    // Not a rename: that would replace the secret of a process that was faster. A link fails if the
    // file is there.
    let linked = std::fs::hard_link(&draft, directory.join(SECRET_FILE));
    std::fs::remove_file(&draft)?;
    match linked {
        Ok(()) => {
            std::fs::File::open(directory)?.sync_all()?;
            Ok(secret)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => read_secret(directory),
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
            let secret = fresh_secret();
            assert_eq!(without_line_end(&secret), secret.as_slice());
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
