//! Counters of limits and quotas: a stack of layers between a decision and the store.
//!
//! A charge passes them from top to bottom, and goes no further than it must:
//!
//! 1. [`denials`]: a bucket that the store has denied is denied until it may admit again.
//! 2. The process: local buckets, which no other node knows.
//! 3. [`leases`]: leased buckets, from tokens that were taken ahead.
//! 4. [`store`]: everything else, in one call, under every name that a bucket has.
//!
//! Most plans meet one of the last three; [`steps`] charges those that meet several, all or
//! nothing.
//!
//! Whatever has no answer from the store is decided by [`fallback`], on bounded counters of
//! this node. Requests, calls of Envoy, keys of Redis clients, refunds and reservations all use
//! this one stack.

pub(super) mod both_names;
mod corrections;
mod denials;
mod fallback;
mod leases;
mod steps;
mod store;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use palisade_core::Digest;
use palisade_core::decide::JudgedCharges;
use palisade_core::failure::FallbackPolicy;
use palisade_core::limit::{BucketSpec, Reading};
use palisade_core::plan::{Charge, Plan, QuotaPlan};
use palisade_core::policy::Accuracy;
use palisade_core::receipt::Place;
use palisade_core::time::Micros;
use palisade_store::{ChargeReadings, Take};
use tokio::time::Instant;

use super::link::{CallTimes, LIMITS, Link, LocalStore, NoAnswer, local_store};
use denials::Denials;
use fallback::CapLimits;
use leases::{Leases, is_leasable, leased_spec};
use store::StoreBuckets;

pub(super) use corrections::PlacedCorrection;
pub(super) use denials::is_reservable;

/// All counters of one node.
pub(super) struct Counters {
    denials: Denials,
    leases: Leases,
    /// Buckets of this process alone.
    pub(super) process: LocalStore,
    pub(super) store: StoreBuckets,
    cap_limits: ArcSwap<CapLimits>,
}

/// The layer that counts a bucket, by the accuracy of its limit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layer {
    /// In this process, and forgotten when it ends.
    Process,
    /// In the store, in batches that this node takes ahead.
    Leases,
    /// In the store, each request by itself.
    Store,
}

/// Terms that hold for all charges of a decision.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) take: Take,
    /// When it must be answered.
    pub(super) ends: Instant,
    /// Whether a receipt is wanted: it says when each bucket was charged.
    pub(super) receipt: bool,
}

/// The buckets that were read for a decision.
pub(super) struct ChargeOutcome<'c, 'p> {
    /// The charges that were read: all of them, unless one is known to deny and the others
    /// need not, or cannot, be asked.
    pub(super) charges: Cow<'c, [Charge<'p>]>,
    /// One reading for each.
    pub(super) charged: ChargeReadings,
}

impl<'c, 'p> ChargeOutcome<'c, 'p> {
    pub(super) const fn all(charges: &'c [Charge<'p>], charged: ChargeReadings) -> Self {
        Self {
            charges: Cow::Borrowed(charges),
            charged,
        }
    }

    /// The API key's quota of a plan, if it was read.
    pub(super) fn quota(&self, plan: &Plan<'_>) -> Option<QuotaPlan> {
        let quota = plan.quota?;
        if self.charges.len() == plan.charges.len() {
            return Some(quota);
        }
        let own = plan.charges.get(quota.charge)?;
        let charge = self.charges.iter().position(|one| one.id == own.id)?;
        Some(QuotaPlan { charge, ..quota })
    }

    /// The charges as a decision goes by them.
    pub(super) fn judged(&self) -> JudgedCharges<'_> {
        JudgedCharges {
            charges: &self.charges,
            readings: &self.charged.readings,
            now: self.charged.now,
        }
    }
}

impl Counters {
    pub(super) fn new(link: Arc<Link>, fallback: &FallbackPolicy) -> Self {
        Self {
            denials: Denials::default(),
            leases: Leases::default(),
            process: local_store(link.clock()),
            store: StoreBuckets::new(link),
            cap_limits: ArcSwap::from_pointee(CapLimits::new(fallback)),
        }
    }

    /// The layer that counts a bucket.
    #[inline]
    pub(super) fn layer(&self, charge: &Charge<'_>) -> Layer {
        let is_throttle = charge.limit.def.throttle;
        match charge.limit.def.accuracy {
            Accuracy::Exact if !is_throttle => Layer::Store,
            Accuracy::Local => Layer::Process,
            // On a store that nobody shares batches would spare no call. A throttle counts a
            // second; everything else outlives this process with the store (L-DURABLE).
            Accuracy::Leased if !self.store.is_shared && is_throttle => Layer::Process,
            Accuracy::Leased if !self.store.is_shared => Layer::Store,
            // A throttle meets every request: it is never asked of the store one by one.
            Accuracy::Leased | Accuracy::Exact if is_leasable(charge.spec) => Layer::Leases,
            Accuracy::Leased | Accuracy::Exact => Layer::Store,
        }
    }

