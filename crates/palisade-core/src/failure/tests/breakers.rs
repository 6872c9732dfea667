//! failure.md §2: the two profiles.

use super::*;
use crate::decision::Mode;

/// Fails three calls at `at`, which opens the circuit, and lets it recover: it closes exactly
/// seven minutes later.
fn outage(at: u64) -> String {
    format!("{at}s down; {at}s call login; {at}s call login; {at}s call login; {at}s up;")
}

#[test]
fn f_security_trips_on_three_failures_within_ten_seconds() {
    World::play(
        "0s down; 0s call login -> normal; 1s up; 4s down; 5s call login -> normal; \
         6s up; 9s down; 9s999999u call login -> open degraded",
    );
}

fn trips_on(kind: FailureKind) {
    let mut world = World::new();
    world.store = Err(kind);
    world.more("0s call login; 0s call login; 0s call login -> open degraded");
    assert_eq!(world.node.health().last_failure(), Some(kind));
}

#[test]
fn f_pool_exhaustion_and_f_store_full_are_failures_like_any_other() {
    trips_on(FailureKind::Exhausted);
    trips_on(FailureKind::TimedOut);
    trips_on(FailureKind::Unreachable);
    trips_on(FailureKind::Corrupt);
}

#[test]
fn f_security_a_failure_ten_seconds_old_no_longer_counts() {
    World::play(
        "0s down; 0s call login; 1s up; 5s down; 5s call login; 6s up; 10s down; \
         10s call login -> closed normal; 11s up; 14s down; 14s999999u call login -> open",
    );
}

#[test]
fn f_suspect_a_quiet_node_with_a_dead_store_is_degraded_within_ten_seconds() {
    let world = World::play(
        "0s down; 0s login.check A 1 -> F-CLOSED; 5s look login -> closed normal; \
         6s look login -> open degraded; 10s login.check A 1 -> allow degraded",
    );
    assert_eq!(
        world.log,
        [
            "0s login suspected",
            "6s login suspicion_ended",
            "6s login opened",
            "6s login degraded_entered",
        ]
    );
    assert_eq!(world.calls.len(), 1, "probes did the rest");
}

#[test]
fn f_suspect_a_probe_that_succeeds_ends_the_probing() {
    let mut world = World::play("0s down; 0s call login; 2s up; 3s look login -> closed normal");
    assert_eq!(
        world.log,
        ["0s login suspected", "3s login suspicion_ended"]
    );
    assert_eq!(world.node.next_probe_at(), None);
    // The failures of the last ten seconds still count.
    world.more("4s down; 4s call login -> closed; 5s call login -> open degraded");
}

#[test]
fn f_suspect_requests_do_not_put_the_probe_off() {
    let mut world = World::play("0s down; 0s call login; 1s up");
    for second in ["1s", "2s"] {
        world.more(&format!("{second} call login"));
        let next = Some((Policy::Login, START.plus(3 * SECOND)));
        assert_eq!(world.node.next_probe_at(), next);
    }
    world.more("2s down; 2s call login");
    let next = Some((Policy::Login, START.plus(3 * SECOND)));
    assert_eq!(world.node.next_probe_at(), next);
    world.more("3s look login -> open");
}

#[test]
fn f_suspect_each_security_policy_probes_for_itself_and_limits_do_not() {
    let world = World::play("0s down; 0s call otp; 0s call limits; 30s look otp -> open");
    assert_eq!(world.log_of(Policy::Login), Vec::<&str>::new());
    assert_eq!(world.log_of(Policy::Limits), Vec::<&str>::new());
    assert_eq!(world.node.circuit(Policy::Limits), Circuit::Closed);
}

#[test]
fn f_suspect_the_mode_of_each_policy_is_told() {
    let mut world = World::play("0s down; 0s call login; 0s call api; 0s call limits");
    let mode = |world: &World, policy| world.node.answer_mode(policy, world.now);
    assert_eq!(mode(&world, Policy::Login), Mode::FailClosed);
    assert_eq!(mode(&world, Policy::Api), Mode::FailOpen);
    assert_eq!(mode(&world, Policy::Otp), Mode::Normal);
    assert_eq!(mode(&world, Policy::Limits), Mode::Normal);
    world.more("8s look login -> open degraded");
    assert_eq!(mode(&world, Policy::Login), Mode::Degraded);
    for at in [421, 842, 1263] {
        world.more(&outage(at));
    }
    assert_eq!(mode(&world, Policy::Login), Mode::Degraded);
}

