//! S-RANGE: a range whose codes nobody enters is being pumped.
//!
//! Somebody who earns from the termination of messages has them sent to many numbers of a range
//! that he shares in, from many addresses. What he cannot do is to enter the codes.

use crate::decision::KeyKind;
use crate::guard::Candidate;
use crate::rule::Rule;
use crate::send::evaluate::SendCommand;
use crate::send::policy::RangePolicy;
use crate::send::records::range::{RangeCounts, minute_of};
use crate::time::{MINUTE, Micros};

/// Asks new destinations of a pumped range for a challenge, or refuses them. A destination that was
/// verified lately is exempt: nobody can lock a person out.
pub(in crate::send) fn judge(command: &SendCommand<'_>) -> Option<Candidate> {
    let (policy, now) = (&command.policy.range, command.now);
    let destination = &command.records.destination;
    if destination.is_verified(policy.exempt_for, now) {
        return None;
    }
    let ranges = command.signals.ranges.iter().zip(command.counts);
    let candidates = ranges.filter_map(|(range, counts)| {
        let hard = Figure {
            sends: policy.hard_sends,
            percent: policy.hard_percent,
        };
        // A whole country is never refused.
        let refused = held(policy, hard, counts, now).filter(|_| !range.is_wide);
        let soft = Figure {
            sends: policy.soft_sends,
            percent: policy.soft_percent,
        };
        refused
            .map(|wait| super::hard(Rule::S_RANGE, KeyKind::Range, wait))
            .or_else(|| {
                let wait = held(policy, soft, counts, now)?;
                Some(super::soft(Rule::S_RANGE, KeyKind::Range, wait))
            })
    });
    candidates.max_by_key(|one| (one.outcome, one.retry_after))
}

/// Sends from which a range is judged, and the percentage of them that must be verified.
#[derive(Clone, Copy)]
struct Figure {
    sends: u32,
    percent: u32,
}

impl Figure {
    fn is_met(self, (sends, verified): (u64, u64)) -> bool {
        self.sends > 0
            && sends >= u64::from(self.sends)
            && verified.saturating_mul(100) < sends.saturating_mul(u64::from(self.percent))
    }
}

/// The remaining time of a hold, if one is running. It starts with the first minute in which the
/// figure is met, lasts its time, and starts anew if the figure is met then.
///
/// Nothing is written when a hold starts: the minutes of two holds back say when it did, on every
/// node alike.
fn held(policy: &RangePolicy, figure: Figure, counts: &RangeCounts, now: Micros) -> Option<u64> {
    let minutes = |us: u64| us.div_ceil(MINUTE);
    let (window, hold) = (minutes(policy.window), minutes(policy.hold));
    let this = minute_of(now);
    let mut until = None;
    for minute in this.saturating_sub(2 * hold)..=this {
        // Sends of this minute and later may still be verified.
        let end = minute.saturating_sub(minutes(policy.verify_within));
        if until.is_some_and(|until| minute < until) {
            continue;
        }
        let is_met = figure.is_met(counts.within(end.saturating_sub(window), end));
        until = is_met.then_some(minute + hold);
    }
    let ends = Micros(until? * MINUTE);
    Some(ends.since(now).max(1))
}

#[cfg(test)]
mod tests {
    use crate::decision::Outcome;
    use crate::send::world::{ALLOW, World, expect, proves};
    use crate::time::{DAY, HOUR, MINUTE};

    const FRESH: &str = "+34611000001";

    fn outcome_of(given: crate::send::world::SendAnswer) -> (Outcome, Option<&'static str>) {
        (given.0, given.1)
    }

    const SOFT: (Outcome, Option<&str>) = (Outcome::SoftBlock, Some("S-RANGE"));
    const HARD: (Outcome, Option<&str>) = (Outcome::HardBlock, Some("S-RANGE"));
    const PASS: (Outcome, Option<&str>) = (Outcome::Allow, None);

    #[test]
    fn s_range_thirty_sends_that_nobody_verifies_ask_for_a_challenge_for_an_hour() {
        proves("S-RANGE", |world| {
            assert_eq!(world.pump("+34600", 30, 0), 30);
            world.wait(9 * MINUTE);
            expect(
                "they may be verified yet",
                world.send("+34611000000"),
                ALLOW,
            )?;
            world.wait(2 * MINUTE);
            let (outcome, rule, wait) = world.send(FRESH);
            if (outcome, rule) != SOFT {
                return Err(format!("{outcome:?}"));
            }
            assert!((3_500..=3_600).contains(&wait.unwrap()), "{wait:?}");
            expect("another country", world.send("+49176000000"), ALLOW)?;
            world.challenge_passed = true;
            expect("a challenge was passed", world.send(FRESH), ALLOW)?;
            world.challenge_passed = false;
            world.wait(HOUR);
            expect("an hour later", world.send("+34611000002"), ALLOW)
        });
    }

