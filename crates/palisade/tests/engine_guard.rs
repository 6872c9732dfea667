//! Lockout, uniform answers and failure modes of guard commands, at the engine's interface.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;

use engine_support::{Bench, command};
use palisade::cases::StoreState;
use palisade::core::facts::{GuardOp, Id};
use palisade::core::time::{HOUR, MINUTE, SECOND};
use serde_json::{Value, json};

/// A login attempt of a user name on an account that the guard has no reason to block.
fn user(ip: &str, account: &str, username: &str) -> String {
    format!(
        r#"{{"ip":"{ip}","account":"{account}","username":"{username}","user_agent":"Firefox/124.0",
            "device":{{"fingerprint":"f-{account}","confidence":"medium","known":true}}}}"#
    )
}

fn parts<'a>(answer: &'a Value, names: [&str; 3]) -> [&'a Value; 3] {
    names.map(|name| &answer[name])
}

#[tokio::test]
async fn a_window_the_sixth_attempt_waits_until_the_window_frees() {
    let bench = Bench::with("[guard.login]\nenabled = false\n");
    let facts = user("203.0.113.1", "a", "bob");
    for _ in 0..5 {
        let answer = bench.guard("login.failure", &facts).await;
        assert_eq!(
            answer["decision"], "allow",
            "the fifth itself is answered normally"
        );
        bench.sleep(MINUTE).await;
    }
    let denied = bench.guard("login.check", &facts).await;
    assert_eq!(
        parts(&denied, ["decision", "error", "rule"]),
        [&json!("deny"), &json!("account_locked"), &json!("A-WINDOW")]
    );
    assert_eq!(
        denied["retry_after"], 600,
        "until the first of the five is 15 minutes old"
    );
    let elsewhere = user("203.0.113.2", "a", "bob");
    assert_eq!(
        bench.guard("login.check", &elsewhere).await["decision"],
        "allow"
    );
    bench.sleep(10 * MINUTE).await;
    assert_eq!(
        bench.guard("login.check", &facts).await["decision"],
        "allow"
    );
}

async fn failures(bench: &Bench, facts: &str, count: usize, gap: u64) -> Vec<Value> {
    let mut answers = Vec::new();
    for _ in 0..count {
        answers.push(bench.guard("login.failure", facts).await);
        bench.sleep(gap).await;
    }
    answers
}

#[tokio::test]
async fn a_hard_every_tenth_failure_of_a_day_locks_for_15_minutes() {
    let bench = Bench::with("[guard.login]\nenabled = false\n");
    let facts = user("203.0.113.1", "a", "bob");
    let answers = failures(&bench, &facts, 9, 4 * MINUTE).await;
    assert!(answers.iter().all(|answer| answer["rule"] != "A-HARD"));
    let tenth = bench.guard("login.failure", &facts).await;
    assert_eq!(
        parts(&tenth, ["rule", "error", "retry_after"]),
        [&json!("A-HARD"), &json!("account_locked"), &json!(900)]
    );
    assert!(tenth["body"]["support_url"].is_string());
    bench.sleep(15 * MINUTE - 1).await;
    assert_eq!(bench.guard("login.check", &facts).await["decision"], "deny");
    bench.sleep(1).await;
    assert_eq!(
        bench.guard("login.check", &facts).await["decision"],
        "allow"
    );
}

#[tokio::test]
async fn a_backoff_the_delay_grows_and_ends_with_a_success() {
    let bench = Bench::with("[guard.login]\nenabled = false\n");
    let facts = user("203.0.113.1", "a", "bob");
    let mut delays = Vec::new();
    for answer in failures(&bench, &facts, 4, SECOND).await {
        delays.push(answer["delay_ms"].clone());
    }
    assert_eq!(delays, [250, 500, 1000, 1000]);
    assert_eq!(bench.guard("login.check", &facts).await["delay_ms"], 1000);
    bench.guard("login.success", &facts).await;
    assert_eq!(
        bench.guard("login.check", &facts).await["delay_ms"],
        Value::Null
    );
}

