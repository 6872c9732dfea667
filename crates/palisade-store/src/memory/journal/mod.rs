//! State that survives the process (L-DURABLE): after a crash, quotas, windows of ten minutes and
//! longer, records and registries; after a graceful shutdown, every bucket.
//!
//! Changed entries are marked as dirty, and a background thread writes their present state at most
//! [`JournalConfig::commit_every`] later, all at once, and syncs. A bucket that changes a thousand
//! times in between is written once; while the disk fails, entries stay dirty, and nothing queues
//! up. A crash therefore loses at most what was acknowledged in the last `commit_every` and during
//! one write and sync: 100 ms with the default of 50 ms and a disk that syncs within 50 ms.
//!
//! Buckets of shorter windows are written once, to a file of their own, at a flush or at shutdown.
//! The next start reads that file and removes it, so that a later crash does not bring back what
//! was reset or used up since.

pub(crate) mod codec;
pub(crate) mod disk;
pub(crate) mod files;
mod frames;
mod writer;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use disk::OpenError;
pub use files::RecoveryReport;
pub(crate) use writer::{Durable, Writer};

/// Settings of the journal.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// Longest time that changes wait to be written together. Default 50 ms.
    pub commit_every: Duration,
    /// Logs longer than this, and than twice the snapshot, are replaced by a new
    /// snapshot. Default 64 MiB.
    pub compact_bytes: u64,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            commit_every: Duration::from_millis(50),
            compact_bytes: 64 << 20,
        }
    }
}

/// Statistics of the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Writes that were synced.
    pub commits: u64,
    /// Writes that failed; their changes are written again.
    pub failures: u64,
    /// Snapshots taken.
    pub snapshots: u64,
    /// Bytes in the directory.
    pub bytes: u64,
}
