//! G-EQUILIBRIUM: nobody lives comfortably between SOFT blocks.

use crate::decision::KeyKind;
use crate::facts::Attempt;
use crate::guard::command::Command;
use crate::guard::ladder::{Class, Memory};
use crate::guard::records::sets::count_recent;
use crate::rule::Rule;

/// G-EQUILIBRIUM: after three SOFT blocks issued in six hours the next failure is HARD
/// L2 on the account (K4); always L2, so that it cannot climb.
pub(in crate::guard) fn judge(command: &mut Command<'_>) {
    let policy = &command.flow.equilibrium;
    let issued = count_recent(&command.account.soft_blocks, policy.window, command.now);
    if command.attempt == Attempt::Failure && issued >= policy.soft_blocks as usize {
        let (key, rule) = (KeyKind::Account, Rule::G_EQUILIBRIUM);
        command.order(key, Class::Hard, policy.level, rule, Memory::Leave);
    }
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_equilibrium_ends_repeated_soft_blocks_and_never_climbs() proves "G-EQUILIBRIUM" {"
            0 x3/1h otp.fail d=me+known => soft L1 15s
            3h     otp.check d=me+known => allow
            3h1s   otp.fail d=me+known => hard L2 60s G-EQUILIBRIUM
            3h30s  otp.check d=other   => hard L2 31s
            4h     otp.fail d=me+known => hard L2 60s G-EQUILIBRIUM
            5h     otp.fail d=me+known => hard L2 60s G-EQUILIBRIUM
            8h1s   otp.fail d=me+known => soft L1 15s
        "}
    }
}