    #[test]
    fn s_range_judges_from_thirty_sends_on_and_by_the_share_that_is_verified() {
        // 29 sends are too few; of 30, six are 20 %, and five are fewer.
        for (count, verified, wanted) in [(29, 0, PASS), (30, 5, PASS), (30, 6, SOFT)] {
            let mut world = World::default();
            assert_eq!(world.pump("+34600", count, verified), count);
            world.wait(11 * MINUTE);
            assert_eq!(outcome_of(world.send(FRESH)), wanted, "{count} {verified}");
        }
    }

    #[test]
    fn s_range_refuses_a_narrow_range_and_never_a_whole_country() {
        let mut world = World::ranges(&["+34600"]);
        assert_eq!(world.pump("+34600", 100, 0), 100);
        world.wait(11 * MINUTE);
        assert_eq!(outcome_of(world.send("+34600999999")), HARD);
        world.challenge_passed = true;
        assert_eq!(
            outcome_of(world.send("+34600999999")),
            HARD,
            "no challenge helps"
        );
        assert_eq!(
            outcome_of(world.send(FRESH)),
            PASS,
            "the rest of the country has one"
        );
        world.challenge_passed = false;
        assert_eq!(outcome_of(world.send(FRESH)), SOFT, "the country");
    }

    #[test]
    fn s_range_a_mail_domain_is_refused_only_if_the_policy_names_it() {
        for (named, wanted) in [("example.org", SOFT), ("example.com", HARD)] {
            let mut world = World::ranges(&[named]);
            for n in 0..100 {
                assert_eq!(world.send(&format!("u{n}@example.com")), ALLOW);
            }
            world.wait(11 * MINUTE);
            assert_eq!(outcome_of(world.send("new@example.com")), wanted, "{named}");
        }
    }

    /// One address makes no range look pumped, and cannot hide that it is.
    #[test]
    fn s_range_counts_three_sends_of_an_address() {
        let mut world = World::default();
        (world.policy.ip_hour, world.policy.ip_destinations_day) = (0, 0);
        for n in 0..200 {
            let number = format!("+34600{n:06}");
            assert_eq!(world.send_by("10.0.0.1", None, &number, None), ALLOW);
        }
        world.wait(11 * MINUTE);
        assert_eq!(outcome_of(world.send(FRESH)), PASS);

        let mut world = World::default();
        (world.policy.ip_hour, world.policy.ip_destinations_day) = (0, 0);
        world.pump("+34600", 40, 0);
        for n in 0..200 {
            let number = format!("+34622{n:06}");
            world.send_by("10.0.0.1", None, &number, None);
            world.verify(&number);
        }
        world.wait(11 * MINUTE);
        assert_eq!(
            outcome_of(world.send(FRESH)),
            SOFT,
            "verified by one address"
        );
    }

    #[test]
    fn s_range_a_verified_destination_is_exempt_for_thirty_days() {
        let mut world = World::default();
        for (days, wanted) in [(29, PASS), (2, SOFT)] {
            if days == 29 {
                assert_eq!(world.send(FRESH), ALLOW);
                assert!(world.verify(FRESH));
            }
            world.wait(days * DAY);
            world.pump("+34600", 30, 0);
            world.wait(11 * MINUTE);
            // Sent to without a challenge, it is not verified anew.
            assert_eq!(outcome_of(world.send(FRESH)), wanted, "{days}");
        }
    }

    #[test]
    fn s_range_a_success_verifies_the_sends_of_ten_minutes() {
        for (wait, wanted) in [(10 * MINUTE, PASS), (10 * MINUTE + 1, SOFT)] {
            let mut late = World::default();
            let mut numbers = Vec::new();
            for n in 0..30 {
                let number = format!("+34600{n:06}");
                assert_eq!(late.send(&number), ALLOW);
                numbers.push(number);
            }
            late.wait(wait);
            for number in &numbers {
                assert!(late.verify(number));
            }
            late.wait(2 * MINUTE);
            assert_eq!(outcome_of(late.send(FRESH)), wanted, "{wait}");
        }
        let mut world = World::default();
        assert!(!world.verify(FRESH), "nothing was sent to it");
    }

    /// A hold that is still deserved when it ends starts anew.
    #[test]
    fn s_range_holds_for_as_long_as_a_range_is_pumped() {
        let mut world = World::default();
        world.challenge_passed = true;
        for _ in 0..30 {
            world.pump("+34600", 10, 0);
            world.wait(5 * MINUTE);
        }
        world.challenge_passed = false;
        assert_eq!(outcome_of(world.send(FRESH)), SOFT);
        world.wait(3 * HOUR);
        assert_eq!(outcome_of(world.send("+34611000009")), PASS);
    }
}
