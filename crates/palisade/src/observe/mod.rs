//! Observability for operators: [`Metrics`], [`Audit`] events, log lines of denials, and the
//! [`Lookout`] behind a dashboard.
//!
//! All of them observe the same decisions through [`Fanout`]. None ever waits, and none ever shows
//! an identifier: only digests, anonymised networks and names of the policy.

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
pub(crate) use who::{log_digest, pseudonym, subject_of};

#[cfg(test)]
mod tests;