#[test]
fn f_security_successes_between_failures_do_not_help() {
    World::play(
        "0s down; 0s call login; 1s up; 1s call login; 2s down; 2s call login; 3s up; \
         3s call login; 4s down; 4s call login -> open degraded",
    );
}

#[test]
fn f_security_no_backend_calls_while_open_and_half_open() {
    let mut world = World::play("0s down; 0s call login; 0s call login; 0s call login");
    assert_eq!(world.calls.len(), 3);
    world.more("1s up; 1m call login; 5m call login -> half_open; 6m59s call login -> half_open");
    assert_eq!(world.calls.len(), 3);
    world.more("7m call login -> closed normal");
    assert_eq!(world.calls.len(), 4);
}

#[test]
fn f_security_first_probe_comes_five_minutes_after_opening() {
    let mut world = World::play("0s down; 0s call login; 1s call login; 2s call login");
    assert_eq!(
        world.node.next_probe_at(),
        Some((Policy::Login, START.plus(5 * MINUTE + 2 * SECOND)))
    );
    world.more("2s up; 5m1s look login -> open; 5m2s look login -> half_open");
}

#[test]
fn f_security_an_early_probe_result_is_ignored() {
    let mut breaker = SecurityBreaker::new();
    for _ in 0..3 {
        let permit = breaker.admit(START).permit().unwrap();
        breaker.on_failure(permit, START);
    }
    let early = START.plus(5 * MINUTE - 1);
    assert!(
        breaker
            .on_probe(ProbeResult::Healthy, early, early)
            .is_empty()
    );
    assert_eq!(breaker.circuit(), Circuit::Open);
    breaker.on_probe(ProbeResult::Healthy, early, early.plus(1));
    assert_eq!(breaker.circuit(), Circuit::HalfOpen);
}

#[test]
fn f_security_closes_after_two_minutes_of_healthy_probes_only() {
    let world = World::play(
        "0s down; 0s call login; 0s call login; 0s call login; 0s up; 6m59s look login -> half_open; \
         7m look login -> closed normal",
    );
    assert_eq!(
        world.log[2..],
        [
            "0s login opened",
            "0s login degraded_entered",
            "300s login half_opened",
            "420s login closed",
            "420s login degraded_exited",
        ]
    );
}

#[test]
fn f_security_once_allowed_probes_run_every_five_seconds() {
    let mut world = World::play(&outage(0));
    for second in [300, 305, 310, 315] {
        let at = START.plus(second * SECOND);
        assert_eq!(world.node.next_probe_at(), Some((Policy::Login, at)));
        world.run_until(at);
    }
}

#[test]
fn f_security_a_failed_probe_restarts_the_five_minutes_and_the_two() {
    let world = World::play(
        "0s down; 0s call login; 0s call login; 0s call login; \
         9m59s look login -> open; 9m59s up; 10m look login -> half_open; \
         11m57s down; 12m look login -> open; 12m up; 16m59s look login -> open; \
         17m look login -> half_open; 18m59s look login -> half_open; 19m look login -> closed",
    );
    assert_eq!(
        world.log[2..],
        [
            "0s login opened",
            "0s login degraded_entered",
            "600s login half_opened",
            "720s login reopened",
            "1020s login half_opened",
            "1140s login closed",
            "1140s login degraded_exited",
        ]
    );
}

#[test]
fn f_reentry_the_third_reentry_within_thirty_minutes_fails_closed_for_ten() {
    let mut world = World::new();
    for at in [0, 421, 842] {
        world.more(&outage(at));
        world.more(&format!("{at}s look login -> degraded"));
    }
    world.more(&outage(1263));
    world.more(
        "1263s login.check A 1 -> hard_block fail_closed F-REENTRY L2 600s http503; \
         1264s login.success A 1 -> hard_block fail_closed F-REENTRY 599s; \
         1862s999999u login.failure A 1 -> F-REENTRY 1s; \
         1863s login.check A 1 -> allow normal",
    );
    let critical: Vec<_> = world
        .log
        .iter()
        .filter(|line| line.contains("reentry"))
        .collect();
    assert_eq!(
        critical,
        ["1263s login reentry_guard", "1863s login reentry_ended"]
    );
}

#[test]
fn f_reentry_the_request_that_trips_the_guard_is_already_refused_by_it() {
    let mut world = World::new();
    for at in [0, 421, 842] {
        world.more(&outage(at));
    }
    world.more(
        "1263s down; 1263s login.check A 1 -> F-CLOSED 60s; 1264s login.check A 1 -> F-CLOSED; \
         1265s login.check A 1 -> hard_block fail_closed F-REENTRY 600s",
    );
}

