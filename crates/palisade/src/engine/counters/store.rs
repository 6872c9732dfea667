//! Buckets in the store: under every name that they have (L-ROTATE), and with what the store
//! says of long windows noted for the next outage (F-CARRY).

use std::sync::Arc;

use palisade_core::plan::Charge;
use palisade_core::time::Micros;
use palisade_store::{ChargeReadings, Correction, CorrectionOutcome, Take, TakenCharge};
use tokio::time::Instant;

use super::super::link::{CallTimes, For, LIMITS, Link, NoAnswer};
use super::both_names;

/// The lowest layer.
pub(in crate::engine) struct StoreBuckets {
    pub(super) link: Arc<Link>,
    /// Whether other nodes use the same store: then tokens are leased and denials remembered.
    pub(super) is_shared: bool,
}

impl StoreBuckets {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self {
            is_shared: link.store().is_shared(),
            link,
        }
    }

    pub(super) fn now(&self) -> Micros {
        self.link.now()
    }

    /// Charges buckets, all or nothing. Readings are noted if the call says when it was made.
    pub(in crate::engine) async fn charge(
        &self,
        whom: For,
        charges: &[Charge<'_>],
        take: Take,
        times: CallTimes,
    ) -> Result<ChargeReadings, NoAnswer> {
        let call = self.link.call(whom, times, |store| {
            both_names::charge(store, charges, take)
        });
        let charged = call.await?;
        if let Some(asked) = times.started_at() {
            self.note(charges, &charged, asked);
        }
        Ok(charged)
    }

    /// The readings of buckets, whatever is remembered of them.
    pub(in crate::engine) async fn look(
        &self,
        charges: &[Charge<'_>],
        ends: Instant,
    ) -> Result<ChargeReadings, NoAnswer> {
        self.charge(LIMITS, charges, Take::Peek, ends.into()).await
    }

    /// Decides on each bucket by itself, in this order.
    pub(in crate::engine) async fn charge_each(
        &self,
        charges: &[Charge<'_>],
        take: Take,
        ends: Instant,
    ) -> Result<Vec<ChargeReadings>, NoAnswer> {
        let asked = self.now();
        let call = self.link.call(LIMITS, ends, |store| {
            both_names::charge_each(store, charges, take)
        });
        let charged = call.await?;
        for (charge, charged) in charges.iter().zip(&charged) {
            self.note(std::slice::from_ref(charge), charged, asked);
        }
        Ok(charged)
    }

    /// Gives back what was taken, as far as it still counts.
    pub(super) async fn give_back(
        &self,
        whom: For,
        taken: &[TakenCharge<'_>],
        ends: Instant,
    ) -> Result<ChargeReadings, NoAnswer> {
        let asked = self.now();
        let call = self
            .link
            .call(whom, ends, |store| both_names::give_back(store, taken));
        let charged = call.await?;
        let charges: Vec<Charge<'_>> = taken.iter().map(|one| one.charge.clone()).collect();
        self.note(&charges, &charged, asked);
        Ok(charged)
    }

    /// Corrects buckets once, together with the record that marks it.
    pub(super) async fn correct(
        &self,
        correction: &Correction<'_>,
        ends: Instant,
    ) -> Result<CorrectionOutcome, NoAnswer> {
        let asked = self.now();
        let call = self
            .link
            .call(LIMITS, ends, |store| store.correct(correction));
        let outcome = call.await?;
        if let CorrectionOutcome::Made(readings) | CorrectionOutcome::Repeated(readings) = &outcome
        {
            self.note(&correction.charges(), readings, asked);
        }
        Ok(outcome)
    }

    /// Gives back costs that name no charge.
    pub(super) async fn refund(
        &self,
        charges: &[Charge<'_>],
        ends: Instant,
    ) -> Result<ChargeReadings, NoAnswer> {
        let asked = self.now();
        let call = self
            .link
            .call(LIMITS, ends, |store| both_names::refund(store, charges));
        let charged = call.await?;
        self.note(charges, &charged, asked);
        Ok(charged)
    }

    fn note(&self, charges: &[Charge<'_>], charged: &ChargeReadings, asked: Micros) {
        if self.is_shared {
            self.link.stand_in().note(charges, charged, asked);
        }
    }
}
