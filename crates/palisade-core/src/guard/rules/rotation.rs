//! G-ROTATION: one account is tried from many devices.

use crate::decision::{KeyKind, Level};
use crate::guard::command::Command;
use crate::guard::keys::interval;
use crate::guard::ladder::{Class, Issuer, Memory, Order};
use crate::guard::records::sets::Sight;
use crate::key::DigestPair;
use crate::rule::Rule;

use super::watch::Reach;

/// G-ROTATION: four fingerprints on one account in ten minutes: HARD L2 on each of those
/// devices for this account (K5). The account itself is not blocked.
pub(in crate::guard) fn judge(command: &mut Command<'_>) {
    let (Some(arrival), Some(found)) = (command.arrival, command.fingerprint) else {
        return;
    };
    let (policy, now) = (&command.flow.correlation, command.now);
    command.account.end_rotation_below(arrival.before);
    if arrival.sight == Sight::Again {
        return;
    }
    let metric = command.account.recent.live(policy.rotation.window, now);
    let watch = &mut command.account.rotation_watch;
    let threshold = policy.rotation.threshold;
    let reach = Reach::of(metric, threshold, watch, policy.watch_window, now);
    let level = policy.rotation.level;
    if !command.issue_hard(Rule::G_ROTATION, KeyKind::AccountDevice, level, reach) {
        return;
    }
    block_the_others(command, &found.digest, level);
    command.episode = command.account.rotating == 0;
    // The size of this episode: it is over once fewer devices are left. It is capped at the
    // threshold, because further devices belong to the same episode.
    command.account.rotating = u8::try_from(metric.min(threshold as usize)).unwrap_or(u8::MAX);
}

/// Blocks every other device of the rotation that the account does not know, as the current one was
/// blocked.
fn block_the_others(command: &mut Command<'_>, who: &DigestPair, level: Level) {
    let (guard, now) = (command.policy, command.now);
    let window = command.flow.correlation.rotation.window;
    let members = &command.account.recent.0;
    let others = members
        .iter()
        .filter(|member| now.since(member.last) < window && !member.who.is(who));
    for member in others {
        let mut devices = command.account.devices.iter_mut();
        let entry = devices.find(|device| device.is(member.who));
        // A known device is spared: otherwise strangers could shut the owner out by rotating at the
        // same time.
        let Some(device) = entry.filter(|device| !device.known) else {
            continue;
        };
        let level = device.key.climb(guard, level, now);
        if device.key.gives_way_to(Class::Hard, level, now) {
            let order = Order {
                class: Class::Hard,
                level,
                rule: Rule::G_ROTATION,
                memory: Memory::Keep,
                issuer: Issuer::Stranger,
            };
            let interval = interval(guard, KeyKind::AccountDevice);
            device.key.place(guard, interval, order, now);
        }
    }
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_rotation_four_devices_are_blocked_and_the_account_is_not() proves "G-ROTATION" {"
            0 x3/1s check d=r# ip=1#   => allow
            3s     check d=r3 ip=13    => hard L2 60s G-ROTATION
            4s     check d=r0 ip=10    => hard L2 59s G-ROTATION
            5s     check a=b d=r0 ip=10 => allow
            6s     check d=me+known ip=20 => allow
            64s    check d=r0 ip=10    => allow
            65s    check d=r4 ip=14    => hard L2 60s G-ROTATION
            66s    check d=r0 ip=10    => hard L3 299s G-ROTATION
        "}
    }
}
