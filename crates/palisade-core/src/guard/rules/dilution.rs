//! G-DILUTION: one fingerprint shows up on many prefixes.

use crate::decision::KeyKind;
use crate::facts::Confidence;
use crate::guard::command::Command;
use crate::rule::Rule;

/// G-DILUTION: one fingerprint on six prefixes within a ten-minute window. A LOW fingerprint,
/// which many devices share, leads to HARD on prefix and user agent (K2); a stronger one to HARD
/// on the device, once the window before met the threshold too.
pub(in crate::guard) fn judge(command: &mut Command<'_>) {
    let Some(found) = command.fingerprint.filter(|_| command.is_observed()) else {
        return;
    };
    // A device that found no room gets no record either: a flood of checks with ever new
    // fingerprints would leave one key each.
    let room = command.arrival.is_some_and(|arrival| arrival.room);
    if !room && !command.device.exists() {
        return;
    }
    let policy = &command.flow.correlation;
    let before = command.device.clone();
    let prefix = &command.signals.prefix;
    let spread = command
        .device
        .see(policy, found.confidence, prefix, command.now);
    command.trace.changed.device |= before != *command.device;
    let level = policy.dilution.level;
    if found.confidence == Confidence::Low {
        let key = KeyKind::PrefixAgent;
        command.issue_hard(Rule::G_DILUTION, key, level, spread.reach);
    } else if spread.confirmed {
        command.issue_hard(Rule::G_DILUTION, KeyKind::Device, level, spread.reach);
    }
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_dilution_a_passive_fingerprint_blocks_the_prefix_and_user_agent() proves "G-DILUTION" {"
            0 x5/1s check a=d# d=p/low ip=4#  => allow
            5s     check a=d5 d=p/low ip=45   => hard L2 60s G-DILUTION
            6s     check a=d0 d=p/low ip=40   => allow
            7s     check a=d6 d=p/low ip=46   => hard L2 60s G-DILUTION
        "}

        #[test]
        fn g_dilution_a_stronger_fingerprint_needs_a_second_window() proves "G-DILUTION" {"
            0 x8/1s check a=d# d=m ip=4#      => allow
            10m x4/1s check a=e# d=m ip=5#    => allow
            10m5s  check a=e5 d=m ip=55       => hard L2 60s G-DILUTION +G-WATCH
            10m6s  check a=z d=m+known ip=99  => hard L2 59s G-DILUTION
            50m x7/1s check a=f# d=m ip=6#    => allow
        "}

        #[test]
        fn g_dilution_hovering_one_below_is_confirmed_in_the_third_window() proves "G-DILUTION" {"
            0 x5/1s check a=d# d=m ip=4#      => allow
            10m x5/1s check a=e# d=m ip=5#    => allow
            20m x4/1s check a=f# d=m ip=6#    => allow
            20m5s  check a=g d=m ip=70        => hard L2 60s G-DILUTION +G-WATCH
            20m6s  check a=z d=m+known ip=99  => hard L2 59s G-DILUTION
        "}

        #[test]
        fn g_dilution_the_window_is_aligned_to_the_clock() proves "G-DILUTION" {"
            9m57s x3/1s check a=d# d=p/low ip=4# => allow
            10m    x5/1s check a=e# d=p/low ip=5# => allow
            10m6s  check a=f d=p/low ip=60    => hard L2 60s G-DILUTION
            20m    x4/1s check a=g# d=p/low ip=7# => allow
            20m5s  check a=h d=p/low ip=80    => hard L2 60s G-DILUTION +G-WATCH
        "}
    }
}
