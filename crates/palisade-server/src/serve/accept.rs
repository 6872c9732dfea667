//! The connections of one surface on one worker: accepted within a bound, watched,
//! and drained at the end.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use palisade::engine::Observer;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::activity::{Live, Patience};
use super::line::{Line, Stream};
use super::sockets::{Accepting, Listener};
use super::spread::{Accepted, Desk};
use super::stop::Stop;
use super::surface::Protocol;
use super::task;
use super::tls::Tls;

/// Pause after the system refused to accept (too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the connections of one surface may take, together and each.
#[derive(Clone)]
pub(crate) struct Bounds {
    gate: Arc<Semaphore>,
    patience: Patience,
    /// Time to agree on TLS, if it is spoken.
    handshake: Duration,
    drain: Duration,
}

impl Bounds {
    /// At most so many connections at once, with so much time for a request's head
    /// and without one; `drain` is the time that they get at the end.
    pub(crate) fn new(
        connections_max: usize,
        header: Duration,
        idle: Duration,
        drain: Duration,
    ) -> Self {
        Self {
            gate: Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS))),
            patience: Patience::new(header, idle),
            handshake: header,
            drain,
        }
    }

    /// The same for connections that are asked to close at this age.
    pub(crate) fn at_most(mut self, age: Option<Duration>) -> Self {
        self.patience = self.patience.at_most(age);
        self
    }
}

/// Where connections reach a worker.
pub(super) struct Entrance {
    pub(super) socket: Listener,
    /// Its place among the workers, if they share connections evenly.
    pub(super) desk: Option<Desk>,
}

/// Accepts until the process ends, then waits for what is under way.
pub(super) async fn run<P: Protocol>(
    Entrance { socket, desk }: Entrance,
    protocol: Arc<P>,
    tls: Option<Secured>,
    bounds: Bounds,
    stop: Stop,
) {
    let listener = match socket.accepting() {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "a listening socket cannot be used");
            return;
        }
    };
    let live = Live::default();
    let patience = bounds.patience;
    let door = Door {
        protocol,
        tls,
        bounds,
        stop: stop.clone(),
        live: &live,
    };
    tokio::select! {
        () = door.serve(listener, desk) => {}
        () = watch(&live, patience, stop) => {}
    }
}

/// Ends connections that wait too long, and all of them when the time has come.
/// Never done itself.
async fn watch(live: &Live, patience: Patience, mut stop: Stop) {
    let mut ticks = tokio::time::interval(patience.tick);
    let mut closing = pin!(stop.closing());
    let mut is_closing = false;
    loop {
        tokio::select! {
            () = closing.as_mut(), if !is_closing => {
                is_closing = true;
                live.close();
            }
            _ = ticks.tick() => live.tick(&patience),
        }
    }
}

/// Where connections come in.
struct Door<'a, P> {
    protocol: Arc<P>,
    tls: Option<Secured>,
    bounds: Bounds,
    stop: Stop,
    live: &'a Live,
}

