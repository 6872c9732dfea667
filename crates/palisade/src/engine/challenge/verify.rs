//! Verifying solutions: the seal and the work first, then the provider, and last the store, which
//! says whether the solution was used before.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_core::Digest;
use palisade_core::challenge::{
    ChallengeBinding, ChallengeFacts, ChallengeKind, ChallengeRefusal, ChallengeSettings,
    IssuedChallenge, Pass, PassKind, segment_of, used_once,
};
use palisade_core::time::Micros;
use palisade_store::Take;
use sha2::{Digest as _, Sha256};

use super::super::Engine;
use super::super::counters::Terms;
use super::super::marks::mark;
use super::{ChallengeStep, ProviderQuery};
use crate::wire::read_solution;

/// Longest solution that is read, in bytes: tokens of providers have up to 2,048 characters, and
/// reCAPTCHA's somewhat more.
const SOLUTION_BYTES_MAX: usize = 8192;

/// Result of verifying a solution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChallengeOutcome {
    /// It is good.
    Passed {
        /// The sealed token or pass.
        pass: String,
        /// Instant after which it is late.
        expires: Micros,
    },
    /// It is not accepted.
    Refused {
        /// Why not.
        reason: ChallengeRefusal,
        /// A proof of work in place of a provider that does not answer (C-FAIL).
        instead: Option<Box<IssuedChallenge>>,
    },
    /// The address has had too many solutions verified.
    Limited {
        /// Whole seconds to wait.
        retry_after: u64,
    },
}

/// A challenge that was passed.
struct PassedChallenge {
    id: Digest,
    kind: ChallengeKind,
    has_moved: bool,
}

impl Engine {
    /// Verifies a solution and exchanges it for a pass of this kind (C-API). A solution is good
    /// once, whichever node is asked.
    pub async fn verify_challenge(
        &self,
        facts: &ChallengeFacts,
        solution: &str,
        kind: PassKind,
    ) -> ChallengeOutcome {
        let policy = self.policy.load_full();
        let settings = &policy.settings.challenge;
        let limited = self.limit_prefix("challenge-verify", facts.ip, settings.per_minute);
        if let Err(retry_after) = limited {
            self.note_challenge(ChallengeStep::Limited, settings.kind, facts.flow);
            return ChallengeOutcome::Limited { retry_after };
        }
        let passed = match self.judge_solution(settings, facts, solution).await {
            Ok(passed) => self.use_up(&passed).await.map(|()| passed),
            Err(reason) => Err(reason),
        };
        let step = passed.as_ref().map_or_else(
            |reason| ChallengeStep::Refused(*reason),
            |_| ChallengeStep::Passed,
        );
        let of = passed.as_ref().map_or(settings.kind, |passed| passed.kind);
        self.note_challenge(step, of, facts.flow);
        match passed {
            Ok(passed) => self.pass_for(settings, facts, kind, &passed),
            Err(reason) => ChallengeOutcome::Refused {
                reason,
                instead: self.instead(settings, facts, reason),
            },
        }
    }

    /// Whether the caller has passed the challenge, use aside.
    async fn judge_solution(
        &self,
        settings: &ChallengeSettings,
        facts: &ChallengeFacts,
        solution: &str,
    ) -> Result<PassedChallenge, ChallengeRefusal> {
        if solution.len() > SOLUTION_BYTES_MAX {
            return Err(ChallengeRefusal::Wrong);
        }
        let provider = settings.provider.as_ref();
        if let Some(worked) = read_solution(solution)
            && provider.is_none_or(|provider| provider.has_fallback)
            && settings.kind.is_ours()
        {
            let binding =
                ChallengeBinding::new(&self.keyring, facts.flow, facts.ip, facts.account.as_ref());
            let solved = worked.verify(&self.keyring, &binding, self.now())?;
            return Ok(PassedChallenge {
                id: solved.id,
                kind: ChallengeKind::ProofOfWork,
                has_moved: solved.has_moved,
            });
        }
        let provider = provider.ok_or(ChallengeRefusal::Wrong)?;
        let query = ProviderQuery {
            kind: settings.kind,
            settings: provider,
            solution,
            ip: facts.ip,
            flow: facts.flow,
        };
        self.ask_provider(query).await?;
        Ok(PassedChallenge {
            id: name_of(solution),
            kind: settings.kind,
            has_moved: false,
        })
    }

    /// Marks a challenge as used, on every node (C-POW).
    async fn use_up(&self, passed: &PassedChallenge) -> Result<(), ChallengeRefusal> {
        let limit = used_once("challenge-solved").ok_or(ChallengeRefusal::Unavailable)?;
        let once = [mark(&limit, segment_of(passed.id))];
        let terms = Terms {
            take: Take::Consume,
            ends: self.link.request_ends(),
            receipt: false,
        };
        match self.counters.charge(&once, terms).await {
            Ok(outcome) if outcome.charged.admitted => Ok(()),
            Ok(_) => Err(ChallengeRefusal::Used),
            // Nothing opens while the store cannot say whether it was used.
            Err(_) => Err(ChallengeRefusal::Unavailable),
        }
    }

    /// The pass that a passed challenge buys.
    fn pass_for(
        &self,
        settings: &ChallengeSettings,
        facts: &ChallengeFacts,
        kind: PassKind,
        passed: &PassedChallenge,
    ) -> ChallengeOutcome {
        let binding =
            ChallengeBinding::new(&self.keyring, facts.flow, facts.ip, facts.account.as_ref());
        let expires = self.now().plus(settings.pass_us);
        let pass = Pass {
            id: passed.id,
            expires,
            bound: binding.bound_to(),
            uses: match kind {
                PassKind::Token => 1,
                PassKind::Cookie => settings.uses(facts.flow),
            },
            has_moved: passed.has_moved,
        };
        ChallengeOutcome::Passed {
            pass: URL_SAFE_NO_PAD.encode(pass.seal(&self.keyring, kind)),
            expires,
        }
    }

    /// The proof of work that is offered in place of a provider that does not answer.
    fn instead(
        &self,
        settings: &ChallengeSettings,
        facts: &ChallengeFacts,
        reason: ChallengeRefusal,
    ) -> Option<Box<IssuedChallenge>> {
        let provider = settings.provider.as_ref()?;
        let is_due = reason == ChallengeRefusal::Unavailable
            && provider.has_fallback
            && self.provider_fails(self.now());
        is_due.then(|| Box::new(self.challenge_for(settings, facts)))
    }
}

/// Names a provider's token without keeping it.
fn name_of(solution: &str) -> Digest {
    let hash = Sha256::digest(solution.as_bytes());
    let mut half = [0; 16];
    half.copy_from_slice(&hash[..16]);
    Digest::from_bytes(half)
}
