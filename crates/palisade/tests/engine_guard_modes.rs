//! Shadow mode, pending attempts, trust and wide sprays, as a caller of the engine sees
//! them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;

use engine_support::Bench;
use palisade::core::time::{MINUTE, SECOND};
use serde_json::{Value, json};

fn attempt(ip: &str, account: &str, device: &Value) -> Value {
    json!({"ip": ip, "account": account, "user_agent": "Firefox/124.0", "device": device})
}

fn with_id(mut facts: Value, id: &str) -> String {
    facts["request_id"] = json!(id);
    facts.to_string()
}

fn stranger() -> Value {
    json!({"fingerprint": "x", "confidence": "medium"})
}

#[tokio::test]
async fn g_pending_a_second_guess_waits_for_the_outcome_of_the_first() {
    let bench = Bench::with("");
    let facts = attempt("203.0.113.1", "a", &stranger());
    for id in ["r1", "r2"] {
        let answer = bench
            .guard("login.check", &with_id(facts.clone(), id))
            .await;
        assert_eq!(answer["decision"], "allow", "{id}");
    }
    let third = bench
        .guard("login.check", &with_id(facts.clone(), "r3"))
        .await;
    assert_eq!(
        (&third["decision"], &third["rule"], &third["retry_after"]),
        (&json!("soft_block"), &json!("G-PENDING"), &json!(15))
    );
    bench
        .guard("login.success", &with_id(facts.clone(), "r1"))
        .await;
    bench
        .guard("login.success", &with_id(facts.clone(), "r2"))
        .await;
    let fourth = bench.guard("login.check", &with_id(facts, "r4")).await;
    assert_eq!(fourth["decision"], "allow");
}

#[tokio::test]
async fn shadow_lets_pass_shows_what_would_have_been_and_learns_the_device() {
    let bench = Bench::with("[guard.login]\nmode = \"shadow\"\n");
    let facts = attempt("203.0.113.1", "a", &stranger()).to_string();
    for _ in 0..3 {
        let answer = bench.guard("login.failure", &facts).await;
        assert_eq!(
            (&answer["decision"], &answer["status"]),
            (&json!("allow"), &json!(200))
        );
    }
    let checked = bench.guard("login.check", &facts).await;
    assert_eq!(checked["decision"], "allow");
    assert_eq!(checked["rule"], Value::Null);
    let shadow = &checked["shadow"];
    assert_eq!(
        (&shadow["decision"], &shadow["level"], &shadow["rule"]),
        (&json!("hard_block"), &json!("L2"), &json!("G-THRESHOLD"))
    );
    // A success that a block would have refused is learnt from all the same.
    bench.guard("login.success", &facts).await;
    bench.sleep(2 * MINUTE).await;
    let failed = bench.guard("login.failure", &facts).await;
    assert_eq!(failed["shadow"]["decision"], "allow", "known now: K5 +2");
    // Flows are apart: one-time codes are enforced.
    for _ in 0..2 {
        bench.guard("otp.failure", &facts).await;
    }
    let otp = bench.guard("otp.check", &facts).await;
    assert_eq!(
        (&otp["decision"], &otp["shadow"]),
        (&json!("hard_block"), &Value::Null)
    );
}

#[tokio::test]
async fn shadow_does_not_cover_failure_modes() {
    let bench = Bench::with("[guard]\nmode = \"shadow\"\n");
    bench.store(palisade::cases::StoreState::Down);
    let facts = attempt("203.0.113.1", "a", &stranger()).to_string();
    let answer = bench.guard("login.check", &facts).await;
    assert_eq!(
        (&answer["decision"], &answer["rule"]),
        (&json!("hard_block"), &json!("F-CLOSED"))
    );
}

#[tokio::test]
async fn g_spray_wide_a_sprayed_24_is_asked_for_a_challenge_when_switched_on() {
    for (toml, last) in [
        ("[guard.login.correlation]\nspray_wide = 20\n", "soft_block"),
        ("", "allow"),
    ] {
        let bench = Bench::with(toml);
        for n in 0..20 {
            let device = json!({"fingerprint": format!("f{n}"), "confidence": "medium"});
            let facts = attempt(&format!("203.0.113.{n}"), &format!("a{n}"), &device);
            let answer = bench.guard("login.check", &facts.to_string()).await;
            assert_eq!(answer["decision"], "allow", "{n}");
            bench.guard("login.failure", &facts.to_string()).await;
            bench.sleep(SECOND).await;
        }
        let fresh = attempt("203.0.113.200", "z", &stranger());
        let answer = bench.guard("login.check", &fresh.to_string()).await;
        assert_eq!(answer["decision"], last);
        let elsewhere = attempt("198.51.100.1", "y", &json!({"client_id": "c"}));
        let answer = bench.guard("login.check", &elsewhere.to_string()).await;
        assert_eq!(answer["decision"], "allow");
    }
}
