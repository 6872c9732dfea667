//! The common interface of everything that listens: an address, a protocol and a shutdown.

use std::future::Future;
use std::sync::Arc;

use palisade::engine::Observer;

use super::accept::{self, Bounds, Entrance, ListenerTls};
use super::line::Line;
use super::passed::PassedSockets;
use super::slots::Slots;
use super::sockets::{self, Bound};
use super::spread::{self, Desk};
use super::stop::Stop;
use super::task::{self, Task};
use super::tls::Tls;
use crate::config::Address;
use crate::failure::Failure;

/// A protocol: the conversation with one peer. A surface is a protocol on an address. Surfaces over
/// HTTP implement [`Handler`](super::Handler) instead, and get HTTP/1 and HTTP/2 with it. Protocols
/// with a framing of their own implement this trait.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Serves a connection until either side ends it, or until the verdict of `line` ends it.
    fn converse(self: Arc<Self>, line: Line) -> impl Future<Output = ()> + Send;

    /// Waits, once every connection has ended, for work that continues without one.
    fn settle(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// A surface of any protocol.
pub(crate) trait Surface: Send {
    /// The address and name of the surface.
    fn place(&self) -> SurfaceAddress;

    /// Binds the address with one socket for each worker (port 0 picks a free port), or takes the
    /// socket that was passed for that address.
    fn bind(&mut self, workers: usize, passed: &mut PassedSockets) -> Result<(), Failure>;

    /// Returns the task of the next worker, or `None` once every socket has its worker. The task
    /// serves a socket of its own until `stop`, then drains.
    fn serve(&mut self, stop: &Stop) -> Option<Task>;
}

/// The address of a surface, and its names.
#[derive(Clone, Debug)]
pub(crate) struct SurfaceAddress {
    /// The name for people.
    pub(crate) name: &'static str,
    /// The flag of `serve` that chooses another address.
    pub(crate) flag: &'static str,
    /// The scheme of the surface's URLs.
    pub(crate) scheme: &'static str,
    pub(crate) address: Address,
}

impl SurfaceAddress {
    /// The URL under which a client reaches the surface.
    pub(crate) fn url(&self) -> String {
        match &self.address {
            Address::Network(address) => format!("{}://{address}", self.scheme),
            file @ Address::File(_) => file.to_string(),
        }
    }
}

/// The share of the workers that serve a surface.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Share {
    All,
    /// All but one, and at least one.
    AllButOne,
    AtMost(usize),
}

impl Share {
    fn of(self, workers: usize) -> usize {
        match self {
            Self::All => workers,
            Self::AllButOne => workers.saturating_sub(1).max(1),
            Self::AtMost(most) => workers.min(most),
        }
    }
}

/// A protocol on an address.
pub(crate) struct On<P, M> {
    place: SurfaceAddress,
    make: M,
    bounds: Bounds,
    slots: Arc<Slots>,
    tls: Option<ListenerTls>,
    workers: Share,
    is_even: bool,
    bound: Option<Bound>,
    desks: Vec<Desk>,
    of: std::marker::PhantomData<fn() -> P>,
}

impl<P: Protocol, M: Fn() -> Arc<P> + Send> On<P, M> {
    /// Prepares a surface. `make` is called once for each worker, so that the state of a protocol
    /// (connections to an upstream) can stay on the worker's thread.
    pub(crate) fn new(place: SurfaceAddress, bounds: Bounds, make: M) -> Self {
        let clock = Arc::clone(&bounds.clock);
        Self {
            slots: Slots::new(place.flag, bounds.connections_max, bounds.patience, clock),
            place,
            make,
            bounds,
            tls: None,
            workers: Share::All,
            is_even: false,
            bound: None,
            desks: Vec::new(),
            of: std::marker::PhantomData,
        }
    }

    /// Returns the surface, served by a part of the workers only.
    pub(crate) const fn on(mut self, workers: Share) -> Self {
        self.workers = workers;
        self
    }

    /// Returns the surface, with equal numbers of connections on each worker. This suits callers
    /// that open a few connections and keep them.
    pub(crate) const fn evenly(mut self) -> Self {
        self.is_even = true;
        self
    }

    /// Returns the surface, within TLS if it is configured. Callers without a required certificate
    /// are reported to `observer`.
    pub(crate) fn within(mut self, tls: Option<Arc<Tls>>, observer: &Arc<dyn Observer>) -> Self {
        let listener = self.place.flag;
        self.tls = tls.map(|tls| ListenerTls::new(tls, listener, Arc::clone(observer)));
        self
    }
}

impl<P: Protocol, M: Fn() -> Arc<P> + Send> Surface for On<P, M> {
    fn place(&self) -> SurfaceAddress {
        let scheme = match (self.place.scheme, &self.tls) {
            ("http", Some(_)) => "https",
            ("redis", Some(_)) => "rediss",
            (scheme, _) => scheme,
        };
        SurfaceAddress {
            scheme,
            ..self.place.clone()
        }
    }

    fn bind(&mut self, workers: usize, passed: &mut PassedSockets) -> Result<(), Failure> {
        let bound = sockets::bind(&self.place, self.workers.of(workers), passed)?;
        self.place.address = bound.address.clone();
        if self.is_even {
            self.desks = spread::desks(bound.sockets.len());
        }
        self.bound = Some(bound);
        Ok(())
    }

    fn serve(&mut self, stop: &Stop) -> Option<Task> {
        let entrance = Entrance {
            socket: self.bound.as_mut()?.sockets.pop()?,
            desk: self.desks.pop(),
            slots: Arc::clone(&self.slots),
        };
        let protocol = (self.make)();
        Some(task::boxed(accept::run(
            entrance,
            protocol,
            self.tls.clone(),
            self.bounds.clone(),
            stop.clone(),
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_workers_is_never_none_and_never_more_than_there_are() {
        let of = |share: Share| [1, 2, 8].map(|workers| share.of(workers));
        assert_eq!(of(Share::All), [1, 2, 8]);
        assert_eq!(of(Share::AllButOne), [1, 1, 7]);
        assert_eq!(of(Share::AtMost(4)), [1, 2, 4]);
    }
}
