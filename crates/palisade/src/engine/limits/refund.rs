//! Giving back what a request was charged (L-GIVE-BACK).

use arrayvec::ArrayVec;
use palisade_core::Digest;
use palisade_core::decide::{JudgedCharges, decide};
use palisade_core::decision::LimitReading;
use palisade_core::facts::RequestFacts;
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::{Limit, PolicySet};
use palisade_core::receipt::{Line, Place, Receipt, ReceiptError};
use palisade_core::time::Micros;
use palisade_store::{Buckets, ChargeOutcome, Take, TakenCharge};

use tokio::time::Instant;

use super::super::Engine;
use super::super::link::NoAnswer;
use super::both_names;
use super::charge::{Counters, LIMITS, with_spec};
use super::check::class_of;
use super::denials::is_reservable;
use super::receipts;

/// What a refund left.
#[derive(Clone, Debug)]
pub enum RefundOutcome {
    /// Given back, as far as it still counted; the buckets as they are now.
    Done(Vec<LimitReading>),
    /// No bucket counts the request any more, so there was nothing to give back; the
    /// buckets as they are now.
    Over(Vec<LimitReading>),
    /// The receipt was used before: nothing was given back.
    Before,
    /// The store could not be asked, or did not answer.
    Unavailable,
}

impl RefundOutcome {
    /// It was given back now, if it still counted: not before, and not perhaps.
    const fn is_settled(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Over(_))
    }
}

impl Engine {
    /// Gives back what the check that this is the receipt of was charged: once, whichever
    /// node is asked, and as far as its buckets still count it.
    ///
    /// # Errors
    /// It is no receipt of ours.
    pub async fn refund(&self, receipt: &str) -> Result<RefundOutcome, ReceiptError> {
        let outcome = self.refund_receipt(receipt).await?;
        if outcome.is_settled()
            && let Some(candidate) = self.beside()
        {
            candidate.refund(receipt).await;
        }
        Ok(outcome)
    }

    /// The same under this policy alone.
    pub(in crate::engine) async fn refund_receipt(
        &self,
        receipt: &str,
    ) -> Result<RefundOutcome, ReceiptError> {
        let receipt = receipts::open(&self.keyring, receipt)?;
        let policy = self.policy.load_full();
        let lines = self.counters().known(&receipt, &policy);
        if lines.is_empty() {
            return Ok(RefundOutcome::Over(Vec::new()));
        }
        let ends = self.link.request_ends();
        let marked = self.counters().refund_once(&receipt, ends).await;
        Ok(match marked {
            Ok(true) => self.give_back(&receipt, &lines, ends).await,
            Ok(false) => RefundOutcome::Before,
            Err(_) => RefundOutcome::Unavailable,
        })
    }

