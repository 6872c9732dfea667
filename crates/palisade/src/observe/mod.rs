//! What operators see: [`Metrics`], [`Audit`] events and log lines of denials.
//!
//! All three watch the same decisions through [`Fanout`]. None ever waits, and none
//! ever shows an identifier: digests, anonymised networks and names of the policy
//! only.

pub mod audit;
mod classes;
mod fanout;
mod log;
pub mod metrics;
mod span;
mod surges;
mod who;

pub use audit::{Audit, AuditCounts, AuditSettings};
pub use fanout::Fanout;
pub use log::DenialLog;
pub use metrics::Metrics;
pub use span::SPAN_TARGET;
pub(crate) use who::{log_digest, pseudonym};

#[cfg(test)]
mod tests;
