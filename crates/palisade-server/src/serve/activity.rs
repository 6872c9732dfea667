//! Phases of a connection, and the timeouts that apply to them.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::hang_up::Looks;
use super::interim::Interim;

/// The phase of a connection, and its duration in ticks.
///
/// A timer for each request would cost more than the rest of the bookkeeping. A timer for each
/// connection would be checked with every request. So each worker has one slow tick that counts how
/// long the phases of its connections have lasted.
#[derive(Default)]
pub(crate) struct Activity {
    phase: AtomicU8,
    ticks: AtomicU32,
    /// The client does not accept the bytes that are written.
    stuck: AtomicBool,
    /// The connection carries several requests at once, so that bytes between them do not start the
    /// time for a head.
    multiplexed: AtomicBool,
    /// Requests whose answers have not been handed over completely.
    open: AtomicU32,
    /// The open requests whose next part we have yet to make. The others wait for the client.
    waiting: AtomicU32,
    /// The open requests whose answers are endless streams.
    lasting: AtomicU32,
    /// Age of the connection in ticks. It starts at a random value, so that connections that were
    /// opened together are not closed together.
    age: AtomicU32,
    /// Time that a part of an answer may wait for the client, on one stream of HTTP/2.
    pub(super) stream_wait: Duration,
    verdict: AtomicU8,
    task: Mutex<Option<Waker>>,
    /// Interim answers that wait to be written.
    pub(super) interim: Interim,
    /// Looks for a client that has hung up.
    pub(super) looks: Looks,
}

/// Verdict on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConnectionVerdict {
    /// Keep the connection open.
    Stay,
    /// Close the connection as soon as no request is under way.
    Close,
    /// Close the connection now.
    End,
}

/// The first phase. A client that sends nothing gets the time for a head, and no more.
const RECEIVING: u8 = 0;
const IDLE: u8 = 1;
const ANSWERING: u8 = 2;
/// The connection is a tunnel and no longer ours: verdicts have no effect.
const HANDED_OVER: u8 = 3;

impl Activity {
    /// Starts the time for a head, as for a new connection.
    pub(super) fn begin(&self) {
        self.enter(RECEIVING);
    }

    /// Notes that bytes have arrived.
    pub(super) fn received(&self) {
        match (self.phase.load(Ordering::Relaxed), self.is_multiplexed()) {
            (IDLE, false) => self.enter(RECEIVING),
            (RECEIVING, true) => self.enter(IDLE),
            _ => {}
        }
    }

    /// Notes that the connection carries many requests at once. From its next bytes on it may idle.
    pub(super) fn multiplex(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
    }

    /// Notes that the connection has been handed over, for example to a websocket.
    pub(super) fn hand_over(&self) {
        self.enter(HANDED_OVER);
    }

    /// Notes that a part of an answer has been handed over, so that the parts before it have been
    /// delivered. Bytes on the socket would prove nothing on HTTP/2: our own pings are among them.
    fn delivered(&self) {
        let is_answering = self.phase.load(Ordering::Relaxed) == ANSWERING;
        if is_answering && self.is_multiplexed() && !self.stuck.load(Ordering::Relaxed) {
            self.ticks.store(0, Ordering::Relaxed);
        }
    }

    /// Notes whether the client accepted the bytes of a write.
    pub(super) fn wrote(&self, stuck: bool) {
        // Written only on a change, because most writes succeed at once.
        if self.stuck.load(Ordering::Relaxed) != stuck {
            self.stuck.store(stuck, Ordering::Relaxed);
            self.ticks.store(0, Ordering::Relaxed);
        }
    }

    fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Ordering::Relaxed)
    }

    /// Whether an answer is made and its client does not take it. On HTTP/2 the socket cannot tell:
    /// a client may grant no window for a stream and still read.
    fn has_untaken_answer(&self) -> bool {
        self.is_multiplexed()
            && self.open.load(Ordering::Relaxed) > self.waiting.load(Ordering::Relaxed)
    }

    /// Ticks for which the connection has been of no use to its client, or `None` while it is in
    /// use.
    pub(super) fn idle_ticks(&self, patience: &Patience) -> Option<u32> {
        let ticks = self.ticks.load(Ordering::Relaxed);
        match self.phase.load(Ordering::Relaxed) {
            IDLE | RECEIVING => Some(ticks),
            ANSWERING => {
                let waits = self.stuck.load(Ordering::Relaxed) || self.has_untaken_answer();
                (waits && ticks > patience.header_ticks).then_some(ticks)
            }
            _ => None,
        }
    }

    /// Closes the connection now.
    pub(super) fn end(&self) {
        self.judge(ConnectionVerdict::End);
    }

    /// Returns the output of `future`, or `None` if a verdict of at least `told` comes first.
    pub(crate) async fn unless_told<F: Future>(
        &self,
        told: ConnectionVerdict,
        future: F,
    ) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.verdict(cx) >= told => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Returns the verdict on the connection, and registers the task of `cx` to be woken when it
    /// changes.
    pub(crate) fn verdict(&self, cx: &Context<'_>) -> ConnectionVerdict {
        // Stored before the verdict is read, so that a verdict in between wakes the task.
        match &mut *self.task.lock() {
            Some(task) => task.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        match self.verdict.load(Ordering::Acquire) {
            verdict if verdict == ConnectionVerdict::End as u8 => ConnectionVerdict::End,
            verdict if verdict == ConnectionVerdict::Close as u8 => ConnectionVerdict::Close,
            _ => ConnectionVerdict::Stay,
        }
    }

    fn judge(&self, verdict: ConnectionVerdict) {
        // Not `store`: a verdict is never weakened.
        self.verdict.fetch_max(verdict as u8, Ordering::Release);
        self.wake();
    }

    /// Wakes the connection's task, so that it looks for new work.
    pub(super) fn wake(&self) {
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }

    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Relaxed);
        self.ticks.store(0, Ordering::Relaxed);
    }

    /// Counts a tick, and returns the verdict on a connection whose phase has lasted too long.
    fn tick(&self, patience: &Patience) -> ConnectionVerdict {
        let age = self.age.fetch_add(1, Ordering::Relaxed);
        let by_age = match patience.age_ticks.and_then(|most| age.checked_sub(most)) {
            // Endless streams would otherwise keep the connection open beyond its age.
            Some(over) if over >= patience.header_ticks && self.only_lasts() => {
                ConnectionVerdict::End
            }
            Some(_) => ConnectionVerdict::Close,
            None => ConnectionVerdict::Stay,
        };
        self.tick_phase(patience).max(by_age)
    }

    /// Whether all open answers are endless streams. Waiting for them to end would take forever.
    fn only_lasts(&self) -> bool {
        self.open.load(Ordering::Relaxed) == self.lasting.load(Ordering::Relaxed)
    }

    fn tick_phase(&self, patience: &Patience) -> ConnectionVerdict {
        let ticks = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        let end_after = |most: u32| match ticks > most {
            true => ConnectionVerdict::End,
            false => ConnectionVerdict::Stay,
        };
        match self.phase.load(Ordering::Relaxed) {
            _ if self.stuck.load(Ordering::Relaxed) => end_after(patience.idle_ticks),
            // A request that crosses the GOAWAY on its way is one that the client can send again.
            IDLE if self.is_multiplexed() && ticks > patience.idle_ticks => {
                end_after(patience.idle_ticks + patience.header_ticks).max(ConnectionVerdict::Close)
            }
            IDLE => end_after(patience.idle_ticks),
            RECEIVING => end_after(patience.header_ticks),
            _ if self.has_untaken_answer() => end_after(patience.idle_ticks),
            _ => ConnectionVerdict::Stay,
        }
    }
}

/// A request under way: from its head to the last byte of its answer, or until it is given up.
pub(crate) struct UnderWay {
    activity: Arc<Activity>,
    waits_for_us: bool,
    lasts: bool,
}

impl UnderWay {
    /// Notes that a request has arrived. From here on its handler bounds the time.
    pub(crate) fn begin(activity: &Arc<Activity>) -> Self {
        if activity.open.fetch_add(1, Ordering::Relaxed) == 0 {
            activity.enter(ANSWERING);
        }
        activity.waiting.fetch_add(1, Ordering::Relaxed);
        Self {
            activity: Arc::clone(activity),
            waits_for_us: true,
            lasts: false,
        }
    }

