//! Clients that hang up while they are owed an answer.
//!
//! A client of HTTP/1 that closes its sending half still gets its answer (RFC 9112 §9.6), so the
//! HTTP library does not read while it answers, and would notice a client that is gone only when
//! it writes to it. A request that holds something which others wait for has its connection looked
//! at: for it, a closed half is a hang-up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;
use tokio::time::Interval;

use super::activity::Activity;

/// Interval between looks at the connection of a request that asks for them.
const EVERY: Duration = Duration::from_millis(100);

/// Looks at one connection, between a request and the stream that it arrived on.
#[derive(Default)]
pub(super) struct Looks {
    /// A request asks for a look, which the next flush of the stream takes.
    is_wanted: AtomicBool,
    is_gone: AtomicBool,
}

impl Looks {
    /// True if the stream is to be looked at now. Most connections are never.
    pub(super) fn are_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Notes what the stream looked like.
    pub(super) fn saw(&self, is_gone: bool) {
        self.is_wanted.store(false, Ordering::Relaxed);
        if is_gone {
            self.is_gone.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether the other end of a connection has closed it, or its sending half.
pub(super) fn is_closed(stream: &TcpStream) -> bool {
    let ready = stream.ready(Interest::READABLE).now_or_never();
    ready.is_some_and(|ready| ready.is_ok_and(Ready::is_read_closed))
}

/// Tells a request of HTTP/1 that its client has hung up.
pub(crate) struct HangUp {
    activity: Arc<Activity>,
    every: Interval,
}

impl HangUp {
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        let mut every = tokio::time::interval(EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Self {
            activity: Arc::clone(activity),
            every,
        }
    }

    /// Ready once the client has hung up.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let looks = &self.activity.looks;
        loop {
            if looks.is_gone.load(Ordering::Relaxed) {
                return Poll::Ready(());
            }
            ready!(self.every.poll_tick(cx));
            looks.is_wanted.store(true, Ordering::Relaxed);
            self.activity.wake();
        }
    }
}
