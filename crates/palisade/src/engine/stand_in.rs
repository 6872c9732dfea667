//! Counters that stand in for the store while it cannot be asked (F-CLEAN, F-CARRY).
//!
//! Short windows are counted from zero and dropped on recovery. Windows of ten minutes and longer
//! would be granted anew by each outage if they started from zero: they start from this node's last
//! reading of them in the store, and what was admitted here stays counted until its own window has
//! passed, through recovery and further outages.

mod last_read;

use std::sync::Arc;

use arc_swap::ArcSwap;
use palisade_core::limit::Reading;
use palisade_core::plan::Charge;
use palisade_core::time::{Clock, Micros};
use palisade_store::{Buckets, ChargeReadings, StoreError, StoreStats, Take, TakenCharge, Vitals};
use parking_lot::Mutex;

use super::link::{LocalStore, local_store};
use last_read::{CarriedUsage, LastReadings};

/// The counters of one node.
pub(super) struct StandIn {
    clock: Arc<dyn Clock>,
    /// Windows below ten minutes.
    short: ArcSwap<LocalStore>,
    long: LocalStore,
    /// The store's last readings of long windows.
    last_read: LastReadings,
    /// Held while long windows are charged, so that checking a bucket (own counter plus last
    /// reading) and taking from it are one step.
    turn: Mutex<()>,
}

impl StandIn {
    pub(super) fn new(clock: &Arc<dyn Clock>) -> Self {
        Self {
            clock: Arc::clone(clock),
            short: ArcSwap::from_pointee(local_store(clock)),
            long: local_store(clock),
            last_read: LastReadings::default(),
            turn: Mutex::new(()),
        }
    }

    /// Notes the store's readings of these buckets, for a call that was made at `asked` by this
    /// node's clock.
    pub(super) fn note(&self, charges: &[Charge<'_>], charged: &ChargeReadings, asked: Micros) {
        for (position, (charge, reading)) in charges.iter().zip(&charged.readings).enumerate() {
            if charge.has_long_window() {
                let ahead = charged.judged_at(position);
                self.last_read.note(charge, reading, ahead, asked);
            }
        }
    }

    /// Drops the counters of short windows, because the store answers again.
    pub(super) fn recover(&self) {
        self.short.store(Arc::new(local_store(&self.clock)));
    }

    /// Charges the buckets, all or nothing.
    pub(super) fn charge_now(&self, charges: &[Charge<'_>], take: Take) -> ChargeReadings {
        let short = self.short.load();
        if !charges.iter().any(Charge::has_long_window) {
            return short.charge_now(charges, take);
        }
        let (long, brief): (Vec<_>, Vec<_>) =
            charges.iter().cloned().partition(Charge::has_long_window);
        let _turn = self.turn.lock();
        // Long windows are checked first and charged last, so that a refusal by either kind takes
        // nothing.
        let looked = self.look(&long);
        let near = short.charge_now(&brief, if looked.admitted { take } else { Take::Peek });
        let mut far = looked;
        if take == Take::Consume && near.admitted && far.admitted {
            let taken = self.long.charge_now(&long, Take::Consume);
            far = self.carried_over(&long, taken, Some(&far));
        }
        in_order(charges, near, far)
    }

    /// Readings of long windows before a charge: what was admitted here plus the store's last
    /// readings.
    fn look(&self, long: &[Charge<'_>]) -> ChargeReadings {
        let found = self.long.charge_now(long, Take::Peek);
        self.carried_over(long, found, None)
    }

    /// Adds the store's last readings to those of this node's own counters. After a take, `found`
    /// holds the readings before it, whose waits are kept: the cost is now part of the use and must
    /// not be checked a second time.
    fn carried_over(
        &self,
        long: &[Charge<'_>],
        mut own: ChargeReadings,
        found: Option<&ChargeReadings>,
    ) -> ChargeReadings {
        let now = own.now;
        for (position, (charge, reading)) in long.iter().zip(&mut own.readings).enumerate() {
            let carried = self.last_read.of(charge, now);
            let mut both = joined(charge, *reading, carried, now);
            if let Some(found) = found.and_then(|found| found.readings.get(position)) {
                both.retry_at = found.retry_at;
            }
            *reading = both;
        }
        let denies = |(charge, reading): (&Charge<'_>, &Reading)| {
            charge.on_exceed.denies() && reading.retry_at.is_some()
        };
        own.admitted &= !long.iter().zip(&own.readings).any(denies);
        own
    }

    /// Gives back what was taken here.
    pub(super) fn give_back_now(&self, taken: &[TakenCharge<'_>]) {
        let is_long = |taken: &TakenCharge<'_>| taken.charge.has_long_window();
        let (long, short): (Vec<_>, Vec<_>) = taken.iter().cloned().partition(is_long);
        self.long.give_back_now(&long);
        self.short.load().give_back_now(&short);
    }

    /// Clears these buckets at an operator's request.
    pub(super) async fn reset(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        for charge in charges {
            self.last_read.forget(charge);
        }
        self.long.reset(charges).await?;
        let short = self.short.load_full();
        short.reset(charges).await.map(drop)
    }

    /// Drops the store's last readings: an operator cleared buckets on another node, and the
    /// announcement does not say which.
    pub(super) fn forget_readings(&self) {
        self.last_read.clear();
    }

    /// Statistics of both kinds of counters together.
    pub(super) fn stats(&self) -> StoreStats {
        let (mut all, long) = (self.short.load().stats(), self.long.stats());
        all.tracked_keys += long.tracked_keys + self.last_read.len() as u64;
        all.evictions += long.evictions;
        all.expired += long.expired;
        all.overflowed += long.overflowed;
        all
    }
}

/// A reading of a bucket that was used partly here and partly in the store.
fn joined(
    charge: &Charge<'_>,
    own: Reading,
    carried: Option<CarriedUsage>,
    now: Micros,
) -> Reading {
    let Some(carried) = carried else {
        return own;
    };
    let used = own.used.saturating_add(carried.used);
    let capacity = charge.spec.capacity();
    let fits = own.retry_at.is_none() && used.saturating_add(charge.required()) <= capacity;
    Reading {
        used,
        remaining: capacity.saturating_sub(used),
        reset_at: own.reset_at.max(carried.until),
        // By then nothing of what the store said counts any more.
        retry_at: (!fits).then(|| carried.until.max(own.retry_at.unwrap_or(now))),
    }
}

/// Readings of both kinds of windows in the order of the charges.
fn in_order(charges: &[Charge<'_>], near: ChargeReadings, far: ChargeReadings) -> ChargeReadings {
    let (mut short, mut long) = (near.readings.into_iter(), far.readings.into_iter());
    let next = |charge: &Charge<'_>| match charge.has_long_window() {
        true => long.next(),
        false => short.next(),
    };
    ChargeReadings {
        now: far.now,
        admitted: near.admitted && far.admitted,
        readings: charges.iter().filter_map(next).collect(),
        rebuilt: near.rebuilt + far.rebuilt,
        instants: Vec::new(),
    }
}