#[tokio::test]
async fn a_captcha_three_lockouts_ask_for_a_challenge_until_one_is_passed() {
    let bench = Bench::with("[guard.login]\nenabled = false\n");
    let facts = user("203.0.113.1", "a", "bob");
    failures(&bench, &facts, 29, 4 * MINUTE).await;
    assert_eq!(
        bench.guard("login.check", &facts).await["challenge"],
        Value::Null
    );
    bench.guard("login.failure", &facts).await;
    bench.sleep(HOUR).await;
    let asked = bench.guard("login.check", &facts).await;
    assert_eq!(asked["challenge"], "captcha");
    assert_eq!(
        [&asked["decision"], &asked["error"], &asked["rule"]],
        ["deny", "challenge_required", "A-CAPTCHA"]
    );
    assert_eq!(asked["status"], 429);
    assert_eq!(asked["headers"]["Retry-After"], "1");
    assert_eq!(asked["body"]["error"], "challenge_required");
    let passed = facts.replacen('{', r#"{"challenge_passed":true,"#, 1);
    assert_eq!(
        bench.guard("login.check", &passed).await["decision"],
        "allow"
    );
    let after = bench.guard("login.check", &facts).await;
    assert_eq!(
        [&after["decision"], &after["challenge"]],
        [&json!("allow"), &Value::Null]
    );
}

#[tokio::test]
async fn a_captcha_may_be_advice_and_of_another_kind() {
    let bench = Bench::with(
        "[guard.login]\nenabled = false\n[lockout]\nchallenge = \"advise\"\nchallenge_kind = \"out_of_band\"\n",
    );
    let facts = user("203.0.113.1", "a", "bob");
    failures(&bench, &facts, 30, 4 * MINUTE).await;
    bench.sleep(HOUR).await;
    let asked = bench.guard("login.check", &facts).await;
    assert_eq!(
        [&asked["decision"], &asked["challenge"]],
        ["allow", "out_of_band"]
    );
}

#[tokio::test]
async fn a_window_an_answer_without_a_name_says_that_no_lockout_was_asked() {
    let bench = Bench::with("[guard.login]\nenabled = false\n");
    let nameless = r#"{"ip":"203.0.113.1","account":"a"}"#;
    let answers = failures(&bench, nameless, 6, SECOND).await;
    assert!(
        answers
            .iter()
            .all(|answer| answer["lockout"] == "not_asked")
    );
    let checked = bench.guard("login.check", nameless).await;
    assert_eq!(
        [&checked["decision"], &checked["lockout"]],
        ["allow", "not_asked"]
    );
    let named = bench
        .guard("login.check", &user("203.0.113.1", "a", "bob"))
        .await;
    assert_eq!(named["lockout"], Value::Null);
    let heavy = bench.guard("api.hit", nameless).await;
    assert_eq!(heavy["lockout"], Value::Null, "it has no lockout");
    let off = Bench::with("[lockout]\nenabled = false\n");
    assert_eq!(
        off.guard("login.check", nameless).await["lockout"],
        Value::Null
    );
}

#[tokio::test]
async fn a_window_the_account_may_stand_for_the_name() {
    let bench = Bench::with("[guard.login]\nenabled = false\n[lockout]\nkey = \"account\"\n");
    let nameless = r#"{"ip":"203.0.113.1","account":"Ann"}"#;
    failures(&bench, nameless, 5, SECOND).await;
    let refused = bench.guard("login.check", nameless).await;
    assert_eq!(
        [&refused["decision"], &refused["rule"]],
        ["deny", "A-WINDOW"]
    );
    assert_eq!(refused["lockout"], Value::Null);
    let named = bench
        .guard("login.check", &user("203.0.113.1", "x", "ann"))
        .await;
    assert_eq!(
        named["rule"], "A-WINDOW",
        "a name that is the account's is the same"
    );
    let other = bench
        .guard("login.check", &user("203.0.113.1", "Ann", "bob"))
        .await;
    assert_eq!(
        other["decision"], "allow",
        "a name that comes is what counts"
    );
}

#[tokio::test]
async fn a_shared_failures_of_login_and_otp_count_together_and_a_success_clears_the_window() {
    let bench = Bench::with("[guard.login]\nenabled = false\n[guard.otp]\nenabled = false\n");
    let facts = user("203.0.113.1", "a", "bob");
    for op in [
        "login.failure",
        "otp.failure",
        "login.failure",
        "otp.failure",
        "otp.failure",
    ] {
        bench.guard(op, &facts).await;
    }
    assert_eq!(bench.guard("login.check", &facts).await["rule"], "A-WINDOW");
    assert_eq!(bench.guard("otp.check", &facts).await["rule"], "A-WINDOW");
    bench.sleep(15 * MINUTE).await;
    bench.guard("login.success", &facts).await;
    assert_eq!(bench.guard("login.failure", &facts).await["delay_ms"], 250);
    for _ in 0..3 {
        bench.guard("login.failure", &facts).await;
    }
    let tenth = bench.guard("login.failure", &facts).await;
    assert_eq!(tenth["rule"], "A-HARD", "the day's count goes on");
}

/// The answer without its request id and timestamps, for comparisons that a client could make.
fn bytes(mut answer: Value) -> String {
    if let Some(body) = answer["body"].as_object_mut() {
        body.remove("timestamp");
    }
    answer.to_string()
}

#[tokio::test]
async fn a_uniform_an_account_that_exists_answers_a_stranger_with_the_same_bytes() {
    let bench = Bench::new();
    let id = Id::new("account", "old").unwrap();
    let session = bench.engine.issue_session(&id).await.unwrap();
    let own = format!(
        r#"{{"ip":"198.51.100.1","account":"old","username":"old@example.com","device":{{"session_id":"{session}"}}}}"#
    );
    for _ in 0..12 {
        bench.guard("login.success", &own).await;
        bench.guard("otp.success", &own).await;
        let other = user("198.51.100.2", "old", "old@example.com");
        bench.guard("login.success", &other).await;
        bench.sleep(HOUR).await;
    }
    let stranger = |ip: &str, account: &str, n: usize| {
        format!(
            r#"{{"ip":"{ip}","account":"{account}","username":"{account}@example.com",
                "user_agent":"Firefox/124.0","device":{{"fingerprint":"x{}","confidence":"medium"}}}}"#,
            n / 6
        )
    };
    for n in 0..60 {
        for op in ["login.check", "login.failure", "otp.check", "otp.failure"] {
            let old = bench.guard(op, &stranger("203.0.113.10", "old", n)).await;
            let never = bench.guard(op, &stranger("203.0.113.20", "never", n)).await;
            assert_eq!(bytes(old), bytes(never), "{op} {n}");
        }
        bench.sleep(37 * SECOND).await;
    }
}

