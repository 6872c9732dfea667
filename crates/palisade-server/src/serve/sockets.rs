//! Listening sockets: one per worker, all on one address, opened here or passed by a supervisor.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::{Domain, Protocol, Socket, Type};

use super::line::Stream;
use super::passed::{Open, PassedSocket, PassedSockets};
use super::socket_file::{self, SocketFile};
use super::surface::SurfaceAddress;
use crate::config::Address;
use crate::failure::Failure;

const BACKLOG: i32 = 4096;

/// An address that has been bound.
pub(super) struct Bound {
    /// The address itself. Port 0 has been replaced by the port that was picked.
    pub(super) address: Address,
    /// One socket for each worker.
    pub(super) sockets: Vec<Listener>,
}

/// A listening socket.
pub(crate) enum Listener {
    Network(TcpListener),
    /// The file comes first so that it is dropped first. `None` if a supervisor owns the file.
    File(Option<Arc<SocketFile>>, UnixListener),
}

/// A listening socket that is registered with a Tokio runtime.
pub(super) enum RegisteredListener {
    Network(tokio::net::TcpListener),
    File {
        _file: Option<Arc<SocketFile>>,
        socket: tokio::net::UnixListener,
    },
}

impl Listener {
    /// Registers the socket with the runtime. Needs a Tokio runtime.
    pub(super) fn accepting(self) -> io::Result<RegisteredListener> {
        Ok(match self {
            Self::Network(socket) => {
                RegisteredListener::Network(tokio::net::TcpListener::from_std(socket)?)
            }
            Self::File(file, socket) => RegisteredListener::File {
                _file: file,
                socket: tokio::net::UnixListener::from_std(socket)?,
            },
        })
    }
}

impl RegisteredListener {
    /// Polls for the next connection and the address of its peer.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        Poll::Ready(Ok(match self {
            Self::Network(socket) => {
                let (stream, peer) = ready!(socket.poll_accept(cx))?;
                // Answers are written whole, so waiting for more bytes would only delay them.
                let _ = stream.set_nodelay(true);
                (Stream::Plain(stream), peer)
            }
            Self::File { socket, .. } => {
                let (stream, _) = ready!(socket.poll_accept(cx))?;
                // A client of a socket file has no address, but is on this machine.
                (Stream::File(stream), (Ipv4Addr::LOCALHOST, 0).into())
            }
        }))
    }
}

/// Binds an address for this many workers, or takes the socket that was passed for it.
pub(super) fn bind(
    place: &SurfaceAddress,
    count: usize,
    passed: &mut PassedSockets,
) -> Result<Bound, Failure> {
    let SurfaceAddress { address, flag, .. } = place;
    let bound = match (passed.at(address), address) {
        (Some(passed), _) => share(passed, count),
        (None, Address::Network(address)) => bind_network(*address, count),
        (None, Address::File(path)) => bind_file(path, count),
    };
    bound.map_err(|error| {
        Failure::unavailable(
            format!("cannot listen on {address} ({}): {error}", service_of(flag)),
            format!("stop what listens there, or choose another address with `--{flag}`"),
        )
    })
}

/// The service that listens on the address of a flag, in words.
fn service_of(flag: &str) -> &str {
    match flag {
        "listen" => "decision API",
        "grpc" => "rate-limit service for Envoy",
        "resp" => "Redis clients",
        "admin" => "administration",
        other => other,
    }
}

/// Binds `count` sockets to `address`; port 0 picks a free port for all of them. The kernel spreads
/// connections over the sockets, so that no worker waits for another.
fn bind_network(address: SocketAddr, count: usize) -> io::Result<Bound> {
    // Only our own workers share a port. If another process uses it, that is an error.
    drop(socket(address, PortSharing::Alone)?);
    let mut sockets = Vec::with_capacity(count);
    let mut bound = address;
    for _ in 0..count {
        let listener = socket(bound, PortSharing::Workers)?;
        bound = listener.local_addr()?;
        sockets.push(Listener::Network(listener));
    }
    Ok(Bound {
        address: bound.into(),
        sockets,
    })
}

/// Binds a file, which has one socket: the workers take turns on it.
fn bind_file(path: &Path, count: usize) -> io::Result<Bound> {
    let (listener, file) = socket_file::bind(path, BACKLOG)?;
    let file = Arc::new(file);
    let same = (0..count).map(|_| {
        let listener = listener.try_clone()?;
        Ok(Listener::File(Some(Arc::clone(&file)), listener))
    });
    Ok(Bound {
        address: Address::File(path.to_owned()),
        sockets: same.collect::<io::Result<_>>()?,
    })
}

/// Shares a passed socket, on which the workers take turns. The process that opened it removes its
/// file.
fn share(passed: PassedSocket, count: usize) -> io::Result<Bound> {
    let same = (0..count).map(|_| {
        Ok(match &passed.socket {
            Open::Network(socket) => Listener::Network(socket.try_clone()?),
            Open::File(socket) => Listener::File(None, socket.try_clone()?),
        })
    });
    let sockets = same.collect::<io::Result<_>>()?;
    Ok(Bound {
        address: passed.address,
        sockets,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PortSharing {
    Alone,
    Workers,
}

fn socket(address: SocketAddr, sharing: PortSharing) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(sharing == PortSharing::Workers)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    // The other kind of socket only tests whether the address is free.
    if sharing == PortSharing::Workers {
        socket.listen(BACKLOG)?;
    }
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_one_port_that_nobody_else_may_take() {
        let at = |address| SurfaceAddress {
            name: "decision API",
            flag: "listen",
            scheme: "http",
            address,
        };
        let none = &mut PassedSockets::default();
        let first = bind(&at(SocketAddr::from(([127, 0, 0, 1], 0)).into()), 3, none).unwrap();
        assert_eq!(first.sockets.len(), 3);
        let is_there = |listener: &Listener| match listener {
            Listener::Network(socket) => {
                Address::from(socket.local_addr().unwrap()) == first.address
            }
            Listener::File(..) => false,
        };
        assert!(first.sockets.iter().all(is_there));
        assert!(bind(&at(first.address.clone()), 1, none).is_err());
    }
}