impl<P: Protocol> Door<'_, P> {
    async fn serve(&self, listener: Accepting, mut desk: Option<Desk>) {
        let mut connections = JoinSet::new();
        let mut stop = self.stop.clone();
        loop {
            tokio::select! {
                biased;
                () = stop.draining() => break,
                Some(_) = connections.join_next() => {}
                moved = arrived(&mut desk) => self.start(&mut connections, moved),
                accepted = self.accept(&listener) => {
                    self.start(&mut connections, placed(desk.as_ref(), accepted));
                }
            }
        }
        self.sweep(&listener, &mut connections);
        while let Some(moved) = desk.as_mut().and_then(Desk::last) {
            self.start(&mut connections, Some(moved));
        }
        drop(listener);
        let drained = async {
            while connections.join_next().await.is_some() {}
            self.protocol.settle().await;
        };
        if tokio::time::timeout(self.bounds.drain, drained)
            .await
            .is_err()
        {
            tracing::warn!("connections were cut off: they did not end within `drain_timeout`");
        }
    }

    async fn accept(&self, listener: &Accepting) -> Option<Accepted> {
        let permit = Arc::clone(&self.bounds.gate).acquire_owned().await.ok()?;
        match poll_fn(|cx| listener.poll(cx)).await {
            Ok((stream, peer)) => Some(Accepted::new(stream, peer, permit)),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                None
            }
        }
    }

    /// Connections that the kernel has already completed would otherwise be reset.
    fn sweep(&self, listener: &Accepting, connections: &mut JoinSet<()>) {
        let mut context = Context::from_waker(Waker::noop());
        while let Ok(permit) = Arc::clone(&self.bounds.gate).try_acquire_owned() {
            match listener.poll(&mut context) {
                Poll::Ready(Ok((stream, peer))) => {
                    let accepted = Accepted::new(stream, peer, permit);
                    self.start(connections, Some(accepted));
                }
                Poll::Ready(Err(_)) | Poll::Pending => return,
            }
        }
    }

    fn start(&self, connections: &mut JoinSet<()>, accepted: Option<Accepted>) {
        let Some(accepted) = accepted else {
            return;
        };
        let Accepted {
            stream,
            peer,
            permit,
            seat,
        } = accepted;
        let activity = self.live.add(&self.bounds.patience);
        let stop = self.stop.clone();
        let protocol = Arc::clone(&self.protocol);
        let (stream, tls) = match (stream, &self.tls) {
            (Stream::Plain(stream), Some(tls)) => (stream, tls),
            (stream, _) => {
                let line = Line::new(stream, peer, permit, activity, stop);
                connections.spawn(task::boxed(async move {
                    let _seat = seat;
                    protocol.converse(line).await;
                }));
                return;
            }
        };
        let (tls, handshake) = (tls.clone(), self.bounds.handshake);
        connections.spawn(task::boxed(async move {
            let _seat = seat;
            if let Some(stream) = tls.agree(stream, handshake, &stop).await {
                let line = Line::new(stream, peer, permit, activity, stop);
                protocol.converse(line).await;
            }
        }));
    }
}

/// The next connection that another worker has accepted for this one.
async fn arrived(desk: &mut Option<Desk>) -> Option<Accepted> {
    match desk {
        Some(desk) => desk.arrived().await,
        None => pending().await,
    }
}

/// A connection that this worker has accepted, if it is to serve it, too.
fn placed(desk: Option<&Desk>, accepted: Option<Accepted>) -> Option<Accepted> {
    match desk {
        Some(desk) => desk.place(accepted?),
        None => accepted,
    }
}

/// TLS on one listener.
#[derive(Clone)]
pub(crate) struct Secured {
    tls: Arc<Tls>,
    listener: &'static str,
    observer: Arc<dyn Observer>,
}

impl Secured {
    pub(super) const fn new(
        tls: Arc<Tls>,
        listener: &'static str,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self {
            tls,
            listener,
            observer,
        }
    }

    /// The handshake, if it succeeds in time. Nothing is under way before its end: a
    /// stopping process does not wait for it.
    async fn agree(&self, stream: TcpStream, longest: Duration, stop: &Stop) -> Option<Stream> {
        let mut stop = stop.clone();
        let acceptor = self.tls.acceptor();
        tokio::select! {
            agreed = tokio::time::timeout(longest, acceptor.accept(stream)) => match agreed.ok()? {
                Ok(stream) => Some(Stream::Secure(Box::new(stream))),
                Err(error) => {
                    if is_about_certificate(&error) {
                        self.observer.caller_refused(self.listener, "certificate");
                    }
                    None
                }
            },
            () = stop.closing() => None,
        }
    }
}

/// Whether a handshake failed because the caller has no certificate of the right authority.
fn is_about_certificate(error: &std::io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    matches!(
        cause,
        Some(rustls::Error::NoCertificatesPresented | rustls::Error::InvalidCertificate(_))
    )
}
