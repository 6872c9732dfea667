//! Limits that admit more after a challenge (C-BUYS): a caller that has exceeded only such limits
//! is asked for one, and is admitted with a pass as long as their extra lasts.

use palisade_core::Digest;
use palisade_core::challenge::{ChallengeFacts, ChallengeFlow, ChallengeRefusal, PassNote};
use palisade_core::decide::decide_boxed;
use palisade_core::decision::{Decision, ErrorCode};
use palisade_core::limit::BucketSpec;
use palisade_core::plan::Charge;
use palisade_store::{ChargeReadings, Take};

use super::super::Engine;
use super::super::challenge::OpenPass;
use super::super::counters::ChargeOutcome;
use super::super::link::NoAnswer;
use super::check::Check;

/// The flow of challenges that limits ask for.
const FLOW: ChallengeFlow = ChallengeFlow::Request;

/// Whether every bucket that denies admits more after a challenge.
pub(super) fn asks_for_challenge(outcome: &ChargeOutcome<'_, '_>) -> bool {
    let denying = || denying(outcome);
    denying().next().is_some() && denying().all(|charge| charge.limit.beyond.is_some())
}

fn denying<'o, 'p>(outcome: &'o ChargeOutcome<'_, 'p>) -> impl Iterator<Item = &'o Charge<'p>> {
    let both = outcome.charges.iter().zip(&outcome.charged.readings);
    both.filter(|(charge, reading)| reading.retry_at.is_some() && charge.on_exceed.denies())
        .map(|(charge, _)| charge)
}

impl Engine {
    /// The decision on a request that has exceeded limits which ask for a challenge: with a pass
    /// that of their extra, else the refusal that offers one.
    pub(super) async fn beyond_limits(
        &self,
        check: &Check<'_>,
        outcome: &ChargeOutcome<'_, '_>,
        mut refused: Box<Decision>,
    ) -> Result<Box<Decision>, NoAnswer> {
        let Some(shown) = check.facts.pass.as_deref() else {
            self.ask_for_challenge(check, &mut refused);
            return Ok(refused);
        };
        let note = match self.look_at_pass(FLOW, check.facts.ip, None, shown) {
            Err(reason) => PassNote::Refused(reason),
            Ok(open) => {
                let full: Vec<Digest> = denying(outcome).map(|charge| charge.id).collect();
                match self.charge_beyond(check, full, &open).await? {
                    Ok(decision) => return Ok(decision),
                    Err(reason) => PassNote::Refused(reason),
                }
            }
        };
        self.note_pass(FLOW, &note);
        refused.pass = Some(note);
        self.ask_for_challenge(check, &mut refused);
        Ok(refused)
    }

    /// Charges the request with the extra of the limits that are full, and a use of the pass,
    /// all or nothing. The error is why the pass was not accepted.
    async fn charge_beyond(
        &self,
        check: &Check<'_>,
        mut full: Vec<Digest>,
        open: &OpenPass,
    ) -> Result<Result<Box<Decision>, ChallengeRefusal>, NoAnswer> {
        let specs: Vec<Option<BucketSpec>> = check
            .plan
            .charges
            .iter()
            .map(|charge| charge.limit.spec_beyond(charge.spec))
            .collect();
        // What is known of a denial need not name every bucket that is full: each round finds one
        // more at least.
        loop {
            let charges = charges_beyond(check, &specs, &full, open);
            let outcome = self.counters.charge(&charges, check.terms).await?;
            if let Some(reason) = open.refused_by(outcome.judged()) {
                return Ok(Err(reason));
            }
            let known = full.len();
            if asks_for_challenge(&outcome) {
                full.extend(denying(&outcome).map(|charge| charge.id));
            }
            if full.len() == known {
                return Ok(Ok(self.decide_beyond(check, open, outcome)));
            }
        }
    }

    fn decide_beyond(
        &self,
        check: &Check<'_>,
        open: &OpenPass,
        outcome: ChargeOutcome<'_, '_>,
    ) -> Box<Decision> {
        let outcome = without_marks(outcome, open);
        let quota = outcome.quota(check.plan);
        let mut decision = decide_boxed(quota, check.class, outcome.judged());
        if decision.is_allowed() {
            let note = self.accepted(open);
            if check.terms.take == Take::Consume {
                self.note_pass(FLOW, &note);
            }
            decision.pass = Some(note);
            if check.terms.receipt {
                decision.receipt = self.receipt(check.class, &outcome);
            }
        }
        decision
    }

    /// Turns a refusal into one that offers a challenge.
    fn ask_for_challenge(&self, check: &Check<'_>, refused: &mut Decision) {
        let settings = &check.policy.settings.challenge;
        if !settings.kind.is_ours() {
            return;
        }
        let facts = ChallengeFacts::new(FLOW, check.facts.ip);
        refused.error = Some(ErrorCode::ChallengeRequired);
        refused.status = ErrorCode::ChallengeRequired.status();
        refused.offer = Some(Box::new(self.challenge_for(settings, &facts).offer));
    }
}

/// The charges of a request, with the extra in place of the buckets that are full.
fn charges_beyond<'c>(
    check: &Check<'c>,
    specs: &'c [Option<BucketSpec>],
    full: &[Digest],
    open: &'c OpenPass,
) -> Vec<Charge<'c>> {
    let own = check.plan.charges.iter().zip(specs);
    let charged = own.map(|(charge, spec)| {
        let beyond = spec.as_ref().filter(|_| full.contains(&charge.id));
        let beyond = beyond.and_then(|spec| charge.beyond(spec));
        beyond.unwrap_or_else(|| charge.clone())
    });
    charged.chain(open.marks()).collect()
}

/// The charges without the uses of the pass: those are no limit, and no refund gives them
/// back.
fn without_marks<'c, 'p>(outcome: ChargeOutcome<'c, 'p>, open: &OpenPass) -> ChargeOutcome<'c, 'p> {
    let ChargeOutcome { charges, charged } = outcome;
    let is_kept = |at: &usize| !open.is_mark(&charges[*at]);
    let kept: Vec<usize> = (0..charges.len()).filter(is_kept).collect();
    ChargeOutcome {
        charged: ChargeReadings {
            readings: kept
                .iter()
                .filter_map(|at| charged.readings.get(*at).copied())
                .collect(),
            instants: kept
                .iter()
                .filter_map(|at| charged.instants.get(*at).copied())
                .collect(),
            ..charged
        },
        charges: kept.iter().map(|at| charges[*at].clone()).collect(),
    }
}
