//! The connections of one surface on one worker: accepted up to a bound, watched for timeouts, and
//! drained at shutdown.

use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use palisade::engine::Observer;
use palisade_core::key::Prefix;
use palisade_core::time::Clock;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::activity::{Activity, ConnectionVerdict, Live, Patience};
use super::line::{Line, Stream};
use super::slots::{Admission, Slots, Trust};
use super::sockets::{Listener, RegisteredListener};
use super::spread::{AcceptedConnection, Desk};
use super::stop::Stop;
use super::surface::Protocol;
use super::task;
use super::tls::Tls;

/// Pause after the system refused to accept, for example because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bounds on the connections of one surface: on their number, and on each of them.
#[derive(Clone)]
pub(crate) struct Bounds {
    /// Most connections at once.
    pub(crate) connections_max: usize,
    /// Time for a request's head, and time that a connection may idle.
    pub(crate) patience: Patience,
    /// Time that open connections get at shutdown.
    pub(crate) drain: Duration,
    /// Peers that forward the requests of many clients.
    pub(crate) trust: Trust,
    /// The clock that limits repeated log lines.
    pub(crate) clock: Arc<dyn Clock>,
}

/// The source of a worker's connections.
pub(super) struct Entrance {
    pub(super) socket: Listener,
    /// The worker's desk, if the workers share connections evenly.
    pub(super) desk: Option<Desk>,
    /// The surface's slots, which all workers share.
    pub(super) slots: Arc<Slots>,
}

/// Accepts connections until shutdown, then waits for those under way.
pub(super) async fn run<P: Protocol>(
    Entrance {
        socket,
        desk,
        slots,
    }: Entrance,
    protocol: Arc<P>,
    tls: Option<ListenerTls>,
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
        slots,
        stop: stop.clone(),
        live: &live,
    };
    tokio::select! {
        () = door.serve(listener, desk) => {}
        () = watch(&live, patience, stop) => {}
    }
}

/// Ends connections that wait too long, and asks all of them to close at shutdown. Never completes.
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

/// An accepted connection that has no slot yet.
type Arrival = (Stream, SocketAddr);

/// The parts that every accepted connection needs.
struct Door<'a, P> {
    protocol: Arc<P>,
    tls: Option<ListenerTls>,
    bounds: Bounds,
    slots: Arc<Slots>,
    stop: Stop,
    live: &'a Live,
}

