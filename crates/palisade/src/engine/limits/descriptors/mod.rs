//! One call of an Envoy rate-limit service, from its descriptors to its decision: the same
//! counters, store call and failure modes as a request's.

mod outcome;
mod status;

use std::sync::Arc;

use palisade_core::decision::Decision;
use palisade_core::facts::DescriptorFacts;
use palisade_core::headers::{Header, headers};
use palisade_core::limit::Reading;
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::{
    DescriptorPlan, Instead, PolicySet, TenantPolicy, orgs_of, own_figures, resolve_descriptors,
};
use palisade_store::Take;
use tokio::time::Instant;

use super::super::counters::{ChargeOutcome, Terms};
use super::super::link::NoAnswer;
use super::super::thresholds::warnings;
use super::super::{CandidateAnswer, DecisionEvent, Engine, Subject};

use super::check::disabled;

pub(super) use outcome::{CallOutcome, PartReadings};
pub use status::{DescriptorStatus, DescriptorVerdict, Figure};

/// The answer to a call: one decision for all descriptors, and what was found about each.
#[derive(Clone, Debug)]
pub struct DescriptorAnswer {
    /// The decision on the call as a whole.
    pub decision: Decision,
    /// One for each descriptor, in order (R-STATUS).
    pub statuses: Vec<DescriptorStatus>,
    /// The policy in force.
    pub policy: Arc<PolicySet>,
    /// Where the candidate policy would have decided otherwise (L-CANDIDATE).
    pub candidate: Option<Box<CandidateAnswer>>,
}

impl DescriptorAnswer {
    /// The headers of the answer, in the families that the policy chooses.
    #[must_use]
    pub fn headers(&self) -> Vec<Header> {
        let mut all = headers(&self.decision, self.policy.settings.headers);
        all.extend(self.candidate.as_ref().and_then(|one| one.header()));
        all
    }
}

/// The class of calls that ask a domain without limits.
const NO_DOMAIN: &str = "none";

/// One call on its way.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    policy: &'a PolicySet,
    pub(super) plan: &'a DescriptorPlan<'a>,
    pub(super) class: &'a Arc<str>,
    pub(super) take: Take,
    /// Every bucket is to be seen, known denials included.
    asks_all: bool,
    /// When it must be answered.
    ends: Instant,
}

impl Engine {
    /// Decides a call and charges what it asks for: all descriptors together (R-ATOMIC).
    pub async fn check_descriptors(&self, facts: &DescriptorFacts<'_>) -> DescriptorAnswer {
        let mut answer = self.answer_call(facts, Take::Consume, false).await;
        let subject = Subject::Descriptors(facts, &answer.statuses);
        answer.decision.warnings = warnings(&answer.policy, &answer.decision.limits);
        self.note_thresholds(&answer.policy, &answer.decision, Some(subject));
        self.link.observer().decided(&DecisionEvent {
            subject: Subject::Descriptors(facts, &answer.statuses),
            decision: &answer.decision,
            bypassed: None,
            guard: None,
        });
        answer.candidate = self.beside_call(facts, &answer).await;
        answer
    }

    /// Decides a call and charges nothing.
    pub async fn peek_descriptors(&self, facts: &DescriptorFacts<'_>) -> DescriptorAnswer {
        self.answer_call(facts, Take::Peek, false).await
    }

    /// [`Engine::peek_descriptors`] with a reading of every bucket: none is left out because
    /// another is known to deny.
    pub(in crate::engine) async fn see_descriptors(
        &self,
        facts: &DescriptorFacts<'_>,
    ) -> DescriptorAnswer {
        self.answer_call(facts, Take::Peek, true).await
    }

    /// The answer. Nothing is reported yet.
    pub(in crate::engine) async fn answer_call(
        &self,
        facts: &DescriptorFacts<'_>,
        take: Take,
        asks_all: bool,
    ) -> DescriptorAnswer {
        let ends = self.link.request_ends();
        let policy = self.policy.load_full();
        let figures = own_figures(&policy, facts);
        let orgs = orgs_of(&policy, facts);
        let tenant = |org: &Option<&str>| org.and_then(|org| self.tenants.find(org));
        let tenants: Vec<Option<Arc<TenantPolicy>>> = orgs.iter().map(tenant).collect();
        let instead = Instead {
            figures: &figures,
            tenants: &tenants,
        };
        let plan = resolve_descriptors(&policy, instead, &self.keyring, facts);
        let class = plan.domain.map_or_else(|| NO_DOMAIN.into(), Arc::clone);
        let call = Call {
            policy: &policy,
            plan: &plan,
            class: &class,
            take,
            asks_all,
            ends,
        };
        let outcome = match policy.enabled {
            true => self.decide_call(call).await,
            false => CallOutcome::without(disabled(self.now(), &class)),
        };
        DescriptorAnswer {
            statuses: status::all(&plan, &outcome),
            decision: outcome.decision,
            policy,
            candidate: None,
        }
    }

    /// Looks first, since they charge nothing; then what is charged, in one store call; last
    /// what is given back, where the policy lets it: an answer over the limit leaves it undone.
    async fn decide_call(&self, call: Call<'_>) -> CallOutcome {
        match self.charge_call(call).await {
            Ok(outcome) => {
                if outcome.rebuilt > 0 {
                    self.link.observer().rebuilt("bucket", outcome.rebuilt);
                }
                outcome
            }
            Err(no_answer) => self.call_without_answer(call, &no_answer),
        }
    }

