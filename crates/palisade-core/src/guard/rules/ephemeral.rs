//! G-EPHEMERAL: a flood of new devices gets no entries.

use crate::guard::command::Command;
use crate::guard::records::account::Kin;
use crate::guard::records::sets::Sight;

/// The arrival of an unknown device on its account.
#[derive(Clone, Copy, Debug)]
pub(in crate::guard) struct Arrival {
    /// Members of the rotation's window before the arrival.
    pub(super) before: usize,
    /// Whether the device is new in that window.
    pub(super) sight: Sight,
    /// True if the device was never seen before, as far as the record reaches.
    pub(super) newcomer: bool,
    /// True if there is room for an entry of the device.
    pub(super) room: bool,
}

/// G-EPHEMERAL: notes an unknown device on its account. Beyond ten new ones per
/// account, or fifty per prefix, in 15 minutes it gets no entry; everything else
/// still counts.
pub(in crate::guard) fn arrive(command: &mut Command<'_>) {
    let Some(found) = command.fingerprint.filter(|_| command.is_observed()) else {
        return;
    };
    let (who, now) = (&found.digest, command.now);
    let policy = &command.flow.correlation;
    command.trace.changed.account = true;
    command.account.prune_recent(command.flow, now);
    let exists = command.account.device(who).is_some();
    let newcomer = command.account.recent.get(who).is_none() && !exists;
    let window = policy.rotation.window;
    let before = command.account.recent.live(window, now);
    // A device that the set has forgotten but that has an entry is not new: its first sight is put
    // before every window that counts new devices.
    let long_ago = now.minus(policy.flood.window.max(policy.new_window));
    let first = if newcomer { now } else { long_ago };
    let sight = command.account.recent.see(who, window, first, now);
    let fits_prefix = command.network.visit(policy, who, now);
    let new = command.account.recent.recent(policy.new_window, now);
    let fits_account = new <= policy.new_per_account as usize;
    let room = exists || (fits_account && fits_prefix);
    if room {
        command.account.enter(who, Kin::Stranger, now);
    }
    command.arrival = Some(Arrival {
        before,
        sight,
        newcomer,
        room,
    });
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_ephemeral_the_eleventh_new_device_is_answered_but_not_stored() proves "G-EPHEMERAL" {"
            0 x3/1s check d=n# ip=1#   => allow
            3s x7/1s check d=o# ip=2#  => hard L2 60s
            10s    check d=o6 ip=26    => hard L2 59s
            80s    check d=p ip=30     => hard L2 60s
            81s    check d=o6 ip=26    => hard L3 299s
            96s    check d=p ip=30     => allow
            97s    fail d=p ip=30      => allow score:K4+3
        "}
    }
}
