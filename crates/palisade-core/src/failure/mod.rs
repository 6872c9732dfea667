//! Failure modes for when the store does not answer: pure state machines, one set per policy and
//! per node, with the instant passed in.
//!
//! Read it in the order of one failing call: [`breaker`] (may the store be
//! called?) with its two profiles [`security`] and [`availability`] → [`modes`]
//! (what the request gets) with [`caps`] and [`blocks`] → [`fallback`] (what a
//! limit falls back to) → [`level`] (how bad it is) → [`node`], which bundles
//! them for one process.
//!
//! Nothing here is ever written to a shared store.

pub mod availability;
pub mod blocks;
pub mod breaker;
pub mod caps;
pub mod fallback;
pub mod level;
pub mod lockouts;
pub mod modes;
pub mod node;
pub mod security;

#[cfg(test)]
mod tests;

pub use availability::{AvailabilityBreaker, AvailabilitySettings};
pub use blocks::{BlockCache, SeenBlock};
pub use breaker::{Breaker, CallDecision, Circuit, Event, Events, Permit, PolicyMode, ProbeResult};
pub use caps::{CapTable, DegradedCaps};
pub use fallback::{
    AffectedRequest, Caller, FallbackPolicy, FallbackRule, LocalCap, Outage, Share,
};
pub use level::{DegradationLevel, FailureKind, Health, SourceHealth, StoreHealth};
pub use modes::{DegradedGuard, DegradedKeys, Trust};
pub use node::{Due, GuardModes, NodeModes};
pub use security::SecurityBreaker;

use crate::record::Flow;

/// The unit that has a breaker of its own: a failing call trips only the policy that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// Password logins, with the lockout that runs on them.
    Login,
    /// One-time codes.
    Otp,
    /// Heavy endpoints.
    Api,
    /// Limits and quotas.
    Limits,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::Login, Self::Otp, Self::Api, Self::Limits];

    /// Lower-case name, as in metric labels and audits.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Otp => "otp",
            Self::Api => "api",
            Self::Limits => "limits",
        }
    }
}

impl From<Flow> for Policy {
    fn from(flow: Flow) -> Self {
        match flow {
            Flow::Login => Self::Login,
            Flow::Otp => Self::Otp,
            Flow::Api => Self::Api,
        }
    }
}
