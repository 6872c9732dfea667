//! Detects logins that all succeed, a sign that wrong passwords are reported as successes.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use palisade_core::facts::Attempt;
use palisade_core::record::Flow;
use parking_lot::Mutex;

use crate::engine::{DecisionEvent, Subject};
use crate::observe::surges::outcome;

/// Number of latest logins that are examined.
const LAST: usize = 50;
/// Up to this many different names, a run of successes may be a script that knows the passwords.
const NAMES_MAX: usize = 10;

/// The successes of each flow since its last failure, at most `LAST` of them.
#[derive(Debug, Default)]
pub(super) struct OnlySuccesses {
    /// Hashes names with a random seed, so that the hashes mean nothing elsewhere.
    hasher: RandomState,
    login: Mutex<VecDeque<u64>>,
    otp: Mutex<VecDeque<u64>>,
}

impl OnlySuccesses {
    pub(super) fn saw(&self, seen: &DecisionEvent<'_>) {
        let (Some((flow, attempt)), Subject::Guard(_, facts)) = (outcome(seen), seen.subject)
        else {
            return;
        };
        let mut last = self.of(flow).lock();
        match attempt {
            Attempt::Failure => last.clear(),
            Attempt::Success => {
                if last.len() >= LAST {
                    last.pop_front();
                }
                let name = facts.account.as_ref().or(facts.username.as_ref());
                last.push_back(self.hasher.hash_one(name));
            }
            Attempt::Check | Attempt::Unknown => {}
        }
    }

    /// Returns 1 for a flow whose last 50 attempts all succeeded, with more than ten names.
    pub(super) fn read(&self) -> Vec<(String, u64)> {
        let flows = [Flow::Login, Flow::Otp];
        let holds = |flow: &Flow| {
            let last = self.of(*flow).lock();
            let names: BTreeSet<u64> = last.iter().copied().collect();
            last.len() >= LAST && names.len() > NAMES_MAX
        };
        flows
            .map(|flow| (flow.name().to_owned(), u64::from(holds(&flow))))
            .into()
    }

    const fn of(&self, flow: Flow) -> &Mutex<VecDeque<u64>> {
        match flow {
            Flow::Otp => &self.otp,
            Flow::Login | Flow::Api => &self.login,
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade_core::facts::{GuardFacts, GuardOp, Id};
    use palisade_core::{Decision, Micros};

    use super::*;

    fn report(successes: &OnlySuccesses, op: GuardOp, name: usize) {
        let mut facts = GuardFacts::new("203.0.113.1".parse().unwrap());
        facts.account = Some(Id::new("account", &format!("u{name}")).unwrap());
        successes.saw(&DecisionEvent {
            subject: Subject::Guard(op, &facts),
            decision: &Decision::allow(Micros(0)),
            bypassed: None,
            guard: None,
        });
    }

    fn login(successes: &OnlySuccesses) -> u64 {
        successes.read()[0].1
    }

    #[test]
    fn n1_fifty_successes_of_many_names_without_a_failure_are_a_sign() {
        let successes = OnlySuccesses::default();
        for n in 0..49 {
            report(&successes, GuardOp::LoginSuccess, n);
        }
        report(&successes, GuardOp::LoginUnknown, 1);
        assert_eq!(login(&successes), 0);
        report(&successes, GuardOp::LoginSuccess, 49);
        assert_eq!(successes.read(), [("login".into(), 1), ("otp".into(), 0)]);
        for n in 0..500 {
            report(&successes, GuardOp::LoginSuccess, n % 10);
        }
        assert_eq!(login(&successes), 0, "ten names only");
        assert_eq!(successes.login.lock().len(), LAST);
        for n in 0..50 {
            report(&successes, GuardOp::LoginSuccess, n);
        }
        assert_eq!(login(&successes), 1);
        report(&successes, GuardOp::LoginFailure, 3);
        assert_eq!(login(&successes), 0);
    }
}
