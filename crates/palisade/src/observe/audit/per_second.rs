//! Counts events of requests by second and bucket, so that a flood of refusals cannot wash other
//! events out of the audit.
//!
//! The first refusal of a bucket in a second is written at once, under its request's id. The others
//! of that second become one event, with their number and the first of their ids. The number of
//! buckets that are counted separately is bounded. Beyond the bound refusals are counted by limit,
//! and beyond a bound of limits by kind of event.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use palisade_core::time::{Micros, SECOND};
use parking_lot::Mutex;

use super::event::Event;

/// Most buckets that are counted separately in a second.
const BUCKETS_MAX: usize = 256;
/// Most limits that are counted separately beyond them.
const LIMITS_MAX: usize = 64;
/// Most request ids that a counted event names. The log has a line for each.
const IDS_MAX: usize = 16;

/// The time at which the first event of a second is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteTiming {
    /// The first event is written at once, the others at the end of the second with their number.
    FirstAtOnce,
    /// All events of a second are written as one, whatever network they come from.
    Together,
}

/// The events of the running second.
#[derive(Default)]
pub(super) struct PerSecond(Mutex<RunningSecond>);

impl PerSecond {
    /// Counts an event, and returns the events to be written now.
    pub(super) fn count(&self, event: Event, telling: WriteTiming) -> Vec<Event> {
        let mut running = self.0.lock();
        let mut told = running.turn_to(event.at);
        told.extend(running.count(event, telling));
        told
    }

    /// Ends the running second, and returns the events that it still held back.
    pub(super) fn close(&self) -> Vec<Event> {
        self.0.lock().close()
    }
}

#[derive(Default)]
struct RunningSecond {
    second: u64,
    /// Tallies by the fields that their events have in common.
    tallies: HashMap<Event, Tally>,
}

impl RunningSecond {
    /// Ends the second if `at` lies outside it. An event of the second before does not end this
    /// one, because requests report slightly out of order.
    fn turn_to(&mut self, at: Micros) -> Vec<Event> {
        let second = at.0 / SECOND;
        if second == self.second || second + 1 == self.second {
            return Vec::new();
        }
        self.second = second;
        self.close()
    }

    fn close(&mut self) -> Vec<Event> {
        let tallies = std::mem::take(&mut self.tallies).into_values();
        let mut told: Vec<Event> = tallies.filter_map(Tally::into_event).collect();
        told.sort_by_key(|event| event.at);
        told
    }

    fn count(&mut self, event: Event, telling: WriteTiming) -> Option<Event> {
        let (key, event, telling) = self.place(event, telling);
        match self.tallies.entry(key) {
            Entry::Vacant(place) if telling == WriteTiming::FirstAtOnce => {
                place.insert(Tally::default());
                return Some(event);
            }
            Entry::Vacant(place) => place.insert(Tally::default()).add(event),
            Entry::Occupied(mut place) => place.get_mut().add(event),
        }
        None
    }

    /// The key that an event is counted under: its bucket or, if too many are counted separately
    /// already, its limit or its kind.
    fn place(&self, event: Event, telling: WriteTiming) -> (Event, Event, WriteTiming) {
        let has_room =
            |key: &Event, most| self.tallies.len() < most || self.tallies.contains_key(key);
        let bucket = match telling {
            WriteTiming::FirstAtOnce => event.key(),
            WriteTiming::Together => event.key_of_any_network(),
        };
        if has_room(&bucket, BUCKETS_MAX) {
            return (bucket, event, telling);
        }
        let event = event.of_its_limit();
        let limit = event.key_of_any_network();
        if has_room(&limit, BUCKETS_MAX + LIMITS_MAX) {
            return (limit, event, WriteTiming::Together);
        }
        let event = event.of_its_kind();
        (event.key_of_any_network(), event, WriteTiming::Together)
    }
}

/// The events of one key that have not been written yet.
#[derive(Debug, Default)]
struct Tally {
    count: u64,
    request_ids: Vec<Box<str>>,
    /// The last event, reduced to the fields that all of them share.
    last: Option<Event>,
}

impl Tally {
    fn add(&mut self, mut event: Event) {
        self.count += 1;
        let request_id = event.request_id.take();
        if self.request_ids.len() < IDS_MAX {
            self.request_ids.extend(request_id);
        }
        if let Some(earlier) = self.last.take() {
            // Network and correlation id are kept only as long as all events share them.
            let network = event.ip_prefix;
            event.ip_prefix = network.filter(|_| network == earlier.ip_prefix);
            let call = event.correlation_id.take();
            event.correlation_id =
                call.filter(|call| earlier.correlation_id.as_ref() == Some(call));
        }
        self.last = Some(event);
    }

