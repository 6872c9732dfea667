//! Issues, solves and verifies as a client does.
#![allow(missing_docs, unreachable_pub, reason = "a test's support")]

use palisade::Engine;
use palisade::core::Id;
use palisade::core::challenge::{
    ChallengeFacts, ChallengeFlow, ChallengeParameters, ChallengeRefusal, IssuedChallenge,
    PassKind, PassNote, ShownPass,
};
use palisade::engine::{ChallengeOutcome, IssueOutcome};
use palisade::wire::solution_text;

/// Challenges that take no time to solve.
pub const EASY: &str = "[challenge]\ndifficulty = 1000\npass_uses = 3\nper_minute = 10000\n";

pub fn facts(flow: ChallengeFlow, ip: &str) -> ChallengeFacts {
    facts_of(flow, ip, "ann")
}

pub fn facts_of(flow: ChallengeFlow, ip: &str, account: &str) -> ChallengeFacts {
    ChallengeFacts {
        account: Some(Id::new("account", account).unwrap()),
        ..ChallengeFacts::new(flow, ip.parse().unwrap())
    }
}

pub fn issued(engine: &Engine, facts: &ChallengeFacts) -> Result<IssuedChallenge, u64> {
    match engine.issue_challenge(facts) {
        IssueOutcome::Issued(issued) => Ok(*issued),
        IssueOutcome::Limited { retry_after } => Err(retry_after),
    }
}

pub fn solved(issued: &IssuedChallenge) -> String {
    match &issued.offer.parameters {
        ChallengeParameters::Puzzle(puzzle) => solution_text(&puzzle.solve().unwrap()).unwrap(),
        other => panic!("{other:?}"),
    }
}

pub fn solution(engine: &Engine, facts: &ChallengeFacts) -> String {
    solved(&issued(engine, facts).unwrap())
}

pub async fn verified(
    engine: &Engine,
    facts: &ChallengeFacts,
    solution: &str,
) -> Result<String, ChallengeRefusal> {
    match engine
        .verify_challenge(facts, solution, PassKind::Token)
        .await
    {
        ChallengeOutcome::Passed { pass, .. } => Ok(pass),
        ChallengeOutcome::Refused { reason, .. } => Err(reason),
        ChallengeOutcome::Limited { .. } => panic!("too many"),
    }
}

pub async fn is_limited(engine: &Engine, facts: &ChallengeFacts, solution: &str) -> bool {
    let outcome = engine.verify_challenge(facts, solution, PassKind::Token);
    matches!(outcome.await, ChallengeOutcome::Limited { .. })
}

/// A pass that was bought with a challenge.
pub async fn pass(engine: &Engine, facts: &ChallengeFacts, kind: PassKind) -> String {
    let solution = solution(engine, facts);
    match engine.verify_challenge(facts, &solution, kind).await {
        ChallengeOutcome::Passed { pass, .. } => pass,
        other => panic!("{other:?}"),
    }
}

pub async fn open(engine: &Engine, facts: &ChallengeFacts, shown: &ShownPass) -> PassNote {
    let account = facts.account.as_ref();
    engine.open_pass(facts.flow, facts.ip, account, shown).await
}

/// A token for a login of `account` from an address.
pub async fn login_token(engine: &Engine, ip: &str, account: &str) -> String {
    let facts = facts_of(ChallengeFlow::Login, ip, account);
    pass(engine, &facts, PassKind::Token).await
}
