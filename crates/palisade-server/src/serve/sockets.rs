//! Listening sockets: one per worker, all on one address.

use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use super::surface::Place;
use crate::failure::Failure;

const BACKLOG: i32 = 4096;

/// Binds `count` sockets to `address`; port 0 picks a free one for all of them.
/// The kernel spreads connections over them, so that no worker waits for another.
pub(super) fn bind(place: Place, count: usize) -> Result<(SocketAddr, Vec<TcpListener>), Failure> {
    let Place { address, flag, .. } = place;
    let refused = |error: std::io::Error| {
        Failure::unavailable(
            format!("cannot listen on {address} for the {flag}: {error}"),
            format!("stop what listens there, or choose another address with `--{flag}`"),
        )
    };
    // Sharing a port is for our own workers: another process on it is an error.
    drop(socket(address, Sharing::Alone).map_err(refused)?);
    let mut listeners = Vec::with_capacity(count);
    let mut bound = address;
    for _ in 0..count {
        let listener = socket(bound, Sharing::Workers).map_err(refused)?;
        bound = listener.local_addr().map_err(refused)?;
        listeners.push(listener);
    }
    Ok((bound, listeners))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Alone,
    Workers,
}

fn socket(address: SocketAddr, sharing: Sharing) -> std::io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(sharing == Sharing::Workers)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    if sharing == Sharing::Workers {
        socket.listen(BACKLOG)?;
    }
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_one_port_that_nobody_else_may_take() {
        let at = |address| Place {
            name: "decision API",
            flag: "listen",
            scheme: "http",
            address,
        };
        let (address, listeners) = bind(at(([127, 0, 0, 1], 0).into()), 3).unwrap();
        assert_eq!(listeners.len(), 3);
        assert!(listeners.iter().all(|l| l.local_addr().unwrap() == address));
        assert!(bind(at(address), 1).is_err());
    }
}
