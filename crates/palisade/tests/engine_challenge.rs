//! Challenges through the engine: what is issued, what is accepted once, and what it buys.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking and says why"
)]

#[path = "engine_challenge/buys.rs"]
mod buys;
mod engine_support;
#[path = "engine_challenge/failures.rs"]
mod failures;
#[path = "engine_challenge/farm.rs"]
mod farm;
#[path = "engine_challenge/limits.rs"]
mod limits;
#[path = "engine_challenge/support.rs"]
mod support;

use std::sync::Arc;

use palisade::cases::FaultStore;
use palisade::core::challenge::{ChallengeFlow, ChallengeRefusal, PassKind, PassNote, ShownPass};
use palisade::core::time::{Clock, MINUTE};
use palisade::store::model::ModelStore;
use palisade::{Engine, EngineConfig, VirtualClock};

use engine_support::{Bench, START, keyring, policy};
use support::*;

#[tokio::test]
async fn c_api_a_solution_is_exchanged_for_a_token_once() {
    let bench = Bench::with(EASY);
    let facts = facts(ChallengeFlow::Login, "203.0.113.5");
    let solution = solution(&bench.engine, &facts);
    assert!(verified(&bench.engine, &facts, &solution).await.is_ok());
    let again = verified(&bench.engine, &facts, &solution).await;
    assert_eq!(again, Err(ChallengeRefusal::Used));
}

#[tokio::test]
async fn c_api_wrong_late_foreign_and_unreadable_solutions_are_told_apart() {
    let bench = Bench::with(EASY);
    let facts = facts(ChallengeFlow::Login, "203.0.113.5");
    let solved = solution(&bench.engine, &facts);
    let refused = async |facts: &_, solution: &str| {
        verified(&bench.engine, facts, solution).await.unwrap_err()
    };
    for text in [
        "",
        "!",
        "e30=",
        &"A".repeat(9000),
        &solved.replace('=', "")[1..],
    ] {
        assert_eq!(refused(&facts, text).await, ChallengeRefusal::Wrong);
    }
    let other = facts_of(ChallengeFlow::Login, "203.0.113.5", "bob");
    assert_eq!(refused(&other, &solved).await, ChallengeRefusal::Foreign);
    bench.sleep(5 * MINUTE + 1_000_000).await;
    assert_eq!(refused(&facts, &solved).await, ChallengeRefusal::Late);
}

#[tokio::test]
async fn c_pow_a_solution_is_good_once_on_all_nodes_together() {
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::at(START));
    let store = Arc::new(FaultStore::new(Arc::new(ModelStore::new(Arc::clone(
        &clock,
    )))));
    let node = || {
        Engine::new(EngineConfig::new(
            Arc::<FaultStore>::clone(&store),
            (*policy(EASY, &palisade_policy::Env::default())).clone(),
            keyring(),
            Arc::clone(&clock),
        ))
    };
    let (one, other) = (node(), node());
    let facts = facts(ChallengeFlow::Login, "203.0.113.5");
    let solution = solution(&one, &facts);
    let token = verified(&other, &facts, &solution).await.unwrap();
    let again = verified(&one, &facts, &solution).await;
    assert_eq!(again, Err(ChallengeRefusal::Used));
    let shown = ShownPass::token(&token);
    assert_eq!(open(&one, &facts, &shown).await, PassNote::Accepted);
    let again = PassNote::Refused(ChallengeRefusal::Used);
    assert_eq!(open(&other, &facts, &shown).await, again);
    assert_eq!(open(&one, &facts, &shown).await, again);
}

#[tokio::test]
async fn c_api_a_pass_has_its_uses_and_no_more() {
    let bench = Bench::with(EASY);
    let facts = facts(ChallengeFlow::Request, "203.0.113.5");
    let pass = pass(&bench.engine, &facts, PassKind::Cookie).await;
    let shown = ShownPass::cookie(&pass);
    for _ in 0..3 {
        let note = open(&bench.engine, &facts, &shown).await;
        assert_eq!(note, PassNote::Accepted);
    }
    let note = open(&bench.engine, &facts, &shown).await;
    assert_eq!(note, PassNote::Refused(ChallengeRefusal::Used));
    // The uses never come back while the pass is good.
    bench.sleep(9 * MINUTE).await;
    let note = open(&bench.engine, &facts, &shown).await;
    assert_eq!(note, PassNote::Refused(ChallengeRefusal::Used));
    bench.sleep(2 * MINUTE).await;
    let note = open(&bench.engine, &facts, &shown).await;
    assert_eq!(note, PassNote::Refused(ChallengeRefusal::Late));
}

#[tokio::test]
async fn c_pow_a_pass_follows_its_holder_to_the_other_address_family_once() {
    let bench = Bench::with(EASY);
    let v4 = facts(ChallengeFlow::Request, "203.0.113.5");
    let v6 = facts(ChallengeFlow::Request, "2001:db8::1");
    let pass = pass(&bench.engine, &v4, PassKind::Cookie).await;
    let shown = ShownPass::cookie(&pass);
    let moved = match open(&bench.engine, &v6, &shown).await {
        PassNote::Moved(moved) => ShownPass::cookie(&moved),
        other => panic!("{other:?}"),
    };
    assert_eq!(open(&bench.engine, &v6, &moved).await, PassNote::Accepted);
    let foreign = PassNote::Refused(ChallengeRefusal::Foreign);
    let elsewhere = facts(ChallengeFlow::Request, "2001:db8:1::1");
    assert_eq!(open(&bench.engine, &elsewhere, &shown).await, foreign);
    assert_eq!(open(&bench.engine, &elsewhere, &moved).await, foreign);
    // The uses are those of the pass, wherever it is: two are gone.
    assert_eq!(open(&bench.engine, &v4, &shown).await, PassNote::Accepted);
    let used = PassNote::Refused(ChallengeRefusal::Used);
    assert_eq!(open(&bench.engine, &v4, &shown).await, used);
}

#[tokio::test]
async fn c_api_issue_and_verify_are_limited_by_address() {
    let bench = Bench::with("[challenge]\ndifficulty = 1000\nper_minute = 3");
    let one = facts(ChallengeFlow::Login, "203.0.113.5");
    let solved = solution(&bench.engine, &one);
    for _ in 0..2 {
        assert!(issued(&bench.engine, &one).is_ok());
    }
    assert_eq!(issued(&bench.engine, &one), Err(20));
    for _ in 0..3 {
        let verified = verified(&bench.engine, &one, "x").await;
        assert_eq!(verified, Err(ChallengeRefusal::Wrong));
    }
    assert!(is_limited(&bench.engine, &one, &solved).await);
    let other = facts(ChallengeFlow::Login, "203.0.113.6");
    assert!(
        issued(&bench.engine, &other).is_ok(),
        "each address by itself"
    );
    bench.sleep(MINUTE).await;
    assert!(verified(&bench.engine, &one, &solved).await.is_ok());
}
