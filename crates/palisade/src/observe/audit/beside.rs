//! Turns differences of the candidate policy into events, of which only a few per second name their
//! request: a candidate that refuses half of all requests must not crowd the live policy's refusals
//! out of the audit.

use palisade_core::Id;
use palisade_core::time::{Micros, SECOND};
use parking_lot::Mutex;

use super::Audit;
use super::event::{Event, EventKind, Network};
use super::per_second::WriteTiming;
use super::record::{with_decision, with_who};
use crate::engine::{CandidateSeen, Subject};
use crate::observe::classes::op_class;
use crate::observe::who::Who;

/// Most events per second that name the request of a difference.
const NAMED_MAX: u32 = 10;

/// The events of the running second, counted so that only `NAMED_MAX` of them name their request.
#[derive(Debug, Default)]
pub(super) struct Ration(Mutex<(u64, u32)>);

impl Ration {
    fn take(&self, at: Micros) -> bool {
        let second = at.0 / SECOND;
        let mut used = self.0.lock();
        if used.0 != second {
            *used = (second, 0);
        }
        used.1 += 1;
        used.1 <= NAMED_MAX
    }
}

impl Audit {
    pub(super) fn record_difference(&self, seen: &CandidateSeen<'_>) {
        let (kind, verdict, at) = (
            EventKind::CandidateDiffers,
            seen.verdict.name(),
            seen.live.at,
        );
        if !self.differences.take(at) {
            let mut event = Event::new(kind, at);
            event.subject = Some(verdict.into());
            self.shared.count_as(event, WriteTiming::Together);
            return;
        }
        let mut event = with_decision(Event::new(kind, at), seen.refusing());
        event.code = None;
        event.decision = None;
        event.subject = Some(verdict.into());
        event.from = Some(seen.live.outcome.name().into());
        event.to = Some(seen.candidate.outcome.name().into());
        self.ask(&mut event, seen);
        with_who(&mut event, &Who::of(&self.keyring, seen.subject));
        self.shared.push(event);
    }

    /// Adds the subject's class, ids and network to the event.
    fn ask(&self, event: &mut Event, seen: &CandidateSeen<'_>) {
        let text = |id: &Option<Id>| id.as_ref().map(|id| id.as_str().into());
        match seen.subject {
            Subject::Request(facts) => {
                let class = seen.live.class.as_deref();
                event.class = class.map(|class| self.classes.shown(class));
                event.request_id = text(&facts.request_id);
                event.correlation_id = text(&facts.correlation_id);
                event.ip_prefix = facts.address().map(Network::of);
            }
            Subject::Guard(op, facts) => {
                event.class = Some(op_class(op).into());
                event.op = Some(op.name());
                event.request_id = text(&facts.request_id);
                event.correlation_id = text(&facts.correlation_id);
                event.ip_prefix = Some(Network::of(facts.ip));
            }
            Subject::Descriptors(facts, _) => {
                event.request_id = text(&facts.request_id);
                let domain = seen.live.class.as_deref();
                event.class = domain.map(|domain| self.classes.shown(domain));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_differences_a_second_are_named() {
        let ration = Ration::default();
        let named = |at| (0..15).filter(|_| ration.take(Micros(at))).count();
        assert_eq!((named(0), named(SECOND)), (10, 10));
    }
}