    async fn charge_call(&self, call: Call<'_>) -> Result<CallOutcome, NoAnswer> {
        let plan = call.plan;
        let looks = self.charge_part(&plan.looks, Take::Peek, call).await?;
        let denies = |charge: &Charge<'_>| charge.on_exceed.denies();
        let is_over = plan.denied.iter().any(denies) || !looks.admitted;
        let counts_denied = call.policy.settings.rls.count_denied;
        let take = match is_over && !counts_denied {
            true => Take::Peek,
            false => call.take,
        };
        let mut charges = if counts_denied {
            self.charge_apart(&plan.charges, take, call).await?
        } else {
            self.charge_part(&plan.charges, take, call).await?
        };
        let is_over = is_over || charges.is_over(&plan.charges);
        if is_over && call.take == Take::Consume {
            Box::pin(self.charge_refused_part(&mut charges, call)).await?;
        }
        let gives_back = call.policy.settings.rls.refunds && !is_over && call.take == Take::Consume;
        let refunds = match gives_back {
            true => self.give_back_part(&plan.refunds).await?,
            false => self.charge_part(&plan.refunds, Take::Peek, call).await?,
        };
        Ok(CallOutcome {
            has_refunded: gives_back,
            ..CallOutcome::new(call, || self.now(), [charges, looks, refunds])
        })
    }

    /// R-ATOMIC, `count_denied`: those that admit are charged whatever the others say.
    async fn charge_apart(
        &self,
        charges: &[Charge<'_>],
        take: Take,
        call: Call<'_>,
    ) -> Result<PartReadings, NoAnswer> {
        if !charges.iter().any(may_be_overdrawn) {
            return self.charge_part(&reporting(charges), take, call).await;
        }
        // A bucket that reports is charged what fits: one that may be overdrawn is asked by itself.
        let mut parts = PartReadings::empty();
        for charge in charges {
            let alone = std::slice::from_ref(charge);
            parts.append(self.charge_part(alone, take, call).await?);
        }
        Ok(parts)
    }

    /// Charges what a refused call is charged all the same, and reads what that left
    /// (B-OVERDRAFT).
    async fn charge_refused_part(
        &self,
        part: &mut PartReadings,
        call: Call<'_>,
    ) -> Result<(), NoAnswer> {
        let plan = &call.plan.charges;
        let is_charged = |position: usize| {
            let fits = |reading: &Reading| reading.retry_at.is_none();
            call.policy.settings.rls.count_denied
                && part.readings[position].as_ref().is_some_and(fits)
        };
        let is_due = |position: &usize| {
            let charge = &plan[*position];
            charge.limit.def.charged_anyway && may_be_overdrawn(charge) && !is_charged(*position)
        };
        let positions: Vec<usize> = (0..plan.len()).filter(is_due).collect();
        if positions.is_empty() {
            return Ok(());
        }
        let due: Vec<Charge<'_>> = positions.iter().map(|at| plan[*at].clone()).collect();
        let (charged, _) = self.charge_anyway(&due, None, call.ends).await?;
        for (position, reading) in positions.into_iter().zip(charged.readings) {
            let found = part.readings[position];
            part.readings[position] = Some(Reading {
                // Whether it fitted is for its status to say.
                retry_at: found.and_then(|found| found.retry_at),
                ..reading
            });
        }
        Ok(())
    }

    async fn charge_part(
        &self,
        charges: &[Charge<'_>],
        take: Take,
        call: Call<'_>,
    ) -> Result<PartReadings, NoAnswer> {
        if charges.is_empty() {
            return Ok(PartReadings::empty());
        }
        let terms = Terms {
            take,
            ends: call.ends,
            receipt: false,
        };
        let outcome = match call.asks_all {
            true => self.counters.charge_anew(charges, terms).await?,
            false => self.counters.charge(charges, terms).await?,
        };
        if take == Take::Consume && outcome.charged.admitted {
            self.note_overdrawn(charges, &outcome.charged.readings);
        }
        Ok(PartReadings::of(charges, &outcome))
    }

    /// From the oldest uses of each bucket, whoever's they are: negative hits name no charge.
    async fn give_back_part(&self, refunds: &[Charge<'_>]) -> Result<PartReadings, NoAnswer> {
        if refunds.is_empty() {
            return Ok(PartReadings::empty());
        }
        let charged = self.refund_charges(refunds).await?;
        Ok(PartReadings::of(
            refunds,
            &ChargeOutcome::all(refunds, charged),
        ))
    }
}

fn may_be_overdrawn(charge: &Charge<'_>) -> bool {
    charge.on_exceed == OnExceed::Overdraft
}

/// A bucket that reports is charged if it has room and denies nobody.
fn reporting<'p>(charges: &[Charge<'p>]) -> Vec<Charge<'p>> {
    let mut charges = charges.to_vec();
    for charge in &mut charges {
        if charge.on_exceed == OnExceed::Deny {
            charge.on_exceed = OnExceed::Report;
        }
    }
    charges
}
