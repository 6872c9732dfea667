//! What a connection is doing, and when it has done so for too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Waker};
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
    verdict: AtomicU8,
    task: Mutex<Option<Waker>>,
    /// What is sent before answers.
    pub(super) interim: Interim,
}

/// What is to become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// It goes on.
    Stay,
    /// It ends as soon as no request is under way.
    Close,
    /// It ends now.
    End,
}

const IDLE: u8 = 0;
const RECEIVING: u8 = 1;
const ANSWERING: u8 = 2;

impl Activity {
    /// Bytes have arrived.
    pub(super) fn received(&self) {
        if self.phase.load(Ordering::Relaxed) == IDLE && !self.is_multiplexed() {
            self.enter(RECEIVING);
        }
    }

    /// The connection carries many requests at once.
    pub(super) fn multiplex(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
        self.enter(IDLE);
    }

    /// Bytes were taken by the client, or were not.
    pub(super) fn wrote(&self, stuck: bool) {
        let advances = !stuck && self.is_multiplexed();
        if advances && self.phase.load(Ordering::Relaxed) == ANSWERING {
            self.ticks.store(0, Ordering::Relaxed);
        }
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
        self.waits_for_us(false);
        if self.lasts {
            self.activity.lasting.fetch_sub(1, Ordering::Relaxed);
        }
        if self.activity.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.activity.enter(IDLE);
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
        let activity = Arc::<Activity>::default();
        activity.age.store(patience.head_start(), Ordering::Relaxed);
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
mod tests {
    use super::*;

    fn any() -> Patience {
        Patience::new(Duration::from_secs(1), Duration::from_secs(1))
    }

    #[test]
    fn a_connection_is_asked_to_close_at_its_age_however_busy_it_is() {
        let patience = any().at_most(Some(Duration::from_secs(10)));
        let live = Live::default();
        let busy = live.add(&patience);
        busy.multiplex();
        let _under_way = UnderWay::begin(&busy);
        let asked = (1..1000).find(|_| busy.tick(&patience) == Verdict::Close);
        // A tick is a quarter of a second, and up to a tenth of the age is taken off.
        assert!(
            asked.is_some_and(|ticks| (37..=41).contains(&ticks)),
            "{asked:?}"
        );
        assert_eq!(busy.tick(&patience), Verdict::Close);
        let never = live.add(&any());
        let _under_way = UnderWay::begin(&never);
        assert!((0..10_000).all(|_| never.tick(&any()) == Verdict::Stay));
    }

    #[test]
    fn what_has_no_end_keeps_a_connection_only_until_its_age_and_a_little_longer() {
        let patience = any().at_most(Some(Duration::from_secs(10)));
        let live = Live::default();
        let watched = live.add(&patience);
        watched.multiplex();
        let mut stream = UnderWay::begin(&watched);
        stream.lasts();
        let call = UnderWay::begin(&watched);
        assert!((0..1000).all(|_| watched.tick(&patience) != Verdict::End));
        drop(call);
        assert_eq!(watched.tick(&patience), Verdict::End);
        let young = live.add(&patience);
        young.multiplex();
        let mut stream = UnderWay::begin(&young);
        stream.lasts();
        let end = (1..1000).find(|_| young.tick(&patience) == Verdict::End);
        // The age, less a tenth at most, and the time that headers may take.
        assert!(
            end.is_some_and(|ticks| (41..=45).contains(&ticks)),
            "{end:?}"
        );
    }

    fn ticks_until_expired(activity: &Activity, patience: &Patience) -> u32 {
        (1..1000)
            .find(|_| activity.tick(patience) == Verdict::End)
            .unwrap_or(u32::MAX)
    }

    #[test]
    fn headers_have_less_time_than_idling_and_answers_are_not_cut_off() {
        let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(10));
        let activity = Arc::<Activity>::default();
        assert_eq!(ticks_until_expired(&activity, &patience), 41);
        drop(UnderWay::begin(&activity));
        activity.received();
        assert_eq!(ticks_until_expired(&activity, &patience), 5);
        let _under_way = UnderWay::begin(&activity);
        assert_eq!(ticks_until_expired(&activity, &patience), u32::MAX);
    }

    #[test]
    fn a_client_that_takes_nothing_is_given_up_and_a_quiet_stream_is_not() {
        let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(2));
        let activity = Arc::<Activity>::default();
        let _under_way = UnderWay::begin(&activity);
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
        let (idle, busy) = (live.add(&any()), live.add(&any()));
        let cx = Context::from_waker(Waker::noop());
        let _under_way = UnderWay::begin(&busy);
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
        let one = live.add(&any());
        assert_eq!(one.verdict(&Context::from_waker(&waker)), Verdict::Stay);
        assert!(!woken.0.load(Ordering::Relaxed));
        live.close();
        assert!(woken.0.load(Ordering::Relaxed));
    }

    #[test]
    fn connections_that_have_ended_take_no_room() {
        let live = Live::default();
        let kept = live.add(&any());
        for _ in 0..100_000 {
            drop(live.add(&any()));
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
        activity.received();
        let expired = (0..10).any(|_| {
            activity.received();
            activity.tick(&patience) == Verdict::End
        });
        assert!(expired);
    }

    fn multiplexed() -> Arc<Activity> {
        let activity = Arc::<Activity>::default();
        activity.multiplex();
        activity
    }

    #[test]
    fn an_idle_multiplexed_connection_is_asked_to_close_before_it_ends() {
        let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(2));
        let activity = multiplexed();
        let verdicts: Vec<Verdict> = (0..14)
            .map(|_| {
                activity.received();
                activity.tick(&patience)
            })
            .collect();
        assert_eq!(verdicts[7], Verdict::Stay);
        assert!(verdicts[8..12].iter().all(|v| *v == Verdict::Close));
        assert_eq!(verdicts[12], Verdict::End);
    }

    #[test]
    fn an_answer_that_no_window_is_granted_for_is_given_up_and_a_slow_one_is_not() {
        let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(2));
        let activity = multiplexed();
        let mut slow = UnderWay::begin(&activity);
        assert_eq!(ticks_until_expired(&activity, &patience), u32::MAX);
        slow.waits_for_us(false);
        activity.wrote(false);
        assert_eq!(ticks_until_expired(&activity, &patience), 9);
        slow.waits_for_us(true);
        assert_eq!(ticks_until_expired(&activity, &patience), u32::MAX);
    }

    #[test]
    fn requests_at_once_are_idle_only_when_the_last_has_ended() {
        let activity = multiplexed();
        let (one, other) = (UnderWay::begin(&activity), UnderWay::begin(&activity));
        drop(one);
        assert_eq!(activity.phase.load(Ordering::Relaxed), ANSWERING);
        drop(other);
        assert_eq!(activity.phase.load(Ordering::Relaxed), IDLE);
        assert_eq!(activity.waiting.load(Ordering::Relaxed), 0);
    }
}
