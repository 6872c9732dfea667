//! Giving back what a request was charged.

use palisade_core::decide::{Judged, decide};
use palisade_core::decision::LimitReading;
use palisade_core::facts::RequestFacts;
use palisade_core::limit::BucketSpec;
use palisade_core::plan::Charge;
use palisade_store::{Buckets, Charged, Store};

use super::super::Engine;
use super::super::link::NoAnswer;
use super::charge::{Counters, LIMITS, with_spec};
use super::check::class_of;
use super::lease::leased_spec;

/// What a refund left.
#[derive(Clone, Debug)]
pub enum RefundOutcome {
    /// Given back; the buckets as they are now.
    Done(Vec<LimitReading>),
    /// The store could not be asked: nothing was given back.
    Unavailable,
}

impl<S: Store> Engine<S> {
    /// Gives back what a request was charged.
    pub async fn refund(&self, facts: &RequestFacts) -> RefundOutcome {
        let policy = self.policy.load_full();
        let tenant = self.tenant(facts);
        let plan = self.plan(&policy, tenant.as_deref(), facts);
        let class = class_of(&plan, facts);
        match self.counters().refund(&plan.charges).await {
            Ok(charged) => {
                let judged = Judged {
                    charges: &plan.charges,
                    readings: &charged.readings,
                    now: charged.now,
                };
                self.limits.forget_cached();
                RefundOutcome::Done(decide(plan.quota, &class, judged).limits)
            }
            Err(_) => RefundOutcome::Unavailable,
        }
    }
}

impl<S: Store> Counters<'_, S> {
    /// Each bucket where it was charged: leased ones in the store by what the store
    /// was charged with, local ones in this process.
    async fn refund(self, charges: &[Charge<'_>]) -> Result<Charged, NoAnswer> {
        let specs: Vec<BucketSpec> = charges.iter().map(|c| self.stored_spec(c)).collect();
        let stored: Vec<Charge<'_>> = charges
            .iter()
            .zip(&specs)
            .map(|(charge, spec)| with_spec(charge, spec, charge.cost))
            .collect();
        let (local, shared): (Vec<_>, Vec<_>) = stored
            .into_iter()
            .partition(|charge| self.limits.is_local(charge));
        let mut refunded = Charged {
            now: self.link.now(),
            admitted: true,
            readings: Vec::new(),
            rebuilt: 0,
            instants: Vec::new(),
        };
        if !shared.is_empty() {
            let ends = self.link.request_ends();
            let refund = self.link.call(LIMITS, ends, |store| store.refund(&shared));
            refunded = refund.await?;
        }
        let here = self.limits.local.refund(&local).await;
        let here = here.map_err(NoAnswer::Failed)?;
        let mut here = here.readings.into_iter();
        let mut there = std::mem::take(&mut refunded.readings).into_iter();
        let next = |charge| {
            if self.limits.is_local(charge) {
                here.next()
            } else {
                there.next()
            }
        };
        refunded.readings = charges.iter().filter_map(next).collect();
        Ok(refunded)
    }

    fn stored_spec(self, charge: &Charge<'_>) -> BucketSpec {
        if self.limits.is_exact(charge) || self.limits.is_local(charge) {
            *charge.spec
        } else {
            leased_spec(charge.spec).unwrap_or(*charge.spec)
        }
    }
}
