//! failure.md §3: answers to guard operations.

use super::*;

/// Opens the circuit of a flow without counting anything on its caps.
fn opened(flow: &str) -> String {
    format!("0s down; 0s call {flow}; 0s call {flow}; 0s call {flow};")
}

#[test]
fn f_closed_login_and_otp_are_refused_before_the_breaker_opens() {
    for flow in ["login", "otp"] {
        for op in ["check", "failure", "success"] {
            World::play(&format!(
                "0s timeout; 0s {flow}.{op} A 1 -> hard_block fail_closed F-CLOSED L2 60s http503"
            ));
        }
    }
}

#[test]
fn f_closed_uses_up_no_cap() {
    World::play(
        "0s down; 0s otp.check A 1 -> F-CLOSED; 0s otp.check A 1 -> F-CLOSED; \
         0s otp.check A 1 -> allow degraded; 1s otp.check A 1 -> allow degraded; \
         2s otp.check A 1 -> hard_block degraded F-DEGRADED by=K4",
    );
}

/// The outage of the policy tests, which run it end to end, played on the state machines alone.
#[test]
fn f_degraded_login_from_outage_to_recovery() {
    World::play(
        "0s login.check F 110 -> allow normal; 1s down; \
         2s login.check F 110 -> hard_block fail_closed; \
         3s login.check F 110 -> hard_block fail_closed; \
         4s login.check F 110 -> allow degraded; \
         5s login.check F 110 -> allow degraded; \
         6s login.check F 110 -> allow degraded; \
         7s login.check F 110 -> hard_block degraded; 8s up; \
         4m10s login.check F 110 -> hard_block degraded F-DEGRADED; \
         8m20s login.check F 110 -> allow normal",
    );
}

#[test]
fn f_degraded_login_three_per_account_in_ten_minutes() {
    let mut world = World::play(&opened("login"));
    world.more(
        "1s login.check A 1 -> allow degraded http200; 2s login.check A 2 -> allow; 3s login.check A 3 -> allow; \
         4s login.check A 4 -> hard_block degraded F-DEGRADED L2 60s by=K4 http429; \
         4s login.check B 4 -> allow; \
         10m0s999999u login.check A 5 -> hard_block; 10m1s login.check A 5 -> allow; \
         10m1s login.check A 5 -> hard_block",
    );
}

#[test]
fn f_degraded_login_twenty_per_prefix_in_ten_minutes() {
    let mut world = World::play(&opened("login"));
    for n in 0..20 {
        let account = char::from(b'A' + n);
        world.more(&format!("1s login.check {account} 1 -> allow degraded"));
    }
    world.more(
        "2s login.check Z 1 -> hard_block F-DEGRADED L2 60s by=K1; 2s login.check Z 2 -> allow; \
         10m0s login.check Y 1 -> hard_block; 10m1s login.check Y 1 -> allow",
    );
}

#[test]
fn f_degraded_otp_two_per_account_and_ten_per_prefix_in_fifteen_minutes() {
    let mut world = World::play(&opened("otp"));
    world.more(
        "1s otp.check A 1 -> allow degraded; 1s otp.check A 2 -> allow; \
         1s otp.check A 3 -> hard_block F-DEGRADED L2 60s by=K4; \
         15m0s999999u otp.check A 3 -> hard_block; 15m1s otp.check A 3 -> allow",
    );
    let mut world = World::play(&opened("otp"));
    for n in 0..10 {
        let account = char::from(b'A' + n);
        world.more(&format!("1s otp.check {account} 1 -> allow"));
    }
    world.more("2s otp.check Z 1 -> hard_block by=K1; 15m1s otp.check Z 1 -> allow");
}

#[test]
fn f_degraded_a_refused_attempt_uses_up_nothing() {
    let mut world = World::play(&opened("login"));
    world.more("1s login.check A 1; 1s login.check A 1; 1s login.check A 1");
    for second in 2..60 {
        world.more(&format!("{second}s login.check A 1 -> hard_block by=K4"));
    }
    for n in 0..17 {
        let account = char::from(b'B' + n);
        world.more(&format!("60s login.check {account} 1 -> allow"));
    }
    world.more("60s login.check Z 1 -> hard_block by=K1; 10m1s login.check A 1 -> allow");
}

#[test]
fn f_degraded_a_failure_counts_only_without_a_check_in_the_last_minute() {
    let mut world = World::play(&opened("login"));
    world.more(
        "1s login.check A 1 -> allow; 2s login.failure A 1 -> allow degraded; \
         1m0s999999u login.failure A 1 -> allow; \
         2m login.failure A 1 -> allow; 2m login.failure A 1 -> allow; \
         2m login.failure A 1 -> hard_block F-DEGRADED by=K4; 2m login.check A 1 -> hard_block",
    );
    let mut world = World::play(&opened("login"));
    world.more(
        "1s login.check A 1; 1m1s login.failure A 1; 1m1s login.check A 1 -> allow; \
         1m2s login.check A 1 -> hard_block",
    );
}

#[test]
fn f_degraded_a_success_never_counts_and_is_allowed() {
    let mut world = World::play(&opened("login"));
    for _ in 0..30 {
        world.more("1s login.success A 1 -> allow degraded");
    }
    world.more(
        "2s login.check A 1 -> allow; 2s login.check A 1 -> allow; 2s login.check A 1 -> allow; \
         2s login.check A 1 -> hard_block; 2s login.success A 1 -> allow degraded",
    );
}

