//! G-PENDING's guarantee: parallel attempts get no more guesses verified than sequential ones.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod support;

use palisade_core::decision::Outcome;
use palisade_core::facts::{Confidence, DeviceFacts, GuardFacts, GuardOp, Id};
use palisade_core::time::{Micros, SECOND};
use proptest::prelude::*;
use support::{CHROME, START, World};

/// One guess: the instant of its check, the duration of its verification, and its device.
#[derive(Clone, Debug)]
struct Guess {
    at: u64,
    takes: u64,
    device: u8,
    challenge_passed: bool,
    /// True if the outcome carries the id of the check.
    passes_on_the_id: bool,
}

#[derive(Clone, Copy, Debug)]
enum Flow {
    Login,
    Otp,
}

/// All checks come within ten seconds, before a SOFT block of 15 s could end, and all outcomes
/// while the attempts are still pending. Three strangers, each on a prefix of its own, are too few
/// for a pattern: patterns count checks that a SOFT block refuses and not those that this rule
/// refuses, which would be another reason for a difference.
fn guess() -> impl Strategy<Value = Guess> {
    (
        0..10 * SECOND,
        0..4 * SECOND,
        0..6_u8,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.7),
    )
        .prop_map(|(at, takes, device, challenge_passed, id)| Guess {
            at,
            takes,
            device,
            challenge_passed,
            passes_on_the_id: id,
        })
}

/// Device 0 has no fingerprint, 1 and 2 are known to the account, the others are not.
fn facts(guess: &Guess, id: Option<&str>) -> GuardFacts {
    let text = |text: &str| Some(Id::new("id", text).unwrap());
    let mut facts = GuardFacts::new(format!("203.0.113.{}", guess.device).parse().unwrap());
    facts.user_agent = Some(CHROME.into());
    facts.account = text("victim");
    facts.request_id = id.and_then(text);
    facts.challenge_passed = guess.challenge_passed;
    if guess.device > 0 {
        facts.device = DeviceFacts {
            fingerprint: text(&format!("d{}", guess.device)),
            confidence: Some(Confidence::Medium),
            known: guess.device <= 2,
            ..DeviceFacts::default()
        };
    }
    facts
}

fn ops(flow: Flow) -> (GuardOp, GuardOp) {
    match flow {
        Flow::Login => (GuardOp::LoginCheck, GuardOp::LoginFailure),
        Flow::Otp => (GuardOp::OtpCheck, GuardOp::OtpFailure),
    }
}

/// Guesses that get verified, by position.
type Verified = Vec<usize>;

/// True if there is an order in which all of these guesses get verified one after another, each
/// outcome before the next check. (Some orders verify fewer: a stranger's failures shut out a
/// known device that comes later.)
fn get_verified_in_turn(flow: Flow, guesses: &[Guess], at_once: &Verified) -> bool {
    let mut world = World::default();
    let mut left: Vec<&Guess> = at_once.iter().map(|place| &guesses[*place]).collect();
    left.sort_by_key(|guess| guess.at);
    let times: Vec<u64> = left.iter().map(|guess| guess.at).collect();
    all_pass(&mut world, flow, &left, &times)
}

fn all_pass(world: &mut World, flow: Flow, left: &[&Guess], times: &[u64]) -> bool {
    let Some((at, times)) = times.split_first() else {
        return true;
    };
    let (check, failure) = ops(flow);
    let mut tried = Vec::new();
    for (index, guess) in left.iter().enumerate() {
        let who = (guess.device, guess.challenge_passed);
        if tried.contains(&who) {
            continue;
        }
        tried.push(who);
        let before = world.records.clone();
        let (id, at) = (format!("t{at}"), START.plus(*at));
        let facts = facts(guess, Some(&id));
        if world.apply(check, &facts, at).answer.outcome == Outcome::Allow {
            world.apply(failure, &facts, at);
            let others = [&left[..index], &left[index + 1..]].concat();
            if all_pass(world, flow, &others, times) {
                return true;
            }
        }
        world.records = before;
    }
    false
}

/// Sends the check of each guess at its time, and reports its outcome `takes` later.
fn verified(flow: Flow, guesses: &[Guess]) -> Verified {
    let (check, failure) = ops(flow);
    let mut world = World::default();
    let mut outcomes: Vec<(u64, usize)> = Vec::new();
    let mut verified = Vec::new();
    for (place, guess) in guesses.iter().enumerate() {
        outcomes.sort_unstable();
        let due = outcomes.partition_point(|(due, _)| *due <= guess.at);
        for (due, whose) in outcomes.drain(..due) {
            report(&mut world, failure, guesses, whose, due);
        }
        let id = format!("g{place}");
        let at = START.plus(guess.at);
        let answer = world.apply(check, &facts(guess, Some(&id)), at).answer;
        if answer.outcome == Outcome::Allow {
            outcomes.push((guess.at + guess.takes, place));
            verified.push(place);
        }
    }
    verified
}

fn report(world: &mut World, failure: GuardOp, guesses: &[Guess], whose: usize, at: u64) {
    let guess = &guesses[whose];
    let id = format!("g{whose}");
    let id = guess.passes_on_the_id.then_some(id.as_str());
    world.apply(failure, &facts(guess, id), Micros(START.0 + at));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn g_pending_guesses_at_once_verify_no_more_than_in_turn(
        otp in any::<bool>(),
        mut guesses in prop::collection::vec(guess(), 1..24),
    ) {
        let flow = if otp { Flow::Otp } else { Flow::Login };
        guesses.sort_by_key(|guess| guess.at);
        let at_once = verified(flow, &guesses);
        prop_assert!(get_verified_in_turn(flow, &guesses, &at_once), "{at_once:?}");
    }
}

/// The worth of the rule: without it, every guess of a burst is verified.
#[test]
fn g_pending_two_hundred_guesses_at_once_verify_two() {
    let burst = |n: u8| Guess {
        at: 0,
        takes: SECOND,
        device: 3 + n % 5,
        challenge_passed: false,
        passes_on_the_id: true,
    };
    let guesses: Vec<Guess> = (0..200).map(burst).collect();
    assert_eq!(verified(Flow::Login, &guesses).len(), 2);
    assert_eq!(verified(Flow::Otp, &guesses).len(), 1);
}
