//! The store behind its deadline and breaker, and the buckets that are served
//! without asking it.

use std::future::Future;
use std::sync::Arc;

use palisade_core::failure::{CallDecision, FailureKind, Policy};
use palisade_core::limit::{BucketSpec, Reading};
use palisade_core::plan::Charge;
use palisade_core::policy::Accuracy;
use palisade_core::time::Micros;
use palisade_store::{Charged, Store, StoreError, Take};

use super::Engine;
use super::lease::{Lease, Served, batch_of, leased_spec};

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
}

impl<S: Store> Engine<S> {
    /// One store call for `policy`: not made while its breaker is open, ended by
    /// the deadline, its result reported to the breaker.
    pub(super) async fn call<T>(
        &self,
        policy: Policy,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, NoAnswer> {
        let started = self.now();
        let permit = match self.modes.lock().admit(policy, started) {
            CallDecision::Call(permit) => permit,
            CallDecision::DoNotCall => {
                self.observer.not_asked(policy);
                return Err(NoAnswer::NotAsked);
            }
        };
        let result = self.within_deadline(call).await;
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

    /// A store call that no request outlives.
    pub(super) async fn within_deadline<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        tokio::time::timeout(self.deadline, call)
            .await
            .unwrap_or(Err(StoreError::TimedOut))
    }

    /// Charges the buckets of a decision all or nothing: those served in this
    /// process first, then the store's; what was taken here goes back if the store
    /// denies.
    pub(super) async fn charge<'c, 'p>(
        &self,
        charges: &'c [Charge<'p>],
        take: Take,
    ) -> Result<Answered<'c, 'p>, NoAnswer> {
        if self.store.is_shared()
            && let Some((charge, reading, now)) = self.denials.find(charges, self.now())
        {
            return Ok(Answered::Denied(charge, reading, now));
        }
        if charges.iter().all(|charge| self.is_exact(charge)) {
            return self.ask(charges, take).await.map(Answered::All);
        }
        let (exact, near): (Vec<_>, Vec<_>) = charges
            .iter()
            .cloned()
            .partition(|charge| self.is_exact(charge));
        let taken = self.take_near(&near, take).await?;
        if taken.admitted && !exact.is_empty() {
            let asked = self.ask(&exact, take).await;
            if take == Take::Consume && !asked.as_ref().is_ok_and(|asked| asked.admitted) {
                self.put_back(&near).await;
            }
            return Ok(Answered::All(self.merged(charges, taken, asked?)));
        }
        if exact.is_empty() {
            return Ok(Answered::All(taken));
        }
        let asked = self.ask(&exact, Take::Peek).await?;
        Ok(Answered::All(self.merged(charges, taken, asked)))
    }

