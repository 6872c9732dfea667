//! What anybody can cause as often as they like is one event a second, with a count:
//! nobody fills the audit with it.

use palisade_core::rule::Rule;
use palisade_core::time::{Micros, SECOND};
use parking_lot::Mutex;

use super::event::{Event, EventKind, Network};

/// Most kinds of things that are counted apart.
const KINDS_MAX: usize = 16;

/// One thing that happened, so often within a second.
#[derive(Clone, Copy)]
struct Counted {
    kind: EventKind,
    subject: Option<&'static str>,
    network: Option<Network>,
    second: u64,
    count: u64,
    last: Micros,
}

impl Counted {
    fn into_event(self) -> Event {
        let mut event = Event::new(self.kind, self.last);
        event.count = Some(self.count);
        event.subject = self.subject.map(Into::into);
        event.ip_prefix = self.network;
        if self.kind == EventKind::GlobalThrottleExceeded {
            event.rule = Some(Rule::L_GLOBAL);
            event.code = Some("throttling.rate_limit_exceeded");
        }
        event
    }
}

/// Counts of the running second.
#[derive(Default)]
pub(super) struct PerSecond(Mutex<Vec<Counted>>);

impl PerSecond {
    /// Counts one; what the second before had, if a new one starts.
    pub(super) fn count(
        &self,
        kind: EventKind,
        subject: Option<&'static str>,
        network: Option<Network>,
        at: Micros,
    ) -> Option<Event> {
        let fresh = Counted {
            kind,
            subject,
            network,
            second: at.0 / SECOND,
            count: 1,
            last: at,
        };
        let mut all = self.0.lock();
        let same = |one: &Counted| one.kind == kind && one.subject == subject;
        let Some(one) = all.iter_mut().find(|one| same(one)) else {
            // The oldest gives way: it is written, not lost.
            let over = (all.len() >= KINDS_MAX).then(|| all.remove(0).into_event());
            all.push(fresh);
            return over;
        };
        if one.second != fresh.second {
            return Some(std::mem::replace(one, fresh).into_event());
        }
        one.count += 1;
        one.last = at;
        // Only what is true of all of them is said.
        one.network = one.network.filter(|known| Some(*known) == network);
        None
    }

    /// Ends the running second.
    pub(super) fn close(&self) -> Vec<Event> {
        let all = std::mem::take(&mut *self.0.lock());
        all.into_iter().map(Counted::into_event).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_event_a_second_for_each_kind() {
        let counts = PerSecond::default();
        let refused =
            |subject, at| counts.count(EventKind::OriginRefused, Some(subject), None, Micros(at));
        for at in 0..1000 {
            assert!(refused("forwarded", at).is_none());
            assert!(refused("x-forwarded-for", at).is_none());
        }
        let over = refused("forwarded", SECOND).unwrap();
        assert_eq!((over.count, over.at), (Some(1000), Micros(999)));
        let rest: Vec<_> = counts.close().iter().map(|event| event.count).collect();
        assert_eq!(rest, [Some(1), Some(1000)]);
        assert!(counts.close().is_empty());
    }

    #[test]
    fn kinds_are_bounded_and_none_is_lost() {
        const SUBJECTS: [&str; 40] = [
            "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15",
            "16", "17", "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29",
            "30", "31", "32", "33", "34", "35", "36", "37", "38", "39",
        ];
        let counts = PerSecond::default();
        let early = SUBJECTS
            .iter()
            .filter_map(|subject| {
                counts.count(EventKind::OriginRefused, Some(subject), None, Micros(0))
            })
            .count();
        assert_eq!(early + counts.close().len(), SUBJECTS.len());
        assert_eq!(early, SUBJECTS.len() - KINDS_MAX);
    }

    #[test]
    fn a_network_is_named_only_if_all_came_from_it() {
        let counts = PerSecond::default();
        let from = |ip: [u8; 4]| {
            let network = Some(Network::of(ip.into()));
            counts.count(EventKind::OriginRefused, None, network, Micros(0))
        };
        from([192, 0, 2, 1]);
        from([192, 0, 2, 9]);
        assert!(counts.close()[0].ip_prefix.is_some());
        from([192, 0, 2, 1]);
        from([198, 51, 100, 1]);
        assert!(counts.close()[0].ip_prefix.is_none());
    }
}
