//! Challenges in policy cases: `"challenge": "solve"` shows the token of a challenge that is issued
//! and solved for the event, and `"challenge": "again"` the token of the last one.

use palisade_core::challenge::{
    ChallengeFacts, ChallengeFlow, ChallengeParameters, PassKind, ShownPass,
};
use palisade_core::facts::{GuardFacts, GuardOp, RequestFacts};
use serde::Deserialize;

use crate::engine::{ChallengeOutcome, Engine, IssueOutcome};
use crate::wire;

/// The token that an event shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShownToken {
    /// That of a challenge which is solved for this event.
    Solve,
    /// That of the last event which solved one.
    Again,
}

/// The token that was shown last.
#[derive(Default)]
pub(super) struct Tokens {
    last: Option<Box<ShownPass>>,
}

impl Tokens {
    /// The facts of a request, with the token that its event shows.
    pub(super) async fn on_request(
        &mut self,
        engine: &Engine,
        shown: ShownToken,
        facts: &RequestFacts,
    ) -> RequestFacts {
        let asked = ChallengeFacts::new(ChallengeFlow::Request, facts.ip);
        RequestFacts {
            pass: self.show(engine, shown, asked).await,
            ..facts.clone()
        }
    }

    /// The facts of a guard command, with the token that its event shows.
    pub(super) async fn on_command(
        &mut self,
        engine: &Engine,
        shown: ShownToken,
        (op, facts): (GuardOp, &GuardFacts),
    ) -> GuardFacts {
        let asked = ChallengeFacts {
            account: facts.account.clone(),
            ..ChallengeFacts::new(op.flow().into(), facts.ip)
        };
        GuardFacts {
            pass: self.show(engine, shown, asked).await,
            ..facts.clone()
        }
    }

    /// The token; none if there is no puzzle to solve or the store does not answer.
    async fn show(
        &mut self,
        engine: &Engine,
        shown: ShownToken,
        facts: ChallengeFacts,
    ) -> Option<Box<ShownPass>> {
        if shown == ShownToken::Solve {
            self.last = solve(engine, &facts).await;
        }
        self.last.clone()
    }
}

async fn solve(engine: &Engine, facts: &ChallengeFacts) -> Option<Box<ShownPass>> {
    let IssueOutcome::Issued(issued) = engine.issue_challenge(facts) else {
        return None;
    };
    let ChallengeParameters::Puzzle(puzzle) = &issued.offer.parameters else {
        return None;
    };
    let solution = wire::solution_text(&puzzle.solve()?)?;
    let verified = engine.verify_challenge(facts, &solution, PassKind::Token);
    match verified.await {
        ChallengeOutcome::Passed { pass, .. } => Some(Box::new(ShownPass::token(&pass))),
        ChallengeOutcome::Refused { .. } | ChallengeOutcome::Limited { .. } => None,
    }
}
