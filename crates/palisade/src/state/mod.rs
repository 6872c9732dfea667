//! State on its way from one store to another: guard and lockout records, what API keys have
//! used of their quotas, the allowlist, tiers and overages.
//!
//! [`export`] writes lines of JSON, [`Verified::read`] reads them to the end, [`import`] puts
//! them into a store. A file names the secrets its digests were made under and ends with a
//! checksum: one that does not fit, or is not whole, changes nothing. Neither way holds more
//! than a page in memory. Buckets of limits stay behind: their windows start anew.

mod export;
mod import;
mod lines;
#[cfg(test)]
mod tests;

pub use export::export;
pub use import::{Existing, Imported, Verified, import};
pub use lines::StateError;

use serde::{Deserialize, Serialize};

/// Number of items of each kind in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Records of the guard and of the lockout.
    pub records: u64,
    /// Entries of the allowlist, tiers and overages.
    pub entries: u64,
    /// API keys that have used something this month.
    pub quotas: u64,
}
