//! The store behind its deadline and breaker, and the buckets that are served
//! without asking it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use palisade_core::failure::{CallDecision, FailureKind, Policy};
use palisade_core::limit::{BucketSpec, Reading};
use palisade_core::plan::Charge;
use palisade_core::policy::Accuracy;
use palisade_core::time::Micros;
use palisade_store::{Charged, Store, StoreError, Take};
use tokio::time::Instant;

use super::Engine;
use super::lease::{Lease, Served, is_leasable, leased_spec};
use crate::deadline::{until, within};

/// Why no answer came from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The breaker is open: it was not asked.
    NotAsked,
    /// It was asked and failed.
    Failed,
}

pub(super) const fn failure_kind(error: &StoreError) -> FailureKind {
    match error {
        StoreError::TimedOut => FailureKind::TimedOut,
        StoreError::Unreachable(_) => FailureKind::Unreachable,
        StoreError::Corrupt(_) => FailureKind::Corrupt,
        StoreError::Exhausted(_) => FailureKind::Exhausted,
    }
}

/// What a plan's buckets said.
pub(super) enum Answered<'c, 'p> {
    /// Every bucket was read.
    All(Charged),
    /// One bucket is known to deny; the others were not asked.
    Denied(&'c Charge<'p>, Reading, Micros),
    /// Buckets of this process deny; the store could not be asked for the others.
    Near(Vec<Charge<'p>>, Charged),
}

/// What the buckets that live here said, by this node's clock.
pub(super) struct Near<'p> {
    pub(super) charged: Charged,
    tokens: Vec<Taken<'p>>,
}

/// Something that was taken and can be put back.
enum Taken<'p> {
    /// So many tokens of the lease's batch with this end.
    Lease(Arc<Lease>, u32, Micros),
    /// A charge in the store, as it was made there.
    Store(Box<Charge<'p>>, BucketSpec),
}

/// What a leased bucket said, by this node's clock.
struct Leased<'p> {
    reading: Reading,
    admitted: bool,
    taken: Option<Taken<'p>>,
}

impl<'p> Leased<'p> {
    const fn taken(reading: Reading, taken: Taken<'p>) -> Self {
        Self {
            reading,
            admitted: true,
            taken: Some(taken),
        }
    }

    const fn denied(reading: Reading) -> Self {
        Self {
            reading,
            admitted: false,
            taken: None,
        }
    }
}

