use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::decision::Level;
use crate::facts::Id;
use crate::key::Keyring;
use crate::time::{MINUTE, Micros, SECOND};

const NOW: Micros = Micros(1_767_225_600 * SECOND);

fn ring(byte: u8) -> Keyring {
    Keyring::new(&[byte; 32], None).unwrap()
}

fn binding(flow: ChallengeFlow, ip: &str, account: &str) -> ChallengeBinding {
    binding_of(&ring(7), flow, ip, account)
}

fn binding_of(keyring: &Keyring, flow: ChallengeFlow, ip: &str, account: &str) -> ChallengeBinding {
    let ip: IpAddr = ip.parse().unwrap();
    let account = Id::new("account", account).unwrap();
    ChallengeBinding::new(keyring, flow, ip, Some(&account))
}

fn ann() -> ChallengeBinding {
    binding(ChallengeFlow::Login, "203.0.113.5", "ann")
}

fn puzzle(keyring: &Keyring, difficulty: u32) -> Puzzle {
    let terms = PuzzleTerms {
        nonce: [0xab; NONCE_BYTES],
        random: 123_456_789,
        difficulty,
        expires: NOW.plus(5 * MINUTE),
    };
    let binding = binding_of(keyring, ChallengeFlow::Login, "203.0.113.5", "ann");
    Puzzle::issue(keyring, &binding, &terms)
}

fn solved() -> Solution {
    puzzle(&ring(7), 50).solve().unwrap()
}

fn pass() -> Pass {
    Pass {
        id: crate::key::Digest(0x0123_4567_89ab_cdef << 60),
        expires: NOW.plus(10 * MINUTE),
        bound: ann().bound_to(),
        uses: 1,
        has_moved: false,
    }
}

#[test]
fn c_pow_a_puzzle_has_altchas_members_and_its_solution_is_good() {
    let keyring = ring(7);
    let puzzle = puzzle(&keyring, 50);
    let json = serde_json::to_value(&puzzle).unwrap();
    let members: Vec<&str> = json
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        members,
        ["algorithm", "challenge", "maxnumber", "salt", "signature"]
    );
    assert_eq!(json["algorithm"], "SHA-256");
    assert_eq!(json["maxnumber"], 100);
    assert_eq!(json["challenge"].as_str().unwrap().len(), 64);
    assert_eq!(json["signature"].as_str().unwrap().len(), 64);
    let salt = json["salt"].as_str().unwrap();
    assert!(salt.starts_with("abababababababababababab?expires=1767225900&bound=4"));
    assert!(salt.ends_with('&'), "so that nothing moves into the number");
    let solution = puzzle.solve().unwrap();
    let solved = solution.verify(&keyring, &ann(), NOW).unwrap();
    assert!(!solved.has_moved);
}

/// The members of this challenge were compared with what `createChallenge` of altcha-lib 1.4.1
/// makes of the same salt, number and key; its `verifySolution` and `solveChallenge` agree.
#[test]
fn c_pow_altchas_own_library_makes_the_same_challenge() {
    let puzzle = puzzle(&ring(7), 50);
    let solution = puzzle.solve().unwrap();
    assert_eq!(solution.number, VECTOR.number);
    assert_eq!(&*puzzle.salt, VECTOR.salt);
    assert_eq!(&*puzzle.challenge, VECTOR.challenge);
    assert_eq!(&*puzzle.signature, VECTOR.signature);
}

struct Vector {
    number: u64,
    salt: &'static str,
    challenge: &'static str,
    signature: &'static str,
}

const VECTOR: Vector = Vector {
    number: 45,
    salt: "abababababababababababab?expires=1767225900&bound=46163e6b0c2ddb06e45a933bdc58eeb83&",
    challenge: "183b09a9866b1ca560a2ecd0ba6abb7f7f02fc1e89a511b71f40a33abe628a02",
    signature: "a8da2718232a1ccd7f382559aeaea52447f4a2e0887b76df16eb8c5408c498d5",
};

