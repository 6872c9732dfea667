//! What a passed challenge buys from the guard.

use palisade::core::challenge::ChallengeFlow;
use palisade::core::time::{MINUTE, SECOND};
use serde_json::{Value, json};

use super::support::*;
use crate::engine_support::Bench;

const IP: &str = "203.0.113.5";

fn attempt(device: &str, token: Option<&str>) -> String {
    let mut facts = json!({
        "ip": IP, "account": "ann", "username": "ann",
        "device": {"client_id": device},
    });
    facts["challenge_token"] = token.map_or(Value::Null, Value::from);
    facts.to_string()
}

async fn fail(bench: &Bench, times: usize) {
    for _ in 0..times {
        bench.guard("login.failure", &attempt("d1", None)).await;
    }
}

#[tokio::test]
async fn c_buys_a_token_frees_one_attempt_from_a_soft_block() {
    let bench = Bench::with(EASY);
    fail(&bench, 2).await;
    let soft = bench.guard("login.check", &attempt("d1", None)).await;
    assert_eq!(soft["decision"], "soft_block");
    let token = login_token(&bench.engine, IP, "ann").await;
    let shown = attempt("d1", Some(&token));
    let freed = bench.guard("login.check", &shown).await;
    assert_eq!(freed["decision"], "allow", "{freed}");
    assert_eq!(freed["challenge_refused"], Value::Null);
    let again = bench.guard("login.check", &shown).await;
    assert_eq!(again["decision"], "soft_block");
    assert_eq!(again["challenge_refused"], "used");
}

#[tokio::test]
async fn c_api_a_token_that_is_not_for_this_attempt_frees_nothing() {
    let bench = Bench::with(EASY);
    fail(&bench, 2).await;
    let of_bob = login_token(&bench.engine, IP, "bob").await;
    let from_elsewhere = login_token(&bench.engine, "203.0.113.6", "ann").await;
    let for_otp = facts(ChallengeFlow::Otp, IP);
    let for_otp = pass(
        &bench.engine,
        &for_otp,
        palisade::core::challenge::PassKind::Token,
    )
    .await;
    let forged = "A".repeat(80);
    for (token, reason) in [
        (&*of_bob, "foreign"),
        (&*from_elsewhere, "foreign"),
        (&*for_otp, "foreign"),
        (&*forged, "wrong"),
    ] {
        let answer = bench
            .guard("login.check", &attempt("d1", Some(token)))
            .await;
        assert_eq!(answer["decision"], "soft_block");
        assert_eq!(answer["challenge_refused"], reason);
    }
    let token = login_token(&bench.engine, IP, "ann").await;
    bench.sleep(10 * MINUTE + SECOND).await;
    fail(&bench, 1).await;
    let late = bench
        .guard("login.check", &attempt("d1", Some(&token)))
        .await;
    assert_eq!(late["challenge_refused"], "late");
}

#[tokio::test]
async fn c_buys_an_outcome_takes_no_use_of_the_token() {
    let bench = Bench::with(EASY);
    fail(&bench, 2).await;
    let token = login_token(&bench.engine, IP, "ann").await;
    let failed = bench
        .guard("login.failure", &attempt("d1", Some(&token)))
        .await;
    assert_eq!(failed["challenge_refused"], Value::Null);
    bench.sleep(20 * SECOND).await;
    let used = login_token(&bench.engine, IP, "ann").await;
    let checked = bench
        .guard("login.check", &attempt("d1", Some(&used)))
        .await;
    assert_eq!(checked["challenge_refused"], Value::Null);
}

#[tokio::test]
async fn c_buys_a_hard_block_yields_to_no_token() {
    let bench = Bench::with(EASY);
    fail(&bench, 3).await;
    let token = login_token(&bench.engine, IP, "ann").await;
    let blocked = bench
        .guard("login.check", &attempt("d1", Some(&token)))
        .await;
    assert_eq!(blocked["decision"], "hard_block", "{blocked}");
    assert_eq!(blocked["challenge"], Value::Null, "nothing frees from it");
}

