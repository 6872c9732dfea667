//! Giving back what a request was charged (L-GIVE-BACK).

use palisade_core::Digest;
use palisade_core::decide::{JudgedCharges, decide};
use palisade_core::decision::LimitReading;
use palisade_core::facts::RequestFacts;
use palisade_core::plan::Charge;
use palisade_core::policy::{Limit, PolicySet};
use palisade_core::receipt::{Line, Place, Receipt, ReceiptError};
use palisade_core::time::Micros;
use palisade_store::{ChargeReadings, Take, TakenCharge};
use tokio::time::Instant;

use super::super::Engine;
use super::super::counters::{Counters, is_reservable};
use super::super::link::{LIMITS, NoAnswer};
use super::super::marks::mark;
use super::check::class_of;
use super::receipts;

/// The outcome of a refund.
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
    /// True if this call settled the matter: everything that still counted was given back.
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

    /// [`Engine::refund`] without the candidate policy.
    pub(in crate::engine) async fn refund_receipt(
        &self,
        receipt: &str,
    ) -> Result<RefundOutcome, ReceiptError> {
        let receipt = receipts::open(&self.keyring, receipt)?;
        let policy = self.policy.load_full();
        let lines = self.known_lines(&receipt, &policy);
        if lines.is_empty() {
            return Ok(RefundOutcome::Over(Vec::new()));
        }
        let ends = self.link.request_ends();
        let marked = self.refund_once(&receipt, ends).await;
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
        let Ok(charged) = self.return_placed(lines, ends).await else {
            return RefundOutcome::Unavailable;
        };
        let charges: Vec<Charge<'_>> = lines.iter().map(|(_, t)| t.charge.clone()).collect();
        let limits = shown(&receipt.class, &charges, &charged);
        if receipt.lines.iter().any(|line| line.counts_at(charged.now)) {
            RefundOutcome::Done(limits)
        } else {
            RefundOutcome::Over(limits)
        }
    }

    /// Gives back what was charged, as far as it still counts.
    pub(in crate::engine) async fn return_placed(
        &self,
        lines: &[(Place, TakenCharge<'_>)],
        ends: Instant,
    ) -> Result<ChargeReadings, NoAnswer> {
        let charged = self.counters.give_back(lines, ends).await?;
        let charges: Vec<Charge<'_>> = lines.iter().map(|(_, one)| one.charge.clone()).collect();
        self.reopen(&charges, charged.now);
        Ok(charged)
    }

    /// Gives back costs that name no charge, from the oldest uses of each bucket, whoever's
    /// they are.
    pub(super) async fn refund_charges(
        &self,
        charges: &[Charge<'_>],
    ) -> Result<ChargeReadings, NoAnswer> {
        let ends = self.link.request_ends();
        let charged = self.counters.refund(charges, ends).await?;
        self.reopen(charges, charged.now);
        Ok(charged)
    }

    /// Something was given back to these buckets at `at`, by the store's clock: what this node
    /// remembers of them goes, and the others are told.
    pub(in crate::engine) fn reopen(&self, charges: &[Charge<'_>], at: Micros) {
        self.counters
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

    /// [`Engine::refund_facts`] without the candidate policy.
    pub(in crate::engine) async fn give_back_facts(&self, facts: &RequestFacts) -> RefundOutcome {
        let policy = self.policy.load_full();
        let tenant = self.tenant(facts);
        let plan = self.plan(&policy, tenant.as_deref(), facts);
        let class = class_of(&plan, facts);
        match self.refund_charges(&plan.charges).await {
            Ok(charged) => RefundOutcome::Done(shown(&class, &plan.charges, &charged)),
            Err(_) => RefundOutcome::Unavailable,
        }
    }
}

fn shown(class: &str, charges: &[Charge<'_>], charged: &ChargeReadings) -> Vec<LimitReading> {
    let judged = JudgedCharges {
        charges,
        readings: &charged.readings,
        now: charged.now,
    };
    decide(None, &class.into(), judged).limits.into_vec()
}

/// The limit that a line names, if the policy still has it.
pub(in crate::engine) fn limit_named(policy: &PolicySet, digest: Digest) -> Option<&Limit> {
    let limits = policy.limits().iter().chain(policy.tier_limits());
    let mut all = limits.flat_map(|limit| {
        let beside = limit.companions.iter().chain(limit.beyond.as_deref());
        std::iter::once(limit).chain(beside)
    });
    all.find(|limit| limit.digest == digest)
}

impl Engine {
    /// The lines of a receipt that can be given back here: those of limits that still exist, and
    /// local ones only in the process that issued the receipt.
    fn known_lines<'r>(
        &self,
        receipt: &'r Receipt,
        policy: &'r PolicySet,
    ) -> Vec<(Place, TakenCharge<'r>)> {
        let is_here = receipt.process == self.receipts.process;
        let can_be = |line: &&Line| line.place == Place::Store || is_here;
        let taken = |line: &'r Line| {
            let charge = line.charge(limit_named(policy, line.limit)?);
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
    async fn refund_once(&self, receipt: &Receipt, ends: Instant) -> Result<bool, NoAnswer> {
        let Some(limit) = receipt.once() else {
            return Ok(false);
        };
        let once = [mark(&limit, receipt.segment())];
        let is_here = |line: &Line| line.place == Place::Process;
        let Counters { process, store, .. } = &self.counters;
        let marked = match receipt.lines.iter().all(is_here) {
            true => process.charge_now(&once, Take::Consume),
            false => {
                let mark = store.charge(LIMITS, &once, Take::Consume, ends.into());
                mark.await?
            }
        };
        Ok(marked.admitted)
    }
}

/// Buckets as an answer shows them, each once: of several charges of one bucket the last
/// reading is what is left.
pub(in crate::engine) fn readings_of(
    class: &str,
    charges: &[Charge<'_>],
    charged: &ChargeReadings,
) -> Vec<LimitReading> {
    let is_last = |at: &usize| {
        let mut later = charges[at + 1..].iter();
        later.all(|other| other.id != charges[*at].id)
    };
    let last: Vec<usize> = (0..charges.len()).filter(is_last).collect();
    let readings = last
        .iter()
        .filter_map(|at| charged.readings.get(*at).copied());
    let charged = ChargeReadings {
        now: charged.now,
        admitted: charged.admitted,
        readings: readings.collect(),
        rebuilt: 0,
        instants: Vec::new(),
    };
    let charges: Vec<Charge<'_>> = last.into_iter().map(|at| charges[at].clone()).collect();
    shown(class, &charges, &charged)
}
