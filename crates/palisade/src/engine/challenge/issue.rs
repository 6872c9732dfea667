//! Issuing challenges. Nothing is remembered of them.

use palisade_core::challenge::{
    ChallengeBinding, ChallengeFacts, ChallengeKind, ChallengeParameters, ChallengeSettings,
    IssuedChallenge, OfferedChallenge, Puzzle, PuzzleTerms, difficulty_at,
};

use super::super::Engine;
use super::ChallengeStep;

/// Result of asking for a challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IssueOutcome {
    /// The challenge.
    Issued(Box<IssuedChallenge>),
    /// The address has asked for too many.
    Limited {
        /// Whole seconds to wait.
        retry_after: u64,
    },
}

impl Engine {
    /// Issues a challenge of the policy's kind for one caller (C-API). It is good for this caller
    /// only, and once.
    pub fn issue_challenge(&self, facts: &ChallengeFacts) -> IssueOutcome {
        let policy = self.policy.load();
        let settings = &policy.settings.challenge;
        let limited = self.limit_prefix("challenge-issue", facts.ip, settings.per_minute);
        if let Err(retry_after) = limited {
            self.note_challenge(ChallengeStep::Limited, settings.kind, facts.flow);
            return IssueOutcome::Limited { retry_after };
        }
        IssueOutcome::Issued(Box::new(self.challenge_for(settings, facts)))
    }

    /// The challenge that a caller gets now. While the provider fails it is a proof of work,
    /// unless the policy forbids that (C-FAIL).
    pub(in crate::engine) fn challenge_for(
        &self,
        settings: &ChallengeSettings,
        facts: &ChallengeFacts,
    ) -> IssuedChallenge {
        let issued = match &settings.provider {
            Some(provider) if !(provider.has_fallback && self.provider_fails(self.now())) => {
                let parameters = ChallengeParameters::Widget {
                    site_key: provider.site_key.clone(),
                    action: facts.flow.name(),
                    version: provider.is_scored.then_some(3),
                };
                offered(settings, settings.kind, parameters)
            }
            None if settings.kind == ChallengeKind::Host => {
                offered(settings, settings.kind, ChallengeParameters::Own {})
            }
            Some(_) | None => self.puzzle_for(settings, facts),
        };
        self.note_challenge(ChallengeStep::Issued, issued.offer.kind, facts.flow);
        issued
    }

    /// A proof of work for a caller, whatever the policy's kind.
    pub(super) fn puzzle_for(
        &self,
        settings: &ChallengeSettings,
        facts: &ChallengeFacts,
    ) -> IssuedChallenge {
        let ChallengeFacts { flow, ip, .. } = *facts;
        let binding = ChallengeBinding::new(&self.keyring, flow, ip, facts.account.as_ref());
        // Whole seconds, as the salt says them.
        let expires = self.now().plus(settings.valid_us);
        let terms = PuzzleTerms {
            nonce: rand::random(),
            random: rand::random(),
            difficulty: difficulty_at(settings.difficulty, facts.level),
            expires,
        };
        let puzzle = Puzzle::issue(&self.keyring, &binding, &terms);
        let parameters = ChallengeParameters::Puzzle(puzzle);
        IssuedChallenge {
            expires: Some(expires),
            ..offered(settings, ChallengeKind::ProofOfWork, parameters)
        }
    }
}

fn offered(
    settings: &ChallengeSettings,
    kind: ChallengeKind,
    parameters: ChallengeParameters,
) -> IssuedChallenge {
    IssuedChallenge {
        offer: OfferedChallenge {
            kind,
            url: settings.url.clone(),
            parameters,
        },
        expires: None,
    }
}