#[test]
fn f_epoch_a_success_does_not_clear_the_counters() {
    let mut world = World::play(&opened("otp"));
    world.more(
        "1s otp.check A 1; 2s otp.check A 1; 3s otp.success A 1; 4s otp.check A 1 -> hard_block",
    );
}

#[test]
fn f_epoch_counters_outlive_the_degraded_epoch() {
    let mut world = World::play(&opened("otp"));
    world.more(
        "5m otp.check A 1 -> allow; 5m otp.check A 1 -> allow; 5m up; 12m otp.check A 1 -> normal; \
         13m down; 13m call otp; 13m call otp; 13m call otp -> open; \
         13m otp.check A 1 -> hard_block degraded F-DEGRADED; 20m otp.check A 1 -> allow degraded",
    );
}

#[test]
fn f_epoch_memory_is_given_back_thirty_minutes_after_the_epoch() {
    let mut world = World::play(&opened("login"));
    world.more("6m login.check A 1; 6m up");
    let kept = |world: &mut World| world.node.guard(Flow::Login).caps().len();
    world.more("12m look login -> closed; 41m look login");
    assert_eq!(kept(&mut world), 2, "the account's and the prefix's");
    world.more("42m look login");
    assert_eq!(kept(&mut world), 0);
    assert_eq!(world.node.next_due(), None);
}

#[test]
fn f_open_api_is_allowed_behind_local_caps_before_the_breaker_opens() {
    let mut world = World::play("0s down");
    world.more("0s api.hit 1 -> allow fail_open; 1s api.hit 1 -> allow fail_open");
    world.more("2s api.hit 1 -> allow degraded");
}

#[test]
fn f_bounded_fail_open_has_the_same_caps() {
    let mut guard = DegradedGuard::new(Flow::Api);
    let ask = |guard: &mut DegradedGuard, ua: &str, mode, at| {
        words_of(&guard.answer(Attempt::Check, &keys(&["1", ua]), mode, at))
    };
    for _ in 0..60 {
        let answer = ask(&mut guard, "ua1", PolicyMode::Normal, START);
        assert_eq!(answer, "allow fail_open http200");
    }
    let over = ask(&mut guard, "ua1", PolicyMode::Normal, START);
    assert_eq!(over, "hard_block fail_open http429 F-DEGRADED L2 60s by=K2");
    // The open circuit goes on with the same counters.
    let over = ask(&mut guard, "ua1", PolicyMode::Degraded, START);
    assert_eq!(over, "hard_block degraded http429 F-DEGRADED L2 60s by=K2");
}

#[test]
fn f_degraded_api_sixty_per_prefix_and_agent_and_120_per_prefix_in_a_minute() {
    let mut world = World::play(&opened("api"));
    for n in 0..60 {
        world.more(&format!("1s api.hit A{n} 1 ua1 -> allow degraded"));
    }
    world.more("1s api.hit 1 ua1 -> hard_block F-DEGRADED L2 60s by=K2");
    for _ in 0..60 {
        world.more("2s api.hit A 1 ua2 -> allow");
    }
    world.more(
        "2s api.hit 1 ua3 -> hard_block by=K1; 2s api.hit 2 ua3 -> allow; \
         1m0s999999u api.hit 1 ua3 -> hard_block; 1m1s api.hit 1 ua3 -> allow",
    );
}

#[test]
fn f_degraded_api_enforces_no_account() {
    let mut world = World::play(&opened("api"));
    for prefix in 0..500 {
        world.more(&format!("1s api.hit A {prefix} -> allow degraded"));
    }
}

#[test]
fn f_degraded_flows_do_not_count_for_each_other() {
    let mut world = World::play(&opened("login"));
    world.more(&opened("otp"));
    world.more(
        "1s login.check A 1; 1s login.check A 1; 1s login.check A 1; 1s login.check A 1 -> hard_block; \
         1s otp.check A 1 -> allow; 1s otp.check A 1 -> allow; 1s otp.check A 1 -> hard_block",
    );
}

#[test]
fn f_degraded_every_answer_says_that_enforcement_is_degraded() {
    use crate::decision::Enforcement;
    let mut guard = DegradedGuard::new(Flow::Login);
    for mode in [
        PolicyMode::Normal,
        PolicyMode::Degraded,
        PolicyMode::FailClosed {
            until: START.plus(1),
        },
    ] {
        let decision = guard.answer(Attempt::Check, &keys(&["A", "1"]), mode, START);
        assert_eq!(decision.enforcement, Enforcement::Degraded);
        assert_eq!(decision.at, START);
    }
}

fn refuses_one_request(rule: Rule) {
    let answer = words_of(&modes::fail_closed(rule, START));
    assert_eq!(
        answer,
        format!("hard_block fail_closed http503 {} L2 60s", rule.id())
    );
}

#[test]
fn f_conflict_exhausted_refuses_that_request() {
    refuses_one_request(Rule::F_CONFLICT);
}

#[test]
fn f_corrupt_record_refuses_that_request() {
    refuses_one_request(Rule::F_CORRUPT);
}

#[test]
fn f_version_newer_than_ours_refuses_that_request() {
    refuses_one_request(Rule::F_VERSION);
}
