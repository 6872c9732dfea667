//! A leased bucket that a request is charged to: from the tokens at hand, else from a
//! new batch.

use std::pin::pin;
use std::sync::Arc;

use palisade_core::limit::{BucketSpec, Reading};
use palisade_core::plan::{Charge, OnExceed};
use palisade_store::Take;
use tokio::time::Instant;

use super::super::super::link::NoAnswer;
use super::super::both_names;
use super::super::charge::{Counters, LIMITS, first, with_spec};
use super::super::near::{Held, Leased};
use super::{Given, Lease, Served, Unused, leased_spec};
use crate::deadline::until;

impl Counters<'_> {
    /// A leased bucket that answers without the store.
    pub(in crate::engine::limits) fn at_hand<'p>(
        self,
        charge: &Charge<'p>,
        take: Take,
    ) -> Option<Leased<'p>> {
        if take != Take::Consume {
            return None;
        }
        let lease = self.limits.leases.of(charge, self.link.now())?;
        self.answered(&lease, charge.cost)
    }

    /// A leased bucket without tokens at hand: from a new batch.
    pub(in crate::engine::limits) async fn lease<'p>(
        self,
        charge: &Charge<'p>,
        take: Take,
        ends: Instant,
    ) -> Result<Leased<'p>, NoAnswer> {
        let lease = self.limits.leases.of(charge, self.link.now());
        let (Some(lease), Take::Consume) = (lease, take) else {
            let spec = leased_spec(charge.spec);
            return self.take_directly(charge, spec, take, ends).await;
        };
        let Ok(_filling) = until(ends, pin!(lease.filling.lock())).await else {
            return Err(NoAnswer::OutOfTime);
        };
        if let Some(served) = self.answered(&lease, charge.cost) {
            return Ok(served);
        }
        self.refill(&lease, charge, ends).await
    }

    /// A leased bucket that is only looked at, or cannot be leased.
    async fn take_directly<'p>(
        self,
        charge: &Charge<'p>,
        spec: Option<BucketSpec>,
        take: Take,
        ends: Instant,
    ) -> Result<Leased<'p>, NoAnswer> {
        let asked_at = self.link.now();
        let spec = spec.unwrap_or(*charge.spec);
        let charges = [with_spec(charge, &spec, charge.cost)];
        let charged = self.ask(&charges, take, ends).await?;
        let at = charged.judged_at(0);
        let is_taken = take == Take::Consume && !charged.taken(&charges).is_empty();
        Ok(Leased {
            reading: first(&charged, asked_at)?,
            admitted: charged.admitted,
            held: is_taken.then(|| Held::Store(Box::new(charge.clone()), spec, at)),
        })
    }

    async fn refill<'p>(
        self,
        lease: &Arc<Lease>,
        charge: &Charge<'_>,
        ends: Instant,
    ) -> Result<Leased<'p>, NoAnswer> {
        let full = lease.batch(charge.cost, self.link.now());
        let seen = lease.reopened();
        for batch in [full, charge.cost] {
            let asked_at = self.link.now();
            let charges = [lease.charge(batch)];
            let charged = self
                .link
                .call(LIMITS, ends, |store| {
                    both_names::charge(store, &charges, Take::Consume)
                })
                .await?;
            self.keep_readings(&charges, &charged, asked_at);
            let reading = first(&charged, asked_at)?;
            self.link
                .observer()
                .refilled(self.link.now().since(asked_at));
            let is_full = reading.retry_at.is_some();
            if charged.admitted && is_full {
                // A bucket that does not deny. What has no room for a batch may have some for
                // the request; where it has none, nothing was taken that could go back.
                if batch > charge.cost && charge.on_exceed == OnExceed::Report {
                    continue;
                }
                return Ok(Leased::reported(reading));
            }
            if charged.admitted {
                let given = Given {
                    size: batch,
                    cost: charge.cost,
                    reading,
                    asked: asked_at,
                    taken_at: charged.judged_at(0),
                };
                let (origin, unused) = self.limits.leases.fill(lease, given);
                if let Some(unused) = unused {
                    self.give_back_unused(lease, unused, ends).await;
                }
                let held = Held::Lease(Arc::clone(lease), charge.cost, origin);
                // What is at hand is left, too.
                let left = reading.remaining + u64::from(batch - charge.cost);
                let reading = Reading {
                    remaining: left,
                    ..reading
                };
                return Ok(Leased::taken(reading, held));
            }
            if batch == charge.cost {
                let until = reading.retry_at.unwrap_or(asked_at);
                lease.deny(charge.cost, until, reading, seen);
                return Ok(Leased::denied(reading));
            }
        }
        Err(NoAnswer::NotAsked)
    }

    fn answered<'p>(self, lease: &Arc<Lease>, cost: u32) -> Option<Leased<'p>> {
        match self.limits.leases.serve_from(lease, cost, self.link.now()) {
            Served::Taken(reading, origin) => {
                let held = Held::Lease(Arc::clone(lease), cost, origin);
                Some(Leased::taken(reading, held))
            }
            Served::Denied(reading) => Some(Leased::denied(reading)),
            Served::Ask => None,
        }
    }

    async fn give_back_unused(self, lease: &Arc<Lease>, unused: Unused, ends: Instant) {
        if self.limits.leases.is_attended() {
            self.limits.leases.return_later(lease, unused);
        } else {
            self.tidy(&[lease.taken(unused)], ends).await;
        }
    }
}
