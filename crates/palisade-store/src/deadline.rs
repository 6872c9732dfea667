//! When a call must have ended: the only file that asks the runtime's clock, which is
//! real, or paused in tests. Nothing that is decided depends on it.
#![expect(
    clippy::disallowed_methods,
    reason = "deadlines begin here and nowhere else"
)]

use std::time::Duration;

use tokio::time::Instant;

/// Now, for what is measured and given up.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// The end of a time that starts now.
#[must_use]
pub fn after(time: Duration) -> Instant {
    Instant::now() + time
}
