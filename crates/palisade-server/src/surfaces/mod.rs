//! The surfaces of the service: one folder for each, and the parts that they share.
//!
//! A surface is a handler of HTTP requests (or a protocol of its own) and a function that builds it
//! from the configuration, listed once below. Sockets, workers, bounds and shutdown are in
//! [`serve`](crate::serve).

pub(crate) mod admin;
mod challenge;
pub(crate) mod dashboard;
mod decide;
mod enforcer;
mod exchange;
mod forward_auth;
pub(crate) mod proxy;
mod resp;
mod rls;

use std::sync::Arc;

use palisade::observe::Audit;
use palisade_policy::Env;

pub(crate) use enforcer::{Edge, Enforcer};
pub(crate) use exchange::CallerToken;
use exchange::Callers;

use crate::config::Config;
use crate::failure::Failure;
use crate::serve::{Bounds, Patience, Stop, Surface, Tls};

/// Renders the text of `/metrics`.
pub(crate) type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

/// The parts from which surfaces are built.
pub(crate) struct SurfaceParts<'a> {
    pub(crate) config: &'a Config,
    pub(crate) env: &'a Env,
    pub(crate) enforcer: &'a Arc<Enforcer>,
    pub(crate) caller: Option<Arc<CallerToken>>,
    pub(crate) metrics: Metrics,
    pub(crate) board: Arc<dashboard::Board>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) tls: Certificates,
    /// Tells surfaces when the service stops.
    pub(crate) stop: &'a Stop,
}

/// Certificates of listeners; `None` where plain text is spoken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Certificates {
    /// For the addresses of callers and operators.
    pub(crate) callers: Option<Arc<Tls>>,
    /// For the proxy, whose clients may be anybody.
    pub(crate) proxy: Option<Arc<Tls>>,
}

impl Certificates {
    /// Returns all certificates in use, each once.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<Tls>> {
        let same = |other: &&Arc<Tls>| {
            let callers = self.callers.as_ref();
            callers.is_some_and(|callers| Arc::ptr_eq(callers, other))
        };
        let of_proxy = self.proxy.iter().filter(move |other| !same(other));
        self.callers.iter().chain(of_proxy).cloned()
    }
}

impl SurfaceParts<'_> {
    /// The authentication of callers on a listener, named by the flag of `serve` that chooses its
    /// address.
    fn callers(&self, listener: &'static str) -> Callers {
        let observer = Arc::clone(&self.enforcer.observer);
        Callers::new(self.caller.clone(), listener, observer)
    }

    /// The bounds on connections, which are the same for all surfaces.
    fn bounds(&self) -> Bounds {
        let server = &self.config.server;
        let edge = Arc::clone(&self.enforcer.edge);
        Bounds {
            connections_max: size(server.connections_max),
            patience: Patience::new(server.header_timeout, server.idle_timeout)
                .at_most(server.connection_age_max),
            drain: server.drain_timeout,
            trust: Arc::new(move |peer| edge.load().trusted_proxies.contains(peer)),
            clock: Arc::clone(self.enforcer.engine.clock()),
        }
    }
}

/// Builds the surfaces of traffic, the decision API first.
pub(crate) fn of_traffic(given: &SurfaceParts<'_>) -> Result<Vec<Box<dyn Surface>>, Failure> {
    let mut surfaces = vec![decide::surface(given)];
    surfaces.extend(rls::is_wanted(given).then(|| rls::surface(given)));
    surfaces.extend(proxy::surface(given)?);
    surfaces.extend(resp::surface(given));
    Ok(surfaces)
}

/// Builds the rate-limit service for Envoy if no limit needs it yet. A reload may bring the first
/// limit with a domain.
pub(crate) fn dormant(given: &SurfaceParts<'_>) -> Option<Box<dyn Surface>> {
    (!rls::is_wanted(given)).then(|| rls::surface(given))
}

/// Builds the surface for operators, supervisors and scrapers.
pub(crate) fn admin(given: &SurfaceParts<'_>) -> Result<Box<dyn Surface>, Failure> {
    admin::surface(given)
}

fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
