//! G-SCORE-…: the points of a failure. They are added whatever block is running.

use crate::decision::KeyKind;
use crate::guard::command::Command;
use crate::rule::Rule;

/// G-SCORE-KNOWN: a known device's failure counts on that device (K5).
pub(in crate::guard) fn known(command: &mut Command<'_>) {
    if command.known && command.fingerprint.is_some() {
        let points = command.flow.scores.known;
        hit(command, Rule::G_SCORE_KNOWN, KeyKind::AccountDevice, points);
    }
}

/// G-SCORE-NEW: the failure of a device that the account does not know counts on the
/// account (K4), so that changing devices gains nothing.
pub(in crate::guard) fn new(command: &mut Command<'_>) {
    if !command.known && command.fingerprint.is_some() {
        let points = command.flow.scores.new;
        hit(command, Rule::G_SCORE_NEW, KeyKind::Account, points);
    }
}

/// G-SCORE-MISSING: a failure without a fingerprint counts on prefix and user agent
/// (K2).
pub(in crate::guard) fn missing(command: &mut Command<'_>) {
    if command.fingerprint.is_none() {
        let points = command.flow.scores.missing;
        hit(command, Rule::G_SCORE_MISSING, KeyKind::PrefixAgent, points);
    }
}

/// G-SCORE-REPEAT-MISSING: the account's previous failure had no fingerprint either:
/// this one counts on the account (K4) as well.
pub(in crate::guard) fn repeat_missing(command: &mut Command<'_>) {
    if command.fingerprint.is_none() && missing_lately(command) {
        let rule = Rule::G_SCORE_REPEAT_MISSING;
        let points = command.flow.scores.repeat_missing;
        hit(command, rule, KeyKind::Account, points);
    }
}

/// True if the account's previous failure had no fingerprint either and is recent enough for
/// another one to repeat it.
pub(super) fn missing_lately(command: &Command<'_>) -> bool {
    let window = command.flow.scores.repeat_missing_window;
    let last = command.account.last_failure;
    last.is_some_and(|last| last.missing && command.now.since(last.at) <= window)
}

fn hit(command: &mut Command<'_>, rule: Rule, key: KeyKind, points: u8) {
    if command.points(rule, key, points) {
        command.hits.push(key);
    }
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_order_a_failure_under_a_hard_block_is_counted_but_observed_nowhere() proves "G-SCORE-NEW" {"
            0 x3/1s fail d=x                => *
            10s x5/1s fail d=y# ip=9        => hard L2 score:K4+3
            62s    fail d=x                 => hard L3 300s
            70s    check a=b1 d=z ip=9      => allow
        "}

        #[test]
        fn g_score_known_failures_count_on_the_device() proves "G-SCORE-KNOWN" {"
            0 x2/1s fail d=home+known  => allow score:K5+2
            2s     fail d=home+known   => soft L1 15s G-THRESHOLD
            3s     check d=other       => allow
            20s    fail d=home+known   => hard L2 60s
        "}

        #[test]
        fn g_score_new_failures_count_on_the_account() proves "G-SCORE-NEW" {"
            0      fail d=d1           => allow score:K4+3
            1s     fail d=d2 ip=2      => soft L1 15s
            2s     check d=d3 ip=3     => soft L1 14s
        "}

        #[test]
        fn g_score_missing_throttles_only_clients_without_a_fingerprint() proves "G-SCORE-MISSING" {"
            0      fail a=a1           => allow score:K2+4
            1s     fail a=a2           => soft L2 60s G-THRESHOLD
            2s     check a=a3          => soft L2 59s
            3s     check a=a3 d=d1     => allow
            3s     check a=a3 ua=99    => allow
            61s    fail a=a4           => soft L3 300s
        "}

        #[test]
        fn g_score_repeat_missing_counts_on_the_account() proves "G-SCORE-REPEAT-MISSING" {"
            0      fail                => allow
            30m    fail ip=2           => soft L1 15s score:K4+6
            31m    fail a=b            => allow
            61m1us fail a=b ip=3       => allow
            62m    fail a=c ip=4       => allow
            63m    fail a=c ip=4 d=d1  => allow
            64m    fail a=c ip=5       => allow
        "}
    }
}
