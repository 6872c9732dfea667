//! Tenants' own policies from outside: a [`TenantSource`] that is queried, a [`TenantCache`] that
//! requests read, and [`follow`] between them.

mod cache;
mod document;
pub(crate) mod file;
mod line;
mod table;

#[cfg(feature = "mongodb")]
mod mongodb;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::{Arc, Weak};

use palisade_core::failure::SourceHealth;
use palisade_core::time::Micros;

pub use cache::{CacheListener, CacheSettings, CacheState, CachedTenant, TenantCache};
pub use document::{Document, DocumentError};
pub use file::FileTenants;
#[cfg(feature = "mongodb")]
pub use mongodb::{MongoAddressError, MongoTenants};

use line::Call;

/// Provides tenants' documents. Calls may take time: no request waits for them.
pub trait TenantSource: Send + Sync + 'static {
    /// The documents of these tenants; those without one are left out. An empty list asks whether
    /// the source answers: the implementation must then call the source all the same.
    fn fetch(
        &self,
        tenants: &[Box<str>],
    ) -> impl Future<Output = Result<Vec<Document>, SourceError>> + Send;

    /// Any documents, at most `count_max`, to start with.
    fn first(
        &self,
        count_max: u32,
    ) -> impl Future<Output = Result<Vec<Document>, SourceError>> + Send;
}

/// The reason why a source did not answer. Carries no address, identifier or value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// No answer within its time.
    #[error("the policy source did not answer in time")]
    TimedOut,
    /// No connection, or one that broke.
    #[error("the policy source cannot be reached")]
    Unreachable,
    /// The source refuses this client.
    #[error("the policy source refuses the credentials")]
    Refused,
    /// The table or collection is not there, or of another shape.
    #[error("the policy source lacks the table or collection")]
    Missing,
    /// The source answered something else.
    #[error("the policy source answered something that cannot be understood")]
    Corrupt,
}

impl SourceError {
    /// The name of the error in metrics and on the health page.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::TimedOut => "timeout",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Missing => "missing",
            Self::Corrupt => "corrupt",
        }
    }
}

/// Status of a source and its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceReport {
    /// Kind of the source.
    pub source: &'static str,
    /// Whether the source answers.
    pub health: SourceHealth,
    /// The reason why the source does not answer.
    pub error: Option<&'static str>,
    /// When the source stopped answering.
    pub since: Option<Micros>,
    /// Policies in the cache.
    pub policies: u64,
    /// Tenants in the cache, those without a policy included.
    pub tenants: u64,
    /// Calls that failed and documents that were refused.
    pub failures: u64,
}

impl SourceReport {
    /// The report of a source that cannot be away.
    #[must_use]
    pub const fn always_up(source: &'static str) -> Self {
        Self {
            source,
            health: SourceHealth::Up,
            error: None,
            since: None,
            policies: 0,
            tenants: 0,
            failures: 0,
        }
    }
}

/// Keeps the cache up to date, one call to the source at a time, until the cache is dropped.
pub async fn follow(cache: Weak<TenantCache>, source: impl TenantSource) {
    loop {
        let Some(held) = cache.upgrade() else { return };
        match held.take() {
            Some(call) => {
                let answer = ask(&source, &call, held.timeout()).await;
                held.settle(call, answer);
            }
            None => idle(&held).await,
        }
    }
}

async fn ask(
    source: &impl TenantSource,
    call: &Call,
    within: std::time::Duration,
) -> Result<Vec<Document>, SourceError> {
    let asked = async {
        match call {
            Call::First(count) => source.first(*count).await,
            Call::Tenants(tenants) => source.fetch(tenants).await,
        }
    };
    tokio::time::timeout(within, asked)
        .await
        .unwrap_or(Err(SourceError::TimedOut))
}

async fn idle(cache: &Arc<TenantCache>) {
    let _ = tokio::time::timeout(cache.pause(), cache.wake.notified()).await;
}
