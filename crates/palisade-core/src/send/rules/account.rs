//! S-ACCOUNT: how often one account's destinations are sent to in an hour.

use crate::decision::KeyKind;
use crate::guard::Candidate;
use crate::rule::Rule;
use crate::send::evaluate::SendCommand;
use crate::time::HOUR;

/// Refuses beyond the figure. A send without an account has none.
pub(in crate::send) fn judge(command: &SendCommand<'_>) -> Option<Candidate> {
    command.signals.account?;
    let sends = command.records.account.sends.iter().copied();
    let wait = super::wait(sends, command.policy.account_hour, HOUR, command.now)?;
    Some(super::hard(Rule::S_ACCOUNT, KeyKind::Account, wait))
}

#[cfg(test)]
mod tests {
    use crate::send::world::{ALLOW, World, expect, hard, proves};
    use crate::time::MINUTE;

    fn send(world: &mut World, account: &str, n: u32) -> crate::send::world::SendAnswer {
        let (ip, number) = (format!("10.1.0.{n}"), format!("+3460012345{n}"));
        world.send_by(&ip, Some(account), &number, None)
    }

    #[test]
    fn s_account_five_in_an_hour_to_whatever_destinations() {
        proves("S-ACCOUNT", |world| {
            for n in 0..5 {
                expect("sent", send(world, "a1", n), ALLOW)?;
                world.wait(MINUTE);
            }
            expect("sixth", send(world, "a1", 6), hard("S-ACCOUNT", 55 * 60))?;
            expect("another account", send(world, "a2", 6), ALLOW)?;
            world.wait(55 * MINUTE);
            expect("an hour after the first", send(world, "a1", 7), ALLOW)
        });
    }
}