#[test]
fn c_pow_the_difficulty_is_the_mean_number_of_hashes_and_grows_by_level() {
    let tries: u64 = (0..2_000_u32)
        .map(|random| {
            let terms = PuzzleTerms {
                nonce: [1; NONCE_BYTES],
                random: random.wrapping_mul(2_654_435_761),
                difficulty: 50,
                expires: NOW,
            };
            let puzzle = Puzzle::issue(&ring(7), &ann(), &terms);
            puzzle.solve().unwrap().number + 1
        })
        .sum();
    assert!((48..=54).contains(&(tries / 2_000)), "{tries}");
    let at = |level| difficulty_at(DIFFICULTY_DEFAULT, Some(level));
    assert_eq!(difficulty_at(DIFFICULTY_DEFAULT, None), 50_000);
    assert_eq!(
        [at(Level::L1), at(Level::L2), at(Level::L3), at(Level::L6)],
        [50_000, 100_000, 200_000, 200_000]
    );
    assert_eq!(
        difficulty_at(DIFFICULTY_MAX, Some(Level::L6)),
        DIFFICULTY_MAX
    );
}

#[test]
fn c_pow_a_late_solution_is_late() {
    let expires = NOW.plus(5 * MINUTE);
    let verify = |now| solved().verify(&ring(7), &ann(), now);
    assert!(verify(expires).is_ok());
    assert_eq!(verify(expires.plus(1)), Err(ChallengeRefusal::Late));
}

#[test]
fn c_pow_a_transplanted_solution_is_foreign() {
    let others = [
        binding(ChallengeFlow::Otp, "203.0.113.5", "ann"),
        binding(ChallengeFlow::Login, "203.0.113.6", "ann"),
        binding(ChallengeFlow::Login, "203.0.113.5", "bob"),
        binding(ChallengeFlow::Request, "203.0.113.5", "ann"),
    ];
    for other in others {
        let verified = solved().verify(&ring(7), &other, NOW);
        assert_eq!(verified, Err(ChallengeRefusal::Foreign));
    }
}

#[test]
fn c_pow_a_change_between_v4_and_v6_is_forgiven_once() {
    let v6 = binding(ChallengeFlow::Login, "2001:db8::1", "ann");
    let solved = solved().verify(&ring(7), &v6, NOW).unwrap();
    assert!(solved.has_moved);
    let bob = binding(ChallengeFlow::Login, "2001:db8::1", "bob");
    let verified = self::solved().verify(&ring(7), &bob, NOW);
    assert_eq!(verified, Err(ChallengeRefusal::Foreign));

    assert_eq!(pass().fit(&ann(), NOW), Ok(Fit::Same));
    assert_eq!(pass().fit(&v6, NOW), Ok(Fit::OtherFamily));
    let moved = pass().moved(&v6);
    assert_eq!(moved.fit(&v6, NOW), Ok(Fit::Same));
    assert_eq!(moved.fit(&ann(), NOW), Err(ChallengeRefusal::Foreign));
}

#[test]
fn c_pow_a_forged_solution_is_wrong() {
    let forge = |change: fn(&mut Solution)| {
        let mut solution = solved();
        change(&mut solution);
        solution.verify(&ring(7), &ann(), NOW)
    };
    assert!(forge(|_| {}).is_ok());
    let forgeries: [fn(&mut Solution); 6] = [
        |solution| solution.number += 1,
        |solution| solution.algorithm = "SHA-1".into(),
        |solution| solution.signature = "0".repeat(64).into(),
        |solution| solution.challenge = "0".repeat(64).into(),
        |solution| solution.salt = solution.salt.replace("expires=1", "expires=2").into(),
        // A digit of the expiry cannot move into the number: the salt ends before it.
        |solution| solution.salt = solution.salt.trim_end_matches('&').into(),
    ];
    for forged in forgeries {
        assert_eq!(forge(forged), Err(ChallengeRefusal::Wrong));
    }
    // Issued under another secret.
    let foreign = puzzle(&ring(8), 50).solve().unwrap();
    let verified = foreign.verify(&ring(7), &ann(), NOW);
    assert_eq!(verified, Err(ChallengeRefusal::Wrong));
}

