//! Equal numbers of connections of a surface on each of its workers.
//!
//! The kernel spreads connections over the workers' sockets by a hash of their addresses. Of many
//! connections each worker gets about as many. But a proxy opens a few connections and keeps them,
//! and all of these may be on one worker while the others are idle: four connections on two workers
//! are split two and two only in three of eight cases. So the worker that accepts a connection
//! hands it to the worker that has the fewest.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::line::Stream;
use super::slots::Slot;

/// An accepted connection.
pub(super) struct AcceptedConnection {
    pub(super) stream: Stream,
    pub(super) peer: SocketAddr,
    pub(super) slot: Slot,
    /// The seat that counts the connection at its worker, on a surface whose connections are
    /// spread.
    pub(super) seat: Option<Seat>,
}

/// State that the workers of one surface share.
struct Spread {
    /// Number of connections of each worker, including those on their way to it.
    held: Mutex<Vec<usize>>,
    /// A channel to each worker. Every connection in it holds its slot, so that there are never
    /// more than the bound on connections.
    ways: Vec<UnboundedSender<DetachedConnection>>,
}

/// One worker's end of the exchange of connections.
pub(super) struct Desk {
    spread: Arc<Spread>,
    own: usize,
    arriving: UnboundedReceiver<DetachedConnection>,
}

/// Makes a desk for each of `count` workers.
pub(super) fn desks(count: usize) -> Vec<Desk> {
    let (ways, arriving): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::unbounded_channel()).unzip();
    let held = Mutex::new(vec![0; count]);
    let spread = Arc::new(Spread { held, ways });
    let desk = |(own, arriving)| Desk {
        spread: Arc::clone(&spread),
        own,
        arriving,
    };
    arriving.into_iter().enumerate().map(desk).collect()
}

impl Desk {
    /// Assigns a worker to a connection that was accepted here. Returns the connection if that is
    /// this worker; otherwise sends it to the other one.
    pub(super) fn place(&self, accepted: AcceptedConnection) -> Option<AcceptedConnection> {
        let seat = Seat::least(&self.spread, self.own);
        if seat.worker == self.own {
            return Some(accepted.at(seat));
        }
        let way = &self.spread.ways[seat.worker];
        let moved = DetachedConnection::new(accepted.at(seat)).ok()?;
        // A worker that has ended accepts nothing, so that the connection stays here.
        let refused = way.send(moved).err()?.0;
        let accepted = refused.arrived().ok()?;
        Some(accepted.at(Seat::of(&self.spread, self.own)))
    }

    /// Receives the next connection that another worker has accepted for this one.
    pub(super) async fn arrived(&mut self) -> Option<AcceptedConnection> {
        self.arriving.recv().await?.arrived().ok()
    }

    /// Closes the channel and returns the next connection already in it. A connection that cannot
    /// be registered with the runtime is skipped and does not hide those behind it.
    pub(super) fn last(&mut self) -> Option<AcceptedConnection> {
        self.arriving.close();
        std::iter::from_fn(|| self.arriving.try_recv().ok()).find_map(|moved| moved.arrived().ok())
    }
}

impl AcceptedConnection {
    /// A connection that has no seat yet.
    pub(super) const fn new(stream: Stream, peer: SocketAddr, slot: Slot) -> Self {
        Self {
            stream,
            peer,
            slot,
            seat: None,
        }
    }

    fn at(self, seat: Seat) -> Self {
        Self {
            seat: Some(seat),
            ..self
        }
    }
}

/// Counts a connection at its worker until this is dropped.
pub(super) struct Seat {
    spread: Arc<Spread>,
    worker: usize,
}

impl Seat {
    /// Takes a seat at the worker with the fewest connections; at `own` if none has fewer.
    fn least(spread: &Arc<Spread>, own: usize) -> Self {
        let mut held = spread.held.lock();
        // Among equals this worker wins, so that no connection is moved without need.
        let fewest = (0..held.len()).min_by_key(|worker| (held[*worker], *worker != own));
        let worker = fewest.unwrap_or(own);
        held[worker] += 1;
        Self {
            spread: Arc::clone(spread),
            worker,
        }
    }

