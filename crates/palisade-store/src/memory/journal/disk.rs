//! The operations that the journal needs of a directory. They are a trait so that a full disk, a
//! torn write and a failed sync can be tested.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A directory of files.
pub(crate) trait Disk: Send + Sync + 'static {
    /// Path of the directory, for logs.
    fn place(&self) -> String;
    /// Names of the files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Opens a file to be read from its start.
    fn read(&self, name: &str) -> io::Result<Box<dyn Read>>;
    /// Creates a file, or empties one that exists.
    fn create(&self, name: &str) -> io::Result<Box<dyn Sink>>;
    /// Truncates a file to `len` bytes.
    fn truncate(&self, name: &str, len: u64) -> io::Result<()>;
    /// Renames a file, replacing one that exists.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync(&self) -> io::Result<()>;
}

/// A file that is appended to.
pub(crate) trait Sink: Send {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes what was appended durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// Reason why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The path exists, but is no directory.
    #[error("the data directory is not a directory; give another path")]
    NotADirectory,
    /// The directory cannot be created or written.
    #[error(
        "the data directory cannot be written; check its owner, its mode and that the file system is not read-only"
    )]
    Unwritable,
    /// The disk has no space left.
    #[error("the disk of the data directory is full; make room and start again")]
    Full,
    /// Another process holds the directory.
    #[error("the data directory is in use by another process; stop it or give each its own")]
    Locked,
    /// A newer version wrote the directory.
    #[error(
        "the data directory was written by a newer version; use that version, or an empty directory"
    )]
    Newer,
    /// Any other error.
    #[error("the data directory cannot be used: {0}")]
    Io(#[source] io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::Unwritable,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full,
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists => Self::NotADirectory,
            _ => Self::Io(error),
        }
    }
}

const LOCK: &str = "lock";

/// A directory of the file system.
pub(crate) struct Directory {
    path: PathBuf,
    /// The lock, which this process holds for as long as the file is open; `None` if it only
    /// reads.
    lock: Option<File>,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // To close the file is not enough: a child that another thread has just forked has it
        // open until it runs its own program, and would keep the lock for that time.
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

impl Directory {
    /// Reads a directory that another process may hold. Nothing must be written to it.
    pub(crate) fn look(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            lock: None,
        }
    }

    /// Holds a directory alone, and creates it if need be.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        // Any process that can open the file can take its lock: no other user may.
        let lock = owned(OpenOptions::new().create(true).truncate(false))
            .open(path.join(LOCK))
            .and_then(|lock| {
                lock.set_permissions(Permissions::from_mode(0o600))?;
                Ok(lock)
            })?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                lock: Some(lock),
            }),
            Err(TryLockError::WouldBlock) => Err(OpenError::Locked),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }
}

/// Opens for writing, readable by this user alone: the names of buckets are keyed, but their
/// counts are nobody else's concern either.
fn owned(options: &mut OpenOptions) -> &mut OpenOptions {
    options.write(true).mode(0o600)
}

impl Disk for Directory {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Read>> {
        let file = File::open(self.path.join(name))?;
        Ok(Box::new(BufReader::with_capacity(1 << 16, file)))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Sink>> {
        let path = self.path.join(name);
        let file = owned(OpenOptions::new().create(true).truncate(true)).open(path)?;
        Ok(Box::new(file))
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path.join(name))?;
        file.set_len(len)?;
        file.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl Sink for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}
