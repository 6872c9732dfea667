//! What the buckets of a denied call said: a call that is denied from memory tells of its other
//! descriptors what was seen then, and asks nobody.

use hashbrown::HashMap;
use palisade_core::Digest;
use palisade_core::limit::Reading;
use palisade_core::plan::Charge;
use palisade_core::time::Micros;
use palisade_store::ChargeOutcome;
use parking_lot::Mutex;

/// Most buckets that are remembered.
const SEEN_MAX: usize = 100_000;

/// Readings by bucket, each for as long as the denial beside it may be remembered.
#[derive(Default)]
pub(in crate::engine::limits) struct Beside(Mutex<HashMap<Digest, Seen>>);

#[derive(Clone, Copy)]
struct Seen {
    cost: u32,
    reading: Reading,
    /// By the store's clock, like the reading.
    until: Micros,
}

impl Seen {
    /// The reading as far as it answers this cost at `now`.
    fn answers(&self, cost: u32, now: Micros) -> Option<Reading> {
        let answers = match self.reading.retry_at {
            None => u64::from(cost) <= self.reading.remaining,
            Some(retry_at) => retry_at > now && cost >= self.cost,
        };
        (answers && self.until > now).then_some(self.reading)
    }
}

impl Beside {
    /// Remembers what a call was told that the store denied.
    pub(super) fn learn(&self, charges: &[Charge<'_>], charged: &ChargeOutcome) {
        let waits = charged.readings.iter().filter_map(|one| one.retry_at);
        let Some(until) = waits.max().filter(|_| charges.len() > 1) else {
            return;
        };
        let mut known = self.0.lock();
        // Nobody is denied by what is known here: what is forgotten is told as not read.
        if known.len() + charges.len() > SEEN_MAX {
            known.clear();
        }
        for (charge, reading) in charges.iter().zip(&charged.readings) {
            let seen = Seen {
                cost: charge.required(),
                reading: *reading,
                until,
            };
            known.insert(charge.memo(), seen);
        }
    }

    /// What is known of each bucket of a call that `denying` denies; `now` is the store's.
    pub(super) fn find(
        &self,
        charges: &[Charge<'_>],
        (denying, reading): (&Charge<'_>, Reading),
        now: Micros,
    ) -> Vec<Option<Reading>> {
        let known = self.0.lock();
        let find = |charge: &Charge<'_>| match std::ptr::eq(charge, denying) {
            true => Some(reading),
            false => known.get(&charge.memo())?.answers(charge.required(), now),
        };
        charges.iter().map(find).collect()
    }

    /// Forgets everything, after a reset or a change of policy.
    pub(in crate::engine::limits) fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r_status_a_reading_answers_while_the_denial_holds_and_for_costs_it_speaks_of() {
        let seen = |remaining: u64, retry_at: Option<u64>| Seen {
            cost: 3,
            reading: Reading {
                used: 0,
                remaining,
                reset_at: Micros(0),
                retry_at: retry_at.map(Micros),
            },
            until: Micros(50),
        };
        let answers = |seen: Seen, cost: u32, now: u64| seen.answers(cost, Micros(now)).is_some();
        assert!(answers(seen(5, None), 5, 49));
        assert!(!answers(seen(5, None), 6, 49), "it may deny that");
        assert!(!answers(seen(5, None), 5, 50), "the denial is over");
        assert!(answers(seen(0, Some(40)), 3, 39));
        assert!(!answers(seen(0, Some(40)), 2, 39), "less may fit");
        assert!(!answers(seen(0, Some(40)), 3, 40), "it may fit by now");
    }
}
