//! Virtual time: the runtime's paused clock, with an offset for each node.
#![allow(
    clippy::disallowed_methods,
    reason = "how long something takes is part of what is tested"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade::core::time::{Clock, Micros};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// A clock of a run. All clocks advance alike, from different starting points.
#[derive(Clone, Debug)]
pub(crate) struct SimClock {
    started: Instant,
    started_at: Micros,
    /// Speed in percent; 100 unless the clock is broken on purpose.
    percent: u64,
    /// The time for threads outside the runtime, which would otherwise read real time.
    last: Arc<AtomicU64>,
}

impl SimClock {
    pub(crate) fn starting_at(started_at: Micros) -> Self {
        Self {
            started: Instant::now(),
            started_at,
            percent: 100,
            last: Arc::new(AtomicU64::new(started_at.0)),
        }
    }

    /// This clock, broken: it runs at `percent` of its speed.
    pub(crate) fn running_at(&self, percent: u64) -> Self {
        Self {
            percent,
            last: Arc::new(AtomicU64::new(self.started_at.0)),
            ..self.clone()
        }
    }

    /// The instant of the runtime at which this clock shows `at`.
    pub(crate) fn when(&self, at: Micros) -> Instant {
        self.started + std::time::Duration::from_micros(at.since(self.started_at))
    }
}

impl Clock for SimClock {
    fn now(&self) -> Micros {
        if Handle::try_current().is_err() {
            return Micros(self.last.load(Ordering::SeqCst));
        }
        let elapsed = Instant::now().duration_since(self.started).as_micros();
        let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
        let now = self.started_at.plus(elapsed * self.percent / 100);
        self.last.fetch_max(now.0, Ordering::SeqCst);
        now
    }
}
