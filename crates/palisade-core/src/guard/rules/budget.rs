//! G-BUDGET: notices slow guessing over a day.

use crate::decision::Outcome;
use crate::facts::{Attempt, Confidence};
use crate::guard::aggregate::Candidate;
use crate::guard::command::Command;
use crate::guard::policy::{BudgetScope, Eligible};
use crate::guard::records::account::{Kin, LastFailure};
use crate::guard::records::sets::count_recent;
use crate::rule::Rule;

use super::owner_lane;

/// G-BUDGET-EPOCH: counts a failure for the marker of missing fingerprints, the
/// device's micro-cap and the account's day.
pub(in crate::guard) fn count(command: &mut Command<'_>) {
    command.trace.changed.account = true;
    let eligible = is_eligible(command);
    command.account.last_failure = Some(LastFailure {
        at: command.now,
        missing: command.fingerprint.is_none(),
    });
    if !eligible {
        return;
    }
    let budget = &command.flow.budget;
    let strong = command
        .fingerprint
        .is_some_and(|found| found.confidence == Confidence::High);
    let recovers = budget.recovery.is_some() && (strong || command.known);
    command.counted = command.account.budget.add(budget, recovers, command.now);
}

/// G-BUDGET-ELIGIBLE: whether the failure counts in the budget. A login budget counts failures
/// that scored the account or had no fingerprint, and those of a known device from the ninth in a
/// day on.
fn is_eligible(command: &mut Command<'_>) -> bool {
    let (budget, now) = (&command.flow.budget, command.now);
    let familiar = command.fingerprint.filter(|_| command.known);
    let Some(found) = familiar else { return true };
    let entry = command.account.enter(&found.digest, Kin::Familiar, now);
    // Without room for an entry nothing records how often the device has failed before: it counts
    // as if it had used up its micro-cap.
    let beyond = entry.is_none_or(|entry| {
        let before = count_recent(&entry.failures, budget.epoch, now);
        entry.failures.push(now);
        before >= budget.micro_cap as usize
    });
    beyond || budget.eligible == Eligible::Every
}

/// G-BUDGET: while the budget is active, gives one SOFT answer per cooldown; never in addition to a
/// HARD candidate, and never a stored block. A check gets it only if it would be allowed, by the
/// lockout too: a request that is denied anyway must not use up the answer that others are to get.
pub(in crate::guard) fn answer(command: &mut Command<'_>) {
    let budget = &command.flow.budget;
    let hard = |candidate: &Candidate| candidate.outcome == Outcome::HardBlock;
    if !command.account.budget.may_answer(budget, command.now)
        || owner_lane::frees_from_budget(command)
        || command.trace.candidates.iter().any(hard)
        || (command.attempt == Attempt::Check && !answers_check(command))
    {
        return;
    }
    let level = match command.trusted {
        true => budget.level.down().max(budget.trusted_floor),
        false => budget.level,
    };
    command.soft_answer(Rule::G_BUDGET, level);
    command.account.budget.answer(command.now);
    command.trace.changed.account = true;
}

fn answers_check(command: &Command<'_>) -> bool {
    command.flow.budget.scope == BudgetScope::FailuresAndChecks
        && command.trace.candidates.is_empty()
        && !command.locked_out
        && !command.signals.challenge_passed
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
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
        fn g_budget_is_not_used_up_by_a_check_that_the_lockout_denies() proves "G-BUDGET" {"
            0 x19/40m fail d=slow      => allow
            12h40m fail d=slow         => soft L3 300s G-BUDGET
            13h35m x5/1s fail a=a# d=e#+known user=bob => allow
            13h41m check d=slow user=bob => deny 540s A-WINDOW -G-BUDGET
            13h42m check d=slow        => soft L3 300s G-BUDGET
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
    }
}
