//! Slots for the connections of one listener. Their number is fixed, one address has at most a
//! share of them, and idle connections make room when all are taken.
//!
//! The address with the most connections makes room first, so that an address that fills the
//! listener closes its own connections and not those of others. Peers that forward for many clients
//! (`trusted_proxies`, and socket files) have no share, and make room last.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::key::Prefix;
use palisade_core::time::{Clock, MINUTE};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::activity::{Activity, Patience};
use super::log::LogLimit;

/// One address has at most one in this many slots.
const SHARE: usize = 2;
/// When all slots are taken, one in this many is freed at once. In a flood of connections the
/// listener then searches for idle ones only now and then, and not at every attempt.
const ROOM: usize = 128;
/// Time until idle connections are looked for again, if no slot became free.
const RETRY: Duration = Duration::from_millis(100);

/// Whether a peer forwards the requests of many clients.
pub(crate) type Trust = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// The slots of one listener, shared by its workers.
pub(super) struct Slots {
    listener: &'static str,
    most: usize,
    share: usize,
    patience: Patience,
    clock: Arc<dyn Clock>,
    told: LogLimit,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Connections by number: older ones have lower numbers.
    held: HashMap<u64, Holder>,
    /// Slots of each address, without those of connections that are closing.
    shares: HashMap<Prefix, usize>,
    /// Slots of connections that are closing.
    leaving: usize,
}

/// A connection in its slot.
struct Holder {
    /// `None` if the connection counts towards no address.
    prefix: Option<Prefix>,
    /// `None` until a worker serves the connection.
    activity: Option<Arc<Activity>>,
    is_leaving: bool,
}

/// A connection's slot. Dropping it frees the slot.
pub(super) struct Slot {
    slots: Arc<Slots>,
    number: u64,
}

/// The result of an attempt to get a slot.
pub(super) enum Admission {
    Admitted(Slot),
    /// No slot is free yet.
    Full,
    /// The address has its whole share, and none of its connections is idle.
    Refused,
}

impl Slots {
    pub(super) fn new(
        listener: &'static str,
        most: usize,
        patience: Patience,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            listener,
            most,
            share: most.div_ceil(SHARE),
            patience,
            clock,
            told: LogLimit::once_per(MINUTE),
            state: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// Waits for a slot. Returns `None` if this address gets none. Cancel-safe: dropping the future
    /// loses nothing.
    pub(super) async fn admit(self: &Arc<Self>, prefix: Option<Prefix>) -> Option<Slot> {
        let mut is_late = false;
        loop {
            // Registered before the attempt, so that a slot that becomes free in between is
            // noticed.
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            match self.attempt(prefix, is_late) {
                Admission::Admitted(slot) => return Some(slot),
                Admission::Refused => return None,
                Admission::Full => {}
            }
            is_late = tokio::time::timeout(RETRY, freed).await.is_err();
        }
    }

    /// Takes a slot if one is free. Otherwise it asks idle connections to make room, unless some
    /// that were asked before are still open and `is_late` is false.
    pub(super) fn attempt(self: &Arc<Self>, prefix: Option<Prefix>, is_late: bool) -> Admission {
        let mut state = self.state.lock();
        let has_share = prefix.is_none_or(|prefix| state.share(prefix) < self.share);
        if !has_share && state.make_room(1, &self.patience, prefix) == 0 {
            return Admission::Refused;
        }
        if state.held.len() < self.most {
            return Admission::Admitted(self.hold(&mut state, prefix));
        }
        // While connections that were asked before are still closing, asking more would close too
        // many.
        if state.leaving == 0 || is_late {
            let count = (self.most / ROOM).max(1);
            state.make_room(count, &self.patience, None);
        }
        // Unlocked before the log line, because a slow reader of the log must not hold up other
        // workers.
        drop(state);
        self.tell();
        Admission::Full
    }

    fn hold(self: &Arc<Self>, state: &mut State, prefix: Option<Prefix>) -> Slot {
        let number = state.next;
        state.next += 1;
        let holder = Holder {
            prefix,
            activity: None,
            is_leaving: false,
        };
        state.held.insert(number, holder);
        if let Some(prefix) = prefix {
            *state.shares.entry(prefix).or_default() += 1;
        }
        Slot {
            slots: Arc::clone(self),
            number,
        }
    }

    fn tell(&self) {
        if self.told.allows(self.clock.now()) {
            tracing::warn!(
                listener = self.listener,
                connections_max = self.most,
                "all connections of the listener are taken: those that idle the longest are closed"
            );
        }
    }
}

impl State {
    fn share(&self, prefix: Prefix) -> usize {
        self.shares.get(&prefix).copied().unwrap_or_default()
    }

