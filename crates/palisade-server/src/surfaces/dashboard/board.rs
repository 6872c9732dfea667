//! What the dashboard shows, put together once a second for all who look.

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

/// How often a second that is over is looked for.
const TICK: Duration = Duration::from_millis(250);

/// Everything but the history.
#[derive(Serialize)]
struct Frame {
    /// Now, RFC 3339.
    at: String,
    version: &'static str,
    outlook: Outlook,
    health: HealthReport,
    policy: InForce,
    /// Whether each flow of the guard binds: `enforce` or `shadow`.
    guard: [(&'static str, &'static str); 3],
    /// How a candidate policy compares, if one runs beside the live one.
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

/// Which history is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// By the second.
    Hour,
    /// By the minute.
    Day,
}

/// One frame a second, made once however many look, and not at all if nobody does.
pub(crate) struct Board {
    engine: Arc<Engine>,
    lookout: Arc<Lookout>,
    frames: watch::Sender<Bytes>,
    /// The histories of this second, once somebody has asked for them.
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

    /// Who is told of those that were not let in.
    pub(super) fn observer(&self) -> &dyn Observer {
        self.engine.observer()
    }

    /// Samples for as long as it is polled.
    pub(crate) async fn sample_forever(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            self.sample();
        }
    }

    /// Closes the second that is over, if one is, and tells those who look.
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

    /// How many look.
    pub(crate) fn viewers(&self) -> usize {
        self.frames.receiver_count()
    }

    /// Frames as they come.
    pub(crate) fn follow(&self) -> watch::Receiver<Bytes> {
        let mut frames = self.frames.subscribe();
        frames.mark_unchanged();
        frames
    }

    /// A frame now.
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

    /// The history; of each second it is written once.
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
