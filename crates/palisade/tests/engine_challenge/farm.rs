//! What a farm of solvers gains, compared with a guesser who solves nothing.

use palisade::core::challenge::ChallengeFlow;
use palisade::core::time::{DAY, SECOND};
use serde_json::json;

use super::support::*;
use crate::engine_support::Bench;

/// A guesser who works at one account for a day.
#[derive(Clone, Copy)]
struct Guesser {
    /// Whether every guess comes from an address and a device of its own.
    has_many_addresses: bool,
    /// Whether every challenge that is offered is solved.
    solves: bool,
}

/// Guesses that are verified in a day, and challenges that are solved for them. The guesser waits
/// as long as an answer says, and comes back at once.
async fn guesses(guesser: Guesser) -> (u32, u32) {
    let bench = Bench::with("[challenge]\ndifficulty = 1000\nper_minute = 10000\n");
    let (mut verified, mut solved, mut passed, mut tries) = (0, 0, 0, 0_u32);
    while passed < DAY {
        tries += u32::from(guesser.has_many_addresses);
        let ip = std::net::Ipv4Addr::from(0xc000_0200 + tries).to_string();
        let facts = |token: Option<&str>| {
            json!({"ip": ip, "account": "ann", "username": "ann",
                "device": {"client_id": format!("d{tries}")}, "challenge_token": token})
            .to_string()
        };
        let mut answer = bench.guard("login.check", &facts(None)).await;
        if guesser.solves && answer["challenge"].is_object() {
            let token = login_token(&bench.engine, &ip, "ann").await;
            solved += 1;
            answer = bench.guard("login.check", &facts(Some(&token))).await;
        }
        let wait = if answer["decision"] == "allow" {
            verified += 1;
            bench.guard("login.failure", &facts(None)).await;
            SECOND
        } else {
            answer["retry_after"].as_u64().unwrap_or(1).clamp(1, 600) * SECOND
        };
        bench.sleep(wait).await;
        passed += wait;
    }
    (verified, solved)
}

/// The figures stand in `docs/challenges.md`: guesses that are verified without solving anything,
/// then guesses and challenges of one who solves everything.
#[tokio::test]
async fn c_buys_a_farm_that_solves_everything_gains_what_the_docs_say() {
    for (has_many_addresses, figures) in [(false, (24, 24, 3)), (true, (2, 3, 1))] {
        let guesser = |solves| Guesser {
            has_many_addresses,
            solves,
        };
        let (plain, none) = guesses(guesser(false)).await;
        let (farm, solved) = guesses(guesser(true)).await;
        assert_eq!(none, 0);
        // Every guess more than without a farm was paid for with a challenge.
        assert!(
            farm.saturating_sub(plain) <= solved,
            "{plain} {farm} {solved}"
        );
        assert_eq!(
            (plain, farm, solved),
            figures,
            "many addresses: {has_many_addresses}"
        );
    }
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
