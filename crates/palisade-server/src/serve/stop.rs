//! How a process ends: asked, drained within a bound, flushed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Serving.
    Running,
    /// No new connections; answers ask their client to go away.
    Draining,
    /// Connections without a request are closed.
    Closing,
}

/// Idle connections stay open for this long after the process was asked to stop:
/// a request that is already on its way still gets its answer.
const GRACE_MAX: Duration = Duration::from_millis(250);

/// Tells everybody that the process ends.
pub(crate) struct Stopper {
    phase: watch::Sender<Phase>,
    draining: Arc<AtomicBool>,
}

/// Learns that the process ends.
#[derive(Clone)]
pub(crate) struct Stop {
    phase: watch::Receiver<Phase>,
    draining: Arc<AtomicBool>,
}

pub(crate) fn stopper() -> (Stopper, Stop) {
    let (sender, phase) = watch::channel(Phase::Running);
    let draining = Arc::new(AtomicBool::new(false));
    let stop = Stop {
        phase,
        draining: Arc::clone(&draining),
    };
    let stopper = Stopper {
        phase: sender,
        draining,
    };
    (stopper, stop)
}

impl Stopper {
    /// Goes through the phases; connections then end by themselves.
    pub(crate) async fn stop(&self, drain: Duration) {
        self.draining.store(true, Ordering::Relaxed);
        self.phase.send_replace(Phase::Draining);
        tokio::time::sleep(drain.min(GRACE_MAX)).await;
        self.phase.send_replace(Phase::Closing);
    }
}

impl Stop {
    /// True once no further request should come on a connection.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Waits until no new connection is to be accepted.
    pub(crate) async fn draining(&mut self) {
        let _ = self.phase.wait_for(|phase| *phase >= Phase::Draining).await;
    }

    /// Waits until idle connections are to be closed.
    pub(crate) async fn closing(&mut self) {
        let _ = self.phase.wait_for(|phase| *phase >= Phase::Closing).await;
    }
}

/// SIGTERM and SIGINT, noticed from the moment this is made.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits until the process is asked to stop.
    pub(crate) async fn asked(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
