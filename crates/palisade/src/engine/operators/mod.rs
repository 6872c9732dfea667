//! Administration on behalf of an operator. Every change is audited under the operator's name.

mod aggregate;
mod allowlist;
mod announcements;
mod blocks;
mod credentials;
mod explain;
mod explain_call;
mod lift;
mod lookup;
mod overage;
mod quotas;
mod registries;
mod reservations;
mod resets;
mod spellings;

use palisade_store::StoreError;

use super::{Change, Engine, Operator, OperatorChange};
use allowlist::entry_id;

pub use allowlist::{AllowlistEntry, AllowlistError, AllowlistKind, NewAllowlistEntry};
pub use blocks::{BLOCKS_LISTED_MAX, BlockCursor, BlockPage, BlockView, ScoreView};
pub(crate) use credentials::attach_stored;
pub use credentials::{
    CLIENTS_MAX, CREDENTIALS_PAGE_MAX, ClientPage, ClientView, IssuedKey, KEYS_MAX, KeyPage,
    KeyView, NewApiKey, OVERLAP_DEFAULT, OVERLAP_MAX, SourceCredentials,
};
pub use explain::{Explanation, Finding, meaning};
pub use explain_call::CalledBucket;
pub use lift::{LiftSubject, LiftSummary, LiftTarget, Score};
pub use lookup::{BUCKETS_READ_MAX, BucketView, LookupSubject, Standing};
pub use overage::LastMonth;
pub use quotas::{QUOTAS_PAGE_MAX, QuotaPage, QuotaUsage};
pub(super) use registries::Registries;
pub use reservations::{RESERVATIONS_LISTED_MAX, ReservationPage, ReservationView, ReservedLimit};
pub use resets::{ResetLine, ResetSelector, SELECTORS_MAX};
pub use spellings::LookedUp;

/// Error of an operator's request. It echoes no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// A field is not valid.
    #[error("`{field}` {problem}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The problem with the field.
        problem: &'static str,
    },
    /// Nothing of this kind exists under the given id.
    #[error("{0} not found")]
    NotFound(&'static str),
    /// A store call failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<AllowlistError> for AdminError {
    fn from(error: AllowlistError) -> Self {
        match error {
            AllowlistError::Invalid { field, problem } => Self::Invalid { field, problem },
            AllowlistError::Store(error) => Self::Store(error),
        }
    }
}

/// The administrative interface of an engine, on behalf of one operator.
pub struct Admin<'e> {
    pub(super) engine: &'e Engine,
    by: Operator,
    request_id: Option<Box<str>>,
}

impl Engine {
    /// Starts administration on behalf of `by`.
    pub fn administer(&self, by: Operator, request_id: Option<&str>) -> Admin<'_> {
        Admin {
            engine: self,
            by,
            request_id: request_id.map(Into::into),
        }
    }
}

impl Admin<'_> {
    /// Reports a change to the observer.
    pub fn record(&self, change: Change<'_>) {
        self.engine.observer().administered(&OperatorChange {
            by: &self.by,
            change,
            request_id: self.request_id.as_deref(),
            at: self.engine.now(),
        });
    }

    /// Adds an allowlist entry.
    ///
    /// # Errors
    /// A field that is not valid, or an error of the store.
    pub async fn allowlist_add(
        &self,
        new: NewAllowlistEntry,
    ) -> Result<AllowlistEntry, AdminError> {
        let entry = self.engine.allowlist_add(new).await?;
        self.record(Change::AllowlistAdded(&entry));
        Ok(entry)
    }

    /// Removes an allowlist entry.
    ///
    /// # Errors
    /// An identifier that is not valid or not in the list, or an error of the store.
    pub async fn allowlist_remove(
        &self,
        kind: AllowlistKind,
        identifier: &str,
        org: Option<&str>,
    ) -> Result<(), AdminError> {
        let id = entry_id(&self.engine.keyring, kind, identifier, org)?;
        let removed = self.engine.allowlist_remove(kind, identifier, org).await?;
        if !removed {
            return Err(AdminError::NotFound("allowlist entry"));
        }
        self.record(Change::AllowlistRemoved(&id));
        Ok(())
    }

    /// Lifts the blocks of one record.
    ///
    /// # Errors
    /// No active block, or an error of the store.
    pub async fn lift(&self, target: &LiftTarget, reason: &str) -> Result<LiftSummary, AdminError> {
        let lifted = self.engine.lift(target).await?;
        if let Some(candidate) = self.engine.beside() {
            candidate.lift(target).await;
        }
        let id = target.record.digest.hex();
        self.lifted(lifted, &id, target.score, reason)
    }

    /// Lifts the blocks of a subject that an operator names.
    ///
    /// # Errors
    /// A subject without any selector, without records or without a block, or an error of the
    /// store.
    pub async fn lift_of(
        &self,
        subject: &LiftSubject,
        score: Score,
        reason: &str,
    ) -> Result<LiftSummary, AdminError> {
        if subject.username.is_some() && subject.ip.is_none() {
            return Err(AdminError::Invalid {
                field: "ip",
                problem: "is required beside `username`: a lockout is of a name at an address",
            });
        }
        let Some(first) = self.engine.digest_of(subject) else {
            return Err(AdminError::Invalid {
                field: "account",
                problem: "is required, or `ip`, or `record` and `id`",
            });
        };
        let lifted = self.engine.lift_of(subject, score).await?;
        if let Some(candidate) = self.engine.beside() {
            candidate.lift_of(subject, score).await;
        }
        let id = lifted.first.unwrap_or(first).hex();
        self.lifted(lifted, &id, score, reason)
    }

    fn lifted(
        &self,
        lifted: LiftSummary,
        id: &str,
        score: Score,
        reason: &str,
    ) -> Result<LiftSummary, AdminError> {
        let has_changed = lifted.blocks > 0 || (score == Score::Forget && lifted.records > 0);
        if !has_changed {
            return Err(AdminError::NotFound("block"));
        }
        self.record(Change::BlockLifted { id, score, reason });
        Ok(lifted)
    }

    /// Makes the cache ask the source again for one tenant's policy, or for all; true if something
    /// was cached here. Other nodes learn of it within a second and ask again for every tenant they
    /// know, because a tenant's name must not be written to the store.
    ///
    /// # Errors
    /// An error of the store: other nodes may not have been told, although this one asks again.
    pub async fn invalidate_cache(&self, org: Option<&str>) -> Result<bool, AdminError> {
        let dropped = self.engine.tenants.invalidate(org);
        self.record(Change::CacheInvalidated);
        self.engine.announce(announcements::of_policies).await?;
        Ok(dropped)
    }
}