    fn of(spread: &Arc<Spread>, worker: usize) -> Self {
        spread.held.lock()[worker] += 1;
        Self {
            spread: Arc::clone(spread),
            worker,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.spread.held.lock()[self.worker] -= 1;
    }
}

/// A connection registered with no runtime: on its way to the worker that will serve it.
struct DetachedConnection {
    stream: DetachedStream,
    peer: SocketAddr,
    slot: Slot,
    seat: Option<Seat>,
}

enum DetachedStream {
    Network(std::net::TcpStream),
    File(std::os::unix::net::UnixStream),
}

impl DetachedConnection {
    fn new(accepted: AcceptedConnection) -> io::Result<Self> {
        let stream = match accepted.stream {
            Stream::Plain(stream) => DetachedStream::Network(stream.into_std()?),
            Stream::File(stream) => DetachedStream::File(stream.into_std()?),
            // The worker that serves a connection does the TLS handshake, so that no stream in TLS
            // is ever moved.
            Stream::Secure(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self {
            stream,
            peer: accepted.peer,
            slot: accepted.slot,
            seat: accepted.seat,
        })
    }

    /// Registers the stream with the runtime of the worker that is to serve it.
    fn arrived(self) -> io::Result<AcceptedConnection> {
        let stream = match self.stream {
            DetachedStream::Network(stream) => {
                Stream::Plain(tokio::net::TcpStream::from_std(stream)?)
            }
            DetachedStream::File(stream) => Stream::File(tokio::net::UnixStream::from_std(stream)?),
        };
        Ok(AcceptedConnection {
            stream,
            peer: self.peer,
            slot: self.slot,
            seat: self.seat,
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// An accepted connection and its other end.
    async fn accepted() -> (AcceptedConnection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap());
        let far = far.await.unwrap();
        let (near, peer) = listener.accept().await.unwrap();
        (
            AcceptedConnection::new(Stream::Plain(near), peer, Slot::alone()),
            far,
        )
    }

    fn held(desk: &Desk) -> Vec<usize> {
        desk.spread.held.lock().clone()
    }

    #[tokio::test]
    async fn connections_that_one_worker_accepts_are_spread_over_all() {
        let mut desks = desks(2);
        let mut second = desks.pop().unwrap();
        let first = desks.pop().unwrap();
        let mut served = Vec::new();
        let mut fars = Vec::new();
        for _ in 0..4 {
            let (near, far) = accepted().await;
            fars.push(far);
            match first.place(near) {
                Some(here) => served.push((here.peer, 0, here)),
                None => {
                    let there = second.arrived().await.unwrap();
                    served.push((there.peer, 1, there));
                }
            }
        }
        let workers: Vec<usize> = served.iter().map(|(_, worker, _)| *worker).collect();
        assert_eq!(workers, [0, 1, 0, 1]);
        let peers = served.iter().map(|(peer, ..)| *peer);
        assert!(peers.eq(fars.iter().map(|far| far.local_addr().unwrap())));
        assert_eq!(held(&first), [2, 2]);
        served.truncate(1);
        assert_eq!(held(&first), [1, 0], "who has ended does not count");
        let (near, _far) = accepted().await;
        assert!(second.place(near).is_some(), "it has the fewest itself");
    }

    #[tokio::test]
    async fn a_connection_for_a_worker_that_has_ended_stays() {
        let mut desks = desks(2);
        let second = desks.pop().unwrap();
        let first = desks.pop().unwrap();
        let (near, _far) = accepted().await;
        let kept = first.place(near).unwrap();
        drop(second);
        let (near, far) = accepted().await;
        let stays = first.place(near).unwrap();
        assert_eq!(stays.peer, far.local_addr().unwrap());
        assert_eq!(held(&first), [2, 0]);
        drop((kept, stays));
        assert_eq!(held(&first), [0, 0]);
    }

    #[tokio::test]
    async fn what_was_on_its_way_at_the_end_still_arrives() {
        let mut desks = desks(2);
        let mut second = desks.pop().unwrap();
        let first = desks.pop().unwrap();
        let (near, _one) = accepted().await;
        let _kept = first.place(near).unwrap();
        let (near, two) = accepted().await;
        assert!(first.place(near).is_none());
        let last = second.last().unwrap();
        assert_eq!(last.peer, two.local_addr().unwrap());
        assert!(second.last().is_none());
        drop(last);
        let (near, _three) = accepted().await;
        assert!(first.place(near).is_some(), "no more come");
    }
}
