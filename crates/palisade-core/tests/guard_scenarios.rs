//! One scenario per rule of the guard and the lockout. With the feature
//! `rule-switches`, each is run again with its rule switched off, and must fail.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod support;

use support::World;
use support::script::check;

macro_rules! scenarios {
    ($(#[test] fn $name:ident() proves $rule:literal { $script:literal })*) => {
        $(#[test] fn $name() {
            check(&mut World::default(), $script).unwrap();
        })*
        /// Name, rule, script.
        const SCENARIOS: &[(&str, &str, &str)] = &[$((stringify!($name), $rule, $script)),*];
    };
}

scenarios! {
#[test]
fn g_once_a_retry_changes_nothing_and_gets_the_same_answer() proves "G-ONCE" {"
    0      fail d=d1 id=r1     => allow
    1s     fail d=d1 id=r1     => allow nothing
    2s     fail d=d1 id=r2     => soft L1 15s G-THRESHOLD
    5s     fail d=d1 id=r2     => soft L1 15s G-THRESHOLD nothing
    9m     fail d=d1 id=r2     => soft L1 15s nothing
    10m2s  check d=d1 id=r2    => allow
"}

#[test]
fn g_once_a_check_that_took_the_cooldown_may_be_retried() proves "G-ONCE" {"
    0 x20/40m fail d=slow      => *
    14h    check d=slow id=c1  => soft L3 300s G-BUDGET
    14h5s  check d=slow id=c1  => soft L3 300s G-BUDGET nothing
    14h6s  check d=slow id=c2  => allow
"}

#[test]
fn g_once_belongs_to_the_command_and_the_account() proves "G-ONCE" {"
    0      check d=d1 id=r1    => allow
    0      fail d=d1 id=r1     => allow score:K4+3
    1s     fail a=a2 d=d1 id=r1 => allow score:K4+3
    2s     fail d=d1 id=r1     => allow nothing
"}

#[test]
fn g_order_the_first_active_block_answers_and_stands() proves "G-ORDER" {"
    0 x3/1s fail d=own+known   => *
    3s     fail d=own+known    => hard L2 60s
    10s x2/1s fail d=x         => *
    12s    fail d=x            => hard L2 60s
    20s    check d=own+known   => hard L2 52s nothing
    21s x5/0 fail d=x          => hard L2 51s score:K4+3
    22s    fail d=own+known    => hard L2 50s score:K5+2
    72s    check d=own+known   => allow
    73s    fail d=x            => hard L3 300s
"}

#[test]
fn g_order_a_failure_under_a_hard_block_is_counted_but_observed_nowhere() proves "G-SCORE-NEW" {"
    0 x3/1s fail d=x                => *
    10s x5/1s fail d=y# ip=9        => hard L2 score:K4+3
    62s    fail d=x                 => hard L3 300s
    70s    check a=b1 d=z ip=9      => allow
"}

#[test]
fn g_score_known_failures_count_on_the_device() proves "G-SCORE-KNOWN" {"
    0 x2/1s fail d=home+known  => allow score:K5+2
    2s     fail d=home+known   => soft L1 15s G-THRESHOLD
    3s     check d=other       => allow
    20s    fail d=home+known   => hard L2 60s
"}

#[test]
fn g_score_new_failures_count_on_the_account() proves "G-SCORE-NEW" {"
    0      fail d=d1           => allow score:K4+3
    1s     fail d=d2 ip=2      => soft L1 15s
    2s     check d=d3 ip=3     => soft L1 14s
"}

#[test]
fn g_score_missing_throttles_only_clients_without_a_fingerprint() proves "G-SCORE-MISSING" {"
    0      fail a=a1           => allow score:K2+4
    1s     fail a=a2           => soft L2 60s G-THRESHOLD
    2s     check a=a3          => soft L2 59s
    3s     check a=a3 d=d1     => allow
    3s     check a=a3 ua=99    => allow
    61s    fail a=a4           => soft L3 300s
"}

#[test]
fn g_score_repeat_missing_counts_on_the_account() proves "G-SCORE-REPEAT-MISSING" {"
    0      fail                => allow
    30m    fail ip=2           => soft L1 15s score:K4+6
    31m    fail a=b            => allow
    61m1us fail a=b ip=3       => allow
    62m    fail a=c ip=4       => allow
    63m    fail a=c ip=4 d=d1  => allow
    64m    fail a=c ip=5       => allow
"}

#[test]
fn g_score_spray_adds_to_the_prefix() proves "G-SCORE-SPRAY" {"
    0 x4/1s check a=s# d=x     => allow
    4s     check a=s4 d=x      => hard G-SPRAY score:K1+5
"}

#[test]
fn g_threshold_climbs_one_step_per_block() proves "G-THRESHOLD" {"
    0      fail d=d1           => allow
    1s     fail d=d1           => soft L1 15s G-THRESHOLD
    2s     check d=d1          => soft L1 14s G-THRESHOLD
    31s    fail d=d1           => hard L2 60s G-THRESHOLD
    1m31s  fail d=d1           => hard L3 300s
    6m31s  fail d=d1           => hard L4 1800s
    36m31s fail d=d1           => hard L5 21600s
"}

#[test]
fn g_threshold_otp_is_stricter() proves "G-THRESHOLD" {"
    0      otp.fail d=d1       => soft L1 15s
    20s    otp.fail d=d1       => hard L3 300s
    5m20s  otp.fail d=d1       => hard L4 1800s
    1h     otp.fail a=b d=me+known => soft L1 15s
    1h1s   otp.fail a=b d=me+known => hard L2 60s
    1h61s  otp.fail a=b d=me+known => hard L3 300s
"}

#[test]
fn g_threshold_a_soft_block_yields_to_a_challenge() proves "G-THRESHOLD" {"
    0 x2/1s fail d=d1          => *
    2s     check d=d1 pass     => allow
    3s     check d=d1          => soft L1 13s
    4s     fail d=d1 pass      => hard L2 60s
    5s     check d=d1 pass     => hard L2 59s
"}

#[test]
fn g_advisory_network_blocks_do_not_bind_a_trusted_session() proves "G-ADVISORY" {"
    0 x4/1s check a=s# d=x     => allow
    4s     check a=s4 d=x      => hard L2 60s G-SPRAY
    5s     check a=o d=own+trusted => allow nothing
    6s     check a=o d=own+known   => hard L2 58s
    7s     ok a=o d=own+known      => allow
"}

#[test]
fn g_ladder_gives_each_level_its_time() proves "G-LADDER" {"
    0 x2/1s fail d=d1          => *
    16s    check d=d1          => allow
    20s    fail d=d1           => hard L2 60s
    79s    check d=d1          => hard L2 1s
    80s    check d=d1          => allow
    81s    fail d=d1           => hard L3 300s
"}

#[test]
fn g_decay_takes_a_point_off_the_account_every_ten_minutes() proves "G-DECAY" {"
    0      fail d=d1           => allow
    20m    fail d=d1           => allow
    29m    fail d=d1           => soft L1 15s
    49m59s check d=d1          => allow
"}

#[test]
fn g_budget_answers_once_per_cooldown() proves "G-BUDGET" {"
    0 x19/40m fail d=slow      => allow
    12h40m fail d=slow         => soft L3 300s G-BUDGET
    12h41m check d=slow        => allow
    13h40m check d=slow        => soft L3 300s G-BUDGET
    14h40m check d=own+trusted => soft L2 60s G-BUDGET
"}

#[test]
fn g_budget_gives_way_to_a_hard_candidate_and_keeps_its_cooldown() proves "G-BUDGET" {"
    0 x17/40m fail d=slow      => allow
    12h    fail d=slow         => allow
    12h1s  fail d=slow         => soft L1 15s
    12h20s fail d=slow         => hard L2 60s G-THRESHOLD -G-BUDGET
    12h2m  check d=slow        => soft L3 300s G-BUDGET
"}

#[test]
fn g_budget_eligible_a_known_device_counts_from_its_ninth_failure() proves "G-BUDGET-ELIGIBLE" {"
    0 x27/30m fail d=me+known  => allow
    13h30m fail d=me+known     => soft L3 300s G-BUDGET
"}

#[test]
fn g_budget_epoch_ends_a_day_after_its_oldest_failure() proves "G-BUDGET-EPOCH" {"
    0 x19/40m fail d=slow      => allow
    12h40m fail d=slow         => soft G-BUDGET
    20h    fail d=slow         => soft G-BUDGET
    23h59m check d=slow        => soft G-BUDGET
    1d     check d=slow        => allow
    1d2h   fail d=slow         => allow
"}

#[test]
fn g_owner_a_success_is_never_blocked_by_a_budget() proves "G-OWNER" {"
    0 x20/40m fail d=slow      => *
    14h    ok d=own            => allow
    14h1s  check d=slow        => soft L3 300s G-BUDGET
"}

#[test]
fn g_recovery_puts_the_otp_budget_off_once() proves "G-RECOVERY" {"
    0 x9/126m otp.fail d=me+known => soft L1 15s
    18h54m otp.fail d=me+known => soft L2 60s G-RECOVERY
    21h    otp.fail d=me+known => soft L4 1800s G-BUDGET
    21h5s  otp.ok d=me+known   => allow
    23h1m  otp.check d=me+known => allow
    1d1m   otp.fail d=me+known => soft L1 15s
"}

#[test]
fn g_recovery_is_not_for_strangers() proves "G-BUDGET" {"
    0 x9/126m otp.fail d=x     => soft L1 15s
    18h54m otp.fail d=x        => soft L4 1800s G-BUDGET
"}

#[test]
fn g_equilibrium_ends_repeated_soft_blocks_and_never_climbs() proves "G-EQUILIBRIUM" {"
    0 x3/1h otp.fail d=me+known => soft L1 15s
    3h     otp.check d=me+known => allow
    3h1s   otp.fail d=me+known => hard L2 60s G-EQUILIBRIUM
    3h30s  otp.check d=other   => hard L2 31s
    4h     otp.fail d=me+known => hard L2 60s G-EQUILIBRIUM
    5h     otp.fail d=me+known => hard L2 60s G-EQUILIBRIUM
    8h1s   otp.fail d=me+known => soft L1 15s
"}

#[test]
fn g_spray_five_accounts_from_one_prefix_block_the_prefix() proves "G-SPRAY" {"
    0 x4/1s check a=s# d=x     => allow
    4s     check a=s4 d=x      => hard L2 60s G-SPRAY
    5s     check a=s0 d=own+known => hard L2 59s
    5s     check a=s0 d=own+known ip=2 => allow
    65s    check a=s1 d=x      => allow
    66s    check a=s5 d=x      => hard L3 300s G-SPRAY
"}

#[test]
fn g_spray_colleagues_who_log_in_are_none() proves "G-SPRAY" {"
    0      check a=e0 d=pc0    => allow
    1s     ok a=e0 d=pc0       => allow
    2s     check a=e1 d=pc1    => allow
    3s     ok a=e1 d=pc1       => allow
    4s     check a=e2 d=pc2    => allow
    5s     ok a=e2 d=pc2       => allow
    6s     check a=e3 d=pc3    => allow
    7s     ok a=e3 d=pc3       => allow
    8s     check a=e4 d=pc4    => allow
    9s     ok a=e4 d=pc4       => allow
    10s    check a=e0 d=pc0    => allow nothing
    20s x4/1s check a=m# d=x   => allow
    25s    ok a=m0 d=x         => allow
    26s    check a=m5 d=x      => hard G-SPRAY +G-WATCH
"}

#[test]
fn g_rotation_four_devices_are_blocked_and_the_account_is_not() proves "G-ROTATION" {"
    0 x3/1s check d=r# ip=1#   => allow
    3s     check d=r3 ip=13    => hard L2 60s G-ROTATION
    4s     check d=r0 ip=10    => hard L2 59s G-ROTATION
    5s     check a=b d=r0 ip=10 => allow
    6s     check d=me+known ip=20 => allow
    64s    check d=r0 ip=10    => allow
    65s    check d=r4 ip=14    => hard L2 60s G-ROTATION
    66s    check d=r0 ip=10    => hard L3 299s G-ROTATION
"}

#[test]
fn g_rotation_repeat_blocks_the_account_on_the_third_episode() proves "G-ROTATION-REPEAT" {"
    0 x3/1s check d=r# ip=1#   => allow
    3s     check d=r3 ip=13    => hard L2 G-ROTATION -G-ROTATION-REPEAT
    4s     check d=r4 ip=14    => hard L2 G-ROTATION -G-ROTATION-REPEAT
    40m x3/1s check d=s# ip=2# => allow
    40m3s  check d=s3 ip=23    => hard L2 G-ROTATION -G-ROTATION-REPEAT
    80m x3/1s check d=t# ip=3# => allow
    80m3s  check d=t3 ip=33    => hard L4 1800s G-ROTATION-REPEAT
    80m4s  check d=me+known ip=40 => hard L4 1799s
"}

#[test]
fn g_rotation_repeat_a_watched_rotation_is_the_episode_it_grows_into() proves "G-ROTATION-REPEAT" {"
    0 x3/1s check d=r# ip=1#   => allow
    3s     check d=r3 ip=13    => hard G-ROTATION -G-WATCH
    20m x2/1s check d=s# ip=2# => allow
    20m3s  check d=s2 ip=22    => hard G-ROTATION +G-WATCH -G-ROTATION-REPEAT
    20m4s  check d=s3 ip=23    => hard G-ROTATION -G-ROTATION-REPEAT
    60m x3/1s check d=t# ip=3# => allow
    60m3s  check d=t3 ip=33    => hard L4 1800s G-ROTATION-REPEAT
"}

#[test]
fn g_churn_three_changes_block_the_prefix_and_user_agent() proves "G-CHURN" {"
    0      check a=c1 d=f1     => allow
    1s     check a=c2 d=f2     => allow
    2s     check a=c1 d=f1     => allow
    3s     check a=c2 d=f2     => hard L2 60s G-CHURN
    4s     check a=c9 d=f9 ua=124 => allow
    5s     check a=c3 d=f3+known => hard L2 58s G-CHURN
"}

#[test]
fn g_dilution_a_passive_fingerprint_blocks_the_prefix_and_user_agent() proves "G-DILUTION" {"
    0 x5/1s check a=d# d=p/low ip=4#  => allow
    5s     check a=d5 d=p/low ip=45   => hard L2 60s G-DILUTION
    6s     check a=d0 d=p/low ip=40   => allow
    7s     check a=d6 d=p/low ip=46   => hard L2 60s G-DILUTION
"}

#[test]
fn g_dilution_a_stronger_fingerprint_needs_a_second_window() proves "G-DILUTION" {"
    0 x8/1s check a=d# d=m ip=4#      => allow
    10m x4/1s check a=e# d=m ip=5#    => allow
    10m5s  check a=e5 d=m ip=55       => hard L2 60s G-DILUTION +G-WATCH
    10m6s  check a=z d=m+known ip=99  => hard L2 59s G-DILUTION
    50m x7/1s check a=f# d=m ip=6#    => allow
"}

#[test]
fn g_dilution_the_window_is_aligned_to_the_clock() proves "G-DILUTION" {"
    9m57s x3/1s check a=d# d=p/low ip=4# => allow
    10m    x5/1s check a=e# d=p/low ip=5# => allow
    10m6s  check a=f d=p/low ip=60    => hard L2 60s G-DILUTION
    20m    x4/1s check a=g# d=p/low ip=7# => allow
    20m5s  check a=h d=p/low ip=80    => hard L2 60s G-DILUTION +G-WATCH
"}

#[test]
fn g_flood_six_new_devices_throttle_the_account() proves "G-FLOOD" {"
    0 x3/1s check d=n# ip=1#   => allow
    3s x2/1s check d=o# ip=2#  => hard G-ROTATION -G-FLOOD
    5s     check d=p0 ip=30    => hard G-ROTATION +G-FLOOD
    6s     check d=me+known ip=40 => soft L1 14s G-FLOOD
    7s     check d=p1 ip=31    => hard L2 +G-FLOOD
    20s    check d=me+known ip=40 => allow
"}

#[test]
fn g_watch_a_second_arrival_below_the_threshold_counts_as_met() proves "G-WATCH" {"
    0 x4/1s check a=w# d=x     => allow
    5s x3/1s check a=w3 d=x    => allow
    11m x3/1s check a=x# d=x   => allow
    11m3s  check a=x3 d=x      => hard L2 60s G-SPRAY +G-WATCH
"}

#[test]
fn g_watch_is_forgotten_after_half_an_hour() proves "G-SPRAY" {"
    0 x4/1s check a=w# d=x     => allow
    30m x3/1s check a=x# d=x   => allow
    30m3s  check a=x3 d=x      => allow
    30m4s  check a=x4 d=x      => hard L2 60s G-SPRAY -G-WATCH
"}

#[test]
fn g_ephemeral_the_eleventh_new_device_is_answered_but_not_stored() proves "G-EPHEMERAL" {"
    0 x3/1s check d=n# ip=1#   => allow
    3s x7/1s check d=o# ip=2#  => hard L2 60s
    10s    check d=o6 ip=26    => hard L2 59s
    80s    check d=p ip=30     => hard L2 60s
    81s    check d=o6 ip=26    => hard L3 299s
    96s    check d=p ip=30     => allow
    97s    fail d=p ip=30      => allow score:K4+3
"}

#[test]
fn g_api_rates_are_judged_per_key() proves "G-API" {"
    0 x120/250ms hit d=api     => allow
    30s    hit d=api           => soft L1 15s G-API
    31s    hit d=api           => soft L1 14s G-API
    31s    hit d=b ua=99       => allow
    46s x120/0 hit d=api       => *
    46s    hit d=api           => hard L2 60s G-API
    47s    hit d=other         => *
"}

#[test]
fn g_aggregate_takes_the_highest_level_of_the_winning_class() proves "G-AGGREGATE" {"
    0      fail                => allow
    1s     fail                => soft L2 60s
    2s     check               => soft L2 59s
    3s     check d=d1          => soft L1 13s
"}

#[test]
fn g_rot_a_rotation_erases_no_block_and_no_score() proves "G-ROT" {"
    0 x2/1s fail d=d1          => *
    20s    rotate              => *
    21s    fail d=d1           => hard L2 60s
    22s    check d=d1          => hard L2 59s
"}

#[test]
fn g_rot_a_set_member_is_recognised_under_either_secret() proves "G-ROT" {"
    0 x4/1s check a=s# d=x     => allow
    5s     rotate              => *
    6s x3/1s check a=s# d=x    => allow
    11s    check a=s4 d=x      => hard L2 60s G-SPRAY
"}

#[test]
fn a_window_five_failures_deny_the_next_attempt() proves "A-WINDOW" {"
    0 x5/1s fail a=a# d=d#+known user=bob => allow
    5s     check a=b d=e+known user=bob => deny 895s A-WINDOW
    6s     check a=b d=e+known user=eve => allow
    6s     check a=b d=e+known user=bob ip=2 => allow
    7s     ok a=b d=e+known user=bob => deny 893s nothing
    15m    check a=b d=e+known user=bob => allow
"}

#[test]
fn a_hard_every_tenth_failure_locks() proves "A-HARD" {"
    0 x9/4m fail a=a# d=d#+known user=bob => allow
    36m    fail a=b d=e+known user=bob => deny 900s A-HARD locked
    37m    check a=b d=e+known user=bob => deny 840s A-HARD
    51m    check a=b d=e+known user=bob => allow
    55m x9/4m fail a=c# d=f#+known user=bob => allow
    91m    fail a=b d=e+known user=bob => deny 900s A-HARD locked
"}

#[test]
fn a_backoff_grows_with_consecutive_failures() proves "A-BACKOFF" {"
    0      check a=b d=e+known user=bob => allow delay=0
    1s     fail a=b d=e+known user=bob => allow delay=250
    2s     check a=c d=f+known user=bob => allow delay=250
    3s     fail a=c d=f+known user=bob => allow delay=500
    4s     fail a=d d=g+known user=bob => allow delay=1000
    5s     fail a=h d=h+known user=bob => allow delay=1000
    6s     ok a=h d=h+known user=bob => allow delay=0
    7s     check a=h d=h+known user=bob => allow delay=0
    8s     fail a=i d=i+known user=bob => allow delay=250
"}

#[test]
fn a_captcha_three_lockouts_ask_for_a_challenge() proves "A-CAPTCHA" {"
    0 x29/4m fail a=a# d=d#+known user=bob => nocaptcha
    116m   fail a=b d=e+known user=bob => deny captcha locked
    140m   check a=b d=e+known user=bob => allow captcha
    141m   check a=b d=e+known user=bob pass => allow nocaptcha
    142m   check a=b d=e+known user=bob => allow nocaptcha
    143m x10/4m fail a=c# d=f#+known user=bob => *
    200m   check a=b d=e+known user=bob => allow captcha
    201m   ok a=b d=e+known user=bob => allow nocaptcha
"}

#[test]
fn a_shared_failures_of_every_endpoint_count_together() proves "A-SHARED" {"
    0 x3/1s fail a=a# d=d#+known user=Bob => allow
    3s     otp.fail a=b d=e+known user=bob => soft
    4s     otp.fail a=c d=f+known user=bob => soft
    5s     check a=h d=h+known user=bob => deny 895s A-WINDOW
"}

#[test]
fn a_shared_a_success_clears_the_window_but_not_the_day() proves "A-HARD" {"
    0 x4/1s fail a=a# d=d#+known user=bob => allow
    4s     ok a=b d=e+known user=bob => allow
    10s x4/1s fail a=b# d=e#+known user=bob => allow
    14s    ok a=b d=e+known user=bob => allow
    20s    fail a=c1 d=f1+known user=bob => allow
    21s    fail a=c2 d=f2+known user=bob => deny 900s A-HARD
"}

#[test]
fn a_uniform_a_new_account_is_delayed_like_any_other() proves "A-UNIFORM" {"
    0      ok a=old d=own      => allow
    1s     fail a=old d=x user=bob => allow delay=250
    2s     fail a=new d=y user=eve => allow delay=250
"}

}

#[test]
fn scenario_names_start_with_their_rule_family() {
    for (name, rule, _) in SCENARIOS {
        let family = rule.split('-').next().unwrap().to_lowercase();
        assert!(name.starts_with(&family), "{name} proves {rule}");
    }
}

#[cfg(feature = "rule-switches")]
#[test]
fn every_scenario_fails_without_its_rule() {
    use palisade_core::guard::GuardPolicy;
    for (name, rule, script) in SCENARIOS {
        let mut world = World::new(GuardPolicy {
            switched_off: Some(rule),
            ..GuardPolicy::default()
        });
        world.lockout.switched_off = Some(rule);
        world.rotates = *rule != "G-ROT";
        assert!(
            check(&mut world, script).is_err(),
            "{name} holds without {rule}"
        );
    }
}
