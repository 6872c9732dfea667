//! `manifest.json`: the contents of a backup, with checksums to verify it.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use palisade::store::memory::backup::{BURST, STATE};
use palisade_core::Digest;
use palisade_core::key::Keyring;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use palisade_server::failure::Failure;
use palisade_server::serve::SECRET_FILE;

const NAME: &str = "manifest.json";
const VERSION: u32 = 1;
/// Longest manifest that is read. A manifest has a few hundred bytes.
const BYTES_MAX: u64 = 64 * 1024;

/// The contents of a backup.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    palisade_backup: u32,
    pub(super) taken_at: String,
    pub(super) changes: u64,
    /// Fingerprints of the secrets that the digests were made under.
    secrets: Vec<String>,
    files: Vec<FileSum>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileSum {
    name: String,
    bytes: u64,
    sha256: String,
}

impl Manifest {
    /// Computes the checksums of a backup's files and writes the manifest beside them, last.
    pub(super) fn write(
        copy: &Path,
        taken_at: String,
        changes: u64,
        keyring: &Keyring,
    ) -> std::io::Result<Self> {
        let manifest = Self {
            palisade_backup: VERSION,
            taken_at,
            changes,
            secrets: fingerprints(keyring),
            files: sums(copy)?,
        };
        // Last: a directory without a manifest is a backup that was interrupted.
        write_private(&copy.join(NAME), &serde_json::to_vec_pretty(&manifest)?)?;
        File::open(copy)?.sync_all()?;
        Ok(manifest)
    }

    /// Reads the manifest of a backup, and checks that its files are unchanged.
    pub(super) fn read(copy: &Path) -> Result<Self, Failure> {
        let path = copy.join(NAME);
        let refused = |why: &str| {
            Failure::usage(
                format!("`{}` is not a complete backup: {why}", copy.display()),
                "name a directory of `palisade backup`, or another copy of it",
            )
        };
        let mut text = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut text));
        read.map_err(|_| refused("it has no `manifest.json`, which is written last"))?;
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|_| refused("its `manifest.json` cannot be read"))?;
        if manifest.palisade_backup != VERSION {
            return Err(refused("another version of palisade wrote it"));
        }
        let found = sums(copy).map_err(|_| refused("its files cannot be read"))?;
        if found != manifest.files {
            return Err(refused(
                "its files are not the ones that `manifest.json` names",
            ));
        }
        Ok(manifest)
    }

    /// True if the backup contains the secret.
    pub(super) fn has_secret(&self) -> bool {
        self.files.iter().any(|file| file.name == SECRET_FILE)
    }

    /// True if the backup's digests were made under secrets of this keyring.
    pub(super) fn fits(&self, keyring: &Keyring) -> bool {
        let known = fingerprints(keyring);
        self.secrets.iter().all(|secret| known.contains(secret))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

fn fingerprints(keyring: &Keyring) -> Vec<String> {
    let names = keyring.fingerprints();
    let all = [Some(names.current), names.previous];
    all.into_iter().flatten().map(Digest::hex).collect()
}

fn sums(copy: &Path) -> std::io::Result<Vec<FileSum>> {
    let mut found = Vec::new();
    for name in [STATE, BURST, SECRET_FILE] {
        match sum(&copy.join(name)) {
            Ok((bytes, sha256)) => found.push(FileSum {
                name: name.to_owned(),
                bytes,
                sha256,
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn sum(path: &Path) -> std::io::Result<(u64, String)> {
    let (mut file, mut sum) = (File::open(path)?, Sha256::new());
    let (mut piece, mut bytes) = (vec![0; 1 << 16], 0);
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            let digest = sum.finalize();
            let hex = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            return Ok((bytes, hex));
        }
        bytes += count as u64;
        sum.update(&piece[..count]);
    }
}

/// Writes a file that only this user can read, and syncs it to disk.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