/// Three lockouts within a day, and then so long a rest that only the captcha is left.
async fn asked_for_a_captcha() -> Bench {
    let bench = Bench::with(&format!("{EASY}[guard.login]\nenabled = false\n"));
    for _ in 0..3 {
        fail(&bench, 10).await;
        bench.sleep(20 * MINUTE).await;
    }
    bench
}

#[tokio::test]
async fn c_buys_a_token_lets_an_attempt_through_and_leaves_the_captcha() {
    let bench = asked_for_a_captcha().await;
    let plain = attempt("d1", None);
    let asked = bench.guard("login.check", &plain).await;
    assert_eq!(asked["error"], "challenge_required", "{asked}");
    assert_eq!(asked["challenge"]["kind"], "proof-of-work");
    let token = login_token(&bench.engine, IP, "ann").await;
    let freed = bench
        .guard("login.check", &attempt("d1", Some(&token)))
        .await;
    assert_eq!(freed["decision"], "allow", "{freed}");
    let asked = bench.guard("login.check", &plain).await;
    assert_eq!(asked["error"], "challenge_required");
    bench.guard("login.success", &plain).await;
    let after = bench.guard("login.check", &plain).await;
    assert_eq!(after["decision"], "allow");
}

#[tokio::test]
async fn c_buys_the_hosts_own_challenge_still_clears_the_captcha() {
    let bench = asked_for_a_captcha().await;
    let mut passed: Value = serde_json::from_str(&attempt("d1", None)).unwrap();
    passed["challenge_passed"] = json!(true);
    let freed = bench.guard("login.check", &passed.to_string()).await;
    assert_eq!(freed["decision"], "allow");
    let after = bench.guard("login.check", &attempt("d1", None)).await;
    assert_eq!(after["decision"], "allow");
}

#[tokio::test]
async fn c_kind_soft_answers_carry_a_challenge_where_the_policy_uses_them() {
    for (text, kind) in [
        ("", Value::Null),
        ("[challenge]\n", json!("proof-of-work")),
        ("[challenge]\nkind = \"host\"\n", Value::Null),
    ] {
        let bench = Bench::with(text);
        fail(&bench, 2).await;
        let soft = bench.guard("login.check", &attempt("d1", None)).await;
        assert_eq!(soft["decision"], "soft_block");
        assert_eq!(soft["challenge"]["kind"], kind, "{text}");
        assert_eq!(soft["body"]["challenge"], soft["challenge"]);
        if !kind.is_null() {
            assert_eq!(soft["challenge"]["url"], "/.palisade/challenge");
            assert_eq!(soft["challenge"]["parameters"]["algorithm"], "SHA-256");
            assert_eq!(soft["challenge"]["parameters"]["maxnumber"], 100_000);
        }
    }
}

#[tokio::test]
async fn c_pow_the_challenge_of_a_soft_answer_is_for_its_account_and_address() {
    let bench = Bench::with(EASY);
    fail(&bench, 2).await;
    let soft = bench.guard("login.check", &attempt("d1", None)).await;
    let puzzle = soft["challenge"]["parameters"].clone();
    let puzzle: palisade::core::challenge::Puzzle = serde_json::from_value(puzzle).unwrap();
    let solution = palisade::wire::solution_text(&puzzle.solve().unwrap()).unwrap();
    let ann = facts_of(ChallengeFlow::Login, IP, "ann");
    let bob = facts_of(ChallengeFlow::Login, IP, "bob");
    assert!(verified(&bench.engine, &bob, &solution).await.is_err());
    let token = verified(&bench.engine, &ann, &solution).await.unwrap();
    let freed = bench
        .guard("login.check", &attempt("d1", Some(&token)))
        .await;
    assert_eq!(freed["decision"], "allow");
}
