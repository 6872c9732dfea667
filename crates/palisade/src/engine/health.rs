//! Health of the engine for `/health/*` and the dashboard.

use std::time::Duration;

use palisade_core::failure::level::SLOW_P99;
use palisade_core::failure::{Circuit, FailureKind, NodeModes, Policy, SourceHealth, StoreHealth};
use palisade_core::geo::DatabaseState;
use palisade_core::time::Micros;
use serde::Serialize;

use super::Engine;

/// Health of the engine.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Health))]
pub struct HealthReport {
    /// Whether this process is ready to take traffic.
    pub ready: bool,
    /// Degradation level, 0 to 3.
    #[cfg_attr(feature = "openapi", schema(maximum = 3))]
    pub degradation_level: u8,
    /// The store.
    pub store: DependencyReport,
    /// The source of policies.
    pub policy: PolicyReport,
    /// Databases of countries and networks, if the policy names any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub places: Vec<PlacesReport>,
    /// State of the breaker of each kind of store call, as pairs of kind and state.
    pub circuits: Vec<(&'static str, &'static str)>,
    /// Mode of answers for each kind of store call, as pairs of kind and mode; `normal` while the
    /// store decides everything.
    pub modes: Vec<(&'static str, &'static str)>,
}

/// Health of the policy source.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyReport {
    /// `file`, `postgres` or `mongodb`.
    pub source: &'static str,
    /// `up` or `down`.
    pub state: &'static str,
    /// Kind of the failure; null while the source is up.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub last_error: Option<&'static str>,
    /// Start of the failure, RFC 3339; null while the source is up.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub since: Option<String>,
    /// Number of tenants' policies in the cache.
    pub cached: u64,
    /// Number of refreshes that failed or brought an invalid policy.
    pub refresh_failures: u64,
    /// Revision of the policy that tenants' own policies extend.
    pub revision: u64,
}

/// State of a database of countries or networks.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlacesReport {
    /// `country` or `network`.
    pub database: &'static str,
    /// `up`, or `stale` while the file cannot be used and the one before it stays in use.
    pub state: &'static str,
    /// Kind of the failure; null while the file is in use.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub last_error: Option<&'static str>,
    /// Number of times that a new file was taken over.
    pub replaced: u64,
    /// Number of times that a changed file could not be used.
    pub refused: u64,
}

impl From<DatabaseState> for PlacesReport {
    fn from(state: DatabaseState) -> Self {
        Self {
            database: state.name,
            state: match state.error {
                None => "up",
                Some(_) => "stale",
            },
            last_error: state.error,
            replaced: state.replaced,
            refused: state.refused,
        }
    }
}

/// Health of one dependency.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DependencyReport {
    /// `up`, `slow` or `down`.
    pub state: &'static str,
    /// Median latency (p50) in microseconds.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub p50_us: Option<u64>,
    /// 99th percentile of the latency (p99) in microseconds.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub p99_us: Option<u64>,
    /// Kind of the latest failure; null if there was none.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub last_error: Option<&'static str>,
    /// Start of the current failures, RFC 3339; null while calls succeed.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub since: Option<String>,
}

impl Engine {
    /// Time since the store last answered an availability probe; `None` while its breaker is
    /// closed. A host can use it to end itself in an outage that does not end.
    pub fn store_silent_for(&self) -> Option<Duration> {
        let silent = self.link.modes().silent_for(self.now());
        silent.map(Duration::from_micros)
    }

    /// The engine's health now.
    pub fn health(&self) -> HealthReport {
        let now = self.now();
        let source = self.tenants.health();
        let policy = self.policy_report();
        let is_reached = self.link.is_reached();
        let modes = self.link.modes();
        let level = modes.level(source, now);
        let health = modes.health();
        HealthReport {
            // Either the store has answered, or limits are decided without it.
            ready: modes.is_ready(now) && (is_reached || is_cut_off(&modes)),
            degradation_level: level.number(),
            store: DependencyReport {
                state: state_name(health.store(now)),
                p50_us: health.quantile(500, now),
                p99_us: health.quantile(990, now),
                last_error: health.last_failure().map(FailureKind::name),
                since: health.failing_since().map(Micros::to_rfc3339),
            },
            policy,
            places: {
                let databases = self.policy.load().geo_databases();
                databases.into_iter().map(PlacesReport::from).collect()
            },
            circuits: Policy::ALL
                .into_iter()
                .map(|policy| (policy.name(), modes.circuit(policy).name()))
                .collect(),
            modes: Policy::ALL
                .into_iter()
                .map(|policy| (policy.name(), modes.answer_mode(policy, now).name()))
                .collect(),
        }
    }

    fn policy_report(&self) -> PolicyReport {
        let report = self.tenants.report();
        PolicyReport {
            source: report.source,
            state: match report.health {
                SourceHealth::Up => "up",
                SourceHealth::Down => "down",
            },
            last_error: report.error,
            since: report.since.map(Micros::to_rfc3339),
            cached: report.policies,
            refresh_failures: self.tenants.stats().refresh_failures,
            revision: self.policy.load().revision,
        }
    }
}

/// True while limits are decided without the store.
fn is_cut_off(modes: &NodeModes) -> bool {
    modes.circuit(Policy::Limits) != Circuit::Closed
}

/// State of the store by its own answers, not by the breakers: a breaker may stay open long after
/// the store is back, and is reported separately.
const fn state_name(store: StoreHealth) -> &'static str {
    match store {
        StoreHealth::Down => "down",
        StoreHealth::Up { p99_us } if p99_us > SLOW_P99 => "slow",
        StoreHealth::Up { .. } => "up",
    }
}
