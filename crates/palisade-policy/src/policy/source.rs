//! Sources: where the policy in force comes from while the service runs.
//!
//! A new policy is checked whole before it replaces the old one; one that is wrong
//! is refused, counted and explained, and the old one stays.

use std::sync::Arc;

use palisade_core::failure::SourceHealth;
use tokio::sync::watch;

use crate::document::error::ConfigErrors;
use crate::policy::load::PolicyBundle;

/// Provides the policy in force. A call never waits for the source.
pub trait PolicySource: Send + Sync + 'static {
    /// The policy in force.
    fn current(&self) -> Arc<PolicyBundle>;

    /// Returns a receiver of every replacement; it starts with the policy in force.
    fn subscribe(&self) -> watch::Receiver<Arc<PolicyBundle>>;

    /// Returns the status of the source.
    fn status(&self) -> SourceStatus;
}

/// Status of a source, for metrics and the administration.
#[derive(Clone, Debug)]
pub struct SourceStatus {
    /// Revision of the policy in force.
    pub revision: u64,
    /// Policies that replaced another.
    pub replaced: u64,
    /// Policies that were refused.
    pub refused: u64,
    /// Whether the source can be read.
    pub health: SourceHealth,
    /// The reason why the last one was refused, until one is accepted.
    pub last_refusal: Option<ConfigErrors>,
}