    /// Charges the buckets of a decision, all or nothing. A denial that is remembered, and
    /// tokens at hand, spare the rest of the stack.
    pub(super) async fn charge<'c, 'p>(
        &self,
        charges: &'c [Charge<'p>],
        terms: Terms,
    ) -> Result<ChargeOutcome<'c, 'p>, NoAnswer> {
        let Terms { take, ends, .. } = terms;
        let started = self.started();
        if let Some(now) = started {
            if let Some(denied) = self.denials.find(charges, now) {
                return Ok(denied);
            }
            if take == Take::Consume
                && let Some(charged) = self.leases.charge_at_hand(charges, now, terms.receipt)
            {
                return Ok(ChargeOutcome::all(charges, charged));
            }
        }
        let only_in = |layer| charges.iter().all(|charge| self.layer(charge) == layer);
        if only_in(Layer::Store) {
            let epoch = self.denials.epoch();
            let times = CallTimes::started(ends, started);
            let charged = self.store.charge(LIMITS, charges, take, times).await?;
            if let Some(asked) = started {
                self.learn(charges, &charged, asked, epoch);
                self.denials.learn_companions(charges, &charged);
            }
            return Ok(ChargeOutcome::all(charges, charged));
        }
        if only_in(Layer::Process) {
            let charged = self.process.charge_now(charges, take);
            return Ok(ChargeOutcome::all(charges, charged));
        }
        let now = started.unwrap_or_else(|| self.store.now());
        let steps = self.steps(charges, take, now);
        self.pass(charges, steps, terms, now).await
    }

    /// Charges the buckets of a decision, all or nothing, whatever is remembered of them.
    pub(super) async fn charge_anew<'c, 'p>(
        &self,
        charges: &'c [Charge<'p>],
        terms: Terms,
    ) -> Result<ChargeOutcome<'c, 'p>, NoAnswer> {
        let now = self.store.now();
        let steps = self.steps(charges, terms.take, now);
        self.pass(charges, steps, terms, now).await
    }

    /// When a charge that is made now starts, where anybody wants to know: what a shared store
    /// denies is remembered from then on.
    fn started(&self) -> Option<Micros> {
        self.store.is_shared.then(|| self.store.now())
    }

    /// Remembers what a shared store denied when it was asked at `asked`. A denial would hide
    /// tokens that other requests have taken meanwhile.
    fn learn(&self, charges: &[Charge<'_>], charged: &ChargeReadings, asked: Micros, epoch: u64) {
        let holds_tokens = |charge: &Charge<'_>| self.leases.has_usable(charge, asked);
        if !charged.admitted && !charges.iter().any(holds_tokens) {
            self.denials.learn(charges, charged, asked, epoch);
        }
    }

    /// The denials that this node knows of without asking another machine; takes nothing.
    pub(super) fn known_denials<'c, 'p>(
        &self,
        charges: &'c [Charge<'p>],
    ) -> Option<ChargeOutcome<'c, 'p>> {
        let remembered = self.denials.find(charges, self.store.now());
        remembered.or_else(|| self.denials_here(charges))
    }

    /// The buckets that deny in this process: local ones that are full, and leased ones whose
    /// tokens are used up and that the store gave no more of.
    pub(super) fn denials_here<'c, 'p>(
        &self,
        charges: &'c [Charge<'p>],
    ) -> Option<ChargeOutcome<'c, 'p>> {
        let now = self.store.now();
        let denial = |charge: &Charge<'_>| match self.layer(charge) {
            Layer::Process => {
                let looked = std::slice::from_ref(charge);
                let looked = self.process.charge_now(looked, Take::Peek);
                looked
                    .readings
                    .first()
                    .copied()
                    .filter(|_| !looked.admitted)
            }
            Layer::Leases | Layer::Store => self.leases.denial(charge, now),
        };
        let denying = charges
            .iter()
            .filter_map(|charge| Some((charge.clone(), denial(charge)?)));
        let (charges, readings): (Vec<_>, Vec<_>) = denying.unzip();
        (!charges.is_empty()).then(|| ChargeOutcome {
            charges: charges.into(),
            charged: denied(now, readings),
        })
    }

    /// The figures by which a bucket is charged, and the place.
    pub(super) fn charged_as(&self, charge: &Charge<'_>) -> (BucketSpec, Place) {
        match self.layer(charge) {
            Layer::Process => (*charge.spec, Place::Process),
            Layer::Store => (*charge.spec, Place::Store),
            Layer::Leases => {
                let leased = leased_spec(charge.spec);
                (leased.unwrap_or(*charge.spec), Place::Store)
            }
        }
    }

    /// Shortens the memory of denials of these limits, since something is reserved of them
    /// (B-REMEMBER).
    pub(super) fn note_reserved(&self, charges: &[Charge<'_>]) {
        if self.store.is_shared {
            self.denials.note_reserved(charges);
        }
    }

    /// Takes over the figures of a new policy.
    pub(super) fn reconfigure(&self, fallback: &FallbackPolicy) {
        self.cap_limits.store(Arc::new(CapLimits::new(fallback)));
    }

    /// Drops what is known under a policy that has gone; leased tokens go back.
    pub(super) fn retire(&self) {
        self.leases.retire();
        self.denials.clear();
    }

    /// Drops cached denials and leased tokens: the next request asks the store.
    pub(super) fn forget_cached(&self) {
        self.leases.clear();
        self.denials.clear();
    }

    /// Forgets denials of these buckets, since something was given back to them. Leased tokens
    /// stay.
    pub(super) fn reopen(&self, buckets: &HashSet<Digest>) {
        self.denials.forget(buckets);
        for id in buckets {
            self.leases.reopen(*id);
        }
    }

    /// Leased buckets and denials that are remembered.
    pub(super) fn cached(&self) -> usize {
        self.leases.len() + self.denials.len()
    }

    /// Keeps leased limits supplied for as long as it is polled.
    pub(super) async fn supply_leases(&self) {
        self.leases.supply(&self.store).await;
    }

    /// Gives the tokens of every lease back, as when the process ends.
    pub(super) async fn return_leases(&self) {
        self.leases.return_all(&self.store).await;
    }
}

/// Readings of buckets of which at least one denies.
fn denied(now: Micros, readings: impl IntoIterator<Item = Reading>) -> ChargeReadings {
    ChargeReadings {
        now,
        admitted: false,
        readings: readings.into_iter().collect(),
        rebuilt: 0,
        instants: Vec::new(),
    }
}
