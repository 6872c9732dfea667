//! Limits, tenancy, quotas and the allowlist, at the engine's interface, under the default policy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "engine_limits/allowlist.rs"]
mod allowlist;
#[path = "engine_limits/attacks.rs"]
mod attacks;
#[path = "engine_limits/credentials.rs"]
mod credentials;
mod engine_support;
#[path = "engine_limits/figures.rs"]
mod figures;
#[path = "engine_limits/layers.rs"]
mod layers;
#[path = "engine_limits/leased.rs"]
mod leased;
#[path = "engine_limits/order.rs"]
mod order;
#[path = "engine_limits/routes.rs"]
mod routes;
#[path = "engine_limits/tenancy.rs"]
mod tenancy;

use palisade::core::time::Micros;
use palisade::engine::{AllowlistKind, NewAllowlistEntry};

const AUTH: &str = r#"{"ip":"203.0.113.1","method":"POST","path":"/auth/token"}"#;
const WRITE: &str = r#"{"ip":"203.0.113.1","method":"POST","path":"/things"}"#;
const READ: &str = r#"{"ip":"203.0.113.1","method":"GET","path":"/things"}"#;

fn allow(kind: AllowlistKind, identifier: &str, expires_at: Option<Micros>) -> NewAllowlistEntry {
    NewAllowlistEntry {
        kind,
        identifier: identifier.to_owned(),
        org: None,
        reason: "load test".to_owned(),
        expires_at,
    }
}