#[test]
fn f_reentry_binds_although_the_breaker_has_closed_meanwhile() {
    let mut world = World::new();
    for at in [0, 421, 842, 1263] {
        world.more(&outage(at));
    }
    let calls = world.calls.len();
    world.more("1683s look login -> closed fail_closed; 1700s login.check A 1 -> F-REENTRY 163s");
    assert_eq!(world.calls.len(), calls, "no call is made under the guard");
    assert_eq!(
        world.log.last().map(String::as_str),
        Some("1683s login closed"),
        "no degraded mode was left"
    );
}

#[test]
fn f_reentry_then_degraded_if_still_unhealthy() {
    let mut world = World::new();
    for at in [0, 421, 842] {
        world.more(&outage(at));
    }
    world.more(
        "1263s down; 1263s call login; 1263s call login; 1263s call login -> open fail_closed; \
         1863s login.check A 1 -> allow degraded; 1863s up; 2163s look login -> half_open degraded; \
         2283s look login -> closed normal",
    );
    let tail = &world.log[world.log.len() - 5..];
    assert_eq!(
        tail,
        [
            "1863s login reentry_ended",
            "1863s login degraded_entered",
            "2163s login half_opened",
            "2283s login closed",
            "2283s login degraded_exited",
        ]
    );
}

#[test]
fn f_reentry_clears_the_history() {
    let mut world = World::new();
    for at in [0, 421, 842, 1263] {
        world.more(&outage(at));
    }
    // Three entries after the refusal are tolerated again, though with the one
    // that tripped the guard they are four within thirty minutes.
    for at in [1863, 2284, 2705] {
        world.more(&outage(at));
        world.more(&format!("{at}s look login -> open degraded"));
    }
    world.more(&outage(3126));
    world.more("3126s look login -> fail_closed 600s");
}

#[test]
fn f_reentry_counts_reentries_and_not_entries() {
    // The first entry is out of the thirty minutes at 1800 s; its re-entries are not.
    let mut world = World::new();
    for at in [0, 421, 842, 1800] {
        world.more(&outage(at));
    }
    world.more("1800s look login -> fail_closed 600s");
}

#[test]
fn f_reentry_a_reentry_thirty_minutes_old_no_longer_counts() {
    let mut world = World::new();
    for at in [0, 421, 842, 2221] {
        world.more(&outage(at));
        world.more(&format!("{at}s look login -> degraded"));
    }
    let mut world = World::new();
    for at in [0, 421, 842, 2220] {
        world.more(&outage(at));
    }
    world.more("2220s look login -> fail_closed");
}

#[test]
fn f_reentry_an_entry_with_none_in_the_thirty_minutes_before_it_is_none() {
    let mut world = World::new();
    for at in [0, 1800, 2221, 2642] {
        world.more(&outage(at));
        world.more(&format!("{at}s look login -> degraded"));
    }
    world.more(&outage(3063));
    world.more("3063s look login -> fail_closed");
}

#[test]
fn f_reentry_a_failed_probe_while_open_is_not_an_entry() {
    let world = World::play(
        "0s down; 0s call login; 0s call login; 0s call login; 2h look login -> open degraded",
    );
    assert_eq!(
        world.log[2..],
        ["0s login opened", "0s login degraded_entered"]
    );
}

#[test]
fn f_security_late_results_of_calls_made_before_the_opening_change_nothing() {
    for profile in ["login", "limits"] {
        let mut world = World::play(&format!(
            "0s hold {profile} x; 0s hold {profile} y; 0s down;"
        ));
        for _ in 0..5 {
            world.more(&format!("0s call {profile}"));
        }
        let before = format!("{:?}", world.node.next_probe_at());
        world.more(&format!(
            "1s return {profile} x -> open; 1s up; 2s return {profile} y -> open"
        ));
        assert_eq!(format!("{:?}", world.node.next_probe_at()), before);
        world.more(&format!("8m look {profile} -> closed; 8m down"));
        for _ in 0..9 {
            world.more(&format!("8m return {profile} x -> closed"));
        }
    }
}

#[test]
fn f_clock_an_instant_that_arrives_late_does_not_shorten_the_dwell() {
    let mut breaker = SecurityBreaker::new();
    for at in [START, START, START.minus(MINUTE)] {
        let permit = breaker.admit(at).permit().unwrap();
        breaker.on_failure(permit, at);
    }
    assert_eq!(breaker.next_probe_at(), Some(START.plus(5 * MINUTE)));
}

