//! The latest readings of long windows, bounded in number (F-CARRY).

use hashbrown::HashMap;
use palisade_core::Digest;
use palisade_core::limit::{Algorithm, Reading};
use palisade_core::plan::Charge;
use palisade_core::time::Micros;
use parking_lot::Mutex;

/// Number of maps, each with a lock of its own.
const SHARDS: usize = 16;

/// Most readings per map: 160,000 in all, about 10 MB.
const READINGS_MAX: usize = 10_000;

/// A reading of a bucket by the store, with instants of this node's clock.
#[derive(Clone, Copy)]
struct LastReading {
    used: u64,
    read_at: Micros,
    /// Instant from which nothing of it counts any more.
    until: Micros,
}

/// The part of a last reading that still counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CarriedUsage {
    pub(super) used: u64,
    pub(super) until: Micros,
}

/// The latest readings on this node. If there are too many, the busiest buckets are kept.
#[derive(Default)]
pub(super) struct LastReadings {
    shards: [Mutex<HashMap<Digest, LastReading>>; SHARDS],
}

impl LastReadings {
    fn shard(&self, id: Digest) -> &Mutex<HashMap<Digest, LastReading>> {
        // The map's own hashing uses the low bits, so the shard is chosen by high ones.
        let index = (id.0 >> 120) as usize % SHARDS;
        &self.shards[index]
    }

    /// Notes a reading that the store made at `judged_at` by its clock, for a call that was made at
    /// `asked` by this node's clock.
    pub(super) fn note(
        &self,
        charge: &Charge<'_>,
        reading: &Reading,
        judged_at: Micros,
        asked: Micros,
    ) {
        let last = LastReading {
            used: reading.used,
            read_at: asked,
            until: asked.plus(reading.reset_at.since(judged_at)),
        };
        let mut known = self.shard(charge.id).lock();
        if known.len() >= READINGS_MAX && !known.contains_key(&charge.id) {
            make_room(&mut known, asked);
        }
        known.insert(charge.id, last);
    }

    /// The use of a bucket that still counts. The instants of single uses are not known, so all
    /// uses in a sliding or fixed window count until the last one leaves it.
    pub(super) fn of(&self, charge: &Charge<'_>, now: Micros) -> Option<CarriedUsage> {
        let last = *self.shard(charge.id).lock().get(&charge.id)?;
        let left = last.until.since(now);
        let used = match charge.spec.algorithm() {
            Algorithm::TokenBucket => drained(last, left),
            _ if left == 0 => 0,
            _ => last.used,
        };
        (used > 0).then_some(CarriedUsage {
            used,
            until: last.until,
        })
    }

    pub(super) fn forget(&self, charge: &Charge<'_>) {
        self.shard(charge.id).lock().remove(&charge.id);
    }

    pub(super) fn clear(&self) {
        for shard in &self.shards {
            shard.lock().clear();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

/// The use that is left in a token bucket which is full again in `left` microseconds.
fn drained(last: LastReading, left: u64) -> u64 {
    let whole = last.until.since(last.read_at).max(1);
    let used = u128::from(last.used) * u128::from(left.min(whole));
    u64::try_from(used.div_ceil(u128::from(whole))).unwrap_or(last.used)
}

/// Drops readings that no longer count and, if that is not enough, the less used half. What is
/// forgotten here is what an outage may grant a second time, so the busiest buckets stay.
fn make_room(known: &mut HashMap<Digest, LastReading>, now: Micros) {
    known.retain(|_, last| last.until > now);
    if known.len() < READINGS_MAX {
        return;
    }
    let mut uses: Vec<u64> = known.values().map(|last| last.used).collect();
    let (_, median, busier) = uses.select_nth_unstable(READINGS_MAX / 2);
    let median = *median;
    let mut equals_kept = busier.iter().filter(|used| **used == median).count();
    known.retain(|_, last| {
        let is_kept = last.used > median || (last.used == median && equals_kept > 0);
        if is_kept && last.used == median {
            equals_kept -= 1;
        }
        is_kept
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(used: u64, until: u64) -> LastReading {
        LastReading {
            used,
            read_at: Micros(0),
            until: Micros(until),
        }
    }

    #[test]
    fn f_carry_the_busiest_readings_are_kept_when_there_are_too_many() {
        let mut known: HashMap<Digest, LastReading> = (0..READINGS_MAX as u128)
            .map(|id| (Digest(id), reading(1 + (id % 100) as u64, 10)))
            .collect();
        make_room(&mut known, Micros(5));
        assert!(known.len() <= READINGS_MAX / 2);
        assert!(known.len() >= READINGS_MAX / 2 - 1);
        assert!(known.values().all(|last| last.used >= 50));
    }

    #[test]
    fn f_carry_equally_busy_readings_are_not_all_dropped() {
        let mut known: HashMap<Digest, LastReading> = (0..READINGS_MAX as u128)
            .map(|id| (Digest(id), reading(1, 10)))
            .collect();
        make_room(&mut known, Micros(5));
        assert_eq!(known.len(), READINGS_MAX / 2 - 1);
    }

    #[test]
    fn f_carry_readings_that_no_longer_count_go_first() {
        let mut known: HashMap<Digest, LastReading> = (0..READINGS_MAX as u128)
            .map(|id| (Digest(id), reading(1, 10 * u64::from(id % 2 == 1))))
            .collect();
        make_room(&mut known, Micros(5));
        assert_eq!(known.len(), READINGS_MAX / 2);
    }

    #[test]
    fn f_carry_what_was_used_of_a_token_bucket_drains() {
        let last = reading(10, 1_000);
        assert_eq!(drained(last, 1_000), 10);
        assert_eq!(drained(last, 501), 6);
        assert_eq!(drained(last, 0), 0);
    }
}
