//! RESP: any Redis client can ask for a decision with `CL.THROTTLE`.
//!
//! `palisade::resp` implements the protocol. Here are the connection ([`talk`]) and its state
//! ([`session`]).

mod session;
mod talk;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade::Engine;
use palisade_core::time::SECOND;

use super::SurfaceParts;
use super::exchange::Callers;
use crate::serve::{Line, LogLimit, On, Protocol, Share, Surface, SurfaceAddress};
use session::Session;

/// The flag that chooses the address.
const FLAG: &str = "resp";

/// State that all connections share.
struct Resp {
    engine: Arc<Engine>,
    callers: Callers,
    /// Number of connections so far, from which each gets its own number.
    connections: AtomicU64,
    /// Limits the warnings about web pages.
    pages: LogLimit,
}

impl Resp {
    /// Warns that a web page sent a request to the listener, as a page that a developer visits may
    /// do.
    fn tell_of_page(&self) {
        if self.pages.allows(self.engine.clock().now()) {
            tracing::warn!(
                "an HTTP request came to the listener for Redis clients: a web page may be attacking it through a browser; the connection was closed"
            );
        }
    }
}

/// Builds the listener, if an address is configured.
pub(super) fn surface(given: &SurfaceParts<'_>) -> Option<Box<dyn Surface>> {
    let resp = Arc::new(Resp {
        engine: Arc::clone(&given.enforcer.engine),
        callers: given.callers(FLAG),
        connections: AtomicU64::new(0),
        pages: LogLimit::once_per(SECOND),
    });
    let place = SurfaceAddress {
        name: "RESP",
        flag: FLAG,
        scheme: "redis",
        address: given.config.server.resp?.into(),
    };
    let workers = match given.config.server.resp_workers {
        Some(workers) => Share::AtMost(workers.into()),
        None => Share::AllButOne,
    };
    let surface = On::new(place, given.bounds(), move || Arc::clone(&resp)).on(workers);
    Some(Box::new(
        surface.within(given.tls.callers.clone(), &given.enforcer.observer),
    ))
}

impl Protocol for Resp {
    async fn converse(self: Arc<Self>, line: Line) {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let session = Session::new(number, self.callers.clone());
        talk::converse(&self, session, line).await;
    }
}
