//! Deadlines of calls. This is the only file that reads the runtime's clock, which is real, or
//! paused in tests; no decision depends on it.
#![expect(
    clippy::disallowed_methods,
    reason = "deadlines begin here and nowhere else"
)]

use std::time::Duration;

use tokio::time::Instant;

/// The present, for measurements and deadlines.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// The instant when `time` from now will have passed.
#[must_use]
pub fn after(time: Duration) -> Instant {
    Instant::now() + time
}
