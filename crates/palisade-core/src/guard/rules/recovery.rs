//! G-RECOVERY: an attacker cannot prepare nine failures so that the owner's tenth activates the
//! budget.

use crate::guard::command::Command;
use crate::guard::records::budget::BudgetEffect;
use crate::rule::Rule;

use super::owner_lane;

/// G-RECOVERY: the OTP failure that would use the budget up, by a known device or one of HIGH
/// confidence, is answered SOFT L2 once instead; the next one activates the budget.
pub(in crate::guard) fn answer(command: &mut Command<'_>) {
    let recovers =
        command.counted == BudgetEffect::Recovered && !owner_lane::frees_from_budget(command);
    if let Some(level) = command.flow.budget.recovery.filter(|_| recovers) {
        command.soft_answer(Rule::G_RECOVERY, level);
    }
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_recovery_puts_the_otp_budget_off_once() proves "G-RECOVERY" {"
            0 x9/126m otp.fail d=me+known => soft L1 15s
            18h54m otp.fail d=me+known => soft L2 60s G-RECOVERY
            21h    otp.fail d=me+known => soft L4 1800s G-BUDGET
            21h5s  otp.ok d=me+known   => allow
            23h1m  otp.check d=me+known => allow
            1d1m   otp.fail d=me+known => soft L1 15s
        "}

        #[test]
        fn g_recovery_is_given_again_after_the_count_has_fallen() proves "G-RECOVERY" {"
            0 x9/2h otp.fail d=me+known => soft L1 15s
            18h    otp.fail d=me+known => soft L2 60s G-RECOVERY
            1d     otp.fail d=me+known => soft L2 60s G-RECOVERY
            1d1h1s otp.fail d=me+known => soft L4 1800s G-BUDGET
        "}

        #[test]
        fn g_recovery_is_not_for_strangers() proves "G-BUDGET" {"
            0 x9/126m otp.fail d=x     => soft L1 15s
            18h54m otp.fail d=x        => soft L4 1800s G-BUDGET
        "}
    }
}