const STRANGER: &str = r#"{"ip":"203.0.113.1","account":"a","user_agent":"Firefox/124.0",
    "device":{"fingerprint":"f1","confidence":"medium"}}"#;

async fn modes(bench: &Bench, op: &str, facts: &str, count: usize) -> Vec<String> {
    let mut modes = Vec::new();
    for _ in 0..count {
        let answer = bench.guard(op, facts).await;
        let (mode, rule) = (answer["mode"].as_str().unwrap(), answer["rule"].as_str());
        modes.push(format!("{mode} {}", rule.unwrap_or("-")));
    }
    modes
}

#[tokio::test]
async fn f_closed_two_failures_refuse_and_the_third_is_answered_degraded() {
    for state in [StoreState::Down, StoreState::Timeout] {
        let bench = Bench::new();
        bench.store(state);
        assert_eq!(
            modes(&bench, "login.check", STRANGER, 6).await,
            [
                "fail_closed F-CLOSED",
                "fail_closed F-CLOSED",
                "degraded -",
                "degraded -",
                "degraded -",
                "degraded F-DEGRADED",
            ]
        );
        let otp = modes(&bench, "otp.check", STRANGER, 5).await;
        assert_eq!(
            otp[..2],
            ["fail_closed F-CLOSED"; 2],
            "each flow has its own breaker"
        );
        assert_eq!(
            otp[2..],
            ["degraded -", "degraded -", "degraded F-DEGRADED"]
        );
        let api = modes(&bench, "api.hit", STRANGER, 62).await;
        assert_eq!(api[..2], ["fail_open -"; 2]);
        assert_eq!(api[2..60], ["degraded -"; 58][..]);
        assert_eq!(api[60..], ["degraded F-DEGRADED"; 2], "60 a minute on K2");
    }
}

#[tokio::test]
async fn f_degraded_a_network_is_capped_over_all_its_accounts() {
    let bench = Bench::new();
    bench.store(StoreState::Down);
    modes(&bench, "login.check", STRANGER, 3).await;
    let mut allowed = 0;
    for account in 0..40 {
        let facts = STRANGER.replace("\"a\"", &format!("\"b{account}\""));
        allowed += usize::from(bench.guard("login.check", &facts).await["decision"] == "allow");
    }
    assert_eq!(
        allowed, 19,
        "20 in ten minutes, one was the first account's"
    );
    let over = bench.guard("login.check", STRANGER).await;
    assert_eq!(
        parts(&over, ["level", "retry_after", "status"]),
        [&json!("L2"), &json!(60), &json!(429)]
    );
    assert_eq!(over["headers"]["X-RateLimit-Status"], "degraded");
}

