//! AD-LOAD on a queueing model: a server of 16 workers that can do 800 requests a second.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a simulation whose numbers are small"
)]

mod load;

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

#[test]
fn ad_load_answers_faster_than_the_fixed_limit_and_gradient2_and_as_many() {
    let rows: Vec<String> = limiters()
        .into_iter()
        .flat_map(|(name, _)| [("surge", &SURGE, 75, 120), ("slow", &SLOW, 65, 90)].map(|s| (name, s)))
        .map(|(name, (load, phases, from, to))| {
            let mut all = limiters();
            let found = all.iter_mut().find(|(own, _)| *own == name).expect("one of them");
            let run = load::server::run(&mut *found.1, phases, 1);
            format!(
                "{load} {name}: {:.0}/s, p50 {:.0} ms, p99 {:.0} ms, limit {:.0} ± {:.0} %, shed after {:.2} %",
                run.answered(from, to),
                run.quantile(from, to, 0.5),
                run.quantile(from, to, 0.99),
                run.mean_limit(from, to),
                run.swing(from, to) * 100.0,
                run.shed_share(to + 5, to + 30) * 100.0,
            )
        })
        .collect();
    println!("{}", rows.join("\n"));
}
