//! G-SPRAY: one prefix tries many accounts.

use crate::decision::{KeyKind, Level};
use crate::guard::command::Command;
use crate::guard::records::sets::Sight;
use crate::rule::Rule;

use super::watch::Reach;

/// G-SPRAY: five accounts from one prefix in ten minutes: HARD on the prefix (K1), L2
/// or higher. The block adds points to the prefix (G-SCORE-SPRAY), which raise the
/// next one.
pub(in crate::guard) fn judge(command: &mut Command<'_>) {
    let Some(account) = command.signals.account.filter(|_| command.is_observed()) else {
        return;
    };
    let (policy, now) = (&command.flow.correlation, command.now);
    let window = policy.spray.window;
    command.trace.changed.network = true;
    let accounts = &mut command.network.accounts;
    accounts.0.retain(|member| now.since(member.last) < window);
    if accounts.see(&account, window, now, now) == Sight::Again {
        return;
    }
    let metric = accounts.live(window, now);
    let watch = &mut command.network.spray_watch;
    let threshold = policy.spray.threshold;
    let reach = Reach::of(metric, threshold, watch, policy.watch_window, now);
    let severe = command.score(KeyKind::Prefix) >= command.flow.thresholds.spray_severe;
    let level = match severe {
        true => policy.spray.level.max(Level::L3),
        false => policy.spray.level,
    };
    if command.issue_hard(Rule::G_SPRAY, KeyKind::Prefix, level, reach) {
        let points = command.flow.scores.spray;
        command.points(Rule::G_SCORE_SPRAY, KeyKind::Prefix, points);
    }
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_score_spray_adds_to_the_prefix() proves "G-SCORE-SPRAY" {"
            0 x4/1s check a=s# d=x     => allow
            4s     check a=s4 d=x      => hard G-SPRAY score:K1+5
        "}

        #[test]
        fn g_spray_five_accounts_from_one_prefix_block_the_prefix() proves "G-SPRAY" {"
            0 x4/1s check a=s# d=x     => allow
            4s     check a=s4 d=x      => hard L2 60s G-SPRAY
            5s     check a=s0 d=own+known => hard L2 59s
            5s     check a=s0 d=own+known ip=2 => allow
            65s    check a=s1 d=x      => allow
            66s    check a=s5 d=x      => hard L3 300s G-SPRAY
        "}

        #[test]
        fn g_spray_colleagues_who_log_in_are_none() proves "G-SPRAY" {"
            0      check a=e0 d=pc0    => allow
            1s     ok a=e0 d=pc0       => allow
            2s     check a=e1 d=pc1    => allow
            3s     ok a=e1 d=pc1       => allow
            4s     check a=e2 d=pc2    => allow
            5s     ok a=e2 d=pc2       => allow
            6s     check a=e3 d=pc3    => allow
            7s     ok a=e3 d=pc3       => allow
            8s     check a=e4 d=pc4    => allow
            9s     ok a=e4 d=pc4       => allow
            10s    check a=e0 d=pc0    => allow nothing
            20s x4/1s check a=m# d=x   => allow
            25s    ok a=m0 d=x         => allow
            26s    check a=m5 d=x      => hard G-SPRAY +G-WATCH
        "}
    }
}
