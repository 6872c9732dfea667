//! The first day of the guard at a company of sixty, with and without a week of shadow mode
//! before. Computes the table of docs/guard.md.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod support;

use std::collections::BTreeSet;

use palisade_core::decision::Outcome;
use palisade_core::facts::{DeviceFacts, GuardFacts, GuardOp, Id};
use palisade_core::guard::policy::GuardMode;
use palisade_core::time::{DAY, HOUR, MINUTE, Micros, SECOND};
use support::page::section_is;
use support::{CHROME, START, World};

const PEOPLE: u64 = 60;

/// Everybody has a device of their own, behind one address and with one browser.
fn facts(person: u64) -> GuardFacts {
    let id = |text: String| Some(Id::new("id", &text).unwrap());
    let mut facts = GuardFacts::new("203.0.113.1".parse().unwrap());
    facts.user_agent = Some(CHROME.into());
    facts.account = id(format!("person-{person}"));
    facts.device = DeviceFacts {
        client_id: id(format!("laptop-{person}")),
        ..DeviceFacts::default()
    };
    facts
}

/// The next step of a person.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Asks,
    IsIn,
}

/// People arrive over five minutes and know their passwords; a second factor comes before the
/// success is reported. A person who is refused comes back when told to, until the day is over.
/// Returns how long each waits, `None` for a person who never gets in.
fn morning(world: &mut World, starts: Micros) -> Vec<Option<u64>> {
    const FACTOR: u64 = 20 * SECOND;
    let arrives = |person: u64| starts.plus(person * (5 * MINUTE / PEOPLE));
    let shadow = world.policy.login.mode == GuardMode::Shadow;
    let mut queue: BTreeSet<(Micros, u64, Next)> = (0..PEOPLE)
        .map(|person| (arrives(person), person, Next::Asks))
        .collect();
    let mut waits = vec![None; usize::try_from(PEOPLE).unwrap()];
    while let Some((at, person, next)) = queue.pop_first() {
        if next == Next::IsIn {
            world.apply(GuardOp::LoginSuccess, &facts(person), at);
            let wait = at.since(arrives(person)) - FACTOR;
            waits[usize::try_from(person).unwrap()] = Some(wait);
            continue;
        }
        let answer = world.apply(GuardOp::LoginCheck, &facts(person), at).answer;
        let back = at.plus(answer.retry_after.unwrap_or(1) * SECOND);
        if shadow || answer.outcome == Outcome::Allow {
            queue.insert((at.plus(FACTOR), person, Next::IsIn));
        } else if back.since(starts) < 8 * HOUR {
            queue.insert((back, person, Next::Asks));
        }
    }
    waits
}

fn row(name: &str, waits: &[Option<u64>]) -> String {
    let within = |time: u64| waits.iter().flatten().filter(|wait| **wait <= time).count();
    format!(
        "| {name} | {} | {} | {} |\n",
        within(0),
        within(5 * MINUTE),
        within(8 * HOUR)
    )
}

#[test]
fn the_first_day_of_enforcement_with_and_without_a_week_of_shadow() {
    let mut cold = World::default();
    let without = morning(&mut cold, START);

    let mut warm = World::default();
    warm.policy.login.mode = GuardMode::Shadow;
    for day in 0..5 {
        let waits = morning(&mut warm, START.plus(day * DAY));
        assert!(
            waits.iter().all(|wait| *wait == Some(0)),
            "shadow refuses nobody"
        );
    }
    warm.policy.login.mode = GuardMode::Enforce;
    let with = morning(&mut warm, START.plus(7 * DAY));

    assert!(
        with.iter().all(|wait| *wait == Some(0)),
        "everybody is known"
    );
    assert!(without.iter().any(|wait| *wait != Some(0)));
    let table = format!(
        "| of 60 people | in at once | in within 5 min | in on the same day |\n\
         | --- | --- | --- | --- |\n{}{}",
        row("enforced from the first day", &without),
        row("enforced after a week of shadow", &with)
    );
    section_is("rollout", &table);
}
