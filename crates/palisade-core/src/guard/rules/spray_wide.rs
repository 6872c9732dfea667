//! G-SPRAY-WIDE: a spray from many addresses of one network.

use crate::decision::{KeyKind, Level};
use crate::facts::Attempt;
use crate::guard::command::Command;
use crate::guard::ladder::Class;
use crate::rule::Rule;

/// G-SPRAY-WIDE: many accounts failed from one IPv4 /24 or IPv6 /48 in ten minutes. There, a check
/// of a device that its account does not know is answered SOFT L1, which yields to a challenge. It
/// is only an answer: nothing is stored for it. Off unless a threshold is set.
pub(in crate::guard) fn answer(command: &mut Command<'_>) {
    let asked = command.attempt == Attempt::Check && !command.signals.challenge_passed;
    if asked && command.signals.sprayed_area && command.is_observed() {
        let candidate =
            command.candidate(KeyKind::Prefix, Class::Soft, Level::L1, Rule::G_SPRAY_WIDE);
        command.trace.candidates.push(candidate);
    }
}

#[cfg(test)]
mod tests {
    use crate::facts::{Confidence, DeviceFacts, GuardFacts, GuardOp, Id};
    use crate::guard::Signals;
    use crate::support::{START, World};

    fn asked(known: bool, challenge_passed: bool, op: GuardOp) -> Option<&'static str> {
        let mut world = World::default();
        let mut facts = GuardFacts::new("203.0.113.1".parse().unwrap());
        facts.account = Some(Id::new("account", "a").unwrap());
        facts.challenge_passed = challenge_passed;
        facts.device = DeviceFacts {
            fingerprint: Some(Id::new("fingerprint", "f").unwrap()),
            confidence: Some(Confidence::Medium),
            known,
            ..DeviceFacts::default()
        };
        let mut signals = Signals::resolve(&world.keyring, op, &facts);
        signals.sprayed_area = true;
        let answer = world.run(op, &signals, START).answer;
        assert_eq!(answer.retry_after, answer.rule.map(|_| 15));
        answer.rule.map(crate::rule::Rule::id)
    }

    #[test]
    fn g_spray_wide_asks_unknown_devices_of_a_sprayed_area_for_a_challenge() {
        let check = GuardOp::LoginCheck;
        assert_eq!(asked(false, false, check), Some("G-SPRAY-WIDE"));
        assert_eq!(asked(false, true, check), None, "it yields");
        assert_eq!(asked(true, false, check), None, "a known device is free");
        assert_eq!(asked(false, false, GuardOp::LoginFailure), None);
    }
}
