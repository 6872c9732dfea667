//! G-CHURN: one browser behind one address keeps changing its fingerprint.

use crate::decision::KeyKind;
use crate::guard::command::Command;
use crate::rule::Rule;

/// G-CHURN: three changes of fingerprint at one prefix and user agent in ten minutes:
/// HARD L2 on them (K2).
pub(in crate::guard) fn judge(command: &mut Command<'_>) {
    let Some(found) = command.fingerprint.filter(|_| command.is_observed()) else {
        return;
    };
    let (policy, now) = (&command.flow.correlation, command.now);
    let agent = command
        .network
        .enter_agent(&command.signals.user_agent, now);
    let reach = agent.see(policy, &found.digest, now);
    let (key, level) = (KeyKind::PrefixAgent, policy.churn.level);
    command.issue_hard(Rule::G_CHURN, key, level, reach);
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_churn_three_changes_block_the_prefix_and_user_agent() proves "G-CHURN" {"
            0      check a=c1 d=f1     => allow
            1s     check a=c2 d=f2     => allow
            2s     check a=c1 d=f1     => allow
            3s     check a=c2 d=f2     => hard L2 60s G-CHURN
            4s     check a=c9 d=f9 ua=124 => allow
            5s     check a=c3 d=f3+known => hard L2 58s G-CHURN
        "}
    }
}