impl<P: Protocol> Door<'_, P> {
    async fn serve(&self, listener: RegisteredListener, mut desk: Option<Desk>) {
        let mut connections = JoinSet::new();
        let mut stop = self.stop.clone();
        let mut next = None;
        loop {
            tokio::select! {
                // In this order, so that a flood of new connections cannot delay shutdown.
                biased;
                () = stop.leaving() => break,
                Some(_) = connections.join_next() => {}
                moved = arrived(&mut desk) => self.start(&mut connections, moved),
                accepted = self.accept(&listener, &mut next) => {
                    self.start(&mut connections, placed(desk.as_ref(), accepted));
                }
            }
        }
        self.sweep(&listener, next, &mut connections);
        while let Some(moved) = desk.as_mut().and_then(Desk::last) {
            self.start(&mut connections, Some(moved));
        }
        // From here on the kernel refuses new connections.
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

    /// Returns the next connection with a slot, or `None` if it gets no slot. Until then it stays
    /// in `next`, so that dropping this future loses no connection.
    async fn accept(
        &self,
        listener: &RegisteredListener,
        next: &mut Option<Arrival>,
    ) -> Option<AcceptedConnection> {
        if next.is_none() {
            match poll_fn(|cx| listener.poll(cx)).await {
                Ok(arrival) => *next = Some(arrival),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        let slot = self.slots.admit(self.share_of(next.as_ref()?)).await;
        let (stream, peer) = next.take()?;
        Some(AcceptedConnection::new(stream, peer, slot?))
    }

    /// The client prefix whose share of the slots a connection counts towards. Trusted proxies have
    /// no share, and neither do clients of a socket file: they are on this machine.
    fn share_of(&self, (stream, peer): &Arrival) -> Option<Prefix> {
        let has_share = !matches!(stream, Stream::File(_)) && !(self.bounds.trust)(peer.ip());
        has_share.then(|| Prefix::of(peer.ip()))
    }

    /// Serves connections that the kernel has already completed; they would otherwise be reset.
    fn sweep(
        &self,
        listener: &RegisteredListener,
        mut next: Option<Arrival>,
        connections: &mut JoinSet<()>,
    ) {
        // Polled without waiting, for connections that the kernel has completed already.
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let arrival = match next.take() {
                Some(arrival) => arrival,
                None => match listener.poll(&mut context) {
                    Poll::Ready(Ok(arrival)) => arrival,
                    Poll::Ready(Err(_)) | Poll::Pending => return,
                },
            };
            match self.slots.attempt(self.share_of(&arrival), false) {
                Admission::Admitted(slot) => {
                    let accepted = AcceptedConnection::new(arrival.0, arrival.1, slot);
                    self.start(connections, Some(accepted));
                }
                Admission::Refused => {}
                Admission::Full => return,
            }
        }
    }

    fn start(&self, connections: &mut JoinSet<()>, accepted: Option<AcceptedConnection>) {
        let Some(accepted) = accepted else {
            return;
        };
        let AcceptedConnection {
            stream,
            peer,
            slot,
            seat,
        } = accepted;
        let activity = self.live.add(&self.bounds.patience);
        slot.serve(&activity);
        let stop = self.stop.clone();
        let protocol = Arc::clone(&self.protocol);
        let (stream, tls) = match (stream, &self.tls) {
            (Stream::Plain(stream), Some(tls)) => (stream, tls),
            (stream, _) => {
                let line = Line::new(stream, peer, slot, activity, stop);
                connections.spawn(task::boxed(async move {
                    // Counts the connection at this worker until it ends.
                    let _seat = seat;
                    protocol.converse(line).await;
                }));
                return;
            }
        };
        let tls = tls.clone();
        connections.spawn(task::boxed(async move {
            let _seat = seat;
            if let Some(stream) = tls.agree(stream, &activity).await {
                let line = Line::new(stream, peer, slot, activity, stop);
                protocol.converse(line).await;
            }
        }));
    }
}

/// Returns the next connection that another worker has accepted for this one.
async fn arrived(desk: &mut Option<Desk>) -> Option<AcceptedConnection> {
    match desk {
        Some(desk) => desk.arrived().await,
        None => pending().await,
    }
}

/// Returns the accepted connection if this worker is to serve it. Otherwise it goes to another
/// worker.
fn placed(desk: Option<&Desk>, accepted: Option<AcceptedConnection>) -> Option<AcceptedConnection> {
    match desk {
        Some(desk) => desk.place(accepted?),
        None => accepted,
    }
}

/// The TLS of one listener.
#[derive(Clone)]
pub(crate) struct ListenerTls {
    tls: Arc<Tls>,
    listener: &'static str,
    observer: Arc<dyn Observer>,
}

impl ListenerTls {
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

    /// Does the handshake, and returns `None` if it fails or takes too long. Until it is done no
    /// request is under way, so that shutdown does not wait for it.
    async fn agree(&self, stream: TcpStream, activity: &Activity) -> Option<Stream> {
        let acceptor = self.tls.acceptor();
        let handshake = acceptor.accept(stream);
        match activity
            .unless_told(ConnectionVerdict::Close, handshake)
            .await?
        {
            Ok(stream) => {
                // The handshake used up the time for a head. The first head gets that time again.
                activity.begin();
                Some(Stream::Secure(Box::new(stream)))
            }
            Err(error) => {
                if is_about_certificate(&error) {
                    self.observer.caller_refused(self.listener, "certificate");
                }
                None
            }
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
