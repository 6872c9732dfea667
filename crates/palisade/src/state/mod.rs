//! Export and import of a store's state: guard and lockout records, use of API keys' quotas, the
//! allowlist, tiers and overages.
//!
//! `export` writes lines of JSON, `VerifiedFile::read` checks a whole file, `import` writes it
//! into a store. A file names the secrets under which its digests were made and ends with a
//! checksum; a file that is incomplete or belongs to other secrets changes nothing. Neither
//! direction holds more than a page in memory. Buckets of limits are not included: their windows
//! start anew.

mod export;
mod import;
mod lines;
#[cfg(test)]
mod tests;

pub use export::export;
pub use import::{ExistingItems, ImportSummary, VerifiedFile, import};
pub use lines::StateError;

use serde::{Deserialize, Serialize};

/// Number of items of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Records of the guard and of the lockout.
    pub records: u64,
    /// Entries of the allowlist, tiers and overages.
    pub entries: u64,
    /// API keys with use in this month.
    pub quotas: u64,
}
