//! The guard without one of its rules: the rule is left out of the list or, where it is a setting
//! or an order, replaced by one without effect.

use std::borrow::Cow;

use palisade_core::guard::policy::Eligible;
use palisade_core::guard::{Answer, Candidate, GuardPolicy, RULES, Rules};
use palisade_core::time::DAY;

use super::World;

/// A world whose guard or lockout lacks `rule`.
pub(crate) fn world(rule: &str) -> World {
    let mut world = World {
        rules: listed_without(rule),
        ..World::proving(rule)
    };
    let listed = without_a_figure(&mut world.policy, rule)
        || without_a_lockout_figure(&mut world, rule)
        || without_an_order(&mut world, rule);
    let left_out = count(&world.rules) < count(&RULES);
    assert!(listed != left_out, "no way to leave {rule} out");
    world
}

fn count(rules: &Rules) -> usize {
    rules.exemptions.len() + rules.scores.len() + rules.judges.len()
}

/// Rules that cannot be left out of the list, because others need what they prepare.
const KEPT: [&str; 3] = ["G-ORDER", "G-EPHEMERAL", "G-BUDGET-EPOCH"];

fn listed_without(rule: &str) -> Rules {
    let stays = |id: &str| id != rule || KEPT.contains(&id);
    let mut rules = RULES.clone();
    rules.exemptions.to_mut().retain(|(id, _)| stays(id));
    rules.scores.to_mut().retain(|(id, _)| stays(id));
    rules.judges.to_mut().retain(|(id, _)| stays(id));
    rules
}

fn without_a_figure(policy: &mut GuardPolicy, rule: &str) -> bool {
    let flows = [&mut policy.login, &mut policy.otp];
    match rule {
        "G-ONCE" => policy.once_window = 0,
        "G-LADDER" => policy.ladder.durations = [policy.ladder.durations[0]; 6],
        "G-DECAY" => policy.decay.account = u64::MAX,
        "G-BUDGET-ELIGIBLE" => flows
            .into_iter()
            .for_each(|f| f.budget.eligible = Eligible::Every),
        "G-BUDGET-EPOCH" => flows.into_iter().for_each(|f| f.budget.epoch = 5 * DAY),
        "G-SCORE-SPRAY" => flows.into_iter().for_each(|f| f.scores.spray = 0),
        "G-WATCH" => flows
            .into_iter()
            .for_each(|f| f.correlation.watch_window = 0),
        "G-EPHEMERAL" => flows
            .into_iter()
            .for_each(|f| f.correlation.new_per_account = u32::MAX),
        "G-API" => policy.api.enabled = false,
        _ => return false,
    }
    true
}

fn without_a_lockout_figure(world: &mut World, rule: &str) -> bool {
    let lockout = &mut world.lockout;
    match rule {
        "A-WINDOW" => lockout.window_failures = u32::MAX,
        "A-HARD" => lockout.hard_failures = u32::MAX,
        "A-BACKOFF" => lockout.delays_ms = [0; 3],
        "A-CAPTCHA" => lockout.captcha_lockouts = u32::MAX,
        "A-SHARED" => world.shared = false,
        "A-UNIFORM" => world.uniform = false,
        _ => return false,
    }
    true
}

fn without_an_order(world: &mut World, rule: &str) -> bool {
    let rules = &mut world.rules;
    match rule {
        "G-UNKNOWN" => rules.unknown = |_| palisade_core::facts::Attempt::Unknown,
        "G-ORDER" => rules.hard_blocks.to_mut().reverse(),
        "G-AGGREGATE" => rules.aggregate = first_candidate,
        "G-OWNER" => {
            let budget = rules.judges.iter().find(|(id, _)| *id == "G-BUDGET");
            rules.successes = Cow::Owned(budget.copied().into_iter().collect());
        }
        "G-ROT" => world.rotates = false,
        _ => return false,
    }
    true
}

/// The answer without aggregation: that of the first candidate.
fn first_candidate(candidates: Vec<Candidate>) -> Answer {
    let Some(first) = candidates.first().copied() else {
        return Answer::allow();
    };
    Answer {
        reasons: candidates,
        ..Answer::of(vec![first])
    }
}