    /// Marks the answer as an endless stream, which keeps no connection open beyond its age.
    pub(crate) fn lasts(&mut self) {
        if !std::mem::replace(&mut self.lasts, true) {
            self.activity.lasting.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes whether the next part of the answer has yet to be made (by us) or taken (by the
    /// client).
    pub(crate) fn waits_for_us(&mut self, waits: bool) {
        if !waits {
            self.activity.delivered();
        }
        match (self.waits_for_us, waits) {
            (true, false) => self.activity.waiting.fetch_sub(1, Ordering::Relaxed),
            (false, true) => self.activity.waiting.fetch_add(1, Ordering::Relaxed),
            _ => return,
        };
        self.waits_for_us = waits;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.waits_for_us {
            self.activity.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        if self.lasts {
            self.activity.lasting.fetch_sub(1, Ordering::Relaxed);
        }
        if self.activity.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.activity.enter(IDLE);
        }
    }
}

/// Bounds on idle time and on the time for headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Time between ticks.
    pub(crate) tick: Duration,
    /// Time that a connection may idle.
    idle: Duration,
    header_ticks: u32,
    idle_ticks: u32,
    /// Age in ticks after which a connection is asked to close, however busy it is.
    age_ticks: Option<u32>,
}

impl Patience {
    pub(crate) fn new(header: Duration, idle: Duration) -> Self {
        // Timeouts are late by up to a tick, so it is a fraction of the shortest one.
        let tick = (header.min(idle) / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let ticks = |time: Duration| {
            u32::try_from(time.as_millis().div_ceil(tick.as_millis().max(1))).unwrap_or(u32::MAX)
        };
        Self {
            tick,
            idle,
            header_ticks: ticks(header),
            idle_ticks: ticks(idle),
            age_ticks: None,
        }
    }

    /// Returns the same bounds with a greatest age of connections.
    pub(crate) fn at_most(self, age: Option<Duration>) -> Self {
        let tick = self.tick.as_millis().max(1);
        let ticks =
            |age: Duration| u32::try_from(age.as_millis().div_ceil(tick)).unwrap_or(u32::MAX);
        Self {
            age_ticks: age.map(ticks),
            ..self
        }
    }

    /// Random age of a new connection: up to a tenth of the greatest.
    fn head_start(&self) -> u32 {
        let most = self.age_ticks.map_or(0, |age| age / 10);
        rand::random_range(0..=most)
    }
}

/// The connections of one worker.
#[derive(Default)]
pub(crate) struct Live(Mutex<Vec<Arc<Activity>>>);

impl Live {
    /// Adds a new connection.
    pub(crate) fn add(&self, patience: &Patience) -> Arc<Activity> {
        let activity = Arc::new(Activity {
            age: patience.head_start().into(),
            stream_wait: patience.idle,
            ..Activity::default()
        });
        let mut all = self.0.lock();
        // Remove ended connections before the list grows.
        if all.len() == all.capacity() {
            all.retain(is_open);
            let room = all.len().max(LIVE_ROOM_MIN);
            all.reserve(room);
        }
        all.push(Arc::clone(&activity));
        activity
    }

    /// Counts a tick for every connection, and closes those that have waited too long.
    pub(crate) fn tick(&self, patience: &Patience) {
        let mut all = self.0.lock();
        all.retain(is_open);
        for activity in all.iter() {
            match activity.tick(patience) {
                ConnectionVerdict::Stay => {}
                verdict => activity.judge(verdict),
            }
        }
    }

    /// Closes each connection once no request is under way on it.
    pub(crate) fn close(&self) {
        for activity in self.0.lock().iter() {
            activity.judge(ConnectionVerdict::Close);
        }
    }
}

/// Least number of connections that are added between two searches for ended ones.
const LIVE_ROOM_MIN: usize = 64;

/// Whether the connection is still open: then its own task holds a reference, too.
fn is_open(activity: &Arc<Activity>) -> bool {
    Arc::strong_count(activity) > 1
}

#[cfg(test)]
mod tests;
