//! What a connection is doing, and when it has done so for too long.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::interim::Interim;

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
    /// Several requests at once: bytes between them say nothing about a next one.
    multiplexed: AtomicBool,
    /// Requests whose answers have not been handed over.
    open: AtomicU32,
    /// Of these, the ones that wait for us. The others wait for the client.
    waiting: AtomicU32,
    /// Of these, the ones whose answers have no end of their own.
    lasting: AtomicU32,
    /// Ticks that the connection has lasted, from a random start: many that began together
    /// do not end together.
    age: AtomicU32,
    /// Time that a part of an answer may wait for the client, on one stream of many.
    pub(super) stream_wait: Duration,
    verdict: AtomicU8,
    task: Mutex<Option<Waker>>,
    /// What is sent before answers.
    pub(super) interim: Interim,
}

/// Verdict on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// It goes on.
    Stay,
    /// It ends as soon as no request is under way.
    Close,
    /// It ends now.
    End,
}

/// A connection begins here: a client that says nothing has the time for a head, and no more.
const RECEIVING: u8 = 0;
const IDLE: u8 = 1;
const ANSWERING: u8 = 2;
/// Its bytes are somebody else's: it obeys no verdict.
const HANDED_OVER: u8 = 3;

impl Activity {
    /// The time for a head begins, as for a new connection.
    pub(super) fn begin(&self) {
        self.enter(RECEIVING);
    }

    /// Bytes have arrived.
    pub(super) fn received(&self) {
        match (self.phase.load(Ordering::Relaxed), self.is_multiplexed()) {
            (IDLE, false) => self.enter(RECEIVING),
            (RECEIVING, true) => self.enter(IDLE),
            _ => {}
        }
    }

    /// The connection carries many requests at once: from its next bytes on it may idle.
    pub(super) fn multiplex(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
    }

    /// Somebody else has the connection from here on.
    pub(super) fn hand_over(&self) {
        self.enter(HANDED_OVER);
    }

    /// A part of an answer has been handed over, so those before it have been delivered. Bytes on
    /// the socket would prove nothing on HTTP/2: our own signs of life are among them.
    fn delivered(&self) {
        let is_answering = self.phase.load(Ordering::Relaxed) == ANSWERING;
        if is_answering && self.is_multiplexed() && !self.stuck.load(Ordering::Relaxed) {
            self.ticks.store(0, Ordering::Relaxed);
        }
    }

    /// Bytes were taken by the client, or were not.
    pub(super) fn wrote(&self, stuck: bool) {
        if self.stuck.load(Ordering::Relaxed) != stuck {
            self.stuck.store(stuck, Ordering::Relaxed);
            self.ticks.store(0, Ordering::Relaxed);
        }
    }

    fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Ordering::Relaxed)
    }

    /// An answer has been made and the client does not take it. On HTTP/2 that is no
    /// matter of the socket: the client may grant no window and read all the same.
    fn has_untaken_answer(&self) -> bool {
        self.is_multiplexed()
            && self.open.load(Ordering::Relaxed) > self.waiting.load(Ordering::Relaxed)
    }

    /// Ticks for which the connection has been of no use to its client; none while it is.
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

    /// Ends the connection now.
    pub(super) fn end(&self) {
        self.judge(Verdict::End);
    }

    /// What comes of `future`, unless the connection is told at least this first.
    pub(crate) async fn unless_told<F: Future>(
        &self,
        told: Verdict,
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

    /// What has been decided about the connection; the task of `cx` is woken when
    /// that changes.
    pub(crate) fn verdict(&self, cx: &Context<'_>) -> Verdict {
        // Kept before the verdict is read: one that comes in between wakes.
        match &mut *self.task.lock() {
            Some(task) => task.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        match self.verdict.load(Ordering::Acquire) {
            verdict if verdict == Verdict::End as u8 => Verdict::End,
            verdict if verdict == Verdict::Close as u8 => Verdict::Close,
            _ => Verdict::Stay,
        }
    }

    fn judge(&self, verdict: Verdict) {
        self.verdict.fetch_max(verdict as u8, Ordering::Release);
        self.wake();
    }

    /// Has the connection's task look again at what there is to do.
    pub(super) fn wake(&self) {
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }

    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Relaxed);
        self.ticks.store(0, Ordering::Relaxed);
    }

    /// Counts a tick; what is to become of a connection whose phase has lasted too
    /// long.
    fn tick(&self, patience: &Patience) -> Verdict {
        let age = self.age.fetch_add(1, Ordering::Relaxed);
        let by_age = match patience.age_ticks.and_then(|most| age.checked_sub(most)) {
            Some(over) if over >= patience.header_ticks && self.only_lasts() => Verdict::End,
            Some(_) => Verdict::Close,
            None => Verdict::Stay,
        };
        self.tick_phase(patience).max(by_age)
    }

    /// Nothing is under way but answers without an end: who waits for them waits forever.
    fn only_lasts(&self) -> bool {
        self.open.load(Ordering::Relaxed) == self.lasting.load(Ordering::Relaxed)
    }

    fn tick_phase(&self, patience: &Patience) -> Verdict {
        let ticks = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        let end_after = |most: u32| match ticks > most {
            true => Verdict::End,
            false => Verdict::Stay,
        };
        match self.phase.load(Ordering::Relaxed) {
            _ if self.stuck.load(Ordering::Relaxed) => end_after(patience.idle_ticks),
            // A request that crosses the news is one that the client can send again.
            IDLE if self.is_multiplexed() && ticks > patience.idle_ticks => {
                end_after(patience.idle_ticks + patience.header_ticks).max(Verdict::Close)
            }
            IDLE => end_after(patience.idle_ticks),
            RECEIVING => end_after(patience.header_ticks),
            _ if self.has_untaken_answer() => end_after(patience.idle_ticks),
            _ => Verdict::Stay,
        }
    }
}

/// A request that is being answered: from its head to the last of its answer, or
/// until it is given up.
pub(crate) struct UnderWay {
    activity: Arc<Activity>,
    waits_for_us: bool,
    lasts: bool,
}

impl UnderWay {
    /// A request has arrived whole: its handler bounds the time from here.
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

    /// Its answer has no end of its own: it keeps no connection open beyond its age.
    pub(crate) fn lasts(&mut self) {
        if !std::mem::replace(&mut self.lasts, true) {
            self.activity.lasting.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the next part of the answer is still to be made, or to be taken.
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
    /// After so many a connection is asked to close, however busy it is.
    age_ticks: Option<u32>,
}

impl Patience {
    pub(crate) fn new(header: Duration, idle: Duration) -> Self {
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

    /// The same for connections that are to last no longer than this.
    pub(crate) fn at_most(self, age: Option<Duration>) -> Self {
        let tick = self.tick.as_millis().max(1);
        let ticks =
            |age: Duration| u32::try_from(age.as_millis().div_ceil(tick)).unwrap_or(u32::MAX);
        Self {
            age_ticks: age.map(ticks),
            ..self
        }
    }

    /// Up to a tenth of the age, for a connection that begins now.
    fn head_start(&self) -> u32 {
        let most = self.age_ticks.map_or(0, |age| age / 10);
        rand::random_range(0..=most)
    }
}

/// The connections of one worker.
#[derive(Default)]
pub(crate) struct Live(Mutex<Vec<Arc<Activity>>>);

impl Live {
    /// A new connection.
    pub(crate) fn add(&self, patience: &Patience) -> Arc<Activity> {
        let activity = Arc::new(Activity {
            age: patience.head_start().into(),
            stream_wait: patience.idle,
            ..Activity::default()
        });
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
        for activity in all.iter() {
            match activity.tick(patience) {
                Verdict::Stay => {}
                verdict => activity.judge(verdict),
            }
        }
    }

    /// Closes every connection once it has no request under way.
    pub(crate) fn close(&self) {
        for activity in self.0.lock().iter() {
            activity.judge(Verdict::Close);
        }
    }
}

/// Room for connections before those that have ended are looked for.
const LIVE_ROOM_MIN: usize = 64;

/// The connection's own task holds its activity, too.
fn is_open(activity: &Arc<Activity>) -> bool {
    Arc::strong_count(activity) > 1
}

#[cfg(test)]
mod tests;