    async fn ask(&self, charges: &[Charge<'_>], take: Take) -> Result<Charged, NoAnswer> {
        let asked_at = self.now();
        let charged = self
            .call(Policy::Limits, self.store.charge(charges, take))
            .await?;
        if self.store.is_shared() {
            self.denials.learn(charges, &charged, asked_at);
        }
        Ok(charged)
    }

    fn is_exact(&self, charge: &Charge<'_>) -> bool {
        match charge.limit.def.accuracy {
            Accuracy::Exact => true,
            Accuracy::Local => false,
            Accuracy::Leased => !self.store.is_shared() || leased_spec(charge.spec).is_none(),
        }
    }

    /// Takes from buckets that live here, all or nothing.
    pub(super) async fn take_near(
        &self,
        near: &[Charge<'_>],
        take: Take,
    ) -> Result<Charged, NoAnswer> {
        let is_local = |charge: &&Charge<'_>| charge.limit.def.accuracy == Accuracy::Local;
        let local: Vec<Charge<'_>> = near.iter().filter(is_local).cloned().collect();
        let mut found = self
            .local
            .charge(&local, take)
            .await
            .map_err(|_| NoAnswer::Failed)?;
        let mut local_readings = std::mem::take(&mut found.readings).into_iter();
        let mut served: Vec<&Charge<'_>> = Vec::new();
        for charge in near {
            if charge.limit.def.accuracy == Accuracy::Local {
                found.readings.extend(local_readings.next());
                continue;
            }
            let (reading, admitted) = self.lease(charge, take, found.admitted).await?;
            found.readings.push(reading);
            if admitted {
                served.push(charge);
            } else {
                found.admitted = false;
            }
        }
        if !found.admitted && take == Take::Consume {
            for charge in served {
                self.put_back_lease(charge);
            }
            if found.readings.iter().zip(near).any(|(reading, charge)| {
                reading.retry_at.is_some() && charge.limit.def.accuracy == Accuracy::Leased
            }) {
                let _ = self.local.refund(&local).await;
            }
        }
        Ok(found)
    }

    async fn put_back(&self, near: &[Charge<'_>]) {
        let is_local = |charge: &&Charge<'_>| charge.limit.def.accuracy == Accuracy::Local;
        let local: Vec<Charge<'_>> = near.iter().filter(is_local).cloned().collect();
        let _ = self.local.refund(&local).await;
        for charge in near.iter().filter(|charge| !is_local(charge)) {
            self.put_back_lease(charge);
        }
    }

    fn put_back_lease(&self, charge: &Charge<'_>) {
        if let Some(lease) = self.leases.of(charge.id) {
            lease.put_back(charge.cost, self.now());
        }
    }

    /// One leased bucket: from the tokens at hand, else from a new batch.
    async fn lease(
        &self,
        charge: &Charge<'_>,
        take: Take,
        wanted: bool,
    ) -> Result<(Reading, bool), NoAnswer> {
        let spec = leased_spec(charge.spec).ok_or(NoAnswer::Failed)?;
        let lease = self.leases.of(charge.id);
        let Some(lease) = lease.filter(|_| take == Take::Consume && wanted) else {
            let charged = self
                .ask(&[with_spec(charge, &spec, charge.cost)], take)
                .await?;
            return first(&charged);
        };
        if let Some(served) = answered(lease.serve(charge.cost, self.now())) {
            return Ok(served);
        }
        let _filling = lease.filling.lock().await;
        if let Some(served) = answered(lease.serve(charge.cost, self.now())) {
            return Ok(served);
        }
        self.refill(&lease, charge, &spec).await
    }

    async fn refill(
        &self,
        lease: &Arc<Lease>,
        charge: &Charge<'_>,
        spec: &BucketSpec,
    ) -> Result<(Reading, bool), NoAnswer> {
        for batch in [batch_of(charge).min(spec.capacity()), charge.cost] {
            let asked_at = self.now();
            let charges = [with_spec(charge, spec, batch)];
            let charged = self
                .call(Policy::Limits, self.store.charge(&charges, Take::Consume))
                .await?;
            let now = charged.now;
            let (reading, admitted) = first(&charged)?;
            self.observer.refilled(self.now().since(asked_at));
            if admitted {
                let unused = lease.fill(batch - charge.cost, reading, asked_at);
                self.give_back_unused(charge, spec, unused).await;
                return Ok((reading, true));
            }
            if batch == charge.cost {
                let wait = reading.retry_at.map_or(0, |at| at.since(now));
                lease.deny(asked_at.plus(wait), reading);
                return Ok((reading, false));
            }
        }
        Err(NoAnswer::Failed)
    }

    async fn give_back_unused(&self, charge: &Charge<'_>, spec: &BucketSpec, unused: u32) {
        if unused > 0 {
            let charges = [with_spec(charge, spec, unused)];
            let _ = self.within_deadline(self.store.refund(&charges)).await;
        }
    }

    /// Puts readings of two places back into the order of the charges.
    fn merged(&self, charges: &[Charge<'_>], near: Charged, far: Charged) -> Charged {
        let mut near_readings = near.readings.into_iter();
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

fn with_spec<'s>(charge: &Charge<'s>, spec: &'s BucketSpec, cost: u32) -> Charge<'s> {
    Charge {
        spec,
        cost,
        ..charge.clone()
    }
}

fn first(charged: &Charged) -> Result<(Reading, bool), NoAnswer> {
    let reading = charged.readings.first().copied().ok_or(NoAnswer::Failed)?;
    Ok((reading, charged.admitted))
}

fn answered(served: Served) -> Option<(Reading, bool)> {
    match served {
        Served::Taken(reading) => Some((reading, true)),
        Served::Denied(reading) => Some((reading, false)),
        Served::Ask => None,
    }
}
