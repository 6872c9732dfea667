//! Tests of the simulation itself: each planted fault is found within a few seeds, by the property
//! that it breaks.

use crate::run::{Setting, run};
use crate::{limits, policy};

/// A fault to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// The store sometimes admits a charge that does not fit.
    OverAdmits,
    /// Returns are credited even if they are too late.
    AlwaysCredits,
    /// A denied charge takes from those buckets that had room.
    TakesInPart,
    /// Commits do not compare revisions: the last writer wins.
    LosesUpdates,
    /// Commits are acknowledged but not made.
    ForgetsCommits,
    /// The store keeps every record that was replaced.
    Hoards,
    /// The engine waits for three times the deadline of a store call.
    Patient,
    /// The engine gives up after half the deadline and blames the store.
    Impatient,
    /// After a failure the store is not probed while the breaker is closed.
    NeverSuspects,
    /// The engine's clock runs twice as fast as time.
    HastyClock,
    /// The engine's clock runs half as fast as time.
    LazyClock,
    /// The breaker of limits does not open, so that requests reach the store in an outage.
    NeverOpens,
    /// A breaker opens one failure late.
    OpensLate,
    /// A breaker probes too early.
    ProbesEarly,
    /// A breaker closes one success early.
    ClosesEarly,
    /// An outage is called prolonged too soon.
    ProlongedEarly,
    /// The fallback admits one too many.
    LooseFallback,
    /// The fallback admits one too few.
    TightFallback,
}

impl Planted {
    /// The policy of the simulation with this fault in it.
    fn policy(self) -> String {
        let breaker = |line: &str| format!("{}[breaker.availability]\n{line}\n", limits::POLICY);
        let anonymous = |count: u32| {
            let line = format!("anonymous_per_minute = {count}\n");
            limits::POLICY.replace("anonymous_per_minute = 7\n", &line)
        };
        match self {
            Self::NeverOpens => breaker("failures = 1000"),
            Self::OpensLate => breaker("failures = 6"),
            Self::ProbesEarly => breaker("probe_after = \"9s\""),
            Self::ClosesEarly => breaker("successes = 2"),
            Self::ProlongedEarly => breaker("prolonged_after = \"4min\""),
            Self::LooseFallback => anonymous(8),
            Self::TightFallback => anonymous(6),
            _ => limits::POLICY.to_owned(),
        }
    }
}

/// More seeds than any fault needs.
const SEEDS_MAX: u64 = 300;

/// Runs seeds until one breaks `property`.
#[track_caller]
fn finds(planted: Planted, property: &str) {
    let policy = policy(&planted.policy());
    let setting = Setting {
        policy: &policy,
        is_traced: false,
        planted: Some(planted),
    };
    for seed in 1..=SEEDS_MAX {
        let outcome = run(seed, setting);
        let found = |violation: &&String| violation.starts_with(property);
        if let Some(violation) = outcome.violations.iter().find(found) {
            println!("{planted:?}: seed {seed} finds {violation}");
            return;
        }
    }
    panic!("{planted:?} is not found by {property} in {SEEDS_MAX} seeds");
}

#[test]
fn l_atomic_a_store_that_admits_too_much_is_found() {
    finds(Planted::OverAdmits, "L-ATOMIC");
}

#[test]
fn l_give_back_returns_that_are_always_credited_are_found_over_nodes() {
    finds(Planted::AlwaysCredits, "L-ATOMIC");
}

#[test]
fn l_atomic_a_charge_that_takes_in_part_is_found() {
    finds(Planted::TakesInPart, "L-ATOMIC");
}

#[test]
fn f_conflict_a_store_that_loses_updates_is_found() {
    finds(Planted::LosesUpdates, "guard §12");
}

#[test]
fn f_conflict_a_store_that_forgets_commits_is_found() {
    finds(Planted::ForgetsCommits, "guard §12");
}

#[test]
fn f_bounded_a_store_that_hoards_is_found() {
    finds(Planted::Hoards, "bounded memory");
}

#[test]
fn an_engine_that_waits_too_long_is_found() {
    finds(Planted::Patient, "failure §7");
}

#[test]
fn f_conflict_an_engine_that_blames_the_store_for_its_own_haste_is_found() {
    finds(Planted::Impatient, "failure §");
}

#[test]
fn f_suspect_a_quiet_node_that_does_not_probe_is_found() {
    finds(Planted::NeverSuspects, "failure §2");
}

#[test]
fn f_clock_a_clock_that_runs_away_breaks_the_caps_and_is_found() {
    finds(Planted::HastyClock, "F-DEGRADED");
}

#[test]
fn f_clock_a_denial_that_is_held_too_long_is_found() {
    finds(Planted::LazyClock, "F-CLOCK");
}

#[test]
fn f_clean_an_outage_that_is_written_to_the_store_is_found() {
    finds(Planted::NeverOpens, "F-CLEAN");
}

#[test]
fn f_fallback_a_breaker_that_opens_late_is_found() {
    finds(Planted::OpensLate, "F-CLEAN");
}

#[test]
fn f_fallback_a_breaker_that_probes_early_is_found() {
    finds(Planted::ProbesEarly, "failure §2");
}

#[test]
fn f_fallback_a_breaker_that_closes_early_is_found() {
    finds(Planted::ClosesEarly, "F-CLEAN");
}

#[test]
fn f_fallback_an_outage_that_is_prolonged_early_is_found() {
    finds(Planted::ProlongedEarly, "failure §3");
}

#[test]
fn f_fallback_a_fallback_that_admits_too_much_is_found() {
    finds(Planted::LooseFallback, "F-FALLBACK");
}

#[test]
fn f_fallback_a_fallback_that_admits_too_little_is_found() {
    finds(Planted::TightFallback, "F-FALLBACK");
}
