//! Shutdown of a process: on a signal, with a bounded time to drain, and with observers flushed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Phase of the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Serving normally.
    Running,
    /// Serving normally but not ready, so that balancers stop sending requests here.
    Draining,
    /// No new connections are accepted, and answers ask clients to close theirs.
    Leaving,
    /// Connections without an open request are closed.
    Closing,
}

/// Idle connections stay open for at most this long after the process was asked to stop, so that a
/// request that is already on its way still gets its answer.
const GRACE_MAX: Duration = Duration::from_millis(250);

/// Starts the shutdown and announces its phases.
pub(crate) struct Stopper {
    phase: watch::Sender<Phase>,
    /// A copy of the phase that is cheap to read: every answer looks at it.
    now: Arc<AtomicU8>,
}

/// A receiver of the phases of shutdown.
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
    /// Enters the draining phase, which only makes the node not ready.
    pub(crate) fn drain(&self) {
        self.enter(Phase::Draining);
    }

    /// Enters the remaining phases. Connections then end by themselves.
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
    /// True once no more traffic should be sent to this node.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_at(Phase::Draining)
    }

    /// True once clients should send no further request on a connection.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_at(Phase::Leaving)
    }

    fn is_at(&self, phase: Phase) -> bool {
        self.now.load(Ordering::Relaxed) >= phase as u8
    }

    /// Waits until no more traffic should be sent to this node.
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

/// The signal that asked the process to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopSignal {
    /// SIGTERM, from a supervisor. Balancers may still send traffic here.
    Terminate,
    /// SIGINT, from a person at a terminal who waits.
    Interrupt,
}

/// SIGTERM and SIGINT, caught from the moment this is made.
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

    /// Waits for a signal to stop.
    pub(crate) async fn asked(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.terminate.recv() => StopSignal::Terminate,
            _ = self.interrupt.recv() => StopSignal::Interrupt,
        }
    }
}
