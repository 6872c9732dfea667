//! Tenants' own policies, from the configured source.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use palisade::engine::{Observer, TenantSeen, TenantStats, Tenants};
use palisade::store::postgres::PostgresConfig;
use palisade::tenants::{
    CacheListener, CacheSettings, CacheState, CachedTenant, DocumentError, PostgresTenants,
    SourceReport, TableName, TenantCache, TenantSource, follow,
};
use palisade_core::Id;
use palisade_core::failure::SourceHealth;
use palisade_core::policy::TenantPolicy;
use palisade_core::time::Clock;
use palisade_policy::tenants::Document;
use palisade_policy::{FileTenants, PolicyBundle, PolicySource, PolicyTable, SourceUrl, Url};

use super::{Plan, task};
use crate::config::{Config, ConfigFile};
use crate::failure::Failure;

/// The sources of policies: the file, and a database for tenants' own policies.
pub(crate) struct Policies {
    file: Option<Arc<ConfigFile>>,
    /// Tenants with a policy in the file.
    own: ArcSwap<FileTenants>,
    /// Tenants with a policy in a database.
    tenants: Option<Arc<TenantCache>>,
}

impl Policies {
    /// Opens the source and queries it once before the first request needs it. A source that does
    /// not answer does not prevent the start: the default policy applies meanwhile.
    pub(crate) async fn start(
        plan: &Plan,
        elsewhere: Elsewhere,
        watch: Watch,
    ) -> Result<Self, Failure> {
        let config = &plan.config;
        let tenants = match elsewhere {
            Elsewhere::Nowhere => None,
            Elsewhere::Postgres(source) => Some(cache("postgres", config, watch, *source).await),
            #[cfg(feature = "mongodb")]
            Elsewhere::MongoDb(url) => {
                let source = mongodb(&config.source, &url).await?;
                Some(cache("mongodb", config, watch, source).await)
            }
        };
        Ok(Self {
            file: plan.source.clone(),
            own: ArcSwap::new(Arc::clone(&config.bundle.tenants)),
            tenants,
        })
    }

    /// Replaces the tenants of the file. Documents of the database are checked against the policy
    /// of `bundle` from now on.
    pub(crate) fn set_base(&self, bundle: &PolicyBundle) {
        self.own.store(Arc::clone(&bundle.tenants));
        if let Some(tenants) = &self.tenants {
            tenants.set_base(Arc::clone(&bundle.policy));
        }
    }
}

impl Tenants for Policies {
    fn find(&self, org: &str) -> Option<Arc<TenantPolicy>> {
        match &self.tenants {
            Some(tenants) => tenants.find(org),
            None => self.own.load().find(org),
        }
    }

    fn health(&self) -> SourceHealth {
        self.report().health
    }

    fn stats(&self) -> TenantStats {
        let report = self.report();
        let refused = self.file.as_ref().map_or(0, |file| file.status().refused);
        TenantStats {
            cached: report.policies,
            refresh_failures: report.failures + refused,
        }
    }

    fn report(&self) -> SourceReport {
        if let Some(tenants) = &self.tenants {
            return tenants.report();
        }
        let health = self.file.as_ref().map(|file| file.status().health);
        let health = health.unwrap_or(SourceHealth::Up);
        SourceReport {
            health,
            error: match health {
                SourceHealth::Up => None,
                SourceHealth::Down => Some("unreadable"),
            },
            policies: self.own.load().len() as u64,
            ..SourceReport::always_up("file")
        }
    }

    fn cached(&self, org: &str) -> Option<CachedTenant> {
        if let Some(tenants) = &self.tenants {
            return tenants.cached(org);
        }
        let policy = self.own.load().find(org)?;
        Some(CachedTenant {
            age: Duration::ZERO,
            version: Some(policy.version),
            source: "file",
            state: CacheState::Fresh,
            refused: None,
        })
    }

    fn invalidate(&self, org: Option<&str>) -> bool {
        let tenants = self.tenants.as_ref();
        tenants.is_some_and(|tenants| tenants.invalidate(org))
    }
}

/// The source of tenants' policies other than the file, configured and not queried yet.
pub enum Elsewhere {
    /// No other source than the file.
    Nowhere,
    /// Tables of Postgres.
    Postgres(Box<PostgresTenants>),
    /// Collections of MongoDB.
    #[cfg(feature = "mongodb")]
    MongoDb(Url),
}

