//! G-OWNER-LANE: strangers cannot lock the owner out of the account.

use crate::decision::KeyKind;
use crate::facts::Confidence;
use crate::guard::command::Command;
use crate::guard::ladder::Issuer;
use crate::guard::policy::OwnerLane;
use crate::guard::records::sets::count_recent;

/// G-OWNER-LANE: blocks on the account (K4) that were caused by devices not known to it do not bind
/// devices in the owner's lane.
pub(in crate::guard) fn frees(command: &Command<'_>, key: KeyKind, issuer: Issuer) -> bool {
    key == KeyKind::Account && issuer == Issuer::Stranger && is_open(command)
}

/// True if the lane is open for this device: it has a trusted session or, where the flow allows
/// it, the account knows it and its fingerprint is more than a guess from headers.
pub(in crate::guard) fn is_open(command: &Command<'_>) -> bool {
    let strong = |confidence| confidence >= Confidence::Medium;
    match command.flow.owner_lane {
        OwnerLane::Off => false,
        OwnerLane::Trusted => command.trusted,
        OwnerLane::Known => {
            let known = command.fingerprint.filter(|_| command.known);
            command.trusted || known.is_some_and(|found| strong(found.confidence))
        }
    }
}

/// True if the account's budget does not bind this device: the lane is open for it, and its own
/// failures are still within the micro-cap.
pub(in crate::guard) fn frees_from_budget(command: &Command<'_>) -> bool {
    let budget = &command.flow.budget;
    let who = command.fingerprint.map(|found| found.digest);
    let entry = who.and_then(|who| command.account.device(&who));
    let own = entry.map_or(0, |entry| {
        count_recent(&entry.failures, budget.epoch, command.now)
    });
    is_open(command) && own < budget.micro_cap as usize
}

#[cfg(test)]
mod tests {
    use crate::guard::GuardPolicy;
    use crate::guard::policy::OwnerLane;
    use crate::support::{World, script};

    fn check(lane: OwnerLane, text: &str) -> Result<(), String> {
        let mut policy = GuardPolicy::default();
        policy.login.owner_lane = lane;
        policy.otp.owner_lane = lane;
        script::check(&mut World::new(policy), text)
    }

    /// A stranger climbs to a HARD block on the account; then three devices of the owner are
    /// checked.
    fn besieged(known: &str, trusted: &str) -> String {
        format!(
            "0      ok d=mine              => allow
             1s     ok d=pc/high           => allow
             2s x3/1s fail d=x ip=9        => *
             10s    check d=pc/high+trusted => {trusted}
             11s    check d=mine           => {known}
             12s    check d=pc/low+known   => hard G-THRESHOLD
             13s    check d=new            => hard G-THRESHOLD
             14s    check d=x ip=9         => hard G-THRESHOLD"
        )
    }

    #[test]
    fn g_owner_lane_each_setting_frees_its_devices_and_no_other() {
        let (hard, free) = ("hard L2 G-THRESHOLD", "allow");
        check(OwnerLane::Off, &besieged(hard, hard)).unwrap();
        check(OwnerLane::Trusted, &besieged(hard, free)).unwrap();
        check(OwnerLane::Known, &besieged(free, free)).unwrap();
    }

    #[test]
    fn g_owner_lane_the_owners_device_gets_no_free_tries() {
        let script = "
            0      ok d=mine           => allow
            2s x3/1s fail d=x ip=9     => *
            10s x2/1s fail d=mine      => allow score:K5+2
            12s    fail d=mine         => soft L1 15s G-THRESHOLD score:K5+2
            28s    fail d=mine         => hard L2 60s G-THRESHOLD score:K5+2
            40s    check d=mine        => hard L2 48s
            65s    check d=other ip=8  => allow
        ";
        check(OwnerLane::Known, script).unwrap();
    }

    #[test]
    fn g_owner_lane_strangers_use_up_a_budget_that_does_not_bind_the_owner() {
        let script = |answer| {
            format!(
                "0      ok d=mine              => allow
                 10s x20/40m fail d=slow ip=9  => *
                 14h    check d=mine           => {answer}
                 14h1s  check d=mine           => allow
                 14h2s  check d=slow ip=9      => *"
            )
        };
        check(OwnerLane::Off, &script("soft L3 300s G-BUDGET")).unwrap();
        check(OwnerLane::Known, &script("allow nothing")).unwrap();
    }

    #[test]
    fn g_owner_lane_a_known_device_that_keeps_failing_meets_the_budget() {
        let script = "
            0 x27/30m fail d=me+known  => allow
            13h30m fail d=me+known     => soft L3 300s G-BUDGET
        ";
        check(OwnerLane::Known, script).unwrap();
    }

    #[test]
    fn g_owner_lane_strangers_soft_blocks_do_not_turn_the_owners_failure_into_a_hard_one() {
        let script = |answer| {
            format!(
                "0      otp.ok d=mine            => allow
                 1s x3/1h otp.fail d=x# ip=9     => soft
                 4h     otp.fail d=mine          => {answer}
                 5h x2/1h otp.fail d=mine        => *
                 7h     otp.check d=mine         => allow"
            )
        };
        check(OwnerLane::Off, &script("hard L2 60s G-EQUILIBRIUM")).unwrap();
        check(OwnerLane::Known, &script("soft L1 15s G-THRESHOLD")).unwrap();
    }

    #[test]
    fn g_owner_lane_the_owners_own_soft_blocks_end_in_a_hard_one_on_the_device() {
        let script = "
            0      otp.ok d=mine            => allow
            1s x3/1h otp.fail d=mine        => soft
            4h     otp.fail d=mine          => hard L2 60s G-EQUILIBRIUM
            4h1s   otp.check d=mine         => hard L2 59s G-EQUILIBRIUM
            4h2s   otp.check d=other        => allow
        ";
        check(OwnerLane::Known, script).unwrap();
    }
}
