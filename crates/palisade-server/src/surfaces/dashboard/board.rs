//! The data of the dashboard, built once a second for all viewers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use palisade::Engine;
use palisade::engine::{CandidateReport, HealthReport, Observer};
use palisade::observe::Lookout;
use palisade::observe::lookout::Outlook;
use palisade_core::record::Flow;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

/// Interval at which the board checks whether a second has ended.
const TICK: Duration = Duration::from_millis(250);

/// The data of the dashboard without the history.
#[derive(Serialize)]
struct Frame {
    /// Now, RFC 3339.
    at: String,
    version: &'static str,
    outlook: Outlook,
    health: HealthReport,
    policy: InForce,
    /// The mode of each flow of the guard: `enforce` or `shadow`.
    guard: [(&'static str, &'static str); 3],
    /// Comparison of the candidate policy with the live one, if there is a candidate.
    candidate: Option<CandidateReport>,
    viewers: usize,
}

/// The policy in force.
#[derive(Serialize)]
struct InForce {
    revision: u64,
    enabled: bool,
    limits: usize,
    tiers: Vec<String>,
}

/// The span of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// One hour, by the second.
    Hour,
    /// One day, by the minute.
    Day,
}

/// One frame a second, built once for any number of viewers, and not at all without viewers.
pub(crate) struct Board {
    engine: Arc<Engine>,
    lookout: Arc<Lookout>,
    frames: watch::Sender<Bytes>,
    /// The histories of the current second, built at the first request.
    histories: Mutex<[Option<Bytes>; 2]>,
}

impl Board {
    pub(crate) fn new(engine: Arc<Engine>, lookout: Arc<Lookout>) -> Self {
        Self {
            engine,
            lookout,
            frames: watch::Sender::new(Bytes::new()),
            histories: Mutex::default(),
        }
    }

    /// The observer to which refused requests are reported.
    pub(super) fn observer(&self) -> &dyn Observer {
        self.engine.observer()
    }

    /// Samples for as long as the future is polled.
    pub(crate) async fn sample_forever(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            self.sample();
        }
    }

    /// Closes the last second if it is over, and sends a frame to the viewers.
    pub(crate) fn sample(&self) {
        let health = self.engine.health();
        if !self.lookout.tick(&health, self.engine.clock().now()) {
            return;
        }
        *self.histories.lock() = [None, None];
        if self.viewers() > 0 {
            let frame = self.frame_with(health);
            self.frames.send_replace(frame);
        }
    }

    /// The number of viewers.
    pub(crate) fn viewers(&self) -> usize {
        self.frames.receiver_count()
    }

    /// A receiver of frames from now on.
    pub(crate) fn follow(&self) -> watch::Receiver<Bytes> {
        let mut frames = self.frames.subscribe();
        frames.mark_unchanged();
        frames
    }

    /// Builds a frame now.
    pub(crate) fn frame(&self) -> Bytes {
        self.frame_with(self.engine.health())
    }

    fn frame_with(&self, health: HealthReport) -> Bytes {
        let now = self.engine.clock().now();
        let policy = self.engine.policy();
        let guard = &policy.settings.guard;
        let frame = Frame {
            at: now.to_rfc3339(),
            version: env!("CARGO_PKG_VERSION"),
            outlook: self.lookout.outlook(now),
            health,
            policy: InForce {
                revision: policy.revision,
                enabled: policy.enabled,
                limits: policy.limits().len(),
                tiers: policy.tier_names().into_iter().map(str::to_owned).collect(),
            },
            guard: [Flow::Login, Flow::Otp, Flow::Api]
                .map(|flow| (flow.name(), guard.mode(flow).name())),
            candidate: self.engine.candidate_report(),
            viewers: self.viewers(),
        };
        serde_json::to_vec(&frame).unwrap_or_default().into()
    }

    /// The history. It is built at most once a second.
    pub(crate) fn history(&self, span: Span) -> Bytes {
        let mut histories = self.histories.lock();
        let [hour, day] = &mut *histories;
        let kept = match span {
            Span::Hour => hour,
            Span::Day => day,
        };
        let bytes = kept.get_or_insert_with(|| {
            let columns = match span {
                Span::Hour => self.lookout.seconds(),
                Span::Day => self.lookout.minutes(),
            };
            serde_json::to_vec(&columns).unwrap_or_default().into()
        });
        bytes.clone()
    }
}
