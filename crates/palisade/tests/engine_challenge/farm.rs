//! What a farm of solvers gains, compared with a guesser who solves nothing.

use palisade::core::challenge::ChallengeFlow;
use palisade::core::time::{DAY, MINUTE, SECOND};
use serde_json::json;

use super::support::*;
use crate::engine_support::Bench;

/// Guesses at one account in a day, from one device and address, one every few seconds: as many as
/// are verified, and as many challenges as were solved for them.
async fn guesses(policy: &str, solves: bool) -> (u32, u32) {
    let bench = Bench::with(policy);
    let (mut verified, mut solved) = (0, 0);
    let mut passed = 0;
    let facts = |token: Option<&str>| {
        json!({"ip": "203.0.113.5", "account": "ann", "username": "ann",
            "device": {"client_id": "d1"}, "challenge_token": token})
        .to_string()
    };
    while passed < DAY {
        let mut answer = bench.guard("login.check", &facts(None)).await;
        let is_soft = answer["decision"] == "soft_block" || answer["error"] == "challenge_required";
        if solves && is_soft {
            let token = login_token(&bench.engine, "203.0.113.5", "ann").await;
            solved += 1;
            answer = bench.guard("login.check", &facts(Some(&token))).await;
        }
        let wait = if answer["decision"] == "allow" {
            verified += 1;
            bench.guard("login.failure", &facts(None)).await;
            SECOND
        } else {
            answer["retry_after"].as_u64().unwrap_or(1).min(600) * SECOND
        };
        // A refusal that names no wait is asked about again a minute later.
        let wait = wait.max(if answer["error"] == "challenge_required" {
            MINUTE
        } else {
            SECOND
        });
        bench.sleep(wait).await;
        passed += wait;
    }
    (verified, solved)
}

/// The figures stand in `docs/challenges.md`.
#[tokio::test]
async fn c_buys_a_farm_that_solves_everything_gains_little() {
    let off = "[challenge]\ndifficulty = 1000\nper_minute = 10000\n";
    let (plain, none) = guesses(off, false).await;
    let (farm, solved) = guesses(off, true).await;
    assert_eq!(none, 0);
    assert!(farm >= plain && solved > 0, "{plain} {farm} {solved}");
    // Every guess more than without a farm was paid for with a challenge.
    assert!(farm - plain <= solved, "{plain} {farm} {solved}");
    assert_eq!((plain, farm, solved), (0, 0, 0), "the figures of the docs");
}

/// Requests of one address in an hour, through a limit of ten a minute.
#[tokio::test]
async fn c_buys_a_farm_gets_the_extra_of_a_limit_and_no_more() {
    let policy = "[policy]\ndefaults = false\ndefault_class = \"read\"\n\
        [challenge]\ndifficulty = 1000\nper_minute = 10000\n\
        [[limit]]\nname = \"reads\"\nby = [\"ip\"]\nrate = \"10/min\"\non_exceed = \"challenge\"\n";
    let bench = Bench::with(policy);
    let (mut admitted, mut solved) = (0, 0);
    let challenged = facts(ChallengeFlow::Request, "203.0.113.5");
    for _ in 0..3600 {
        let mut request = json!({"ip": "203.0.113.5", "method": "GET", "path": "/"});
        let mut answer = bench.check(&request.to_string()).await;
        if answer["error"] == "challenge_required" {
            let kind = palisade::core::challenge::PassKind::Token;
            let token = pass(&bench.engine, &challenged, kind).await;
            solved += 1;
            request["challenge_token"] = json!(token);
            answer = bench.check(&request.to_string()).await;
        }
        admitted += u32::from(answer["decision"] == "allow");
        bench.sleep(SECOND).await;
    }
    assert_eq!(admitted, 60 * 20);
    assert!(solved >= 600, "{solved}");
}