#[tokio::test]
async fn f_blocks_what_was_seen_to_bind_binds_in_an_outage_until_its_end() {
    let bench = Bench::new();
    for _ in 0..3 {
        bench.guard("login.failure", STRANGER).await;
    }
    let seen = bench.guard("login.check", STRANGER).await;
    assert_eq!(
        parts(&seen, ["decision", "mode", "rule"]),
        [
            &json!("hard_block"),
            &json!("normal"),
            &json!("G-THRESHOLD")
        ]
    );
    bench.store(StoreState::Down);
    let stranger = STRANGER.replace("\"a\"", "\"other\"");
    modes(&bench, "login.check", &stranger, 3).await;
    bench.sleep(20 * SECOND).await;
    let held = bench.guard("login.check", STRANGER).await;
    assert_eq!(
        (&held["mode"], &held["rule"], &held["retry_after"]),
        (&json!("degraded"), &json!("G-THRESHOLD"), &json!(40))
    );
    let elsewhere = STRANGER
        .replace("203.0.113.1", "198.51.100.1")
        .replace("f1", "f2");
    assert_eq!(
        bench.guard("login.check", &elsewhere).await["rule"],
        "G-THRESHOLD",
        "the account's block"
    );
    bench.sleep(40 * SECOND).await;
    assert_eq!(
        bench.guard("login.check", STRANGER).await["rule"],
        Value::Null
    );
}

#[tokio::test]
async fn f_blocks_of_a_device_and_a_prefix_bind_whom_they_bound() {
    let bench = Bench::new();
    for n in 0..4 {
        let facts = STRANGER
            .replace("f1", &format!("r{n}"))
            .replace("203.0.113.1", &format!("198.51.100.{n}"));
        bench.guard("login.check", &facts).await;
    }
    for n in 0..5 {
        let facts = STRANGER.replace("\"a\"", &format!("\"s{n}\""));
        bench.guard("login.check", &facts).await;
    }
    bench.store(StoreState::Down);
    modes(
        &bench,
        "login.check",
        r#"{"ip":"192.0.2.1","account":"z"}"#,
        3,
    )
    .await;
    let rotated = STRANGER
        .replace("f1", "r2")
        .replace("203.0.113.1", "192.0.2.7");
    assert_eq!(
        bench.guard("login.check", &rotated).await["rule"],
        "G-ROTATION"
    );
    let unblocked = STRANGER
        .replace("f1", "q")
        .replace("203.0.113.1", "192.0.2.8");
    assert_eq!(
        bench.guard("login.check", &unblocked).await["rule"],
        Value::Null
    );
    let sprayed = r#"{"ip":"203.0.113.1","account":"y"}"#;
    assert_eq!(bench.guard("login.check", sprayed).await["rule"], "G-SPRAY");
}

#[tokio::test]
async fn f_epoch_a_success_and_a_recovery_do_not_clear_the_caps() {
    let bench = Bench::new();
    bench.store(StoreState::Down);
    modes(&bench, "login.check", STRANGER, 5).await;
    assert_eq!(
        bench.guard("login.success", STRANGER).await["decision"],
        "allow"
    );
    assert_eq!(
        modes(&bench, "login.check", STRANGER, 1).await,
        ["degraded F-DEGRADED"]
    );
    bench.store(StoreState::Up);
    bench.sleep(7 * MINUTE + 10 * SECOND).await;
    assert_eq!(
        modes(&bench, "login.check", STRANGER, 1).await,
        ["normal -"]
    );
    bench.store(StoreState::Down);
    let again = modes(&bench, "login.check", STRANGER, 3).await;
    assert_eq!(again[2], "degraded F-DEGRADED", "ten minutes are not over");
}

#[tokio::test]
async fn f_reentry_the_fourth_entry_in_30_minutes_refuses_for_ten() {
    let bench = Bench::new();
    for _ in 0..3 {
        bench.store(StoreState::Down);
        modes(&bench, "login.check", STRANGER, 3).await;
        bench.store(StoreState::Up);
        bench.sleep(7 * MINUTE + 10 * SECOND).await;
        assert_eq!(
            modes(&bench, "login.success", STRANGER, 1).await,
            ["normal -"]
        );
    }
    bench.store(StoreState::Down);
    let last = modes(&bench, "login.success", STRANGER, 4).await;
    assert_eq!(last[2..], ["fail_closed F-REENTRY"; 2], "a success too");
    bench.store(StoreState::Up);
    bench.sleep(9 * MINUTE).await;
    let held = bench.guard("login.success", STRANGER).await;
    assert_eq!(
        (&held["rule"], &held["retry_after"]),
        (&json!("F-REENTRY"), &json!(60))
    );
    bench.sleep(MINUTE).await;
    assert_eq!(
        modes(&bench, "login.success", STRANGER, 1).await,
        ["normal -"]
    );
}