#[test]
fn c_pow_both_secrets_are_good_while_a_rotation_lasts() {
    let rotated = Keyring::new(&[9; 32], Some(&[7; 32])).unwrap();
    let binding = binding_of(&rotated, ChallengeFlow::Login, "203.0.113.5", "ann");
    assert!(solved().verify(&rotated, &binding, NOW).is_ok());
    let sealed = pass().seal(&ring(7), PassKind::Token);
    let opened = Pass::open(&rotated, PassKind::Token, &sealed).unwrap();
    assert_eq!(opened.fit(&binding, NOW), Ok(Fit::Same));
}

#[test]
fn c_api_a_pass_is_late_after_its_time() {
    let expires = pass().expires;
    assert_eq!(pass().fit(&ann(), expires), Ok(Fit::Same));
    assert_eq!(
        pass().fit(&ann(), expires.plus(1)),
        Err(ChallengeRefusal::Late)
    );
}

#[test]
fn c_api_a_token_does_not_open_as_a_cookie() {
    let sealed = pass().seal(&ring(7), PassKind::Token);
    assert!(Pass::open(&ring(7), PassKind::Token, &sealed).is_ok());
    assert_eq!(
        Pass::open(&ring(7), PassKind::Cookie, &sealed),
        Err(PassError)
    );
}

#[test]
fn c_buys_a_login_needs_a_challenge_for_each_attempt() {
    let settings = ChallengeSettings {
        pass_uses: 20,
        ..ChallengeSettings::default()
    };
    assert_eq!(settings.uses(ChallengeFlow::Login), 1);
    assert_eq!(settings.uses(ChallengeFlow::Otp), 1);
    assert_eq!(settings.uses(ChallengeFlow::Request), 20);
}

proptest! {
    #[test]
    fn c_api_no_changed_byte_of_a_pass_is_accepted(
        id in any::<u128>(),
        uses in 1_u16..250,
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let pass = Pass { id: crate::key::Digest(id), uses, ..pass() };
        for kind in [PassKind::Token, PassKind::Cookie] {
            let mut sealed = pass.seal(&ring(7), kind);
            prop_assert!(sealed.len() <= PASS_BYTES_MAX);
            prop_assert_eq!(Pass::open(&ring(7), kind, &sealed), Ok(pass));
            let at = at.index(sealed.len());
            prop_assert_eq!(Pass::open(&ring(7), kind, &sealed[..at]), Err(PassError));
            sealed[at] ^= 1 << bit;
            prop_assert_eq!(Pass::open(&ring(7), kind, &sealed), Err(PassError));
        }
    }

    #[test]
    fn c_pow_no_changed_byte_of_a_salt_is_accepted(
        at in any::<prop::sample::Index>(),
        to in "[0-9a-z&=?]",
    ) {
        let mut solution = solved();
        let at = at.index(solution.salt.len());
        let mut salt = solution.salt.to_string();
        salt.replace_range(at..=at, &to);
        prop_assume!(salt != *solution.salt);
        solution.salt = salt.into();
        prop_assert_eq!(
            solution.verify(&ring(7), &ann(), NOW),
            Err(ChallengeRefusal::Wrong)
        );
    }

    #[test]
    fn c_api_no_sealed_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let seal = ring(7).seal(crate::key::Domain::ChallengeToken, &[&bytes]);
        bytes.extend_from_slice(&seal.to_bytes());
        let _ = Pass::open(&ring(7), PassKind::Token, &bytes);
    }
}
