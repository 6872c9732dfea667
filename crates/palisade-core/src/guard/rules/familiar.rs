//! Effects of a success: its device becomes known, and is no longer watched. A budget never
//! answers a success (G-OWNER): the rule is not in the list of those for successes.

use crate::facts::Confidence;
use crate::guard::command::Command;
use crate::guard::records::account::Kin;

/// Makes a MEDIUM or HIGH device known to the account. A LOW fingerprint, which many devices share,
/// proves nothing.
pub(in crate::guard) fn learn(command: &mut Command<'_>) {
    let strong = |confidence| confidence >= Confidence::Medium;
    let Some(found) = command.fingerprint.filter(|f| strong(f.confidence)) else {
        return;
    };
    let account = &mut *command.account;
    if let Some(entry) = account.enter(&found.digest, Kin::Familiar, command.now) {
        entry.known = true;
        command.trace.changed.account = true;
    }
}

/// Removes the account and the device from the sets: colleagues who log in from one address are no
/// spray, the owner's devices are no rotation.
pub(in crate::guard) fn leave_sets(command: &mut Command<'_>) {
    let who = command.fingerprint.map(|found| found.digest);
    if let Some(who) = &who {
        command.trace.changed.account |= command.account.recent.remove(who);
        if command.device_key().is_some() {
            let prefix = &command.signals.prefix;
            command.trace.changed.device |= command.device.leave(prefix);
        }
    }
    if let Some(account) = &command.signals.account {
        command.trace.changed.network |= command.network.leave(account, who.as_ref());
    }
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_owner_a_success_is_never_blocked_by_a_budget() proves "G-OWNER" {"
            0 x20/40m fail d=slow      => *
            14h    ok d=own            => allow
            14h1s  check d=slow        => soft L3 300s G-BUDGET
        "}
    }
}
