//! G-FLOOD: an account is filled with new devices.

use crate::decision::KeyKind;
use crate::guard::command::Command;
use crate::guard::ladder::Class;
use crate::rule::Rule;

use super::watch::Reach;

/// G-FLOOD: six fingerprints first seen on one account in 15 minutes: SOFT L1 on the
/// account (K4); each further new one: HARD L2 on itself (K5).
pub(in crate::guard) fn judge(command: &mut Command<'_>) {
    if !command.arrival.is_some_and(|arrival| arrival.newcomer) {
        return;
    }
    let (policy, now) = (&command.flow.correlation, command.now);
    let metric = command.account.recent.recent(policy.flood.window, now);
    let threshold = policy.flood.threshold;
    let watch = &mut command.account.flood_watch;
    let reach = Reach::of(metric, threshold, watch, policy.watch_window, now);
    // The account is throttled already: a device that adds to the flood is blocked itself, and the
    // owner is left alone.
    if metric > threshold as usize {
        let level = policy.flood_device_level;
        command.issue_hard(Rule::G_FLOOD, KeyKind::AccountDevice, level, reach);
    } else {
        let (key, level) = (KeyKind::Account, policy.flood.level);
        command.issue(Rule::G_FLOOD, key, Class::Soft, level, reach);
    }
}

#[cfg(test)]
mod tests {
    use crate::support::{World, script};

    #[test]
    fn g_flood_yields_to_a_challenge_that_the_same_check_passed() {
        let run = |text| {
            let mut world = World::default();
            world.policy.login.correlation.rotation.threshold = 16;
            script::check(&mut world, "0 x5/1s check d=n# ip=1# => allow").unwrap();
            script::check(&mut world, text)
        };
        run("5s check d=n5 ip=20      => soft L1 15s G-FLOOD
             6s check d=me+known ip=3 => soft L1 14s G-FLOOD")
        .unwrap();
        run("5s check d=n5 ip=20 pass => allow
             6s check d=me+known ip=3 => allow")
        .unwrap();
    }

    crate::scenarios::scenarios! {
        #[test]
        fn g_flood_six_new_devices_throttle_the_account() proves "G-FLOOD" {"
            0 x3/1s check d=n# ip=1#   => allow
            3s x2/1s check d=o# ip=2#  => hard G-ROTATION -G-FLOOD
            5s     check d=p0 ip=30    => hard G-ROTATION +G-FLOOD
            6s     check d=me+known ip=40 => soft L1 14s G-FLOOD
            7s     check d=p1 ip=31    => hard L2 +G-FLOOD
            20s    check d=me+known ip=40 => allow
        "}
    }
}
