//! Health of the engine for `/health/*` and the dashboard.

use std::time::Duration;

use palisade_core::failure::level::SLOW_P99;
use palisade_core::failure::{Circuit, FailureKind, NodeModes, Policy, SourceHealth, StoreHealth};
use palisade_core::time::Micros;
use serde::Serialize;

use super::Engine;

/// The engine's health.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Health))]
pub struct HealthReport {
    /// Ready to take traffic.
    pub ready: bool,
    /// Degradation level, 0 to 3.
    #[cfg_attr(feature = "openapi", schema(maximum = 3))]
    pub degradation_level: u8,
    /// The store.
    pub store: DependencyReport,
    /// Where policies come from.
    pub policy: PolicyReport,
    /// State of each policy's circuit.
    pub circuits: Vec<(&'static str, &'static str)>,
    /// How each policy answers what the store does not decide; `normal` while it decides
    /// everything.
    pub modes: Vec<(&'static str, &'static str)>,
}

/// The policy source's health.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyReport {
    /// `file`, `postgres` or `mongodb`.
    pub source: &'static str,
    /// `up` or `down`.
    pub state: &'static str,
    /// Kind of the failure, while it is down.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub last_error: Option<&'static str>,
    /// Down since, RFC 3339.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub since: Option<String>,
    /// Tenants' policies that are known.
    pub cached: u64,
    /// Refreshes that failed, or brought a policy that was refused.
    pub refresh_failures: u64,
    /// Revision of the policy in force beneath the tenants'.
    pub revision: u64,
}

/// One dependency's health.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DependencyReport {
    /// `up`, `slow` or `down`.
    pub state: &'static str,
    /// Median latency in microseconds.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub p50_us: Option<u64>,
    /// 99th percentile in microseconds.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub p99_us: Option<u64>,
    /// Kind of the last failure.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub last_error: Option<&'static str>,
    /// Failing since, RFC 3339.
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
