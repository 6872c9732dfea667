//! failure.md §2, F-STALL: calls that fail together are one failure.

use super::*;

/// A script in which `count` calls of `policy` are in progress from `began` on and all
/// fail `after` microseconds later.
fn stall(policy: &str, began: &str, count: usize, after: u64) -> String {
    let named = |verb: &str, at: &str| {
        let step = |n| format!("{at} {verb} {policy} {began}-{n};");
        (0..count).map(step).collect::<String>()
    };
    let ended = format!("{began}{after}u");
    let (holds, returns) = (named("hold", began), named("return", &ended));
    format!("{began} up; {holds} {began} down; {returns} {ended} up;")
}

#[test]
fn f_stall_calls_that_were_in_progress_together_are_one_failure() {
    World::play(&(stall("login", "1s", 32, 100_000) + "2s look login -> closed normal"));
    World::play(&(stall("limits", "1s", 32, 100_000) + "2s look limits -> closed normal"));
}

#[test]
fn f_stall_three_separate_stalls_open_the_security_breaker() {
    let two = stall("login", "1s", 4, 100_000) + &stall("login", "3s", 4, 100_000);
    World::play(&(two.clone() + "6s look login -> closed normal"));
    World::play(&(two + &stall("login", "6s", 4, 100_000) + "7s look login -> open degraded"));
}

#[test]
fn f_stall_five_separate_stalls_open_the_availability_breaker() {
    let stalls = |count: usize| {
        let one = |n| stall("limits", &format!("{n}s"), 8, 100_000);
        (1..=count).map(one).collect::<String>()
    };
    World::play(&(stalls(4) + "6s look limits -> closed normal"));
    World::play(&(stalls(5) + "6s look limits -> open degraded"));
}

/// A store that stays away: each call begins after the failure of the one before.
#[test]
fn f_stall_calls_one_after_the_other_fail_separately_even_at_one_instant() {
    World::play("0s down; 0s call otp; 0s call otp -> closed; 0s call otp -> open degraded");
}

/// Calls begin all the time, each fails a tenth of a second later: one failure for each
/// tenth of a second, however many calls there are.
#[test]
fn f_stall_a_long_stall_counts_once_per_deadline() {
    let mut world = World::play("0s down");
    let began = |n: u64| START.plus(n * SECOND / 100);
    let mut calls = Vec::new();
    for tick in 0..40 {
        let now = began(tick);
        if tick >= 10 && world.node.circuit(Policy::Login) == Circuit::Closed {
            let permit = calls.remove(0);
            let kind = FailureKind::TimedOut;
            world.node.on_failure(Policy::Login, permit, kind, now);
        }
        if world.node.circuit(Policy::Login) == Circuit::Open {
            // Failures count at 100 ms, at 200 ms (of a call made at 100 ms) and at 300 ms.
            assert_eq!(tick, 30);
            return;
        }
        calls.extend(world.node.admit(Policy::Login, now).permit());
    }
    panic!("the breaker never opened");
}

#[test]
fn f_stall_a_probe_under_way_when_a_call_fails_is_part_of_that_failure() {
    let mut breaker = SecurityBreaker::new();
    let at = |ms: u64| START.plus(ms * 1_000);
    let fail = |breaker: &mut SecurityBreaker, from, to| {
        let permit = breaker.admit(from).permit().unwrap();
        breaker.on_failure(permit, to);
    };
    fail(&mut breaker, at(0), at(100));
    // The probe is due at 3.1 s and stalls together with a call.
    fail(&mut breaker, at(3_050), at(3_150));
    breaker.on_probe(ProbeResult::Failed, at(3_100), at(3_200));
    assert_eq!(breaker.circuit(), Circuit::Closed, "two stalls");
    breaker.on_probe(ProbeResult::Failed, at(6_200), at(6_300));
    assert_eq!(breaker.circuit(), Circuit::Open, "the third");
}

/// An answer after the failure still ends a run of consecutive failures.
#[test]
fn f_stall_an_answer_to_a_call_of_the_same_time_ends_the_run() {
    let one = |n| format!("{n}s down; {n}s call limits; {n}s up;");
    let script = (1..=4).map(one).collect::<String>();
    World::play(&format!(
        "0s hold limits early; {script} 5s return limits early; 6s down; 6s call limits -> closed"
    ));
}
