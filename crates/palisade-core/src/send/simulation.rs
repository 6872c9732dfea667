//! A day of pumping, with the rules and without them: the figures of docs/send-budgets.md.
//!
//! `cargo test -p palisade-core --lib send::simulation -- --nocapture` prints them.

use super::Rules;
use super::world::World;
use crate::decision::Outcome;
use crate::time::SECOND;

/// Sends of one day.
#[derive(Debug, Default)]
struct Day {
    /// Sent to numbers of the attacker.
    pumped: u32,
    /// Sent to people.
    people: u32,
    /// People asked for a challenge.
    challenged: u32,
    /// People refused.
    refused: u32,
}

/// Whether the attacker solves challenges.
#[derive(Clone, Copy, PartialEq)]
enum Attacker {
    Script,
    SolverFarm,
}

/// Sixty people an hour, nine of ten enter their code; from the second hour on somebody has 600
/// messages an hour sent to new numbers of one prefix, from 500 addresses in turn, for ten hours.
fn day(rules: Option<&[&str]>, ranges: &[&str], attacker: Attacker) -> Day {
    let mut world = World::ranges(ranges);
    let kept = |id: &str| rules.is_none_or(|rules| rules.contains(&id));
    let steps = super::RULES.0.iter().filter(|(id, _)| kept(id));
    world.rules = Rules(steps.copied().collect());
    let mut day = Day::default();
    for tick in 0..24 * 600_u32 {
        world.wait(6 * SECOND);
        let hour = tick / 600;
        if (1..11).contains(&hour) {
            let ip = format!("198.{}.{}.1", 18 + tick % 2, tick % 250);
            let number = format!("+34600{tick:06}");
            world.challenge_passed = attacker == Attacker::SolverFarm;
            let given = world.send_by(&ip, None, &number, None);
            day.pumped += u32::from(given.0 == Outcome::Allow);
        }
        if tick % 10 == 5 {
            person(&mut world, tick, &mut day);
        }
    }
    day
}

/// A person of another prefix, on an address of his own, who solves the challenge that is asked for.
fn person(world: &mut World, tick: u32, day: &mut Day) {
    let (ip, number) = (
        format!("10.{}.{}.2", tick / 250 % 250, tick % 250),
        format!("+34711{tick:06}"),
    );
    world.challenge_passed = false;
    let mut given = world.send_by(&ip, None, &number, None);
    if given.0 == Outcome::SoftBlock {
        day.challenged += 1;
        world.challenge_passed = true;
        given = world.send_by(&ip, None, &number, None);
    }
    match given.0 {
        Outcome::Allow => day.people += 1,
        _ => day.refused += 1,
    }
    if tick % 100 != 5 {
        world.verify(&number);
    }
}

#[test]
fn s_range_pumping_is_cut_short_and_people_are_not_locked_out() {
    let limits = ["S-PAUSE", "S-DEST", "S-ACCOUNT", "S-IP"];
    let all = |ranges, attacker| day(None, ranges, attacker);
    let runs = [
        ("no rule", day(Some(&[]), &[], Attacker::Script)),
        ("all but S-RANGE", day(Some(&limits), &[], Attacker::Script)),
        ("all rules", all(&[], Attacker::Script)),
        ("all rules, solver farm", all(&[], Attacker::SolverFarm)),
        ("prefix named", all(&["+34600"], Attacker::Script)),
        (
            "prefix named, solver farm",
            all(&["+34600"], Attacker::SolverFarm),
        ),
    ];
    for (what, day) in &runs {
        println!("{what}: {day:?}");
    }
    let [none, limits, all, farm, named, named_farm] = runs.map(|(_, day)| day);
    assert_eq!(none.pumped, 6_000);
    assert!(all.pumped * 5 <= none.pumped * 2, "{all:?}");
    assert!(all.pumped * 2 <= limits.pumped, "{all:?} {limits:?}");
    assert!(named.pumped * 4 <= none.pumped, "{named:?}");
    assert!(
        named_farm.pumped * 4 <= farm.pumped,
        "{named_farm:?} {farm:?}"
    );
    for day in [none, limits, all, farm, named, named_farm] {
        assert_eq!((day.people, day.refused), (1_440, 0));
    }
}