impl Elsewhere {
    /// Returns the source that `[policy] source` names.
    ///
    /// # Errors
    /// An address that cannot be used.
    #[cfg_attr(
        not(feature = "mongodb"),
        expect(clippy::unused_async, reason = "the other variant waits")
    )]
    pub async fn of(table: &PolicyTable) -> Result<Self, Failure> {
        match &table.source {
            SourceUrl::File => Ok(Self::Nowhere),
            SourceUrl::Postgres(url) => {
                postgres(table, url).map(|source| Self::Postgres(Box::new(source)))
            }
            #[cfg(feature = "mongodb")]
            SourceUrl::MongoDb(url) => {
                let address = palisade::tenants::MongoTenants::check(url.as_str()).await;
                address.map_err(|error| Failure::usage(error.to_string(), MONGODB_HINT))?;
                Ok(Self::MongoDb(url.clone()))
            }
            #[cfg(not(feature = "mongodb"))]
            SourceUrl::MongoDb(_) => Err(Failure::usage(
                "`policy.source` names MongoDB, which this binary was built without",
                "install the Debian package, which has it, or build with `cargo build --release --features mongodb`",
            )),
        }
    }
}

impl Elsewhere {
    /// Queries the source for the document of a tenant.
    pub async fn fetch(
        self,
        table: &PolicyTable,
        tenant: &str,
    ) -> Result<Option<Document>, Failure> {
        let tenants = [tenant.into()];
        let found = match self {
            Self::Nowhere => return Ok(None),
            Self::Postgres(source) => {
                tokio::time::timeout(table.timeout, source.fetch(&tenants)).await
            }
            #[cfg(feature = "mongodb")]
            Self::MongoDb(url) => {
                let source = mongodb(table, &url).await?;
                tokio::time::timeout(table.timeout, source.fetch(&tenants)).await
            }
        };
        let unavailable =
            |why: String| Failure::unavailable(why, "is it running? see `policy.source`");
        let found = found.map_err(|_| unavailable("the policy source did not answer".into()))?;
        let found = found.map_err(|error| unavailable(error.to_string()))?;
        Ok(found.into_iter().next())
    }
}

async fn cache(
    name: &'static str,
    config: &Config,
    watch: Watch,
    source: impl TenantSource,
) -> Arc<TenantCache> {
    let clock = Arc::clone(&watch.clock);
    let table = &config.source;
    let settings = CacheSettings {
        ttl: table.cache_ttl,
        negative_ttl: table.negative_ttl,
        tenants_max: table.cache_max,
        timeout: table.timeout,
    };
    let base = Arc::clone(config.policy());
    let cache = Arc::new(TenantCache::new(name, settings, base, clock, watch));
    // A weak reference, so that the task ends with the cache.
    task::spawn(follow(Arc::downgrade(&cache), source));
    cache.started().await;
    cache
}

fn postgres(table: &PolicyTable, url: &Url) -> Result<PostgresTenants, Failure> {
    const HINT: &str = "correct `policy.source`; `palisade migrate` makes the table";
    let name = table
        .collection
        .parse::<TableName>()
        .map_err(|error| Failure::usage(format!("{error}"), "correct `policy.collection`"))?;
    let mut config = PostgresConfig::parse(url.as_str())
        .map_err(|_| Failure::usage("`policy.source` cannot be used as an address", HINT))?;
    config.deadline = table.timeout;
    PostgresTenants::new(config, name).map_err(|error| Failure::usage(error.to_string(), HINT))
}

#[cfg(feature = "mongodb")]
const MONGODB_HINT: &str = "for example \"mongodb://db1,db2/palisade?replicaSet=rs0\"";

#[cfg(feature = "mongodb")]
async fn mongodb(
    table: &PolicyTable,
    url: &Url,
) -> Result<palisade::tenants::MongoTenants, Failure> {
    let opened =
        palisade::tenants::MongoTenants::open(url.as_str(), &table.collection, table.timeout).await;
    opened.map_err(|error| Failure::usage(error.to_string(), MONGODB_HINT))
}

/// Reports events of the cache to metrics, log and audit.
pub(crate) struct Watch {
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Watch {
    fn tell(&self, seen: &TenantSeen<'_>) {
        self.observer.tenant_policy(seen, self.clock.now());
    }
}

impl CacheListener for Watch {
    fn changed(&self, tenant: &str, from: Option<u64>, to: Option<u64>) {
        if let Ok(org) = &Id::new("org", tenant) {
            self.tell(&TenantSeen::Changed { org, from, to });
        }
    }

    fn refused(&self, tenant: &str, why: &DocumentError) {
        if let Ok(org) = &Id::new("org", tenant) {
            let why = &why.to_string();
            self.tell(&TenantSeen::Refused { org, why });
        }
    }

    fn source(&self, health: SourceHealth, error: Option<&'static str>) {
        self.tell(&TenantSeen::Source(match health {
            SourceHealth::Up => None,
            SourceHealth::Down => error.or(Some("unreachable")),
        }));
    }
}
