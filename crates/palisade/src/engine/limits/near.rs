//! Buckets that are served in this process: local ones, and leased ones from the tokens
//! at hand.

use std::borrow::Cow;
use std::sync::Arc;

use palisade_core::limit::{BucketSpec, Reading};
use palisade_core::plan::Charge;
use palisade_core::time::Micros;
use palisade_store::{BucketReadings, ChargeOutcome, Take, TakenCharge};
use tokio::time::Instant;

use super::super::link::{For, NoAnswer};
use super::Limits;
use super::both_names;
use super::charge::{Counters, with_spec};
use super::lease::{Lease, Origin};

/// What the buckets that live here said, by this node's clock.
pub(super) struct Near<'c, 'p> {
    pub(super) charged: ChargeOutcome,
    pub(super) held: Vec<Held<'p>>,
    local: Cow<'c, [Charge<'p>]>,
    /// What the local ones alone said.
    here: ChargeOutcome,
}

/// Something that was taken and can be put back.
pub(super) enum Held<'p> {
    /// So many tokens of this batch of the lease.
    Lease(Arc<Lease>, u32, Origin),
    /// A charge in the store, as it was made there, and when.
    Store(Box<Charge<'p>>, BucketSpec, Micros),
}

/// What becomes of a charge in this process when the store that is asked for the rest
/// does not answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WithoutAnswer {
    /// It stays: an instance's own throttle binds in an outage too.
    Stays,
    /// It goes back: the request is decided anew.
    GoesBack,
}

/// What a leased bucket said, by this node's clock.
pub(super) struct Leased<'p> {
    pub(super) reading: Reading,
    pub(super) admitted: bool,
    pub(super) held: Option<Held<'p>>,
}

impl<'p> Leased<'p> {
    pub(super) const fn taken(reading: Reading, held: Held<'p>) -> Self {
        Self {
            reading,
            admitted: true,
            held: Some(held),
        }
    }

    /// Admitted though it is full: there is nothing to put back.
    pub(super) const fn reported(reading: Reading) -> Self {
        Self {
            reading,
            admitted: true,
            held: None,
        }
    }

    pub(super) const fn denied(reading: Reading) -> Self {
        Self {
            reading,
            admitted: false,
            held: None,
        }
    }
}

impl Leased<'_> {
    /// When the store gave what was taken, by its clock.
    fn taken_at(&self) -> Option<Micros> {
        match self.held.as_ref()? {
            Held::Lease(_, _, origin) => Some(origin.taken_at),
            Held::Store(_, _, at) => Some(*at),
        }
    }
}

impl Limits {
    pub(super) fn local_of<'c, 'p>(&self, near: &'c [Charge<'p>]) -> Cow<'c, [Charge<'p>]> {
        let is_local = |charge: &&Charge<'_>| self.is_local(charge);
        if near.iter().all(|charge| is_local(&charge)) {
            return Cow::Borrowed(near);
        }
        near.iter().filter(is_local).cloned().collect()
    }
}

impl Counters<'_> {
    /// Takes from buckets that live here, all or nothing.
    pub(super) async fn take_near<'c, 'p>(
        self,
        near: &'c [Charge<'p>],
        take: Take,
        ends: Instant,
        without_answer: WithoutAnswer,
    ) -> Result<Near<'c, 'p>, NoAnswer> {
        let local = self.limits.local_of(near);
        let here = self.limits.local.charge_now(&local, take);
        let mut charged = ChargeOutcome {
            now: here.now,
            admitted: here.admitted,
            readings: BucketReadings::with_capacity(near.len()),
            rebuilt: here.rebuilt,
            instants: Vec::new(),
        };
        let mut local_readings = here.readings.iter().copied();
        let mut held = Vec::new();
        for charge in near {
            if self.limits.is_local(charge) {
                charged.readings.extend(local_readings.next());
                self.note(&mut charged, here.now);
                continue;
            }
            if !charged.admitted {
                charged.readings.push(self.last_reading(charge));
                self.note(&mut charged, here.now);
                continue;
            }
            let leased = match self.at_hand(charge, take) {
                Some(leased) => Ok(leased),
                // Boxed: requests that do not wait would carry its state.
                None => Box::pin(self.lease(charge, take, ends)).await,
            };
            let leased = match leased {
                Ok(leased) => leased,
                Err(no_answer) => {
                    if without_answer == WithoutAnswer::GoesBack {
                        self.give_back_here(&here, &local, take);
                    }
                    self.put_back(held, ends).await;
                    return Err(no_answer);
                }
            };
            charged.readings.push(leased.reading);
            self.note(&mut charged, leased.taken_at().unwrap_or(here.now));
            charged.admitted = leased.admitted;
            held.extend(leased.held);
        }
        let mut near = Near {
            charged,
            held,
            local,
            here,
        };
        if !near.charged.admitted {
            self.undo(&mut near, take, ends).await;
        }
        Ok(near)
    }

    /// Puts everything back.
    pub(super) async fn undo(self, near: &mut Near<'_, '_>, take: Take, ends: Instant) {
        self.give_back_here(&near.here, &near.local, take);
        self.put_back(std::mem::take(&mut near.held), ends).await;
    }

    /// Notes when a bucket was charged, if a receipt will say it.
    fn note(self, charged: &mut ChargeOutcome, at: Micros) {
        if self.notes {
            charged.instants.push(at);
        }
    }

    fn give_back_here(self, here: &ChargeOutcome, local: &[Charge<'_>], take: Take) {
        if take == Take::Consume && here.admitted {
            self.limits.local.give_back_now(&here.taken(local));
        }
    }

    pub(super) async fn put_back(self, held: Vec<Held<'_>>, ends: Instant) {
        for held in held {
            match held {
                Held::Lease(lease, cost, origin) => {
                    self.limits.leases.put_back_to(&lease, cost, origin);
                }
                Held::Store(charge, spec, at) => {
                    let charge = with_spec(&charge, &spec, charge.cost);
                    // Boxed: requests that give nothing back would carry its state.
                    Box::pin(self.tidy(&[TakenCharge { charge, at }], ends)).await;
                }
            }
        }
    }

    /// Gives back to the store what nobody used, as far as it still counts. Whether that
    /// succeeds does not matter: what is not given back expires.
    pub(super) async fn tidy(self, taken: &[TakenCharge<'_>], ends: Instant) {
        let asked = self.link.now();
        let give = self.link.call(For::Upkeep, ends, |store| {
            both_names::give_back(store, taken)
        });
        if let Ok(charged) = give.await {
            let charges: Vec<Charge<'_>> = taken.iter().map(|one| one.charge.clone()).collect();
            self.keep_readings(&charges, &charged, asked);
        }
    }

    /// A leased bucket that need not be asked: the request is denied already.
    fn last_reading(self, charge: &Charge<'_>) -> Reading {
        let lease = self.limits.leases.of(charge, self.link.now());
        let known = lease.and_then(|lease| lease.last_reading());
        let reading = known.unwrap_or_else(|| {
            let untouched = palisade_core::limit::State::Empty;
            charge.spec.read(&untouched, self.link.now(), charge.cost)
        });
        Reading {
            retry_at: None,
            ..reading
        }
    }
}
