//! G-PENDING: an attacker gains nothing by trying in parallel.

use crate::decision::{KeyKind, Level, Outcome};
use crate::facts::Attempt;
use crate::guard::aggregate::Candidate;
use crate::guard::command::Command;
use crate::guard::policy::ScorePolicy;
use crate::guard::records::pending::{PENDING_MAX, PendingAttempt, Weight};
use crate::guard::records::sets::Short;
use crate::guard::rules::score;
use crate::rule::Rule;
use crate::time::{Micros, retry_after_seconds};

/// G-PENDING: an attempt that was let through weighs on later checks as if it had
/// failed, until its outcome is known. A check whose score with these points reaches
/// the SOFT band is answered SOFT L1 until the oldest of them ends. That is an
/// answer: nothing is stored, observed or issued for it.
pub(in crate::guard) fn judge(command: &mut Command<'_>) {
    if command.attempt != Attempt::Check || !command.flow.pending {
        return;
    }
    let keys = judged_keys(command);
    let mut full = keys
        .iter()
        .filter_map(|key| Some((*key, reached(command, *key)?)));
    let no_place = || Some((*keys.first()?, no_place_left(command)?));
    let Some((key, oldest)) = full.next().or_else(no_place) else {
        return;
    };
    let ends = oldest.plus(command.flow.pending_ttl);
    command.trace.candidates.push(Candidate {
        rule: Rule::G_PENDING,
        key,
        outcome: Outcome::SoftBlock,
        level: Some(Level::L1),
        retry_after: retry_after_seconds(ends.since(command.now)),
    });
    // No later rule may observe the check: it was answered without being an attempt.
    command.ended = true;
}

/// Returns the keys that the check is judged by: the account (K4) for a stranger, the device itself
/// (K5) if it is known. Failures without a fingerprint are counted on prefix and agent too (K2), a
/// key that binds no trusted session.
const fn judged_keys(command: &Command<'_>) -> &'static [KeyKind] {
    match weight(command) {
        Weight::Known => &[KeyKind::AccountDevice],
        Weight::New => &[KeyKind::Account],
        Weight::Missing if command.trusted => &[KeyKind::Account],
        Weight::Missing => &[KeyKind::Account, KeyKind::PrefixAgent],
    }
}

const fn weight(command: &Command<'_>) -> Weight {
    match command.fingerprint {
        None => Weight::Missing,
        Some(_) if command.known => Weight::Known,
        Some(_) => Weight::New,
    }
}

/// Returns the start of the oldest pending attempt on the key, if the sum of points is in a band
/// that binds. A passed challenge frees from the SOFT band only: it must not buy a guess that a
/// HARD block would have met.
fn reached(command: &Command<'_>, key: KeyKind) -> Option<Micros> {
    let mut oldest = None;
    let mut sum = u32::from(command.score(key));
    let mut repeats = score::missing_lately(command);
    for pending in weighing(command, key) {
        oldest = oldest.or(Some(pending.since));
        sum = sum.saturating_add(points(&command.flow.scores, pending.weight, repeats));
        // If this attempt fails, a further one without a fingerprint is a repetition.
        repeats |= pending.weight == Weight::Missing;
    }
    let bands = &command.flow.thresholds;
    let binding = match command.signals.challenge_passed {
        true => bands.hard,
        false => bands.soft,
    };
    oldest.filter(|_| sum >= u32::from(binding))
}

fn weighing<'a>(
    command: &'a Command<'_>,
    key: KeyKind,
) -> impl Iterator<Item = &'a PendingAttempt> {
    let who = command.fingerprint.map(|found| found.digest);
    let live = command
        .account
        .pending
        .live(command.flow.pending_ttl, command.now);
    live.filter(move |pending| match (pending.weight, key) {
        (Weight::Known, KeyKind::AccountDevice) => pending
            .device
            .zip(who.as_ref())
            .is_some_and(|(device, who)| device.is(who)),
        (Weight::New | Weight::Missing, KeyKind::Account) => true,
        (Weight::Missing, KeyKind::PrefixAgent) => true,
        _ => false,
    })
}

/// Returns the points that the failure would add. A failure without a fingerprint after another
/// such one (`repeats`) would add G-SCORE-REPEAT-MISSING to the account. If its pending attempt
/// weighed less than that, there would be room for one guess too many once the outcomes come in.
fn points(scores: &ScorePolicy, weight: Weight, repeats: bool) -> u32 {
    u32::from(match weight {
        Weight::Known => scores.known,
        Weight::New => scores.new,
        Weight::Missing if repeats => scores.missing.max(scores.repeat_missing),
        Weight::Missing => scores.missing,
    })
}

/// Returns the start of the oldest pending attempt if there is no place for another one. An attempt
/// that cannot be reserved cannot be let through: a dropped reservation would be a guess that
/// weighs nothing. Only several known devices together can fill all places.
fn no_place_left(command: &Command<'_>) -> Option<Micros> {
    command.signals.attempt_id?;
    let ttl = command.flow.pending_ttl;
    let mut live = command.account.pending.live(ttl, command.now);
    let oldest = live.next()?.since;
    (live.count() + 1 >= PENDING_MAX).then_some(oldest)
}

/// Returns the pending attempt that a check reserves if its answer is ALLOW.
pub(in crate::guard) fn reservation(command: &Command<'_>) -> Option<PendingAttempt> {
    let id = command.signals.attempt_id?;
    let reserves = command.attempt == Attempt::Check && command.flow.pending;
    reserves.then(|| PendingAttempt {
        id: Short::of(id.current),
        device: command
            .fingerprint
            .map(|found| Short::of(found.digest.current)),
        weight: weight(command),
        since: command.now,
    })
}