    /// Closes up to `count` idle connections, and returns their number: connections of this
    /// address, or of the one with the most. Those that have been idle the longest go first.
    fn make_room(&mut self, count: usize, patience: &Patience, of: Option<Prefix>) -> usize {
        let idle = self.held.iter().filter(|(_, holder)| !holder.is_leaving);
        let idle = idle.filter(|(_, holder)| of.is_none() || holder.prefix == of);
        let mut idle: Vec<_> = idle
            .filter_map(|(number, holder)| {
                let ticks = holder.activity.as_ref()?.idle_ticks(patience)?;
                let held = holder.prefix.map(|prefix| self.share(prefix));
                // `None` (no share) sorts below every share.
                Some((Reverse((held, holder.prefix)), Reverse(ticks), *number))
            })
            .collect();
        let end = count.min(idle.len());
        // A partial sort is enough, and cheaper if thousands of connections are idle.
        if end < idle.len() {
            idle.select_nth_unstable(end);
        }
        let Some((first, ..)) = idle[..end].iter().min().copied() else {
            return 0;
        };
        // Only connections of the first address make room; others keep theirs until the next
        // attempt.
        let leaving = idle[..end].iter().filter(|(from, ..)| *from == first);
        leaving.map(|(.., number)| self.end(*number)).count()
    }

    fn end(&mut self, number: u64) {
        let Some(holder) = self.held.get_mut(&number) else {
            return;
        };
        holder.is_leaving = true;
        if let Some(activity) = &holder.activity {
            activity.end();
        }
        let prefix = holder.prefix;
        self.leaving += 1;
        // A closing connection keeps its slot until its task ends, but no longer counts for its
        // address.
        self.give_back(prefix);
    }

    fn free(&mut self, number: u64) {
        match self.held.remove(&number) {
            Some(holder) if holder.is_leaving => self.leaving -= 1,
            Some(holder) => self.give_back(holder.prefix),
            None => {}
        }
    }

    fn give_back(&mut self, prefix: Option<Prefix>) {
        let Some(prefix) = prefix else {
            return;
        };
        if let Some(share) = self.shares.get_mut(&prefix) {
            *share -= 1;
            if *share == 0 {
                self.shares.remove(&prefix);
            }
        }
    }
}

impl Slot {
    /// Notes that a worker serves the connection, so that it can make room for others.
    pub(super) fn serve(&self, activity: &Arc<Activity>) {
        if let Some(holder) = self.slots.state.lock().held.get_mut(&self.number) {
            holder.activity = Some(Arc::clone(activity));
        }
    }

