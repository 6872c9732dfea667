//! Limits with `on_exceed = "challenge"`.

use palisade::core::challenge::{ChallengeFlow, PassKind};
use palisade::core::time::{MINUTE, SECOND};
use serde_json::{Value, json};

use super::support::*;
use crate::engine_support::Bench;

const IP: &str = "203.0.113.5";
const POLICY: &str = r#"
[policy]
defaults = false
default_class = "read"
[challenge]
difficulty = 1000
pass_uses = 3
per_minute = 10000
[[limit]]
name = "reads"
by = ["ip"]
rate = "3/min"
on_exceed = "challenge"
challenge_extra = 2
"#;

fn request(token: Option<&str>) -> String {
    let mut facts = json!({"ip": IP, "method": "GET", "path": "/", "receipt": true});
    facts["challenge_token"] = token.map_or(Value::Null, Value::from);
    facts.to_string()
}

async fn token(bench: &Bench) -> String {
    let facts = facts(ChallengeFlow::Request, IP);
    pass(&bench.engine, &facts, PassKind::Token).await
}

async fn with_token(bench: &Bench) -> Value {
    let token = token(bench).await;
    bench.check(&request(Some(&token))).await
}

#[tokio::test]
async fn c_buys_a_limit_that_challenges_admits_its_extra_and_no_more() {
    let bench = Bench::with(POLICY);
    assert_eq!(bench.admitted(&request(None), 5).await, 3);
    let asked = bench.check(&request(None)).await;
    assert_eq!(asked["decision"], "deny");
    assert_eq!(
        (&asked["status"], &asked["error"]),
        (&json!(429), &json!("challenge_required"))
    );
    assert_eq!(asked["challenge"]["kind"], "proof-of-work");
    assert_eq!(asked["body"]["challenge"]["url"], "/.palisade/challenge");
    assert_eq!(asked["body"]["error"], "challenge_required");
    assert_eq!(asked["rule"], "L-IP");
    for _ in 0..2 {
        assert_eq!(with_token(&bench).await["decision"], "allow");
    }
    let full = with_token(&bench).await;
    assert_eq!(full["error"], "rate_limit_exceeded", "{full}");
    assert_eq!(
        full["challenge"],
        Value::Null,
        "another one would buy nothing"
    );
    bench.sleep(MINUTE).await;
    assert_eq!(bench.admitted(&request(None), 5).await, 3);
}

#[tokio::test]
async fn c_buys_the_extra_is_the_limit_once_more_unless_the_policy_says_otherwise() {
    let bench = Bench::with(&POLICY.replace("challenge_extra = 2", ""));
    assert_eq!(bench.admitted(&request(None), 5).await, 3);
    for _ in 0..3 {
        assert_eq!(with_token(&bench).await["decision"], "allow");
    }
    assert_eq!(with_token(&bench).await["decision"], "deny");
}

#[tokio::test]
async fn c_buys_a_token_is_spent_only_beyond_the_limit() {
    let bench = Bench::with(POLICY);
    let token = token(&bench).await;
    let shown = request(Some(&token));
    assert_eq!(bench.admitted(&shown, 3).await, 3);
    let freed = bench.check(&shown).await;
    assert_eq!(freed["decision"], "allow", "{freed}");
    assert_eq!(freed["limits"][0]["name"], "reads+challenge");
    let again = bench.check(&shown).await;
    assert_eq!(again["error"], "challenge_required");
    assert_eq!(again["challenge_refused"], "used");
}

#[tokio::test]
async fn c_buys_a_full_extra_takes_no_use_of_the_pass() {
    let bench = Bench::with(POLICY);
    assert_eq!(bench.admitted(&request(None), 3).await, 3);
    for _ in 0..2 {
        with_token(&bench).await;
    }
    let token = token(&bench).await;
    let shown = request(Some(&token));
    assert_eq!(bench.check(&shown).await["error"], "rate_limit_exceeded");
    bench.sleep(61 * SECOND).await;
    assert_eq!(bench.admitted(&request(None), 3).await, 3);
    assert_eq!(bench.check(&shown).await["decision"], "allow");
}

#[tokio::test]
async fn c_buys_a_limit_that_only_denies_yields_to_no_token() {
    let plain = "[[limit]]\nname = \"all\"\nby = [\"ip\"]\nrate = \"4/h\"\n";
    let bench = Bench::with(&format!("{POLICY}{plain}"));
    assert_eq!(bench.admitted(&request(None), 3).await, 3);
    assert_eq!(with_token(&bench).await["decision"], "allow");
    let denied = with_token(&bench).await;
    assert_eq!(denied["error"], "rate_limit_exceeded", "{denied}");
}

#[tokio::test]
async fn c_buys_a_peek_spends_nothing_and_a_refund_gives_the_extra_back() {
    let bench = Bench::with(POLICY);
    assert_eq!(bench.admitted(&request(None), 3).await, 3);
    let token = token(&bench).await;
    let shown = request(Some(&token));
    for _ in 0..2 {
        assert_eq!(bench.peek(&shown).await["decision"], "allow");
    }
    let freed = bench.check(&shown).await;
    let receipt = freed["receipt"].as_str().unwrap();
    assert_eq!(with_token(&bench).await["decision"], "allow");
    assert_eq!(with_token(&bench).await["decision"], "deny");
    bench.engine.refund(receipt).await.unwrap();
    assert_eq!(with_token(&bench).await["decision"], "allow");
    let again = bench.check(&shown).await;
    assert_eq!(
        again["challenge_refused"], "used",
        "no refund gives a use back"
    );
}

#[tokio::test]
async fn c_api_a_browsers_pass_frees_requests_too() {
    let bench = Bench::with(POLICY);
    assert_eq!(bench.admitted(&request(None), 3).await, 3);
    let facts = facts(ChallengeFlow::Request, IP);
    let cookie = pass(&bench.engine, &facts, PassKind::Cookie).await;
    let mut request = crate::engine_support::request(&request(None));
    request.pass = Some(Box::new(palisade::core::challenge::ShownPass::cookie(
        &cookie,
    )));
    for _ in 0..2 {
        assert!(bench.engine.check(&request).await.decision.is_allowed());
    }
    assert!(!bench.engine.check(&request).await.decision.is_allowed());
}
