//! S-DEST: how often one destination is sent to in an hour and in a day.

use crate::decision::KeyKind;
use crate::guard::Candidate;
use crate::rule::Rule;
use crate::send::evaluate::SendCommand;
use crate::time::{DAY, HOUR};

/// Refuses beyond the figures, which are twice as high for a device that the account knows.
pub(in crate::send) fn judge(command: &SendCommand<'_>) -> Option<Candidate> {
    let times = if command.signals.known { 2 } else { 1 };
    let wait = wait_beyond(command, times)?;
    Some(super::hard(Rule::S_DEST, KeyKind::Destination, wait))
}

/// True if the figures refuse a stranger and would not refuse a known device: only then it matters
/// whether the account knows the device.
pub(in crate::send) fn depends_on_device(command: &SendCommand<'_>) -> bool {
    !command.signals.known && wait_beyond(command, 1).is_some() && wait_beyond(command, 2).is_none()
}

fn wait_beyond(command: &SendCommand<'_>, times: u32) -> Option<u64> {
    let policy = command.policy;
    let sends = || command.records.destination.sends.iter().map(|one| one.at);
    let hour = super::wait(sends(), policy.destination_hour * times, HOUR, command.now);
    let day = super::wait(sends(), policy.destination_day * times, DAY, command.now);
    hour.max(day)
}

#[cfg(test)]
mod tests {
    use crate::send::world::{ALLOW, World, expect, hard, proves};
    use crate::time::{HOUR, MINUTE};

    const NUMBER: &str = "+34600123456";

    fn send(world: &mut World, count: usize) -> Result<(), String> {
        for _ in 0..count {
            expect("sent", world.send(NUMBER), ALLOW)?;
            world.wait(10 * MINUTE);
        }
        Ok(())
    }

    #[test]
    fn s_dest_five_in_an_hour_and_ten_in_a_day() {
        proves("S-DEST", |world| {
            send(world, 5)?;
            expect("sixth", world.send(NUMBER), hard("S-DEST", 600))?;
            world.challenge_passed = true;
            expect(
                "no challenge helps",
                world.send(NUMBER),
                hard("S-DEST", 600),
            )?;
            world.wait(HOUR);
            send(world, 5)?;
            world.wait(HOUR);
            // The first send was five times ten minutes, an hour, as much again, and an hour ago.
            let left = (24 * 60 - 50 - 60 - 50 - 60) * 60;
            expect("eleventh", world.send(NUMBER), hard("S-DEST", left))
        });
    }

    #[test]
    fn s_dest_a_refused_send_costs_nothing() {
        proves("S-DEST", |world| {
            send(world, 5)?;
            for _ in 0..50 {
                expect("sixth", world.send(NUMBER), hard("S-DEST", 600))?;
            }
            world.wait(10 * MINUTE);
            send(world, 1)
        });
    }

    #[test]
    fn s_dest_is_twice_as_high_for_a_known_device() {
        proves("S-DEST", |world| {
            world.policy.pause = 0;
            world.known = true;
            for _ in 0..10 {
                expect("sent", world.send(NUMBER), ALLOW)?;
            }
            expect("eleventh", world.send(NUMBER), hard("S-DEST", 3600))
        });
    }
}
