//! Shadow mode, pending attempts, trust and wide sprays, at the engine's interface.
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
    // In shadow mode a success is recorded even if the block would have refused the attempt.
    bench.guard("login.success", &facts).await;
    bench.sleep(2 * MINUTE).await;
    let failed = bench.guard("login.failure", &facts).await;
    assert_eq!(failed["shadow"]["decision"], "allow", "known now: K5 +2");
    // Each flow has its own mode: one-time codes are enforced.
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

const PRESENT: &str = "198.51.100.7";

fn named(ip: &str, name: &str) -> Value {
    let mut facts = attempt(ip, name, &stranger());
    facts["username"] = json!(name);
    facts
}

/// A bench without the guard, whose blocks would refuse the same attempts.
async fn lockout_bench(more: &str) -> Bench {
    Bench::with(&format!(
        "[guard.login]\nenabled = false\n[guard.otp]\nenabled = false\n{more}"
    ))
}

async fn fail(bench: &Bench, times: usize) {
    for _ in 0..times {
        let facts = named(PRESENT, "ann").to_string();
        bench.guard("login.failure", &facts).await;
    }
}

/// Makes the store unavailable and opens the breakers of both flows.
async fn lose_the_store(bench: &Bench) {
    bench.store(palisade::cases::StoreState::Down);
    for op in ["login.check", "otp.check"] {
        for n in 0..3 {
            let facts = named(&format!("192.0.2.{n}"), "somebody").to_string();
            bench.guard(op, &facts).await;
        }
    }
}

#[tokio::test]
async fn f_blocks_a_full_window_that_was_seen_binds_in_an_outage_until_its_end() {
    let bench = lockout_bench("").await;
    fail(&bench, 5).await;
    lose_the_store(&bench).await;
    let facts = named(PRESENT, "ann").to_string();
    for op in ["login.check", "login.success", "otp.check"] {
        let answer = bench.guard(op, &facts).await;
        assert_eq!(
            (&answer["decision"], &answer["rule"], &answer["mode"]),
            (&json!("deny"), &json!("A-WINDOW"), &json!("degraded")),
            "{op}"
        );
        assert_eq!(answer["body"]["error"], "account_locked", "{answer}");
        assert_eq!(answer["retry_after"], 900, "{op}");
    }
    let elsewhere = named("198.51.100.8", "ann").to_string();
    let answer = bench.guard("login.check", &elsewhere).await;
    assert_eq!(answer["decision"], "allow", "another address is free");
    bench.sleep(15 * MINUTE).await;
    let answer = bench.guard("login.check", &facts).await;
    assert_eq!(answer["decision"], "allow", "the window has passed");
}

#[tokio::test]
async fn f_blocks_a_hard_lock_binds_in_an_outage_and_a_lifted_one_does_not() {
    let bench = lockout_bench("[lockout]\nwindow_failures = 16\n").await;
    fail(&bench, 10).await;
    lose_the_store(&bench).await;
    let facts = named(PRESENT, "ann").to_string();
    let answer = bench.guard("login.check", &facts).await;
    assert_eq!(
        (&answer["decision"], &answer["rule"]),
        (&json!("deny"), &json!("A-HARD"))
    );
    bench.store(palisade::cases::StoreState::Up);
    let subject = palisade::engine::LiftSubject {
        ip: Some(PRESENT.parse().unwrap()),
        username: Some(palisade::core::Id::new("username", "ann").unwrap()),
        ..Default::default()
    };
    bench
        .engine
        .lift_of(&subject, palisade::engine::Score::Keep)
        .await
        .unwrap();
    let answer = bench.guard("login.check", &facts).await;
    assert_eq!(answer["decision"], "allow", "{answer}");
}

#[tokio::test]
async fn f_blocks_a_required_challenge_binds_in_an_outage_until_it_is_passed() {
    let bench = lockout_bench("[lockout]\nwindow_failures = 16\nhard_failures = 1\n").await;
    fail(&bench, 3).await;
    bench.sleep(16 * MINUTE).await;
    let facts = named(PRESENT, "ann");
    let answer = bench.guard("login.check", &facts.to_string()).await;
    assert_eq!(answer["rule"], "A-CAPTCHA", "{answer}");
    lose_the_store(&bench).await;
    let answer = bench.guard("login.check", &facts.to_string()).await;
    assert_eq!(
        (&answer["rule"], &answer["challenge"], &answer["mode"]),
        (&json!("A-CAPTCHA"), &json!("captcha"), &json!("degraded"))
    );
    assert_eq!(answer["body"]["error"], "challenge_required");
    let mut passed = facts.clone();
    passed["challenge_passed"] = json!(true);
    let answer = bench.guard("login.check", &passed.to_string()).await;
    assert_eq!(answer["decision"], "allow", "{answer}");
    let answer = bench.guard("login.check", &facts.to_string()).await;
    assert_eq!(answer["decision"], "allow", "passed once");
}

#[tokio::test]
async fn f_blocks_a_lockout_of_shadow_mode_binds_nobody_in_an_outage() {
    let bench = Bench::with("[guard]\nmode = \"shadow\"\n");
    fail(&bench, 5).await;
    lose_the_store(&bench).await;
    let answer = bench
        .guard("login.check", &named(PRESENT, "ann").to_string())
        .await;
    assert_eq!(answer["decision"], "allow", "{answer}");
}
