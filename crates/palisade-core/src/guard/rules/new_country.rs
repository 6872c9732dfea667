//! P-GUARD: a login from a country that its account has never succeeded from.

use crate::decision::{KeyKind, Level, Outcome};
use crate::facts::Attempt;
use crate::guard::aggregate::Candidate;
use crate::guard::command::Command;
use crate::guard::policy::NewCountry;
use crate::rule::Rule;
use crate::time::retry_after_seconds;

/// P-GUARD: a check from a country that the account has never succeeded from is answered SOFT L1,
/// unless its device is known or a challenge was passed. That is an answer: nothing is stored or
/// issued for it. An account with fewer than two successes has no countries to compare with: the
/// answer is drawn for it, as often as it is SOFT for others, so that one answer does not tell
/// whether the account exists (A-UNIFORM in distribution).
pub(in crate::guard) fn judge(command: &mut Command<'_>) {
    let Some(country) = command.signals.country else {
        return;
    };
    let is_free = command.known || command.signals.challenge_passed;
    if command.attempt != Attempt::Check || is_free {
        return;
    }
    // Computed for every account, so that all take the same work.
    let is_drawn = country.is_drawn();
    let is_new = match command.account.countries.knows(&country.digest) {
        Some(knows) => !knows,
        None => is_drawn,
    };
    if is_new {
        command.trace.candidates.push(Candidate {
            rule: Rule::P_GUARD,
            key: KeyKind::Account,
            outcome: Outcome::SoftBlock,
            level: Some(Level::L1),
            retry_after: retry_after_seconds(command.policy.duration(Level::L1)),
        });
    }
}

/// P-GUARD: a success makes its country one of the account's. While the rule is off, the account
/// forgets its countries, and its record is one that older versions can read.
pub(in crate::guard) fn learn(command: &mut Command<'_>) {
    let countries = &mut command.account.countries;
    let has_changed = match (command.flow.new_country, command.signals.country) {
        (NewCountry::Off, _) => countries.forget(),
        (NewCountry::Challenge, Some(country)) => countries.succeeded(&country.digest, command.now),
        (NewCountry::Challenge, None) => false,
    };
    command.trace.changed.account |= has_changed;
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn p_guard_a_country_without_a_success_is_challenged_after_two_successes() proves "P-GUARD" {"
            0      ok c=ES d=x         => allow
            1s     check c=FR d=y      => allow
            2s     ok c=ES d=x         => allow
            3s     check c=ES d=y      => allow
            4s     check c=FR d=y      => soft L1 15s P-GUARD
            5s     check c=FR d=x      => allow
            6s     check c=FR d=y pass => allow
            7s     ok c=FR d=z/low     => allow
            8s     check c=FR d=y      => allow
            9s     check c=unknown d=y => soft L1 15s P-GUARD
        "}

        #[test]
        fn p_guard_only_a_check_is_answered() proves "P-GUARD" {"
            0 x2/1s ok c=ES d=x        => allow
            3s     fail c=FR d=y       => allow
            4s     check c=FR d=y      => soft P-GUARD
            5s     otp.check c=FR d=y  => allow
            6s     ok c=FR d=y         => allow
            7s     check c=FR d=n      => allow
        "}

        #[test]
        fn p_guard_a_harder_answer_wins_and_the_sets_still_see_the_check() proves "P-GUARD" {"
            0 x2/1s ok a=s# c=ES d=o   => allow
            2s x2/1s ok a=s# c=ES d=o  => allow
            5s x2/1s check a=s# c=FR d=y => soft P-GUARD
            7s     check a=s2 c=FR d=y => allow
            8s     check a=s3 c=FR d=y => allow
            9s     check a=s4 c=FR d=y => hard L2 60s G-SPRAY
        "}

        #[test]
        fn p_guard_the_countries_outlive_a_rotation_of_the_secret() proves "P-GUARD" {"
            0 x2/1s ok c=ES d=x        => allow
            3s     rotate              => *
            4s     check c=ES d=y      => allow
            5s     check c=FR d=y      => soft P-GUARD
        "}
    }

    use crate::support::{World, script};

    #[test]
    fn p_guard_is_off_by_default_and_forgets_what_it_knew() {
        let mut world = World::proving("P-GUARD");
        script::check(&mut world, "0 x2/1s ok c=ES d=x => allow").unwrap();
        let newest = world.records.values().map(|bytes| bytes[0]).max();
        assert_eq!(
            newest,
            Some(5),
            "a record with countries is of a newer version"
        );
        world.policy.login.new_country = crate::guard::policy::NewCountry::default();
        script::check(&mut world, "2s check c=FR d=y => allow").unwrap();
        script::check(&mut world, "3s ok c=FR d=x => allow").unwrap();
        assert!(world.records.values().all(|bytes| bytes[0] < 5));
    }
}
