//! Charging the buckets of a request, all or nothing, wherever they are counted.

use palisade_core::failure::Policy;
use palisade_core::limit::{BucketSpec, Reading};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::Accuracy;
use palisade_core::time::Micros;
use palisade_store::{BucketReadings, ChargeOutcome, StoreError, Take};
use tokio::time::Instant;

use super::super::Engine;
use super::super::link::{CallTimes, For, Link, NoAnswer};
use super::Limits;
use super::both_names;
use super::lease::{Origin, Served, leased_spec};
use super::near::WithoutAnswer;

/// Store calls of limits and quotas.
pub(super) const LIMITS: For = For::Decision(Policy::Limits);

/// What a plan's buckets said.
pub(super) enum Answered<'c, 'p> {
    /// Every bucket was read.
    All(ChargeOutcome),
    /// One bucket is known to deny; the others were not asked.
    Denied(&'c Charge<'p>, Reading, Micros),
    /// Buckets of this process deny; the store could not be asked for the others.
    Near(Vec<Charge<'p>>, ChargeOutcome),
}

/// Every bucket that a request may be charged to: this node's own and the store's.
#[derive(Clone, Copy)]
pub(super) struct Counters<'e> {
    pub(super) limits: &'e Limits,
    pub(super) link: &'e Link,
    /// Each bucket's instant is noted, for a receipt.
    pub(super) notes: bool,
    /// Every bucket is asked, whatever is remembered: somebody wants to see them all.
    pub(super) asks_all: bool,
}

impl Engine {
    pub(super) const fn counters(&self) -> Counters<'_> {
        Counters {
            limits: &self.limits,
            link: &self.link,
            notes: false,
            asks_all: false,
        }
    }
}

