//! AD-LOAD on a queueing model: a server of 16 workers that can do 800 requests a second.

#![allow(
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a test fails by panicking; the numbers of the simulation are small"
)]

mod load;

use load::server::{Phase, Run, run};
use load::{LONG, SLOW, SURGE, limiters, ours};

const SEEDS: u64 = 20;

#[test]
fn ad_load_converges_in_a_surge_and_does_not_swing_by_more_than_a_fifth() {
    for seed in 0..SEEDS {
        let run = ours(&SURGE, seed);
        let swing = run.swing(75, 120);
        assert!(swing <= 0.2, "seed {seed}: {swing}");
        let answered = run.answered(75, 120);
        assert!(answered >= 0.95 * 800.0, "seed {seed}: {answered}/s");
        let p99 = run.quantile(75, 120, 0.99);
        assert!(p99 <= 200.0, "seed {seed}: p99 {p99} ms");
    }
}

#[test]
fn ad_load_recovers_within_five_seconds_after_the_load_is_gone() {
    for seed in 0..SEEDS {
        let run = ours(&SURGE, seed);
        assert_eq!(run.shed_share(125, 150), 0.0, "seed {seed}");
        let (before, after) = (run.quantile(30, 60, 0.99), run.quantile(125, 150, 0.99));
        assert!(after <= before * 1.2, "seed {seed}: {before} → {after} ms");
        let run = ours(&SLOW, seed);
        let shed = run.shed_share(95, 150);
        assert!(shed <= 0.001, "seed {seed}: {shed}");
    }
}

#[test]
fn ad_load_half_an_hour_of_overload_does_not_wear_the_floor_down() {
    let run = ours(&LONG, 1);
    let (early, late) = (run.mean_limit(100, 160), run.mean_limit(1_800, 1_860));
    assert!((0.8..1.25).contains(&(late / early)), "{early} → {late}");
    assert!(run.quantile(1_800, 1_860, 0.99) <= 200.0);
}

/// The run of one of the limiters.
fn run_of(name: &str, phases: &[Phase]) -> Run {
    let mut all = limiters();
    let found = all.iter_mut().find(|(own, _)| *own == name);
    run(&mut *found.expect("one of them").1, phases, 1)
}

#[test]
fn ad_load_answers_as_many_as_a_fixed_limit_and_gradient2_and_makes_them_wait_less() {
    let own = run_of("Palisade", &SURGE);
    for name in ["fixed, 32", "fixed, 400", "gradient2"] {
        let other = run_of(name, &SURGE);
        let (answered, by_other) = (own.answered(75, 120), other.answered(75, 120));
        assert!(
            answered >= 0.95 * by_other,
            "{name}: {answered}, {by_other}"
        );
        let (median, of_other) = (own.quantile(75, 120, 0.5), other.quantile(75, 120, 0.5));
        assert!(median < of_other, "{name}: {median} ms, {of_other} ms");
    }
}

/// What a limiter that takes the mean of the last minutes for its floor does not do.
#[test]
fn ad_load_sheds_nothing_once_a_slow_application_is_fast_again() {
    let own = run_of("Palisade", &SLOW);
    let other = run_of("gradient2", &SLOW);
    assert_eq!(own.shed_share(95, 120), 0.0);
    assert!(other.shed_share(95, 120) > 0.005);
    assert!(own.answered(65, 90) > 0.85 * 200.0, "of what it can do");
}
