//! Challenges in the guard's answers, where the policy uses them.

use palisade_core::challenge::{ChallengeFacts, ChallengeSettings};
use palisade_core::decision::{Challenge, Decision, Mode, Outcome};
use palisade_core::facts::{GuardFacts, GuardOp};
use palisade_core::policy::PolicySet;

use super::super::Engine;

impl Engine {
    /// Adds a challenge to a SOFT answer, and to one that asks for a captcha (C-KIND). A HARD
    /// block has none: nothing frees from it.
    pub(in crate::engine) fn offer_to_command(
        &self,
        policy: &PolicySet,
        op: GuardOp,
        facts: &GuardFacts,
        decision: &mut Decision,
    ) {
        let settings = &policy.settings.challenge;
        if is_due(settings, decision) {
            let facts = ChallengeFacts {
                account: facts.account.clone(),
                level: decision.level,
                ..ChallengeFacts::new(op.flow().into(), facts.ip)
            };
            decision.offer = Some(Box::new(self.challenge_for(settings, &facts).offer));
        }
    }
}

/// In an outage no solution can be accepted, so none is asked for.
fn is_due(settings: &ChallengeSettings, decision: &Decision) -> bool {
    let is_asked = match decision.outcome {
        Outcome::SoftBlock => true,
        Outcome::HardBlock => false,
        Outcome::Allow | Outcome::Deny => decision.challenge == Some(Challenge::Captcha),
    };
    settings.is_used && settings.kind.is_ours() && decision.mode == Mode::Normal && is_asked
}
