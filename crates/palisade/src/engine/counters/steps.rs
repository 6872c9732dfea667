//! Charges of several layers: each is made in its own, all or nothing, and the readings come
//! back in the order of the charges.

use std::sync::Arc;

use palisade_core::limit::{BucketSpec, Reading, State};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::receipt::Place;
use palisade_core::time::Micros;
use palisade_store::{BucketReadings, Buckets, ChargeReadings, Take, TakenCharge};
use tokio::time::Instant;

use super::super::link::{CallTimes, LIMITS, NoAnswer};
use super::leases::{Lease, Origin, leased_spec};
use super::{ChargeOutcome, Counters, Layer, Terms};

/// Those of `all` that are in this place.
pub(super) fn in_place<T: Clone>(all: &[(Place, T)], wanted: Place) -> Vec<T> {
    let own = all.iter().filter(|(place, _)| *place == wanted);
    own.map(|(_, one)| one.clone()).collect()
}

/// One charge on its way through the layers.
pub(super) struct Step<'c, 'p> {
    pub(super) charge: &'c Charge<'p>,
    pub(super) target: Target,
    /// The bucket's reading, and when it was charged, by the clock of its layer.
    pub(super) reading: Option<(Reading, Micros)>,
}

/// The counter that a charge is made to.
pub(super) enum Target {
    Process,
    /// A lease, and the batch that tokens were taken from.
    Lease(Arc<Lease>, Option<Origin>),
    /// The store; in these figures instead of the bucket's own, if there are any.
    Store(Option<BucketSpec>),
}

/// The charges of one decision, in their order.
pub(super) struct Steps<'c, 'p>(pub(super) Vec<Step<'c, 'p>>);

