//! G-EQUILIBRIUM: repeated SOFT blocks end in a HARD one.

use crate::decision::KeyKind;
use crate::facts::Attempt;
use crate::guard::command::Command;
use crate::guard::ladder::{Class, Issuer, Memory};
use crate::guard::records::account::SoftIssue;
use crate::rule::Rule;

use super::owner_lane;

/// G-EQUILIBRIUM: after three SOFT blocks issued in six hours the next failure is HARD L2 on the
/// account (K4); always L2, so that it cannot climb. In the owner's lane the block is on the
/// device (K5) instead, and only SOFT blocks that known devices caused count.
pub(in crate::guard) fn judge(command: &mut Command<'_>) {
    let policy = &command.flow.equilibrium;
    let lane = owner_lane::is_open(command);
    let counts = |soft: &&SoftIssue| {
        let recent = command.now.since(soft.at) < policy.window;
        recent && (!lane || soft.issuer == Issuer::Familiar)
    };
    let issued = command.account.soft_blocks.iter().filter(counts).count();
    if command.attempt == Attempt::Failure && issued >= policy.soft_blocks as usize {
        let rule = Rule::G_EQUILIBRIUM;
        let key = match lane {
            true => KeyKind::AccountDevice,
            false => KeyKind::Account,
        };
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

        #[test]
        fn g_equilibrium_counts_only_what_was_answered_soft() proves "G-EQUILIBRIUM" {"
            0 x2/1h otp.fail d=me+known => soft L1 15s
            110m x5/1s fail a=a# d=e#+known user=bob => allow
            2h     otp.fail d=me+known user=bob => deny 300s A-WINDOW
            3h     otp.fail d=me+known => soft L1 15s
            4h     otp.fail d=me+known => hard L2 60s G-EQUILIBRIUM
        "}
    }
}
