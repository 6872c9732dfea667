//! What operators see: [`Metrics`], [`Audit`] events, log lines of denials, and the
//! [`Lookout`] that a dashboard shows.
//!
//! All of them watch the same decisions through [`Fanout`]. None ever waits, and none
//! ever shows an identifier: digests, anonymised networks and names of the policy
//! only.

pub mod audit;
mod classes;
mod fanout;
mod log;
pub mod lookout;
pub mod metrics;
mod span;
mod surges;
mod who;

pub use audit::{Audit, AuditCounts, AuditSettings};
pub use fanout::Fanout;
pub use log::DenialLog;
pub use lookout::Lookout;
pub use metrics::Metrics;
pub use span::SPAN_TARGET;
pub(crate) use who::{log_digest, pseudonym};

#[cfg(test)]
mod tests;
