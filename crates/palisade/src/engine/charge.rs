//! The store behind its deadline and breaker.

use std::future::Future;

use palisade_core::failure::{CallDecision, FailureKind, Policy};
use palisade_core::plan::Charge;
use palisade_core::policy::Accuracy;
use palisade_store::{Charged, Store, StoreError, Take};

use super::Engine;

/// Why no answer came from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The breaker is open: it was not asked.
    NotAsked,
    /// It was asked and failed.
    Failed(StoreError),
}

pub(super) const fn failure_kind(error: &StoreError) -> FailureKind {
    match error {
        StoreError::TimedOut => FailureKind::TimedOut,
        StoreError::Unreachable(_) => FailureKind::Unreachable,
        StoreError::Corrupt(_) => FailureKind::Refused,
        StoreError::Exhausted(_) => FailureKind::Exhausted,
    }
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
            CallDecision::DoNotCall => return Err(NoAnswer::NotAsked),
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
        result.map_err(NoAnswer::Failed)
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

    /// Charges the buckets of a decision, local and shared ones all or nothing.
    pub(super) async fn charge(
        &self,
        charges: &[Charge<'_>],
        take: Take,
    ) -> Result<Charged, NoAnswer> {
        let is_local = |charge: &Charge<'_>| charge.limit.def.accuracy == Accuracy::Local;
        if !charges.iter().any(is_local) {
            return self
                .call(Policy::Limits, self.store.charge(charges, take))
                .await;
        }
        let (local, shared): (Vec<_>, Vec<_>) = charges.iter().cloned().partition(is_local);
        let near = self.local_charge(&local, take).await?;
        if shared.is_empty() {
            return Ok(near);
        }
        if !near.admitted {
            let far = self
                .call(Policy::Limits, self.store.charge(&shared, Take::Peek))
                .await?;
            return Ok(merged(charges, is_local, near, far));
        }
        let far = self
            .call(Policy::Limits, self.store.charge(&shared, take))
            .await;
        if take == Take::Consume && !far.as_ref().is_ok_and(|far| far.admitted) {
            let _ = self.local.refund(&local).await;
        }
        Ok(merged(charges, is_local, near, far?))
    }

    async fn local_charge(&self, local: &[Charge<'_>], take: Take) -> Result<Charged, NoAnswer> {
        self.local
            .charge(local, take)
            .await
            .map_err(NoAnswer::Failed)
    }
}

/// Puts readings of two stores back into the order of the charges.
fn merged(
    charges: &[Charge<'_>],
    is_local: impl Fn(&Charge<'_>) -> bool,
    near: Charged,
    far: Charged,
) -> Charged {
    let (mut near_readings, mut far_readings) =
        (near.readings.into_iter(), far.readings.into_iter());
    let readings = charges
        .iter()
        .filter_map(|charge| {
            if is_local(charge) {
                near_readings.next()
            } else {
                far_readings.next()
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
