//! One connection: served until it ends, idles too long, or the process stops.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What a connection is doing, and for how many ticks.
///
/// A timer for every request would cost more than the rest of the bookkeeping; so
/// each connection has one slow tick that counts how long a phase has lasted.
#[derive(Default)]
pub(crate) struct Activity {
    phase: AtomicU8,
    ticks: AtomicU32,
    /// The client does not take what is written.
    stuck: AtomicBool,
}

const IDLE: u8 = 0;
const RECEIVING: u8 = 1;
const ANSWERING: u8 = 2;

impl Activity {
    /// A request has arrived whole: its handler bounds the time from here.
    pub(crate) fn answering(&self) {
        self.enter(ANSWERING);
    }

    /// The last of an answer has been handed over.
    pub(crate) fn answered(&self) {
        self.enter(IDLE);
    }

    fn received_bytes(&self) {
        if self.phase.load(Ordering::Relaxed) == IDLE {
            self.enter(RECEIVING);
        }
    }

    fn wrote(&self, stuck: bool) {
        if self.stuck.load(Ordering::Relaxed) != stuck {
            self.stuck.store(stuck, Ordering::Relaxed);
            self.ticks.store(0, Ordering::Relaxed);
        }
    }

    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Relaxed);
        self.ticks.store(0, Ordering::Relaxed);
    }

    /// Counts a tick; true if the phase has lasted too long.
    pub(crate) fn tick(&self, patience: &Patience) -> bool {
        let ticks = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        match self.phase.load(Ordering::Relaxed) {
            _ if self.stuck.load(Ordering::Relaxed) => ticks > patience.idle_ticks,
            IDLE => ticks > patience.idle_ticks,
            RECEIVING => ticks > patience.header_ticks,
            _ => false,
        }
    }
}

/// How long a connection may idle and how long headers may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Time between ticks.
    pub(crate) tick: Duration,
    header_ticks: u32,
    idle_ticks: u32,
}

impl Patience {
    pub(crate) fn new(header: Duration, idle: Duration) -> Self {
        let tick = (header.min(idle) / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let ticks = |time: Duration| {
            u32::try_from(time.as_millis().div_ceil(tick.as_millis().max(1))).unwrap_or(u32::MAX)
        };
        Self {
            tick,
            header_ticks: ticks(header),
            idle_ticks: ticks(idle),
        }
    }
}

/// A stream that tells when bytes arrive.
pub(crate) struct Watched {
    stream: TcpStream,
    activity: Arc<Activity>,
}

impl Watched {
    pub(crate) const fn new(stream: TcpStream, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.received_bytes();
        }
        result
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.activity.wrote(result.is_pending());
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.activity.wrote(result.is_pending());
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// A body that tells when it has been handed over or given up.
pub(crate) struct Tracked<B> {
    body: B,
    activity: Arc<Activity>,
}

impl<B> Tracked<B> {
    pub(crate) const fn new(body: B, activity: Arc<Activity>) -> Self {
        Self { body, activity }
    }
}

impl<B> Drop for Tracked<B> {
    fn drop(&mut self) {
        self.activity.answered();
    }
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks_until_expired(activity: &Activity, patience: &Patience) -> u32 {
        (1..1000)
            .find(|_| activity.tick(patience))
            .unwrap_or(u32::MAX)
    }

    #[test]
    fn headers_have_less_time_than_idling_and_answers_are_not_cut_off() {
        let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(10));
        let activity = Activity::default();
        assert_eq!(ticks_until_expired(&activity, &patience), 41);
        activity.answered();
        activity.received_bytes();
        assert_eq!(ticks_until_expired(&activity, &patience), 5);
        activity.answering();
        assert_eq!(ticks_until_expired(&activity, &patience), u32::MAX);
    }

    #[test]
    fn a_client_that_takes_nothing_is_given_up_and_a_quiet_stream_is_not() {
        let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(2));
        let activity = Activity::default();
        activity.answering();
        assert_eq!(ticks_until_expired(&activity, &patience), u32::MAX);
        activity.wrote(true);
        assert_eq!(ticks_until_expired(&activity, &patience), 9);
        activity.wrote(false);
        assert_eq!(ticks_until_expired(&activity, &patience), u32::MAX);
    }

    #[test]
    fn trickling_bytes_do_not_buy_time() {
        let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(10));
        let activity = Activity::default();
        activity.received_bytes();
        let expired = (0..10).any(|_| {
            activity.received_bytes();
            activity.tick(&patience)
        });
        assert!(expired);
    }
}