    async fn give_back(
        &self,
        receipt: &Receipt,
        lines: &[(Place, TakenCharge<'_>)],
        ends: Instant,
    ) -> RefundOutcome {
        let Ok(charged) = self.counters().give_back_lines(lines, ends).await else {
            return RefundOutcome::Unavailable;
        };
        let charges: Vec<Charge<'_>> = lines.iter().map(|(_, t)| t.charge.clone()).collect();
        self.reopen(&charges, charged.now);
        let limits = shown(&receipt.class, &charges, &charged);
        if receipt.lines.iter().any(|line| line.counts_at(charged.now)) {
            RefundOutcome::Done(limits)
        } else {
            RefundOutcome::Over(limits)
        }
    }

    /// Something was given back to these buckets at `at`, by the store's clock: what this node
    /// remembers of them goes, and the others are told.
    pub(super) fn reopen(&self, charges: &[Charge<'_>], at: Micros) {
        self.limits
            .reopen(&charges.iter().map(|charge| charge.id).collect());
        // Where something is reserved the others ask again soon by themselves (B-REMEMBER).
        let remembered = charges.iter().filter(|charge| !is_reservable(charge));
        if self.store().is_shared() {
            self.registries.refunds.note(remembered, at);
        }
    }

    /// Gives back the cost of a request that has no receipt, from the oldest uses of its
    /// buckets. What it was charged for may be out of them by now, and then others' uses
    /// are given back: more can be admitted than the limit.
    pub async fn refund_facts(&self, facts: &RequestFacts) -> RefundOutcome {
        let outcome = self.give_back_facts(facts).await;
        if outcome.is_settled()
            && let Some(candidate) = self.beside()
        {
            candidate.refund_facts(facts).await;
        }
        outcome
    }

    /// The same under this policy alone.
    pub(in crate::engine) async fn give_back_facts(&self, facts: &RequestFacts) -> RefundOutcome {
        let policy = self.policy.load_full();
        let tenant = self.tenant(facts);
        let plan = self.plan(&policy, tenant.as_deref(), facts);
        let class = class_of(&plan, facts);
        match self.counters().refund_unnamed(&plan.charges).await {
            Ok(charged) => {
                self.reopen(&plan.charges, charged.now);
                RefundOutcome::Done(shown(&class, &plan.charges, &charged))
            }
            Err(_) => RefundOutcome::Unavailable,
        }
    }
}

pub(super) fn shown(
    class: &str,
    charges: &[Charge<'_>],
    charged: &ChargeOutcome,
) -> Vec<LimitReading> {
    let judged = JudgedCharges {
        charges,
        readings: &charged.readings,
        now: charged.now,
    };
    decide(None, &class.into(), judged).limits.into_vec()
}

/// The limit that a line names, if the policy still has it.
pub(super) fn limit_of(policy: &PolicySet, digest: Digest) -> Option<&Limit> {
    let mut limits = policy.limits().iter().chain(policy.tier_limits());
    limits.find(|limit| limit.digest == digest)
}

impl Counters<'_> {
    /// What of a receipt can be given back here: buckets of a limit that is still there,
    /// and local ones only where they are.
    fn known<'r>(
        self,
        receipt: &'r Receipt,
        policy: &'r PolicySet,
    ) -> Vec<(Place, TakenCharge<'r>)> {
        let is_here = receipt.process == self.limits.receipts.process;
        let can_be = |line: &&Line| line.place == Place::Store || is_here;
        let taken = |line: &'r Line| {
            let charge = line.charge(limit_of(policy, line.limit)?);
            Some((
                line.place,
                TakenCharge {
                    charge,
                    at: line.at,
                },
            ))
        };
        receipt
            .lines
            .iter()
            .filter(can_be)
            .filter_map(taken)
            .collect()
    }

    /// Marks a receipt as used; false if it was. What marks it is a bucket for one, so
    /// that it holds on every node and ends by itself.
    ///
    /// Where the mark is follows from the receipt alone: lines that a reload has made
    /// unknown may be known again after the next one, and must find the same mark.
    async fn refund_once(self, receipt: &Receipt, ends: Instant) -> Result<bool, NoAnswer> {
        let Some(limit) = receipt.once() else {
            return Ok(false);
        };
        let segment = receipt.segment();
        let once = [Charge {
            limit: &limit,
            spec: &limit.def.spec,
            id: Digest(limit.digest.0.wrapping_add(segment.digest.0)),
            segments: ArrayVec::from_iter([segment]),
            previous: None,
            cost: 1,
            on_exceed: OnExceed::Deny,
        }];
        let is_here = |line: &Line| line.place == Place::Process;
        if receipt.lines.iter().all(is_here) {
            return Ok(self.limits.local.charge_now(&once, Take::Consume).admitted);
        }
        let mark = self
            .link
            .call(LIMITS, ends, |store| store.charge(&once, Take::Consume));
        Ok(mark.await?.admitted)
    }

    pub(super) async fn give_back_lines(
        self,
        lines: &[(Place, TakenCharge<'_>)],
        ends: Instant,
    ) -> Result<ChargeOutcome, NoAnswer> {
        let of = |wanted: Place| -> Vec<TakenCharge<'_>> {
            let own = lines.iter().filter(|(place, _)| *place == wanted);
            own.map(|(_, taken)| taken.clone()).collect()
        };
        let (here, there) = (of(Place::Process), of(Place::Store));
        let asked = self.link.now();
        let mut far = nothing(asked);
        if !there.is_empty() {
            let give = self
                .link
                .call(LIMITS, ends, |store| both_names::give_back(store, &there));
            far = give.await?;
            let charges: Vec<Charge<'_>> = there.into_iter().map(|one| one.charge).collect();
            self.keep_readings(&charges, &far, asked);
        }
        let near = self.limits.local.give_back_now(&here);
        Ok(in_order(lines.iter().map(|(place, _)| *place), near, far))
    }

    /// Each bucket where it was charged: leased ones in the store by what the store
    /// was charged with, local ones in this process.
    pub(super) async fn refund_unnamed(
        self,
        charges: &[Charge<'_>],
    ) -> Result<ChargeOutcome, NoAnswer> {
        let placed: Vec<_> = charges.iter().map(|c| self.limits.charged_as(c)).collect();
        let of = |wanted: Place| -> Vec<Charge<'_>> {
            let own = charges.iter().zip(&placed);
            own.filter(|(_, (_, place))| *place == wanted)
                .map(|(charge, (spec, _))| with_spec(charge, spec, charge.cost))
                .collect()
        };
        let (here, there) = (of(Place::Process), of(Place::Store));
        let asked = self.link.now();
        let mut far = nothing(asked);
        if !there.is_empty() {
            let ends = self.link.request_ends();
            let refund = self
                .link
                .call(LIMITS, ends, |store| both_names::refund(store, &there));
            far = refund.await?;
            self.keep_readings(&there, &far, asked);
        }
        let near = self.limits.local.refund(&here).await;
        let near = near.map_err(NoAnswer::Failed)?;
        Ok(in_order(placed.iter().map(|(_, place)| *place), near, far))
    }
}

fn nothing(now: Micros) -> ChargeOutcome {
    ChargeOutcome {
        now,
        admitted: true,
        readings: palisade_store::BucketReadings::new(),
        rebuilt: 0,
        instants: Vec::new(),
    }
}

/// Readings of two places in the order of their charges.
fn in_order(
    places: impl Iterator<Item = Place>,
    near: ChargeOutcome,
    mut far: ChargeOutcome,
) -> ChargeOutcome {
    let mut here = near.readings.into_iter();
    let mut there = std::mem::take(&mut far.readings).into_iter();
    let next = |place| match place {
        Place::Process => here.next(),
        Place::Store => there.next(),
    };
    far.readings = places.filter_map(next).collect();
    far
}