/// A failure or success ends the attempt that it reports on.
pub(in crate::guard) fn end(command: &mut Command<'_>) {
    let who = command.fingerprint.map(|found| found.digest);
    let request = command.signals.attempt_id.as_ref();
    let ttl = command.flow.pending_ttl;
    let pending = &mut command.account.pending;
    let ended = pending.end(request, who.as_ref(), ttl, command.now);
    command.trace.changed.account |= ended;
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_pending_attempts_under_way_weigh_as_failures() proves "G-PENDING" {"
            0      check d=d1 id=p1    => allow
            1s     check d=d1 id=p2    => allow
            2s     check d=d1 id=p3    => soft L1 13s G-PENDING nothing
            3s     fail d=d1 id=p1     => allow
            4s     check d=d1 id=p4    => soft L1 12s G-PENDING
            16s    check d=d1 id=p5    => allow
            17s    ok d=d1 id=p5       => allow
            18s    check d=d1 id=p6    => allow
        "}

        #[test]
        fn g_pending_an_outcome_without_the_id_ends_the_oldest_of_its_device() proves "G-PENDING" {"
            0      check d=d1 id=p1    => allow
            1s     check d=d1 id=p2    => allow
            2s     ok d=d1             => allow
            3s     check d=d2 id=p3    => allow
            4s     check d=d3 id=p4    => soft L1 12s G-PENDING
        "}

        #[test]
        fn g_pending_an_outcome_does_not_end_what_has_ended_by_itself() proves "G-PENDING" {"
            0      check d=d1 id=p1    => allow
            10s    check d=d1 id=p2    => allow
            15s    fail d=d1           => allow
            16s    check d=d1 id=p3    => allow
            17s    check d=d1 id=p4    => soft L1 14s G-PENDING
        "}

        #[test]
        fn g_pending_a_known_device_is_judged_by_itself() proves "G-PENDING" {"
            0 x3/0 check d=me+known id=k#   => allow
            0      check d=me+known id=k9   => soft L1 15s G-PENDING
            0      check d=other+known id=o => allow
            0 x2/0 check d=x id=x#          => allow
            1s     check d=y id=y           => soft L1 14s G-PENDING
        "}

        #[test]
        fn g_pending_a_missing_fingerprint_weighs_four() proves "G-PENDING" {"
            0      check id=m1         => allow
            1s     check id=m2 ip=2    => allow
            2s     check id=m3 ip=3    => soft L1 13s G-PENDING
            3s     check id=m3 ip=3 pass => soft L1 12s G-PENDING
        "}

        #[test]
        fn g_pending_a_missing_fingerprint_after_another_weighs_as_the_repetition() proves "G-PENDING" {"
            0      check id=m1         => allow
            1s     check id=m2 ip=2    => allow
            2s     fail id=m1          => allow
            3s     check id=m3 ip=3    => soft L1 13s G-PENDING
            4s     check d=d1 id=d1    => soft L1 12s G-PENDING
            5s     ok id=m2 ip=2       => allow
            6s     check id=m4 ip=4    => allow
        "}

        #[test]
        fn g_pending_yields_to_a_challenge_in_the_soft_band_only() proves "G-PENDING" {"
            0 x2/0 check d=d1 id=p#    => allow
            1s     check d=d1 id=q1 pass => allow
            2s     check d=d1 id=q2 pass => soft L1 13s G-PENDING
            3s     check d=d1 id=q3    => soft L1 12s G-PENDING
        "}

        #[test]
        fn g_pending_otp_lets_one_through_at_a_time() proves "G-PENDING" {"
            0      otp.check d=d1 id=p1 => allow
            1s     otp.check d=d2 id=p2 => soft L1 14s G-PENDING
            2s     otp.check d=me+known id=p3 => allow
            3s     otp.check d=me+known id=p4 => soft L1 14s G-PENDING
            4s     otp.ok d=d1 id=p1    => allow
            5s     otp.check d=d2 id=p5 => allow
        "}

        #[test]
        fn g_pending_a_check_without_an_id_reserves_nothing() proves "G-PENDING" {"
            0 x9/0 check d=d1          => allow
            1s     check d=d1 id=p1    => allow
            1s     check d=d1 id=p2    => allow
            2s     check d=d1          => soft L1 14s G-PENDING
        "}
    }

    use crate::support::{World, script};

    #[test]
    fn g_pending_is_switched_off_by_the_flow() {
        let mut world = World::default();
        world.policy.login.pending = false;
        script::check(&mut world, "0 x20/0 check d=d1 id=p# => allow").unwrap();
    }

    #[test]
    fn g_pending_is_no_issue_and_observed_by_nothing() {
        let script = "
            0 x2/0 check d=d1 id=p#    => allow
            1s x9/0 check d=n# ip=1# id=n# => soft G-PENDING -G-ROTATION -G-FLOOD nothing
            2s x2/0 fail d=d1          => *
            20s    fail d=d1           => hard L2 60s G-THRESHOLD -G-EQUILIBRIUM
        ";
        script::check(&mut World::default(), script).unwrap();
    }

    #[test]
    fn g_pending_sixteen_attempts_under_way_leave_no_place_for_another() {
        let script = "
            0 x3/0 check d=a+known id=a# => allow
            0 x3/0 check d=b+known id=b# => allow
            0 x3/0 check d=c+known id=c# => allow
            0 x3/0 check d=e+known id=e# => allow
            0 x3/0 check d=f+known id=f# => allow
            1s     check d=g+known id=g0 => allow
            2s     check d=g+known id=g1 => soft L1 13s G-PENDING nothing
            3s     fail d=a+known        => allow
            4s     check d=g+known id=g1 => allow
        ";
        script::check(&mut World::default(), script).unwrap();
    }
}
