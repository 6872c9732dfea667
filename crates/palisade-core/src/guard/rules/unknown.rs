//! G-UNKNOWN: guesses are not free where an application fails on wrong passwords.

use crate::facts::Attempt;
use crate::guard::command::Command;
use crate::guard::rules::pending;

/// G-UNKNOWN: an unknown outcome (the application failed, or did not answer) ends the pending
/// attempt. The third one of a stranger within ten minutes, and each further one, counts as a
/// failure. Returns the outcome that the attempt is judged by.
pub(in crate::guard) fn weigh(command: &mut Command<'_>) -> Attempt {
    if !command.known {
        command.trace.changed.account = true;
        if command.account.unknown.note(command.now) {
            return Attempt::Failure;
        }
    }
    pending::end(command);
    Attempt::Unknown
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_unknown_the_third_of_a_stranger_and_each_further_one_is_a_failure() proves "G-UNKNOWN" {"
            0      unknown d=d1        => allow -G-THRESHOLD
            1m     unknown d=d2 ip=2   => allow
            2m     unknown d=d1        => allow score:K4+3
            3m     unknown d=d1        => soft L1 15s G-THRESHOLD score:K4+3
            3m1s   check d=d3 ip=3     => soft L1 14s
        "}

        #[test]
        fn g_unknown_is_forgotten_after_ten_minutes() proves "G-UNKNOWN" {"
            0      unknown d=d1        => allow
            5m     unknown d=d1        => allow
            10m    unknown d=d1        => allow
            14m    unknown d=d1        => allow score:K4+3
            30m    unknown d=d1        => allow
        "}

        #[test]
        fn g_unknown_ends_the_attempt_under_way() proves "G-UNKNOWN" {"
            0      check d=d1 id=p1    => allow
            1s     unknown d=d1 id=p1  => allow
            1s     check d=d1 id=p2    => allow
            2s     unknown d=d1 id=p2  => allow
            2s     check d=d1 id=p3    => allow
            3s     unknown d=d1 id=p3  => allow score:K4+3
        "}

        #[test]
        fn g_unknown_counts_for_the_lockout_as_a_failure_does() proves "G-UNKNOWN" {"
            0 x2/1s unknown d=d1 user=ann    => allow delay=0
            2s      unknown d=d1 user=ann    => allow delay=250
        "}
    }

    #[test]
    fn g_unknown_of_a_known_device_scores_nothing() {
        let script = "
            0 x5/1s unknown d=me+known  => allow
            5s      check d=me+known    => allow
            6s      unknown d=x         => allow
            7s      unknown d=x         => allow
        ";
        crate::support::script::check(&mut crate::support::World::default(), script).unwrap();
    }
}
