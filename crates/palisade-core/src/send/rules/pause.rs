//! S-PAUSE: one send per destination in a while, longer while nobody enters the code.

use crate::decision::KeyKind;
use crate::guard::Candidate;
use crate::rule::Rule;
use crate::send::evaluate::SendCommand;

/// Doublings that any configured pause needs to reach its longest.
const DOUBLINGS_MAX: u32 = 20;

/// Asks for a pause after the last send, which doubles with each send that was not verified.
pub(in crate::send) fn judge(command: &SendCommand<'_>) -> Option<Candidate> {
    let destination = &command.records.destination;
    let last = destination.sends.last()?.at;
    let doublings = destination.unverified.saturating_sub(1).min(DOUBLINGS_MAX);
    let pause = (command.policy.pause << doublings).min(command.policy.pause_max);
    let left = last.plus(pause).since(command.now);
    (left > 0).then(|| super::soft(Rule::S_PAUSE, KeyKind::Destination, left))
}

#[cfg(test)]
mod tests {
    use crate::send::world::{ALLOW, World, expect, proves, soft};
    use crate::time::{DAY, MINUTE, SECOND};

    const NUMBER: &str = "+34600123456";

    #[test]
    fn s_pause_doubles_with_each_send_that_is_not_verified() {
        proves("S-PAUSE", |world| {
            world.policy.destination_hour = 32;
            world.policy.destination_day = 32;
            for pause in [30, 60, 120, 240, 480, 600, 600] {
                expect("sent", world.send(NUMBER), ALLOW)?;
                expect("again", world.send(NUMBER), soft("S-PAUSE", pause))?;
                world.wait((pause - 1) * SECOND);
                expect("nearly over", world.send(NUMBER), soft("S-PAUSE", 1))?;
                world.wait(SECOND);
            }
            Ok(())
        });
    }

    #[test]
    fn s_pause_is_that_of_a_first_send_after_a_verification_and_after_a_day() {
        proves("S-PAUSE", |world| {
            for _ in 0..3 {
                expect("sent", world.send(NUMBER), ALLOW)?;
                world.wait(5 * MINUTE);
            }
            assert!(world.verify(NUMBER));
            for rest in [DAY, 0] {
                expect("sent", world.send(NUMBER), ALLOW)?;
                expect("again", world.send(NUMBER), soft("S-PAUSE", 30))?;
                world.wait(rest);
            }
            Ok(())
        });
    }

    #[test]
    fn s_pause_yields_to_a_challenge_and_concerns_no_other_destination() {
        proves("S-PAUSE", |world| {
            expect("sent", world.send(NUMBER), ALLOW)?;
            expect("another", world.send("+34600123457"), ALLOW)?;
            expect(
                "again",
                world.send("0034 600 12 34 56"),
                soft("S-PAUSE", 30),
            )?;
            world.challenge_passed = true;
            expect("challenge passed", world.send(NUMBER), ALLOW)
        });
    }

    #[test]
    fn g_once_a_send_that_is_asked_for_again_is_counted_once() {
        let mut world = World::default();
        for _ in 0..3 {
            let given = world.send_by("10.0.0.1", None, NUMBER, Some("r1"));
            assert_eq!(given, ALLOW);
        }
        let given = world.send_by("10.0.0.1", None, NUMBER, Some("r2"));
        assert_eq!(given, soft("S-PAUSE", 30), "the pause of a first send");
    }
}
