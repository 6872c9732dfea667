//! The limit on wrong credentials, shared by every way into the admin address: the sign-in form,
//! bearer tokens and scrapers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::http::Extensions;
use palisade::{Limiter, LimiterConfig, Quota};
use palisade_core::Clock;
use palisade_core::key::Prefix;
use palisade_core::limit::SpecError;

/// Wrong credentials allowed per address prefix and minute.
const GUESSES_MAX: u32 = 10;
/// Address prefixes that are counted separately.
const PREFIXES_MAX: u64 = 10_000;

/// The peer of a connection to the admin address.
#[derive(Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Peer {
    /// The address to which the guesses of a request are attributed.
    pub(crate) fn ip_of(extensions: &Extensions) -> IpAddr {
        let peer = extensions.get::<Self>();
        peer.map_or(IpAddr::from([0; 4]), |Self(peer)| peer.ip())
    }
}

/// Counts wrong credentials by address prefix.
pub(crate) struct GuessLimit(Limiter<Arc<dyn Clock>>);

impl GuessLimit {
    pub(crate) fn new(clock: &Arc<dyn Clock>) -> Result<Self, SpecError> {
        let quota = Quota::sliding(GUESSES_MAX.into(), Duration::from_secs(60))?;
        let bounds = LimiterConfig {
            keys_max: PREFIXES_MAX,
            ..LimiterConfig::default()
        };
        let clock = Arc::new(Arc::clone(clock));
        Ok(Self(Limiter::with_clock(quota, &bounds, clock)))
    }

    /// True while an address has no guess left.
    pub(crate) fn is_exhausted(&self, peer: IpAddr) -> bool {
        self.0.peek(Prefix::of(peer).bytes()).remaining == 0
    }

    /// Counts a wrong credential. While no guess is left further ones are not counted, so that an
    /// address is free again within a minute, whatever arrives meanwhile.
    pub(crate) fn record(&self, peer: IpAddr) {
        let _ = self.0.check(Prefix::of(peer).bytes());
    }
}
