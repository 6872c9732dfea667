//! Tenants' own policies: the cache that the engine reads, and the sources that need a store's
//! connection.

#[cfg(feature = "postgres")]
mod postgres;

use std::sync::Arc;

use palisade_core::failure::SourceHealth;
use palisade_core::policy::TenantPolicy;
use palisade_policy::FileTenants;
pub use palisade_policy::tenants::{
    CacheListener, CacheSettings, CacheState, CachedTenant, DocumentError, SourceError,
    SourceReport, TenantCache, TenantSource, follow,
};
#[cfg(feature = "mongodb")]
pub use palisade_policy::tenants::{MongoAddressError, MongoTenants};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresTenants, TableName, TableNameError};

use crate::engine::{TenantStats, Tenants};

impl Tenants for FileTenants {
    fn find(&self, org: &str) -> Option<Arc<TenantPolicy>> {
        Self::find(self, org)
    }
}

impl Tenants for TenantCache {
    fn find(&self, org: &str) -> Option<Arc<TenantPolicy>> {
        Self::find(self, org)
    }

    fn health(&self) -> SourceHealth {
        Self::report(self).health
    }

    fn stats(&self) -> TenantStats {
        let report = Self::report(self);
        TenantStats {
            cached: report.policies,
            refresh_failures: report.failures,
        }
    }

    fn report(&self) -> SourceReport {
        Self::report(self)
    }

    fn cached(&self, org: &str) -> Option<CachedTenant> {
        self.look(org)
    }

    fn invalidate(&self, org: Option<&str>) -> bool {
        Self::invalidate(self, org)
    }
}
