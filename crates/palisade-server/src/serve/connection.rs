//! What a connection is doing, and when it has done so for too long.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What a connection is doing, and for how many ticks.
///
/// A timer for every request would cost more than the rest of the bookkeeping, and
/// one for every connection would be looked at with every request; so each worker
/// has one slow tick that counts how long the phases of its connections have lasted.
#[derive(Default)]
pub(crate) struct Activity {
    phase: AtomicU8,
    ticks: AtomicU32,
    /// The client does not take what is written.
    stuck: AtomicBool,
    verdict: AtomicU8,
    task: Mutex<Option<Waker>>,
}

/// What is to become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes on.
    Stay,
    /// It ends as soon as no request is under way.
    Close,
    /// It ends now.
    End,
}

const CLOSE: u8 = 1;
const END: u8 = 2;

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

    /// What has been decided about the connection; the task of `cx` is woken when
    /// that changes.
    pub(crate) fn verdict(&self, cx: &Context<'_>) -> Verdict {
        // Kept before the verdict is read: one that comes in between wakes.
        match &mut *self.task.lock() {
            Some(task) => task.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        match self.verdict.load(Ordering::Acquire) {
            END => Verdict::End,
            CLOSE => Verdict::Close,
            _ => Verdict::Stay,
        }
    }

    fn judge(&self, verdict: u8) {
        self.verdict.fetch_max(verdict, Ordering::Release);
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }

    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Relaxed);
        self.ticks.store(0, Ordering::Relaxed);
    }

    /// Counts a tick; true if the phase has lasted too long.
    fn tick(&self, patience: &Patience) -> bool {
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

/// The connections of one worker.
#[derive(Default)]
pub(crate) struct Live(Mutex<Vec<Arc<Activity>>>);

impl Live {
    /// A new connection.
    pub(crate) fn add(&self) -> Arc<Activity> {
        let activity = Arc::<Activity>::default();
        let mut all = self.0.lock();
        // Those that have ended go before room would be made for more.
        if all.len() == all.capacity() {
            all.retain(is_open);
            let room = all.len().max(LIVE_ROOM_MIN);
            all.reserve(room);
        }
        all.push(Arc::clone(&activity));
        activity
    }

    /// Counts a tick for every connection; those that have waited too long end.
    pub(crate) fn tick(&self, patience: &Patience) {
        let mut all = self.0.lock();
        all.retain(is_open);
        for activity in all.iter().filter(|activity| activity.tick(patience)) {
            activity.judge(END);
        }
    }

    /// Closes every connection once it has no request under way.
    pub(crate) fn close(&self) {
        for activity in self.0.lock().iter() {
            activity.judge(CLOSE);
        }
    }
}

/// Room for connections before those that have ended are looked for.
const LIVE_ROOM_MIN: usize = 64;

/// The connection's own task holds its activity, too.
fn is_open(activity: &Arc<Activity>) -> bool {
    Arc::strong_count(activity) > 1
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
    fn a_connection_is_told_when_its_time_is_up_and_when_all_are_to_close() {
        let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(1));
        let live = Live::default();
        let (idle, busy) = (live.add(), live.add());
        let cx = Context::from_waker(Waker::noop());
        busy.answering();
        live.tick(&patience);
        assert_eq!(idle.verdict(&cx), Verdict::Stay);
        for _ in 0..10 {
            live.tick(&patience);
        }
        assert_eq!(idle.verdict(&cx), Verdict::End);
        assert_eq!(busy.verdict(&cx), Verdict::Stay);
        live.close();
        assert_eq!(idle.verdict(&cx), Verdict::End);
        assert_eq!(busy.verdict(&cx), Verdict::Close);
    }

    #[test]
    fn a_verdict_wakes_the_connection() {
        struct Woken(AtomicBool);
        impl std::task::Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&woken));
        let live = Live::default();
        let one = live.add();
        assert_eq!(one.verdict(&Context::from_waker(&waker)), Verdict::Stay);
        assert!(!woken.0.load(Ordering::Relaxed));
        live.close();
        assert!(woken.0.load(Ordering::Relaxed));
    }

    #[test]
    fn connections_that_have_ended_take_no_room() {
        let live = Live::default();
        let kept = live.add();
        for _ in 0..100_000 {
            drop(live.add());
        }
        assert!(live.0.lock().capacity() <= 4 * LIVE_ROOM_MIN);
        live.tick(&Patience::new(
            Duration::from_secs(1),
            Duration::from_secs(1),
        ));
        assert_eq!(live.0.lock().len(), 1);
        drop(kept);
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
