//! Buckets that are served in this process: local ones, and leased ones from the tokens
//! at hand.

use std::sync::Arc;

use palisade_core::limit::{BucketSpec, Reading};
use palisade_core::plan::Charge;
use palisade_core::time::Micros;
use palisade_store::{Buckets, Charged, Store, Take};
use tokio::time::Instant;

use super::super::link::{For, NoAnswer};
use super::Limits;
use super::charge::{Counters, with_spec};
use super::lease::Lease;

/// What the buckets that live here said, by this node's clock.
pub(super) struct Near<'p> {
    pub(super) charged: Charged,
    pub(super) tokens: Vec<Taken<'p>>,
}

/// Something that was taken and can be put back.
pub(super) enum Taken<'p> {
    /// So many tokens of the lease's batch with this end.
    Lease(Arc<Lease>, u32, Micros),
    /// A charge in the store, as it was made there.
    Store(Box<Charge<'p>>, BucketSpec),
}

/// What a leased bucket said, by this node's clock.
pub(super) struct Leased<'p> {
    pub(super) reading: Reading,
    pub(super) admitted: bool,
    pub(super) taken: Option<Taken<'p>>,
}

impl<'p> Leased<'p> {
    pub(super) const fn taken(reading: Reading, taken: Taken<'p>) -> Self {
        Self {
            reading,
            admitted: true,
            taken: Some(taken),
        }
    }

    pub(super) const fn denied(reading: Reading) -> Self {
        Self {
            reading,
            admitted: false,
            taken: None,
        }
    }
}

impl Limits {
    pub(super) fn local_of<'p>(&self, near: &[Charge<'p>]) -> Vec<Charge<'p>> {
        let local = near.iter().filter(|charge| self.is_local(charge));
        local.cloned().collect()
    }
}

impl<S: Store> Counters<'_, S> {
    /// Takes from buckets that live here, all or nothing. Without an answer what
    /// was taken of local ones stays taken.
    pub(super) async fn take_near<'p>(
        self,
        near: &[Charge<'p>],
        take: Take,
        ends: Instant,
    ) -> Result<Near<'p>, NoAnswer> {
        let mut charged = self
            .limits
            .local
            .charge_now(&self.limits.local_of(near), take);
        let is_local_denied = !charged.admitted;
        let mut local_readings = std::mem::take(&mut charged.readings).into_iter();
        let mut tokens = Vec::new();
        for charge in near {
            if self.limits.is_local(charge) {
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

    pub(super) async fn refund_local(self, near: &[Charge<'_>], take: Take) {
        if take == Take::Consume {
            let _ = self.limits.local.refund(&self.limits.local_of(near)).await;
        }
    }

    pub(super) async fn put_back(self, taken: Vec<Taken<'_>>, ends: Instant) {
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

    /// Gives back to the store what nobody used. Whether that succeeds does not
    /// matter: what is not given back expires.
    pub(super) async fn tidy(self, charges: &[Charge<'_>], ends: Instant) {
        let give = self
            .link
            .call(For::Upkeep, ends, |store| store.refund(charges));
        let _ = give.await;
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
