//! How a process ends: asked, drained within a bound, flushed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Serving.
    Running,
    /// Serving as before, and not ready: whoever sends requests here is to stop doing so.
    Draining,
    /// No new connections; answers ask their client to go away.
    Leaving,
    /// Connections without a request are closed.
    Closing,
}

/// Idle connections stay open for this long after the process was asked to stop:
/// a request that is already on its way still gets its answer.
const GRACE_MAX: Duration = Duration::from_millis(250);

/// Tells everybody that the process ends.
pub(crate) struct Stopper {
    phase: watch::Sender<Phase>,
    /// The phase again: every answer looks at it.
    now: Arc<AtomicU8>,
}

/// Learns that the process ends.
#[derive(Clone)]
pub(crate) struct Stop {
    phase: watch::Receiver<Phase>,
    now: Arc<AtomicU8>,
}

pub(crate) fn stopper() -> (Stopper, Stop) {
    let (sender, phase) = watch::channel(Phase::Running);
    let now = Arc::new(AtomicU8::new(Phase::Running as u8));
    let stop = Stop {
        phase,
        now: Arc::clone(&now),
    };
    (Stopper { phase: sender, now }, stop)
}

impl Stopper {
    /// Tells that the process is to end soon, and changes nothing else.
    pub(crate) fn drain(&self) {
        self.enter(Phase::Draining);
    }

    /// Goes through the phases; connections then end by themselves.
    pub(crate) async fn stop(&self, drain: Duration) {
        self.enter(Phase::Leaving);
        tokio::time::sleep(drain.min(GRACE_MAX)).await;
        self.enter(Phase::Closing);
    }

    fn enter(&self, phase: Phase) {
        self.now.store(phase as u8, Ordering::Relaxed);
        self.phase.send_replace(phase);
    }
}

impl Stop {
    /// True once no more traffic should be sent here.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_at(Phase::Draining)
    }

    /// True once no further request should come on a connection.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_at(Phase::Leaving)
    }

    fn is_at(&self, phase: Phase) -> bool {
        self.now.load(Ordering::Relaxed) >= phase as u8
    }

    /// Waits until no more traffic should be sent here.
    pub(crate) async fn draining(&mut self) {
        let _ = self.phase.wait_for(|phase| *phase >= Phase::Draining).await;
    }

    /// Waits until no new connection is to be accepted.
    pub(crate) async fn leaving(&mut self) {
        let _ = self.phase.wait_for(|phase| *phase >= Phase::Leaving).await;
    }

    /// Waits until idle connections are to be closed.
    pub(crate) async fn closing(&mut self) {
        let _ = self.phase.wait_for(|phase| *phase >= Phase::Closing).await;
    }
}

/// The signal by which the process was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// SIGTERM: by a supervisor, which may still send traffic here.
    Terminate,
    /// SIGINT: by somebody at a terminal, who waits.
    Interrupt,
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
    pub(crate) async fn asked(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Terminate,
            _ = self.interrupt.recv() => Asked::Interrupt,
        }
    }
}
