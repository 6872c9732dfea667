//! One connection: served until it ends, idles too long, or the process stops.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

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
}

const IDLE: u8 = 0;
const RECEIVING: u8 = 1;
const ANSWERING: u8 = 2;

impl Activity {
    /// A request has arrived whole: its handler bounds the time from here.
    pub(crate) fn answering(&self) {
        self.enter(ANSWERING);
    }

    /// The answer is on its way.
    pub(crate) fn answered(&self) {
        self.enter(IDLE);
    }

    fn received_bytes(&self) {
        if self.phase.load(Ordering::Relaxed) == IDLE {
            self.enter(RECEIVING);
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
        Pin::new(&mut self.stream).poll_write(cx, buf)
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
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
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
