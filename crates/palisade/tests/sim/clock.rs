//! Virtual time: the runtime's paused clock, seen with an offset of one's own.

use palisade::core::time::{Clock, Micros};
use tokio::time::Instant;

/// Every clock of a run shows the same span of time from another start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimClock {
    started: Instant,
    started_at: Micros,
}

impl SimClock {
    pub(crate) fn starting_at(started_at: Micros) -> Self {
        Self {
            started: Instant::now(),
            started_at,
        }
    }

    /// The instant of the runtime at which this clock shows `at`.
    pub(crate) fn when(&self, at: Micros) -> Instant {
        self.started + std::time::Duration::from_micros(at.since(self.started_at))
    }
}

impl Clock for SimClock {
    fn now(&self) -> Micros {
        let elapsed = Instant::now().duration_since(self.started).as_micros();
        self.started_at
            .plus(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }
}
