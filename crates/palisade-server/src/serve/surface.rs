//! The one shape of everything that listens: an address, a protocol, and an end.

use std::future::Future;
use std::sync::Arc;

use palisade::engine::Observer;

use super::accept::{self, Bounds, Entrance, Secured};
use super::line::Line;
use super::passed::Passed;
use super::slots::Slots;
use super::sockets::{self, Bound};
use super::spread::{self, Desk};
use super::stop::Stop;
use super::task::{self, Task};
use super::tls::Tls;
use crate::config::Address;
use crate::failure::Failure;

/// How to speak with one peer. A surface is a protocol on an address: requests
/// over HTTP implement [`Handler`](super::Handler) instead and get HTTP/1 and
/// HTTP/2 with it; what has a framing of its own implements this.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Speaks until either side ends; ends by itself once `line` says so.
    fn converse(self: Arc<Self>, line: Line) -> impl Future<Output = ()> + Send;

    /// Waits, when every connection has ended, for what goes on without one.
    fn settle(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// A surface, whatever it speaks.
pub(crate) trait Surface: Send {
    /// Where it is to listen.
    fn place(&self) -> Place;

    /// Takes its address, with one socket for each of so many workers (port 0 picks
    /// one), or what was passed for that address.
    fn bind(&mut self, workers: usize, passed: &mut Passed) -> Result<(), Failure>;

    /// The task of the next worker: it answers on a socket of its own until
    /// `stop`, then drains. `None` once every socket has its worker.
    fn serve(&mut self, stop: &Stop) -> Option<Task>;
}

/// Where a surface listens, and how it is called.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// For people.
    pub(crate) name: &'static str,
    /// The flag of `serve` that chooses another address.
    pub(crate) flag: &'static str,
    /// How its URLs begin.
    pub(crate) scheme: &'static str,
    pub(crate) address: Address,
}

impl Place {
    /// Where a client finds it.
    pub(crate) fn url(&self) -> String {
        match &self.address {
            Address::Network(address) => format!("{}://{address}", self.scheme),
            file @ Address::File(_) => file.to_string(),
        }
    }
}

/// How many of the workers serve a surface.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Share {
    All,
    /// At least one of them, whatever is left.
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
    place: Place,
    make: M,
    bounds: Bounds,
    slots: Arc<Slots>,
    tls: Option<Secured>,
    workers: Share,
    is_even: bool,
    bound: Option<Bound>,
    desks: Vec<Desk>,
    of: std::marker::PhantomData<fn() -> P>,
}

impl<P: Protocol, M: Fn() -> Arc<P> + Send> On<P, M> {
    /// `make` is asked once for each worker: what a protocol keeps (connections
    /// to an upstream) can then stay on the worker's thread.
    pub(crate) fn new(place: Place, bounds: Bounds, make: M) -> Self {
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

    /// The same on a part of the workers.
    pub(crate) const fn on(mut self, workers: Share) -> Self {
        self.workers = workers;
        self
    }

    /// The same with as many connections on each worker, for callers that open a few and keep
    /// them.
    pub(crate) const fn evenly(mut self) -> Self {
        self.is_even = true;
        self
    }

    /// The same within TLS; callers without the certificate it asks for are told of.
    pub(crate) fn within(mut self, tls: Option<Arc<Tls>>, observer: &Arc<dyn Observer>) -> Self {
        let listener = self.place.flag;
        self.tls = tls.map(|tls| Secured::new(tls, listener, Arc::clone(observer)));
        self
    }
}

impl<P: Protocol, M: Fn() -> Arc<P> + Send> Surface for On<P, M> {
    fn place(&self) -> Place {
        let scheme = match (self.place.scheme, &self.tls) {
            ("http", Some(_)) => "https",
            ("redis", Some(_)) => "rediss",
            (scheme, _) => scheme,
        };
        Place {
            scheme,
            ..self.place.clone()
        }
    }

    fn bind(&mut self, workers: usize, passed: &mut Passed) -> Result<(), Failure> {
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