    /// Returns the event to write; `None` if all were written at once.
    fn into_event(mut self) -> Option<Event> {
        let mut event = self.last?;
        // An event about a streak of denials has a count already, the streak's length.
        event.count = event.count.or(Some(self.count));
        match self.count {
            1 => event.request_id = self.request_ids.pop(),
            _ => event.request_ids = self.request_ids,
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use palisade_core::key::Digest;
    use palisade_core::rule::Rule;

    use super::super::event::{EventKind, Network};
    use super::*;

    fn refusal(partition: u128, at: u64) -> Event {
        let mut event = Event::new(EventKind::RateLimitExceeded, Micros(at));
        event.partition = Some(Digest(partition));
        event.bucket = Some("ip-auth".into());
        event.rule = Some(Rule::L_IP);
        event.request_id = Some(format!("r-{partition}-{at}").into());
        event
    }

    fn origin(subject: &str, at: u64) -> Event {
        let mut event = Event::new(EventKind::OriginRefused, Micros(at));
        event.subject = Some(subject.into());
        event
    }

    fn from(ip: [u8; 4], event: Event) -> Event {
        Event {
            ip_prefix: Some(Network::of(Ipv4Addr::from(ip).into())),
            ..event
        }
    }

    fn counts(told: &[Event]) -> Vec<Option<u64>> {
        told.iter().map(|event| event.count).collect()
    }

    #[test]
    fn s10_the_first_refusal_of_a_buckets_second_is_told_at_once_and_the_others_with_their_ids() {
        let seconds = PerSecond::default();
        let told = seconds.count(refusal(1, 0), WriteTiming::FirstAtOnce);
        assert_eq!(told, [refusal(1, 0)]);
        for at in 1..=100 {
            assert_eq!(
                seconds.count(refusal(1, at), WriteTiming::FirstAtOnce),
                Vec::new()
            );
        }
        let told = seconds.count(refusal(1, SECOND), WriteTiming::FirstAtOnce);
        assert_eq!(counts(&told), [Some(100), None]);
        assert_eq!(
            (told[0].at, told[0].request_id.as_ref()),
            (Micros(100), None)
        );
        assert_eq!(told[0].request_ids.len(), IDS_MAX);
        assert_eq!(&*told[0].request_ids[0], "r-1-1");
        assert!(seconds.close().is_empty(), "all was told");
    }

    #[test]
    fn a_single_other_refusal_has_its_id_where_others_have_theirs() {
        let seconds = PerSecond::default();
        seconds.count(refusal(1, 0), WriteTiming::FirstAtOnce);
        seconds.count(refusal(1, 1), WriteTiming::FirstAtOnce);
        let other = Event {
            count: Some(1),
            ..refusal(1, 1)
        };
        assert_eq!(seconds.close(), [other]);
    }

    #[test]
    fn s10_what_is_told_apart_is_bounded_and_every_refusal_is_counted() {
        let seconds = PerSecond::default();
        let mut told = Vec::new();
        for partition in 0..10_000 {
            for at in 0..3 {
                told.extend(seconds.count(refusal(partition, at), WriteTiming::FirstAtOnce));
            }
        }
        assert_eq!(told.len(), BUCKETS_MAX);
        assert_eq!(seconds.0.lock().tallies.len(), BUCKETS_MAX + 1);
        told.extend(seconds.close());
        let all: u64 = told.iter().map(|event| event.count.unwrap_or(1)).sum();
        assert_eq!(all, 30_000);
        assert_eq!(told.len(), 2 * BUCKETS_MAX + 1);
    }

    #[test]
    fn s10_limits_that_are_told_apart_are_bounded_too() {
        let seconds = PerSecond::default();
        let mut told = Vec::new();
        for limit in 0..10_000_u128 {
            let mut event = refusal(limit, 0);
            event.bucket = Some(format!("limit-{limit}").into());
            told.extend(seconds.count(event, WriteTiming::FirstAtOnce));
        }
        let held = seconds.0.lock().tallies.len();
        assert_eq!(held, BUCKETS_MAX + LIMITS_MAX + 1);
        told.extend(seconds.close());
        let all: u64 = told.iter().map(|event| event.count.unwrap_or(1)).sum();
        assert_eq!(all, 10_000);
    }

    #[test]
    fn a_flood_that_is_told_together_is_one_event_a_second_for_each_subject() {
        let seconds = PerSecond::default();
        let refused = |subject, at| seconds.count(origin(subject, at), WriteTiming::Together);
        for at in 0..1000 {
            assert!(refused("forwarded", at).is_empty());
            assert!(refused("x-forwarded-for", at).is_empty());
        }
        let over = refused("forwarded", SECOND);
        assert_eq!(counts(&over), [Some(1000), Some(1000)]);
        assert_eq!(over[0].at, Micros(999));
        assert_eq!(seconds.close().len(), 1);
        assert!(seconds.close().is_empty());
    }

    #[test]
    fn a_network_is_named_only_if_all_came_from_it() {
        let seconds = PerSecond::default();
        let together = |ip| seconds.count(from(ip, origin("forwarded", 0)), WriteTiming::Together);
        together([192, 0, 2, 1]);
        together([192, 0, 2, 9]);
        assert!(seconds.close()[0].ip_prefix.is_some());
        together([192, 0, 2, 1]);
        together([198, 51, 100, 1]);
        together([198, 51, 100, 1]);
        assert!(seconds.close()[0].ip_prefix.is_none());
    }

    #[test]
    fn a_late_event_does_not_end_the_second_and_a_clock_that_steps_back_does() {
        let seconds = PerSecond::default();
        let told = |at| {
            seconds
                .count(refusal(1, at), WriteTiming::FirstAtOnce)
                .len()
        };
        assert_eq!(told(10 * SECOND), 1);
        assert_eq!(told(10 * SECOND - 1), 0);
        assert_eq!(told(10 * SECOND + 1), 0);
        assert_eq!(
            told(5 * SECOND),
            2,
            "the others of that second, and a first"
        );
    }
}