#[test]
fn f_availability_trips_on_five_consecutive_failures() {
    World::play(
        "0s down; 0s call limits; 1m call limits; 2m call limits; 3m call limits -> closed; \
         4m call limits -> open degraded",
    );
    World::play(
        "0s down; 0s call limits; 0s call limits; 0s call limits; 0s call limits; \
         1s up; 1s call limits; 2s down; 2s call limits; 2s call limits; 2s call limits; \
         2s call limits -> closed; 2s call limits -> open",
    );
}

fn limits_down(world: &mut World) {
    world.more(
        "0s down; 0s call limits; 0s call limits; 0s call limits; 0s call limits; 0s call limits",
    );
}

#[test]
fn f_availability_probes_after_ten_seconds_and_closes_after_three_successes() {
    let mut world = World::new();
    limits_down(&mut world);
    world.more(
        "1s up; 9s look limits -> open; 10s look limits -> half_open degraded; \
         15s look limits -> half_open; 19s look limits -> half_open; 20s look limits -> closed normal",
    );
    assert_eq!(
        world.log,
        [
            "0s limits opened",
            "0s limits degraded_entered",
            "10s limits half_opened",
            "20s limits closed",
            "20s limits degraded_exited",
            "20s limits drop_counters",
        ]
    );
}

#[test]
fn f_availability_a_failed_probe_opens_again() {
    let mut world = World::new();
    limits_down(&mut world);
    world.more(
        "1s up; 11s look limits -> half_open; 12s down; 15s look limits -> open; 16s up; \
         24s look limits -> open; 25s look limits -> half_open; 35s look limits -> closed",
    );
    assert!(world.log.contains(&"15s limits reopened".to_owned()));
}

#[test]
fn f_availability_figures_are_configurable() {
    let mut breaker = AvailabilityBreaker::new(AvailabilitySettings {
        trip_failures: 1,
        probe_dwell: SECOND,
        close_successes: 1,
        ..AvailabilitySettings::default()
    });
    let permit = breaker.admit(START).permit().unwrap();
    breaker.on_failure(permit, START);
    assert_eq!(breaker.next_probe_at(), Some(START.plus(SECOND)));
    breaker.on_probe(ProbeResult::Healthy, START, START.plus(SECOND));
    assert_eq!(breaker.circuit(), Circuit::Closed);
}

#[test]
fn f_availability_figures_of_zero_stall_nothing() {
    let mut world = World::new();
    let zero = AvailabilitySettings {
        trip_failures: 0,
        probe_dwell: 0,
        probe_interval: 0,
        close_successes: 0,
        prolonged_after: 0,
    };
    world.node.reconfigure(zero, FallbackPolicy::default());
    world.more(
        "0s down; 0s call limits -> open; 1s look limits -> open; 1s up; \
         2s look limits -> closed normal",
    );
}

#[test]
fn f_security_a_failing_call_affects_only_the_policy_that_made_it() {
    let world = World::play(
        "0s down; 0s call otp; 0s call otp; 0s call otp -> open; 0s look login -> closed; \
         0s look api -> closed; 0s look limits -> closed",
    );
    assert_eq!(world.log_of(Policy::Otp).len(), world.log.len());
}

#[test]
fn f_probes_of_several_policies_run_in_time_order() {
    let mut world = World::play(
        "0s down; 0s call otp; 0s call otp; 0s call otp; 1s call login; 1s call login; \
         1s call login; 4m call limits; 4m call limits; 4m call limits; 4m call limits; \
         4m call limits; 4m up",
    );
    world.more("8m look login -> closed");
    let half: Vec<_> = world.log.iter().filter(|l| l.contains("half")).collect();
    assert_eq!(
        half,
        [
            "250s limits half_opened",
            "300s otp half_opened",
            "301s login half_opened",
        ]
    );
}

#[test]
fn f_health_the_events_of_a_breaker_name_their_transition() {
    assert_eq!(
        Event::Reopened.transition(),
        Some((Circuit::HalfOpen, Circuit::Open))
    );
    assert_eq!(Event::DegradedEntered.transition(), None);
    assert!(Event::ReentryGuard { until: START }.is_critical());
    assert!(!Event::Opened.is_critical());
    assert_eq!(Circuit::HalfOpen.gauge(), 2);
}