impl Counters<'_> {
    /// Counters that note when each bucket was charged, if a receipt is wanted.
    pub(super) const fn noting(self, is_wanted: bool) -> Self {
        Self {
            notes: is_wanted,
            ..self
        }
    }

    /// Counters that ask every bucket, if all are to be seen: a remembered denial would
    /// show only its own.
    pub(super) const fn asking_all(self, is_wanted: bool) -> Self {
        Self {
            asks_all: is_wanted,
            ..self
        }
    }

    /// Charges the buckets of a decision all or nothing: those served in this
    /// process first, then the store's; what was taken here goes back if the store
    /// denies or cannot be asked.
    pub(super) async fn charge<'c, 'p>(
        self,
        charges: &'c [Charge<'p>],
        take: Take,
        ends: Instant,
    ) -> Result<Answered<'c, 'p>, NoAnswer> {
        let started = self.started();
        if let Some(now) = started.filter(|_| !self.asks_all) {
            if let Some((charge, reading, now)) = self.limits.denials.find(charges, now) {
                return Ok(Answered::Denied(charge, reading, now));
            }
            if let Some(charged) = self.take_at_hand(charges, take, now) {
                return Ok(Answered::All(charged));
            }
        }
        if charges.iter().all(|charge| self.limits.is_exact(charge)) {
            let asked = self.ask_from(started, charges, take, ends).await;
            return asked.map(Answered::All);
        }
        let now = self.link.now();
        let places: Vec<Place> = charges.iter().map(|c| self.place(c, take, now)).collect();
        let far = asked_of_store(charges, &places);
        let near: Vec<Charge<'p>> = only_near(charges, &places);
        if near.is_empty() {
            return self.ask(&far, take, ends).await.map(Answered::All);
        }
        let mut taken = self
            .take_near(&near, take, ends, WithoutAnswer::GoesBack)
            .await?;
        if far.is_empty() {
            return Ok(Answered::All(taken.charged));
        }
        if !taken.charged.admitted {
            // What this process denies is denied, whether or not the store can be
            // asked for the rest.
            return Ok(match self.ask(&far, Take::Peek, ends).await {
                Ok(asked) => Answered::All(self.merged(&places, taken.charged, asked)),
                Err(_) => Answered::Near(near.clone(), taken.charged),
            });
        }
        let asked = self.ask(&far, take, ends).await;
        if take == Take::Consume && !asked.as_ref().is_ok_and(|asked| asked.admitted) {
            self.undo(&mut taken, take, ends).await;
        }
        Ok(Answered::All(self.merged(&places, taken.charged, asked?)))
    }

    /// Where a bucket of a request is charged. One of a leased limit that is only looked at,
    /// or that nobody asks for often, is charged in the store, in the figures of its leases.
    fn place(self, charge: &Charge<'_>, take: Take, now: Micros) -> Place {
        let limits = self.limits;
        if limits.is_exact(charge) {
            return Place::Store(None);
        }
        let is_leased = !limits.is_local(charge);
        // A lease has no tokens below zero.
        let is_direct = take == Take::Peek || charge.on_exceed == OnExceed::Overdraft;
        if is_leased && (is_direct || !limits.leases.is_warm(charge, now)) {
            return Place::Store(leased_spec(charge.spec));
        }
        Place::Near
    }

    /// A plan of nothing but leased buckets from the tokens at hand; `None` if there
    /// are not enough, nothing being taken then.
    fn take_at_hand(
        self,
        charges: &[Charge<'_>],
        take: Take,
        now: Micros,
    ) -> Option<ChargeOutcome> {
        let is_leased = |charge: &Charge<'_>| {
            charge.limit.def.accuracy == Accuracy::Leased && charge.on_exceed != OnExceed::Overdraft
        };
        if take == Take::Peek || charges.is_empty() || !charges.iter().all(is_leased) {
            return None;
        }
        let mut readings = BucketReadings::with_capacity(charges.len());
        let mut batches: Vec<Origin> = Vec::new();
        for charge in charges {
            let Served::Taken(reading, origin) = self.limits.leases.serve(charge, now) else {
                for (charge, origin) in charges.iter().zip(batches) {
                    self.limits.leases.put_back(charge, origin);
                }
                return None;
            };
            readings.push(reading);
            if self.notes || readings.len() < charges.len() {
                batches.push(origin);
            }
        }
        let instants = batches.into_iter().filter(|_| self.notes);
        Some(ChargeOutcome {
            now,
            admitted: true,
            readings,
            rebuilt: 0,
            instants: instants.map(|origin| origin.taken_at).collect(),
        })
    }

    pub(super) async fn ask(
        self,
        charges: &[Charge<'_>],
        take: Take,
        ends: Instant,
    ) -> Result<ChargeOutcome, NoAnswer> {
        self.ask_from(self.started(), charges, take, ends).await
    }

    /// When a call that is made now starts, where anybody wants to know: what a shared store
    /// denies is remembered from then on.
    fn started(self) -> Option<Micros> {
        self.limits.is_shared.then(|| self.link.now())
    }

    async fn ask_from(
        self,
        started: Option<Micros>,
        charges: &[Charge<'_>],
        take: Take,
        ends: Instant,
    ) -> Result<ChargeOutcome, NoAnswer> {
        let asked = started.map(|now| (now, self.limits.denials.epoch()));
        let charged = self
            .link
            .call(LIMITS, CallTimes::started(ends, started), |store| {
                both_names::charge(store, charges, take)
            })
            .await?;
        if let Some((asked_at, epoch)) = asked {
            let limits = self.limits;
            self.keep_readings(charges, &charged, asked_at);
            // A denial would hide tokens that other requests have taken meanwhile.
            let holds_none = |charge: &Charge<'_>| !limits.leases.has_usable(charge, asked_at);
            if charged.admitted || charges.iter().all(holds_none) {
                limits.denials.learn(charges, &charged, asked_at, epoch);
            }
        }
        Ok(charged)
    }

    /// Keeps what the store said of long windows when it was asked at `asked`, for the next
    /// outage (F-CARRY).
    pub(super) fn keep_readings(
        self,
        charges: &[Charge<'_>],
        charged: &ChargeOutcome,
        asked: Micros,
    ) {
        if self.limits.is_shared {
            self.link.stand_in().note(charges, charged, asked);
        }
    }

    /// Puts readings of two places back into the order of the charges, all by the
    /// store's clock.
    fn merged(self, places: &[Place], near: ChargeOutcome, far: ChargeOutcome) -> ChargeOutcome {
        let instants = self.merged_instants(places, &near, &far);
        let by_store = |reading| moved(reading, near.now, far.now);
        let mut near_readings = near.readings.into_iter().map(by_store);
        let mut far_readings = far.readings.into_iter();
        let readings = places.iter().filter_map(|place| match place {
            Place::Store(_) => far_readings.next(),
            Place::Near => near_readings.next(),
        });
        let readings = readings.collect();
        ChargeOutcome {
            now: far.now,
            admitted: near.admitted && far.admitted,
            readings,
            rebuilt: near.rebuilt + far.rebuilt,
            instants,
        }
    }

    /// When each bucket was charged, by the clock of where it was, if that is noted.
    fn merged_instants(
        self,
        places: &[Place],
        near: &ChargeOutcome,
        far: &ChargeOutcome,
    ) -> Vec<Micros> {
        if !self.notes {
            return Vec::new();
        }
        let (mut near_at, mut far_at) = (0.., 0..);
        let instant = |place: &Place| match place {
            Place::Store(_) => far_at.next().map(|position| far.judged_at(position)),
            Place::Near => near_at.next().map(|position| near.judged_at(position)),
        };
        places.iter().filter_map(instant).collect()
    }
}

/// Where a bucket is charged.
enum Place {
    /// In the store; in these figures instead of its own, if there are any.
    Store(Option<BucketSpec>),
    /// In this process.
    Near,
}

/// The buckets that are charged in the store, as they are charged there.
fn asked_of_store<'s>(charges: &'s [Charge<'_>], places: &'s [Place]) -> Vec<Charge<'s>> {
    let asked = |(charge, place): (&'s Charge<'_>, &'s Place)| match place {
        Place::Store(None) => Some(charge.clone()),
        Place::Store(Some(spec)) => Some(with_spec(charge, spec, charge.cost)),
        Place::Near => None,
    };
    charges.iter().zip(places).filter_map(asked).collect()
}

fn only_near<'p>(charges: &[Charge<'p>], places: &[Place]) -> Vec<Charge<'p>> {
    let pairs = charges.iter().zip(places);
    let near = pairs.filter(|(_, place)| matches!(place, Place::Near));
    near.map(|(charge, _)| charge.clone()).collect()
}

pub(super) fn with_spec<'s>(charge: &Charge<'s>, spec: &'s BucketSpec, cost: u32) -> Charge<'s> {
    Charge {
        spec,
        cost,
        ..charge.clone()
    }
}

/// The only reading of a call that was made at `asked`, by this node's clock.
pub(super) fn first(charged: &ChargeOutcome, asked: Micros) -> Result<Reading, NoAnswer> {
    let reading = charged.readings.first().copied().ok_or_else(no_reading)?;
    Ok(moved(reading, charged.now, asked))
}

/// A reading by a clock that shows `to` where the reading's own shows `from`.
fn moved(reading: Reading, from: Micros, to: Micros) -> Reading {
    let by = |at: Micros| to.plus(at.since(from)).minus(from.since(at));
    Reading {
        reset_at: by(reading.reset_at),
        retry_at: reading.retry_at.map(by),
        ..reading
    }
}

fn no_reading() -> NoAnswer {
    NoAnswer::Failed(StoreError::Corrupt("a reading is missing".to_owned()))
}
