//! S-IP: how often one address prefix sends in an hour, and to how many destinations in a day.

use crate::decision::KeyKind;
use crate::guard::Candidate;
use crate::rule::Rule;
use crate::send::evaluate::SendCommand;
use crate::time::{DAY, HOUR};

/// Refuses beyond either figure. A destination that the prefix sent to within the day is none more.
pub(in crate::send) fn judge(command: &SendCommand<'_>) -> Option<Candidate> {
    let (policy, now) = (command.policy, command.now);
    let network = &command.records.network;
    let sends = super::wait(network.sends.iter().copied(), policy.ip_hour, HOUR, now);
    let others = network
        .others(&command.signals.destination, now)
        .unwrap_or_default();
    let distinct = super::wait(others.into_iter(), policy.ip_destinations_day, DAY, now);
    let wait = sends.max(distinct)?;
    Some(super::hard(Rule::S_IP, KeyKind::Prefix, wait))
}

#[cfg(test)]
mod tests {
    use crate::send::world::{ALLOW, SendAnswer, World, expect, hard, proves};
    use crate::time::{HOUR, MINUTE};

    fn send(world: &mut World, ip: &str, n: u32) -> SendAnswer {
        world.send_by(ip, None, &format!("+3460012{n:04}"), None)
    }

    #[test]
    fn s_ip_ten_in_an_hour_of_a_prefix() {
        proves("S-IP", |world| {
            for n in 0..10 {
                let ip = format!("2001:db8::{n}");
                expect("sent", send(world, &ip, n), ALLOW)?;
                world.wait(MINUTE);
            }
            let refused = hard("S-IP", 50 * 60);
            expect("eleventh", send(world, "2001:db8::ffff", 10), refused)?;
            expect("another prefix", send(world, "2001:db8:0:1::1", 10), ALLOW)
        });
    }

    #[test]
    fn s_ip_twenty_distinct_destinations_in_a_day() {
        proves("S-IP", |world| {
            for n in 0..20 {
                expect("sent", send(world, "10.0.0.1", n), ALLOW)?;
                world.wait(10 * MINUTE);
            }
            // The first of them was sent to 200 minutes ago.
            let left = (24 * 60 - 200) * 60;
            expect(
                "another one",
                send(world, "10.0.0.1", 20),
                hard("S-IP", left),
            )?;
            expect("one of them", send(world, "10.0.0.1", 19), ALLOW)?;
            world.wait(21 * HOUR);
            expect("a day after the first", send(world, "10.0.0.1", 20), ALLOW)
        });
    }
}