impl<S: Store> Engine<S> {
    /// One store call for `policy`: not made while its breaker is open or when the
    /// request's time is up, ended with that time, its result reported to the
    /// breaker.
    pub(super) async fn call<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        policy: Policy,
        ends: Instant,
        call: impl FnOnce() -> F,
    ) -> Result<T, NoAnswer> {
        let started = self.now();
        let permit = match self.modes.lock().admit(policy, started) {
            CallDecision::Call(permit) if Instant::now() < ends => permit,
            CallDecision::Call(_) => return Err(NoAnswer::NotAsked),
            CallDecision::DoNotCall => {
                self.observer.not_asked(policy);
                return Err(NoAnswer::NotAsked);
            }
        };
        let result = until(ends, pin!(call()))
            .await
            .unwrap_or(Err(StoreError::TimedOut));
        let now = self.now();
        let took = now.since(started);
        let error = result.as_ref().err();
        self.observer.store_call(took, error.map(StoreError::kind));
        let events = match error {
            None => self.modes.lock().on_success(policy, permit, took, now),
            Some(error) => self
                .modes
                .lock()
                .on_failure(policy, permit, failure_kind(error), now),
        };
        self.report(policy, &events, now);
        result.map_err(|_| NoAnswer::Failed)
    }

    /// When a request that starts now must be answered: all of its store calls
    /// share one deadline.
    pub(super) fn request_ends(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// A store call that nobody waits for longer than the deadline.
    pub(super) async fn within_deadline<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        within(self.deadline, pin!(call))
            .await
            .unwrap_or(Err(StoreError::TimedOut))
    }

    /// Charges the buckets of a decision all or nothing: those served in this
    /// process first, then the store's; what was taken here goes back if the store
    /// denies or cannot be asked.
    pub(super) async fn charge<'c, 'p>(
        &self,
        charges: &'c [Charge<'p>],
        take: Take,
        ends: Instant,
    ) -> Result<Answered<'c, 'p>, NoAnswer> {
        if self.store.is_shared() {
            let now = self.now();
            if let Some((charge, reading, now)) = self.denials.find(charges, now) {
                return Ok(Answered::Denied(charge, reading, now));
            }
            if let Some(charged) = self.take_at_hand(charges, take, now) {
                return Ok(Answered::All(charged));
            }
        }
        if charges.iter().all(|charge| self.is_exact(charge)) {
            return self.ask(charges, take, ends).await.map(Answered::All);
        }
        let (exact, near): (Vec<_>, Vec<_>) = charges
            .iter()
            .cloned()
            .partition(|charge| self.is_exact(charge));
        let taken = match self.take_near(&near, take, ends).await {
            Ok(taken) => taken,
            Err(no_answer) => {
                self.refund_local(&near, take).await;
                return Err(no_answer);
            }
        };
        if exact.is_empty() {
            return Ok(Answered::All(taken.charged));
        }
        if !taken.charged.admitted {
            // What this process denies is denied, whether or not the store can be
            // asked for the rest.
            return Ok(match self.ask(&exact, Take::Peek, ends).await {
                Ok(asked) => Answered::All(self.merged(charges, taken.charged, asked)),
                Err(_) => Answered::Near(near, taken.charged),
            });
        }
        let asked = self.ask(&exact, take, ends).await;
        if take == Take::Consume && !asked.as_ref().is_ok_and(|asked| asked.admitted) {
            self.refund_local(&near, take).await;
            self.put_back(taken.tokens, ends).await;
        }
        Ok(Answered::All(self.merged(charges, taken.charged, asked?)))
    }

    /// A plan of nothing but leased buckets from the tokens at hand; `None` if there
    /// are not enough, nothing being taken then.
    fn take_at_hand(&self, charges: &[Charge<'_>], take: Take, now: Micros) -> Option<Charged> {
        let is_leased = |charge: &Charge<'_>| charge.limit.def.accuracy == Accuracy::Leased;
        if take == Take::Peek || charges.is_empty() || !charges.iter().all(is_leased) {
            return None;
        }
        let mut readings = Vec::with_capacity(charges.len());
        let mut batches = Vec::new();
        for charge in charges {
            let Served::Taken(reading, until) = self.leases.serve(charge, now) else {
                for (charge, until) in charges.iter().zip(batches) {
                    self.leases.put_back(charge, until);
                }
                return None;
            };
            readings.push(reading);
            if readings.len() < charges.len() {
                batches.push(until);
            }
        }
        Some(Charged {
            now,
            admitted: true,
            readings,
            rebuilt: 0,
        })
    }

    async fn ask(
        &self,
        charges: &[Charge<'_>],
        take: Take,
        ends: Instant,
    ) -> Result<Charged, NoAnswer> {
        let is_shared = self.store.is_shared();
        let asked = is_shared.then(|| (self.now(), self.denials.epoch()));
        let charged = self
            .call(Policy::Limits, ends, || self.store.charge(charges, take))
            .await?;
        if let Some((asked_at, epoch)) = asked {
            self.denials.learn(charges, &charged, asked_at, epoch);
        }
        Ok(charged)
    }

    pub(super) fn is_exact(&self, charge: &Charge<'_>) -> bool {
        match charge.limit.def.accuracy {
            Accuracy::Exact => true,
            Accuracy::Local => false,
            Accuracy::Leased => self.store.is_shared() && !is_leasable(charge.spec),
        }
    }

    /// A leased limit on a store that nobody shares is a local one.
    pub(super) fn is_local(&self, charge: &Charge<'_>) -> bool {
        match charge.limit.def.accuracy {
            Accuracy::Local => true,
            Accuracy::Leased => !self.store.is_shared(),
            Accuracy::Exact => false,
        }
    }

    fn local_of<'p>(&self, near: &[Charge<'p>]) -> Vec<Charge<'p>> {
        let local = near.iter().filter(|charge| self.is_local(charge));
        local.cloned().collect()
    }

    /// Takes from buckets that live here, all or nothing. Without an answer what
    /// was taken of local ones stays taken.
    pub(super) async fn take_near<'p>(
        &self,
        near: &[Charge<'p>],
        take: Take,
        ends: Instant,
    ) -> Result<Near<'p>, NoAnswer> {
        let mut charged = self.local.charge_now(&self.local_of(near), take);
        let is_local_denied = !charged.admitted;
        let mut local_readings = std::mem::take(&mut charged.readings).into_iter();
        let mut tokens = Vec::new();
        for charge in near {
            if self.is_local(charge) {
                charged.readings.extend(local_readings.next());
                continue;
            }
            if !charged.admitted {
                charged.readings.push(self.last_reading(charge));
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
                    self.put_back(tokens, ends).await;
                    return Err(no_answer);
                }
            };
            charged.readings.push(leased.reading);
            charged.admitted = leased.admitted;
            tokens.extend(leased.taken);
        }
        if !charged.admitted {
            self.put_back(std::mem::take(&mut tokens), ends).await;
            if !is_local_denied {
                self.refund_local(near, take).await;
            }
        }
        Ok(Near { charged, tokens })
    }

    async fn refund_local(&self, near: &[Charge<'_>], take: Take) {
        if take == Take::Consume {
            let _ = self.local.refund(&self.local_of(near)).await;
        }
    }

    async fn put_back(&self, taken: Vec<Taken<'_>>, ends: Instant) {
        for taken in taken {
            match taken {
                Taken::Lease(lease, cost, until) => lease.put_back(cost, until),
                Taken::Store(charge, spec) => {
                    let charges = [with_spec(&charge, &spec, charge.cost)];
                    self.tidy(&charges, ends).await;
                }
            }
        }
    }

    /// A leased bucket that need not be asked: the request is denied already.
    fn last_reading(&self, charge: &Charge<'_>) -> Reading {
        let lease = self.leases.of(charge, self.now());
        let known = lease.and_then(|lease| lease.last_reading());
        let reading = known.unwrap_or_else(|| {
            let untouched = palisade_core::limit::State::Empty;
            charge.spec.read(&untouched, self.now(), charge.cost)
        });
        Reading {
            retry_at: None,
            ..reading
        }
    }

    /// A leased bucket that answers without the store.
    fn at_hand<'p>(&self, charge: &Charge<'p>, take: Take) -> Option<Leased<'p>> {
        if take != Take::Consume {
            return None;
        }
        let lease = self.leases.of(charge, self.now())?;
        self.answered(&lease, charge.cost)
    }

    /// A leased bucket without tokens at hand: from a new batch.
    async fn lease<'p>(
        &self,
        charge: &Charge<'p>,
        take: Take,
        ends: Instant,
    ) -> Result<Leased<'p>, NoAnswer> {
        let lease = self.leases.of(charge, self.now());
        let (Some(lease), Take::Consume) = (lease, take) else {
            let spec = leased_spec(charge.spec);
            return self.take_directly(charge, spec, take, ends).await;
        };
        let Ok(_filling) = until(ends, pin!(lease.filling.lock())).await else {
            return Err(NoAnswer::NotAsked);
        };
        if let Some(served) = self.answered(&lease, charge.cost) {
            return Ok(served);
        }
        self.refill(&lease, charge, ends).await
    }

    /// A leased bucket that is only looked at, or cannot be leased.
    async fn take_directly<'p>(
        &self,
        charge: &Charge<'p>,
        spec: Option<BucketSpec>,
        take: Take,
        ends: Instant,
    ) -> Result<Leased<'p>, NoAnswer> {
        let asked_at = self.now();
        let spec = spec.unwrap_or(*charge.spec);
        let charges = [with_spec(charge, &spec, charge.cost)];
        let charged = self.ask(&charges, take, ends).await?;
        let is_taken = charged.admitted && take == Take::Consume;
        Ok(Leased {
            reading: first(&charged, asked_at)?,
            admitted: charged.admitted,
            taken: is_taken.then(|| Taken::Store(Box::new(charge.clone()), spec)),
        })
    }

    async fn refill<'p>(
        &self,
        lease: &Arc<Lease>,
        charge: &Charge<'_>,
        ends: Instant,
    ) -> Result<Leased<'p>, NoAnswer> {
        let full = lease.batch(charge.cost, self.now());
        for batch in [full, charge.cost] {
            let asked_at = self.now();
            let charges = [lease.charge(batch)];
            let ask = || self.store.charge(&charges, Take::Consume);
            let charged = self.call(Policy::Limits, ends, ask).await?;
            let reading = first(&charged, asked_at)?;
            self.observer.refilled(self.now().since(asked_at));
            if charged.admitted {
                // A full bucket that does not deny gives nothing to keep.
                let is_given = reading.retry_at.is_none();
                let size = if is_given { batch } else { charge.cost };
                let batch = (size, charge.cost);
                let (until, unused) = self.leases.fill(lease, batch, reading, asked_at);
                self.give_back_unused(lease, unused, ends).await;
                let taken = Taken::Lease(Arc::clone(lease), charge.cost, until);
                return Ok(Leased::taken(reading, taken));
            }
            if batch == charge.cost {
                let until = reading.retry_at.unwrap_or(asked_at);
                lease.deny(charge.cost, until, reading);
                return Ok(Leased::denied(reading));
            }
        }
        Err(NoAnswer::Failed)
    }

    fn answered<'p>(&self, lease: &Arc<Lease>, cost: u32) -> Option<Leased<'p>> {
        match self.leases.serve_from(lease, cost, self.now()) {
            Served::Taken(reading, until) => {
                let taken = Taken::Lease(Arc::clone(lease), cost, until);
                Some(Leased::taken(reading, taken))
            }
            Served::Denied(reading) => Some(Leased::denied(reading)),
            Served::Ask => None,
        }
    }

    async fn give_back_unused(&self, lease: &Arc<Lease>, unused: u32, ends: Instant) {
        if unused > 0 && self.leases.is_attended() {
            self.leases.return_later(lease, unused);
        } else if unused > 0 {
            self.tidy(&[lease.charge(unused)], ends).await;
        }
    }

    /// Gives back to the store what nobody used. Whether that succeeds does not
    /// matter, but an open breaker keeps it from being asked as well.
    async fn tidy(&self, charges: &[Charge<'_>], ends: Instant) {
        let admitted = self.modes.lock().admit(Policy::Limits, self.now());
        if matches!(admitted, CallDecision::Call(_)) {
            let _ = until(ends, pin!(self.store.refund(charges))).await;
        }
    }

    /// Puts readings of two places back into the order of the charges, all by the
    /// store's clock.
    fn merged(&self, charges: &[Charge<'_>], near: Charged, far: Charged) -> Charged {
        let by_store = |reading| moved(reading, near.now, far.now);
        let mut near_readings = near.readings.into_iter().map(by_store);
        let mut far_readings = far.readings.into_iter();
        let readings = charges
            .iter()
            .filter_map(|charge| {
                if self.is_exact(charge) {
                    far_readings.next()
                } else {
                    near_readings.next()
                }
            })
            .collect();
        Charged {
            now: far.now,
            admitted: near.admitted && far.admitted,
            readings,
            rebuilt: near.rebuilt + far.rebuilt,
        }
    }
}

pub(super) fn with_spec<'s>(charge: &Charge<'s>, spec: &'s BucketSpec, cost: u32) -> Charge<'s> {
    Charge {
        spec,
        cost,
        ..charge.clone()
    }
}

/// The only reading of a call that was made at `asked`, by this node's clock.
pub(super) fn first(charged: &Charged, asked: Micros) -> Result<Reading, NoAnswer> {
    let reading = charged.readings.first().copied().ok_or(NoAnswer::Failed)?;
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
