//! G-PENDING's guarantee: asking at once verifies no more than asking in turn.
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

/// One guess: when it is asked about, how long its verification takes, and whose it is.
#[derive(Clone, Debug)]
struct Guess {
    at: u64,
    takes: u64,
    device: u8,
    challenge_passed: bool,
    /// The outcome carries the id of the check, or none.
    passes_on_the_id: bool,
}

#[derive(Clone, Copy, Debug)]
enum Flow {
    Login,
    Otp,
}

/// Everything is asked within ten seconds, before a SOFT block of 15 s could end, and
/// answered while it is still pending. Three strangers, each on a prefix of its own, are
/// too few for a pattern: patterns see what a SOFT block refuses and not what this rule
/// does, and would be another reason for a difference.
fn guess(devices: std::ops::Range<u8>) -> impl Strategy<Value = Guess> {
    (
        0..10 * SECOND,
        0..4 * SECOND,
        devices,
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

/// The same guesses one after another: known devices first, which a stranger's
/// failures would otherwise shut out, at the same instants.
fn one_after_another(guesses: &[Guess]) -> Vec<Guess> {
    let times = guesses.iter().map(|guess| guess.at);
    let known = |guess: &&Guess| (1..=2).contains(&guess.device);
    let (first, then): (Vec<&Guess>, Vec<&Guess>) = guesses.iter().partition(known);
    let order = first.into_iter().chain(then);
    order
        .zip(times)
        .map(|(guess, at)| Guess {
            at,
            ..guess.clone()
        })
        .collect()
}

/// Credentials that get verified when each guess is asked about at its time, and its
/// outcome is reported `takes` later; in turn, every outcome comes at once.
fn verified(flow: Flow, guesses: &[Guess], in_turn: bool) -> usize {
    let (check, failure) = ops(flow);
    let mut world = World::default();
    let mut outcomes: Vec<(u64, usize)> = Vec::new();
    let mut verified = 0;
    for (index, guess) in guesses.iter().enumerate() {
        outcomes.sort_unstable();
        while let Some((due, whose)) = outcomes
            .first()
            .copied()
            .filter(|(due, _)| *due <= guess.at)
        {
            outcomes.remove(0);
            report(&mut world, failure, guesses, whose, due);
        }
        let id = format!("g{index}");
        let at = START.plus(guess.at);
        let answer = world.apply(check, &facts(guess, Some(&id)), at).answer;
        if answer.outcome == Outcome::Allow {
            verified += 1;
            let due = if in_turn {
                guess.at
            } else {
                guess.at + guess.takes
            };
            match in_turn {
                true => report(&mut world, failure, guesses, index, due),
                false => outcomes.push((due, index)),
            }
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
        mut guesses in prop::collection::vec(guess(1..6), 1..24),
    ) {
        let flow = if otp { Flow::Otp } else { Flow::Login };
        guesses.sort_by_key(|guess| guess.at);
        let at_once = verified(flow, &guesses, false);
        let in_turn = verified(flow, &one_after_another(&guesses), true);
        prop_assert!(at_once <= in_turn, "{at_once} at once, {in_turn} in turn");
    }

    /// Without fingerprints the first failure counts on K2 only and the second more than
    /// twice as much on K4: there the guarantee is for guesses that are all under way.
    #[test]
    fn g_pending_guesses_without_a_fingerprint_all_under_way_verify_no_more_than_in_turn(
        otp in any::<bool>(),
        mut guesses in prop::collection::vec(guess(0..6), 1..24),
    ) {
        let flow = if otp { Flow::Otp } else { Flow::Login };
        guesses.sort_by_key(|guess| guess.at);
        for guess in &mut guesses {
            guess.takes = 11 * SECOND;
        }
        let at_once = verified(flow, &guesses, false);
        let in_turn = verified(flow, &one_after_another(&guesses), true);
        prop_assert!(at_once <= in_turn, "{at_once} at once, {in_turn} in turn");
    }
}

/// What the rule is worth: without it every guess of a burst is verified.
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
    assert_eq!(verified(Flow::Login, &guesses, false), 2);
    assert_eq!(verified(Flow::Otp, &guesses, false), 1);
}