#[tokio::test]
async fn f_fallback_each_class_has_its_own_and_none_is_unlimited() {
    let bench = Bench::new();
    bench.store(StoreState::Down);
    let of = |method: &str, path: &str, org: &str| {
        format!(r#"{{"ip":"203.0.113.1","method":"{method}","path":"{path}"{org}}}"#)
    };
    let auth = of("POST", "/auth/token", "");
    assert_eq!(bench.admitted(&auth, 30).await, 5, "half of ten");
    let closed = bench.check(&of("GET", "/admin/users", "")).await;
    assert_eq!(
        parts(&closed, ["status", "mode", "rule"]),
        [&json!(503), &json!("fail_closed"), &json!("F-FALLBACK")]
    );
    assert_eq!(closed["body"]["code"], "throttling.enforcement_degraded");
    assert_eq!(bench.admitted(&of("GET", "/things", ""), 200).await, 50);
    // From another address, because the requests before count in the first one's own limits, too.
    let tenant = of("GET", "/things", r#","org":"o-1""#).replace("203.0.113.1", "203.0.113.2");
    assert_eq!(bench.admitted(&tenant, 200).await, 50, "a burst of 50");
    bench.sleep(10 * SECOND).await;
    assert_eq!(bench.admitted(&tenant, 200).await, 20, "then two a second");
    let over = bench.check(&tenant).await;
    assert_eq!(
        parts(&over, ["status", "mode", "rule"]),
        [&json!(429), &json!("degraded"), &json!("F-FALLBACK")]
    );
    let health = of("GET", "/health/live", "");
    assert_eq!(bench.admitted(&health, 500).await, 60, "a static cap");
}

#[tokio::test]
async fn f_fallback_after_five_minutes_auth_keeps_its_half_and_the_node_is_not_ready() {
    let bench = Bench::new();
    bench.store(StoreState::Down);
    let auth = r#"{"ip":"203.0.113.1","method":"POST","path":"/auth/token"}"#;
    assert_eq!(bench.admitted(auth, 6).await, 5);
    assert!(bench.engine.health().ready);
    bench.sleep(5 * MINUTE).await;
    assert_eq!(bench.admitted(auth, 6).await, 5);
    let health = bench.engine.health();
    assert!(!health.ready);
    assert_eq!((health.degradation_level, health.store.state), (2, "down"));
}

#[tokio::test]
async fn f_clean_recovery_drops_the_fallbacks_counters_and_restores_exact_limits() {
    let bench = Bench::new();
    let auth = r#"{"ip":"203.0.113.1","method":"POST","path":"/auth/token"}"#;
    bench.store(StoreState::Down);
    assert_eq!(bench.admitted(auth, 30).await, 5);
    bench.store(StoreState::Up);
    bench.sleep(21 * SECOND).await;
    let answer = bench.check(auth).await;
    assert_eq!(
        (&answer["mode"], &answer["decision"]),
        (&json!("normal"), &json!("allow"))
    );
    assert_eq!(
        bench.admitted(auth, 30).await,
        9,
        "nothing of the outage was written"
    );
    bench.store(StoreState::Down);
    assert_eq!(
        bench.admitted(auth, 30).await,
        5,
        "a new outage starts from zero"
    );
}

#[tokio::test]
async fn f_bounded_a_request_counts_one_failure_of_the_breaker() {
    let bench = Bench::new();
    bench.store(StoreState::Down);
    let read = r#"{"ip":"203.0.113.1","method":"GET","path":"/things"}"#;
    for failures in 1..=5 {
        assert_eq!(
            bench.engine.health().circuits[3],
            ("limits", "closed"),
            "{failures}"
        );
        bench.check(read).await;
    }
    assert_eq!(bench.engine.health().circuits[3], ("limits", "open"));
}

#[tokio::test]
async fn a_missing_account_is_refused_and_nothing_is_touched() {
    let bench = Bench::new();
    let facts = command(r#"{"ip":"203.0.113.1"}"#);
    let refused = bench.engine.guard(GuardOp::LoginCheck, &facts).await;
    assert_eq!(refused.unwrap_err().to_string(), "`account` is required");
    assert!(bench.heard.decided.lock().is_empty());
}
