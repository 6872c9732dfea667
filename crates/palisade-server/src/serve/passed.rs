//! Listening sockets that a supervisor like systemd opened before the service started and holds
//! while the service restarts. Each is used by the listener of its address, so that the
//! configuration of an address (who may connect, and how) holds for a passed socket as well.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;
use palisade_policy::Env;
use socket2::SockRef;

use crate::config::Address;
use crate::failure::Failure;

/// Most passed sockets. There are five listeners, so that a larger number is a mistake.
const SOCKETS_MAX: usize = 16;

/// Permission of others to write to a file, and so to connect to a socket.
const OTHERS_WRITE: u32 = 0o002;

/// Passed sockets that no listener has taken yet.
#[derive(Default)]
pub(crate) struct PassedSockets(Vec<PassedSocket>);

/// A passed socket and its address.
pub(super) struct PassedSocket {
    /// The number of the socket among those that were passed, from 1.
    number: usize,
    pub(super) address: Address,
    pub(super) socket: Open,
}

/// A network socket or a socket file.
pub(super) enum Open {
    Network(TcpListener),
    File(UnixListener),
}

impl PassedSockets {
    /// Takes the sockets that `LISTEN_FDS` counts, if `LISTEN_PID` is this process. Must be called
    /// once, before any thread starts: it changes the environment, so that no child process takes
    /// the sockets for its own.
    pub(super) fn take(env: &Env) -> Result<Self, Failure> {
        let own = std::process::id();
        let is_own = |pid: &str| pid.parse() == Ok(own);
        let (Some(count), true) = (
            env.get("LISTEN_FDS"),
            env.get("LISTEN_PID").is_some_and(is_own),
        ) else {
            return Ok(Self::default());
        };
        if !count.parse().is_ok_and(|count: usize| count <= SOCKETS_MAX) {
            return Err(Failure::usage(
                format!("`LISTEN_FDS` is no number up to {SOCKETS_MAX}"),
                "pass one socket for each listener",
            ));
        }
        let mut given = ListenFd::from_env();
        let sockets = (0..given.len()).map(|index| PassedSocket::take(&mut given, index));
        sockets.collect::<Result<_, _>>().map(Self)
    }

    /// Takes the socket that listens at `address`, if there is one.
    pub(super) fn at(&mut self, address: &Address) -> Option<PassedSocket> {
        let found = self.0.iter().position(|one| one.address == *address)?;
        Some(self.0.remove(found))
    }

    /// Fails if a socket is left: clients that connect to it would wait forever.
    pub(super) fn finish(self) -> Result<(), Failure> {
        match self.0.first() {
            None => Ok(()),
            Some(left) => Err(refused(
                left.number,
                "listens where no listener is configured",
                "let `ListenStream=` be the very address of a listener: `server.listen`, \
                 `server.admin`, `server.grpc`, `server.resp` or `proxy.listen`",
            )),
        }
    }
}

impl PassedSocket {
    fn take(given: &mut ListenFd, index: usize) -> Result<Self, Failure> {
        let number = index + 1;
        let unusable = || {
            refused(
                number,
                "is none that listens for connections",
                "use `ListenStream=` and leave `Accept=` out of the socket unit",
            )
        };
        let socket = Open::take(given, index).ok_or_else(unusable)?;
        let address = socket.prepare().ok_or_else(unusable)?;
        if let Address::File(path) = &address {
            let mode = fs::symlink_metadata(path).map(|meta| meta.permissions().mode());
            // Clients of a socket file need no token: its permissions say who may connect.
            if mode.map_or(true, |mode| mode & OTHERS_WRITE != 0) {
                return Err(refused(
                    number,
                    "is a file that everybody may open",
                    "set `SocketMode=0660` in the socket unit",
                ));
            }
        }
        Ok(Self {
            number,
            address,
            socket,
        })
    }
}

impl Open {
    fn take(given: &mut ListenFd, index: usize) -> Option<Self> {
        if let Ok(Some(socket)) = given.take_tcp_listener(index) {
            return Some(Self::Network(socket));
        }
        let file = given.take_unix_listener(index).ok()??;
        Some(Self::File(file))
    }

    /// Makes the socket nonblocking, and returns its address; `None` if it does not listen.
    fn prepare(&self) -> Option<Address> {
        let (socket, address) = match self {
            Self::Network(socket) => (SockRef::from(socket), socket.local_addr().ok()?.into()),
            Self::File(socket) => {
                let address = socket.local_addr().ok()?;
                let path = address.as_pathname()?.to_owned();
                (SockRef::from(socket), Address::File(path))
            }
        };
        socket.set_nonblocking(true).ok()?;
        socket.is_listener().ok()?.then_some(address)
    }
}

fn refused(number: usize, what: &str, hint: &str) -> Failure {
    Failure::usage(
        format!("socket {number} of those that `LISTEN_FDS` counts {what}"),
        hint,
    )
}