impl Counters {
    /// The steps of charges that are made now. One of a leased limit that is only looked at, or
    /// that nobody asks for often, is charged in the store, in the figures of its leases.
    pub(super) fn steps<'c, 'p>(
        &self,
        charges: &'c [Charge<'p>],
        take: Take,
        now: Micros,
    ) -> Steps<'c, 'p> {
        let lease = |charge: &Charge<'_>| match take {
            // A lease has no tokens below zero.
            Take::Consume if charge.on_exceed == OnExceed::Overdraft => None,
            Take::Consume => self.leases.warm(charge, now),
            Take::Peek => None,
        };
        let target = |charge: &Charge<'_>| match self.layer(charge) {
            Layer::Process => Target::Process,
            Layer::Store => Target::Store(None),
            Layer::Leases => match lease(charge) {
                Some(lease) => Target::Lease(lease, None),
                None => Target::Store(leased_spec(charge.spec)),
            },
        };
        let steps = charges.iter().map(|one| Step::new(one, target(one)));
        Steps(steps.collect())
    }

    /// Takes each step in its layer, all or nothing: this process first, then leases, then the
    /// store. What was taken goes back if a later layer denies or fails.
    pub(super) async fn pass<'c, 'p>(
        &self,
        charges: &'c [Charge<'p>],
        mut steps: Steps<'c, 'p>,
        terms: Terms,
        now: Micros,
    ) -> Result<ChargeOutcome<'c, 'p>, NoAnswer> {
        let Terms { take, ends, .. } = terms;
        let here = steps.here();
        let near = self.process.charge_now(&here, take);
        steps.fill(Layer::Process, &near);
        let undo = |steps: &Steps<'_, '_>| {
            if take == Take::Consume && near.admitted {
                self.process.give_back_now(&near.taken(&here));
            }
            self.leases.put_back(steps);
        };
        let mut is_admitted = near.admitted;
        if is_admitted {
            let leased = self.leases.charge(&mut steps, now, &self.store, ends).await;
            is_admitted = leased.inspect_err(|_| undo(&steps))?;
        }
        if !is_admitted {
            steps.recall(near.now);
        }
        let far_take = if is_admitted { take } else { Take::Peek };
        let far = self.charge_store(&mut steps, far_take, near.now, ends);
        let far = far.await;
        let is_taken = is_admitted && far.as_ref().is_ok_and(|far| far.admitted);
        if !is_taken {
            undo(&steps);
        }
        let far = match far {
            // What this node denies is denied, whether or not the store can be asked for the
            // rest.
            Err(_) if !is_admitted => nothing(near.now),
            far => far?,
        };
        let mut charged = steps.gather(&near, &far, terms.receipt);
        charged.admitted &= is_admitted;
        if charged.readings.len() == charges.len() {
            if self.store.is_shared {
                self.denials.learn_companions(charges, &charged);
            }
            return Ok(ChargeOutcome::all(charges, charged));
        }
        let read = steps.0.iter().filter(|step| step.reading.is_some());
        Ok(ChargeOutcome {
            charges: read.map(|step| step.charge.clone()).collect(),
            charged,
        })
    }

    /// Takes the steps that end in the store.
    async fn charge_store(
        &self,
        steps: &mut Steps<'_, '_>,
        take: Take,
        now: Micros,
        ends: Instant,
    ) -> Result<ChargeReadings, NoAnswer> {
        let there = steps.there();
        if there.is_empty() {
            return Ok(nothing(now));
        }
        let (started, epoch) = (self.started(), self.denials.epoch());
        let times = CallTimes::started(ends, started);
        let charged = self.store.charge(LIMITS, &there, take, times).await?;
        if let Some(asked) = started {
            self.learn(&there, &charged, asked, epoch);
        }
        steps.fill(Layer::Store, &charged);
        Ok(charged)
    }

    /// Charges again what was charged in these places before, all or nothing, whatever is
    /// remembered of it.
    pub(in crate::engine) async fn charge_placed(
        &self,
        charges: &[Charge<'_>],
        places: impl Iterator<Item = Place>,
        ends: Instant,
    ) -> Result<ChargeReadings, NoAnswer> {
        let terms = Terms {
            take: Take::Consume,
            ends,
            receipt: true,
        };
        let steps = Steps::placed(charges.iter().zip(places));
        let outcome = self.pass(charges, steps, terms, self.store.now()).await?;
        match outcome.charges.len() == charges.len() {
            true => Ok(outcome.charged),
            false => Err(NoAnswer::NotAsked),
        }
    }

    /// Gives back what was charged, each where it was, as far as it still counts.
    pub(in crate::engine) async fn give_back(
        &self,
        lines: &[(Place, TakenCharge<'_>)],
        ends: Instant,
    ) -> Result<ChargeReadings, NoAnswer> {
        let (here, there) = (
            in_place(lines, Place::Process),
            in_place(lines, Place::Store),
        );
        let far = match there.is_empty() {
            true => nothing(self.store.now()),
            false => self.store.give_back(LIMITS, &there, ends).await?,
        };
        let near = self.process.give_back_now(&here);
        let placed = lines.iter().map(|(place, taken)| (&taken.charge, *place));
        Ok(Steps::placed(placed).filled(&near, &far))
    }

    /// Gives back costs that name no charge, from the oldest uses of each bucket.
    pub(in crate::engine) async fn refund(
        &self,
        charges: &[Charge<'_>],
        ends: Instant,
    ) -> Result<ChargeReadings, NoAnswer> {
        let now = self.store.now();
        // As if they were looked at: leased ones in the store, in the figures of their leases.
        let steps = self.steps(charges, Take::Peek, now);
        let (here, there) = (steps.here(), steps.there());
        let far = match there.is_empty() {
            true => nothing(now),
            false => self.store.refund(&there, ends).await?,
        };
        let near = self.process.refund(&here).await;
        let near = near.map_err(NoAnswer::Failed)?;
        drop(there);
        Ok(steps.filled(&near, &far))
    }
}

impl<'c, 'p> Step<'c, 'p> {
    const fn new(charge: &'c Charge<'p>, target: Target) -> Self {
        Self {
            charge,
            target,
            reading: None,
        }
    }

    const fn layer(&self) -> Layer {
        match self.target {
            Target::Process => Layer::Process,
            Target::Lease(..) => Layer::Leases,
            Target::Store(_) => Layer::Store,
        }
    }

    /// The charge as it is made in the store, if it is made there.
    fn stored(&self) -> Option<Charge<'_>> {
        match &self.target {
            Target::Store(None) => Some(self.charge.clone()),
            Target::Store(Some(spec)) => Some(Charge {
                spec,
                ..self.charge.clone()
            }),
            Target::Process | Target::Lease(..) => None,
        }
    }
}

impl<'c, 'p> Steps<'c, 'p> {
    /// Charges that were made in these places before.
    pub(super) fn placed(charges: impl Iterator<Item = (&'c Charge<'p>, Place)>) -> Self
    where
        'p: 'c,
    {
        let steps = charges.map(|(charge, place)| {
            let target = match place {
                Place::Process => Target::Process,
                Place::Store => Target::Store(None),
            };
            Step::new(charge, target)
        });
        Self(steps.collect())
    }

    /// The charges that are made in this process.
    fn here(&self) -> Vec<Charge<'p>> {
        let here = self.0.iter().filter(|one| one.layer() == Layer::Process);
        here.map(|step| step.charge.clone()).collect()
    }

    /// The charges that are still to be made in the store.
    fn there(&self) -> Vec<Charge<'_>> {
        let open = self.0.iter().filter(|step| step.reading.is_none());
        open.filter_map(Step::stored).collect()
    }

    /// Notes what one layer said to the steps that end in it.
    fn fill(&mut self, layer: Layer, charged: &ChargeReadings) {
        let own = self.0.iter_mut().filter(|step| step.layer() == layer);
        for (position, step) in own.enumerate() {
            let reading = charged.readings.get(position);
            step.reading = reading.map(|reading| (*reading, charged.judged_at(position)));
        }
    }

    /// Notes what was last known of buckets that need not be asked, since another one denies:
    /// of leases, and of a throttle, which sheds without a call of the store.
    fn recall(&mut self, now: Micros) {
        for step in self.0.iter_mut().filter(|step| step.reading.is_none()) {
            let charge = step.charge;
            let last = match &step.target {
                Target::Lease(lease, _) => lease.last_reading(),
                Target::Store(_) if charge.limit.def.throttle => None,
                Target::Store(_) | Target::Process => continue,
            };
            let untouched = || charge.spec.read(&State::Empty, now, charge.cost);
            let reading = Reading {
                retry_at: None,
                ..last.unwrap_or_else(untouched)
            };
            step.reading = Some((reading, now));
        }
    }

    /// The readings of this process and of the store, in the order of the charges.
    pub(super) fn filled(mut self, near: &ChargeReadings, far: &ChargeReadings) -> ChargeReadings {
        self.fill(Layer::Process, near);
        self.fill(Layer::Store, far);
        self.gather(near, far, false)
    }

    /// The readings of all steps that have one, by the store's clock.
    fn gather(
        &self,
        near: &ChargeReadings,
        far: &ChargeReadings,
        notes_instants: bool,
    ) -> ChargeReadings {
        let mut all = ChargeReadings {
            now: far.now,
            admitted: near.admitted && far.admitted,
            readings: BucketReadings::with_capacity(self.0.len()),
            rebuilt: near.rebuilt + far.rebuilt,
            instants: Vec::new(),
        };
        for step in &self.0 {
            let Some((reading, at)) = step.reading else {
                continue;
            };
            all.readings.push(match step.layer() {
                Layer::Store => reading,
                Layer::Process | Layer::Leases => moved(reading, near.now, far.now),
            });
            if notes_instants {
                all.instants.push(at);
            }
        }
        all
    }
}

/// The answer of a layer that was asked for no bucket.
fn nothing(now: Micros) -> ChargeReadings {
    ChargeReadings {
        now,
        admitted: true,
        readings: BucketReadings::new(),
        rebuilt: 0,
        instants: Vec::new(),
    }
}

/// A reading by a clock that shows `to` where the reading's own shows `from`.
pub(super) fn moved(reading: Reading, from: Micros, to: Micros) -> Reading {
    let by = |at: Micros| to.plus(at.since(from)).minus(from.since(at));
    Reading {
        reset_at: by(reading.reset_at),
        retry_at: reading.retry_at.map(by),
        ..reading
    }
}