    /// The only slot of a listener for tests.
    #[cfg(test)]
    pub(super) fn alone() -> Self {
        let patience = Patience::new(Duration::from_secs(1), Duration::from_secs(1));
        let clock = Arc::new(palisade::SystemClock::new());
        let slots = Slots::new("test", 1, patience, clock);
        slots.hold(&mut slots.state.lock(), None)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The activity is dropped after the lock is released.
        let mut state = self.slots.state.lock();
        state.free(self.number);
        drop(state);
        self.slots.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use palisade::VirtualClock;

    use super::super::activity::{Live, UnderWay};
    use super::*;

    fn patience() -> Patience {
        Patience::new(Duration::from_secs(1), Duration::from_secs(1))
    }

    fn slots(most: usize) -> Arc<Slots> {
        let clock = Arc::new(VirtualClock::default());
        Slots::new("test", most, patience(), clock)
    }

    fn client(number: u8) -> Option<Prefix> {
        Some(Prefix::of([192, 0, 2, number].into()))
    }

    struct Connection {
        slot: Slot,
        activity: Arc<Activity>,
    }

    impl Connection {
        fn is_kept(&self) -> bool {
            let state = self.slot.slots.state.lock();
            !state.held[&self.slot.number].is_leaving
        }
    }

    fn connect(slots: &Arc<Slots>, live: &Live, prefix: Option<Prefix>) -> Option<Connection> {
        let Admission::Admitted(slot) = slots.attempt(prefix, false) else {
            return None;
        };
        let activity = live.add(&patience());
        slot.serve(&activity);
        Some(Connection { slot, activity })
    }

    fn kept(connections: &[Connection]) -> Vec<bool> {
        connections.iter().map(Connection::is_kept).collect()
    }

    #[test]
    fn s5_the_address_with_the_most_makes_room_its_longest_idle_first() {
        let (slots, live) = (slots(5), Live::default());
        let quiet = connect(&slots, &live, client(1)).unwrap();
        live.tick(&patience());
        let mut many: Vec<_> = (0..3)
            .map(|_| {
                live.tick(&patience());
                connect(&slots, &live, client(2)).unwrap()
            })
            .collect();
        let proxy = connect(&slots, &live, None).unwrap();
        assert!(connect(&slots, &live, client(3)).is_none(), "all are taken");
        assert_eq!(kept(&many), [false, true, true]);
        assert!(quiet.is_kept() && proxy.is_kept());
        assert!(
            connect(&slots, &live, client(3)).is_none(),
            "it is still there"
        );
        assert_eq!(kept(&many), [false, true, true], "one is enough");
        assert!(matches!(slots.attempt(client(3), true), Admission::Full));
        assert_eq!(kept(&many), [false, false, true], "unless it is late");
        many.remove(0);
        assert!(connect(&slots, &live, client(3)).is_some());
    }

    #[test]
    fn s5_proxies_make_room_last_and_what_is_of_use_never() {
        let (slots, live) = (slots(3), Live::default());
        let mut proxies: Vec<_> = (0..2)
            .map(|_| connect(&slots, &live, None).unwrap())
            .collect();
        live.tick(&patience());
        let busy = connect(&slots, &live, client(1)).unwrap();
        let request = UnderWay::begin(&busy.activity);
        assert!(matches!(slots.attempt(client(2), true), Admission::Full));
        assert_eq!(kept(&proxies), [false, true]);
        assert!(busy.is_kept());
        drop(request);
        assert!(matches!(slots.attempt(client(2), true), Admission::Full));
        assert!(!busy.is_kept());
        proxies.clear();
        drop(busy);
        let state = slots.state.lock();
        assert!(state.held.is_empty() && state.shares.is_empty());
        assert_eq!(state.leaving, 0);
    }

    #[test]
    fn s5_an_address_beyond_its_share_gives_up_its_own() {
        let (slots, live) = (slots(8), Live::default());
        let other = connect(&slots, &live, client(1)).unwrap();
        let mut own = Vec::new();
        for _ in 0..4 {
            own.push(connect(&slots, &live, client(2)).unwrap());
            live.tick(&patience());
        }
        let requests: Vec<_> = own[1..]
            .iter()
            .map(|one| UnderWay::begin(&one.activity))
            .collect();
        own.push(connect(&slots, &live, client(2)).unwrap());
        assert_eq!(kept(&own), [false, true, true, true, true]);
        let last = UnderWay::begin(&own[4].activity);
        assert!(matches!(
            slots.attempt(client(2), false),
            Admission::Refused
        ));
        assert!(matches!(slots.attempt(None, false), Admission::Admitted(_)));
        assert!(other.is_kept());
        drop((requests, last));
    }

    #[test]
    fn s5_an_ipv6_client_is_its_64() {
        let (slots, live) = (slots(2), Live::default());
        let of = |ip: &str| Some(Prefix::of(ip.parse().unwrap()));
        let one = connect(&slots, &live, of("2001:db8::1")).unwrap();
        let _busy = UnderWay::begin(&one.activity);
        let same = slots.attempt(of("2001:db8::2"), false);
        assert!(matches!(same, Admission::Refused));
        assert!(connect(&slots, &live, of("2001:db8:0:1::1")).is_some());
    }

    #[tokio::test]
    async fn who_waits_gets_the_slot_that_becomes_free() {
        let (slots, live) = (slots(1), Live::default());
        let one = connect(&slots, &live, None).unwrap();
        let request = UnderWay::begin(&one.activity);
        let waiting = slots.admit(None);
        let freed = async {
            tokio::task::yield_now().await;
            drop((request, one));
        };
        assert!(tokio::join!(waiting, freed).0.is_some());
    }
}
