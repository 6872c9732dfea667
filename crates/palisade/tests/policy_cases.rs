//! Runs every policy case of `conformance/` under the default policy, and those of Envoy's calls,
//! of budgets and of attacks under their own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use palisade::cases::{Replayer, parse_event};
use palisade_core::challenge::ChallengeParameters;
use palisade_core::{Decision, Keyring, Micros};
use palisade_policy::{Env, Overrides};

/// 2026-03-02T00:00:00Z.
const START: Micros = Micros(1_772_409_600_000_000);

async fn mismatches(path: &Path, policy: Option<&Path>) -> usize {
    let config = palisade_policy::load(policy, &Env::default(), &Overrides::default()).unwrap();
    let keyring = Keyring::new(&[9; 32], None).unwrap();
    let mut replayer = Replayer::new(config.policy, keyring);
    let mut found = 0;
    for (index, line) in fs::read_to_string(path).unwrap().lines().enumerate() {
        let step = replayer.step(parse_event(line).unwrap()).await.unwrap();
        for mismatch in step.mismatches {
            eprintln!("{}:{}: {mismatch:?}", path.display(), index + 1);
            found += 1;
        }
    }
    found
}

/// Folders with a policy of their own (Envoy's calls, budgets, challenges, places, attacks, sends),
/// with their number of files.
const WITH_POLICIES: [(&str, usize); 8] = [
    ("rls", 10),
    ("rls/refunds", 1),
    ("budgets", 6),
    ("overdraft", 3),
    ("challenges", 3),
    ("places", 3),
    ("adaptive", 4),
    ("sends", 2),
];

/// Runs the cases of a folder. Returns the number of files, and how many answers differ.
async fn differing(folder: &Path, policy: Option<&Path>) -> (usize, usize) {
    let (mut files, mut found) = (0, 0);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "jsonl") {
            files += 1;
            found += mismatches(&path, policy).await;
        }
    }
    (files, found)
}

fn conformance() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance")
}

#[tokio::test]
async fn every_policy_case_holds() {
    let (files, found) = differing(&conformance(), None).await;
    assert!(files >= 17, "only {files} files");
    assert_eq!(found, 0);
}

#[tokio::test]
async fn every_case_with_a_policy_of_its_own_holds() {
    for (folder, files_min) in WITH_POLICIES {
        let folder = conformance().join(folder);
        let policy = folder.join("policy.toml");
        let (files, found) = differing(&folder, Some(&policy)).await;
        assert!(files >= files_min, "only {files} files");
        assert_eq!(found, 0);
    }
}

/// Requests and logins of a few callers, some of them beyond their limits.
fn traffic() -> String {
    let mut seed = 5_u64;
    let mut next = move |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    let mut at = START;
    let mut text = String::new();
    for n in 0..6000 {
        at = at.plus(next(300_000));
        let (when, host) = (at.to_rfc3339(), next(6));
        let line = if next(5) == 0 {
            let op = ["check", "failure", "failure", "success"][usize::try_from(next(4)).unwrap()];
            let (account, device) = (next(5), next(5));
            format!(
                r#"{{"at":"{when}","op":"login.{op}","ip":"192.0.2.{host}","account":"a{account}","username":"u{account}","device":{{"client_id":"d{device}"}},"request_id":"r{n}"}}"#
            )
        } else {
            let path =
                ["/a", "/auth/token", "/consent", "/admin/x"][usize::try_from(next(4)).unwrap()];
            let (org, user) = (next(3), next(9));
            format!(
                r#"{{"at":"{when}","op":"request","ip":"192.0.2.{host}","method":"POST","path":"{path}","org":"o{org}","user":"u{user}"}}"#
            )
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// `palisade replay` and `palisade test` count in different stores, which must decide alike.
#[tokio::test]
async fn replay_on_the_embedded_store_decides_as_the_plain_one_does() {
    let (mut decided, mut refused) = (0, 0);
    for text in recordings(&conformance()).into_iter().chain([traffic()]) {
        let (events, denials) = decided_alike(&text, None).await;
        decided += events;
        refused += denials;
    }
    assert!(decided > 6000 && refused > 1000, "{refused} of {decided}");
}

#[tokio::test]
async fn replay_on_the_embedded_store_decides_envoys_calls_as_the_plain_one_does() {
    let (mut decided, mut refused) = (0, 0);
    for (folder, _) in WITH_POLICIES {
        let folder = conformance().join(folder);
        for text in recordings(&folder) {
            let (events, denials) = decided_alike(&text, Some(&folder.join("policy.toml"))).await;
            decided += events;
            refused += denials;
        }
    }
    assert!(decided > 40 && refused > 10, "{refused} of {decided}");
}

/// Random reservations that are extended, settled, released and forgotten.
fn reservations() -> String {
    let mut seed = 11_u64;
    let mut next = move |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    let (mut at, mut text) = (START, String::new());
    for number in 0..3_000 {
        at = at.plus(next(2_000_000));
        let (when, of) = (at.to_rfc3339(), next(number / 2 + 1));
        let (user, tokens) = (next(3), next(30_000));
        let facts = format!(
            r#""ip":"192.0.2.1","method":"POST","path":"/x","org":"o{user}","user":"u{user}""#
        );
        let line = match next(5) {
            0 | 1 => format!(
                r#""op":"reserve","as":"r{of}",{facts},"costs":{{"requests":1,"tokens":{tokens}}}"#
            ),
            2 => format!(r#""op":"extend","of":"r{of}","hold":"30s""#),
            3 => format!(r#""op":"settle","of":"r{of}","costs":{{"tokens":{tokens}}}"#),
            _ => format!(r#""op":"release","of":"r{of}""#),
        };
        text.push_str(&format!("{{\"at\":\"{when}\",{line}}}\n"));
    }
    text
}

/// B-BOUND: the embedded store's answers are compared with those of the plain store.
#[tokio::test]
async fn b_bound_reservations_on_the_embedded_store_are_those_of_the_plain_one() {
    let folder = conformance().join("budgets");
    let (events, denied) = decided_alike(&reservations(), Some(&folder.join("policy.toml"))).await;
    assert!(events > 500 && denied > 50, "{denied} of {events}");
}

/// Reports, looks and reservations on limits that may be overdrawn, at random.
fn overdrafts() -> String {
    let mut seed = 7_u64;
    let mut next = move |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    let (mut at, mut text) = (START, String::new());
    for number in 0..3_000 {
        at = at.plus(next(12_000_000));
        let (when, of, org) = (at.to_rfc3339(), next(number / 2 + 1), next(3));
        let facts = format!(r#""ip":"192.0.2.1","method":"POST","path":"/x","org":"o{org}""#);
        let [tokens, bytes] = [next(900), next(900)].map(|one| one.saturating_sub(300));
        let costs = format!(
            r#""costs":{{"requests":{},"tokens":{tokens},"bytes":{bytes}}}"#,
            next(2)
        );
        let line = match next(7) {
            0 | 1 => format!(r#""op":"request",{facts},{costs}"#),
            2 | 3 => format!(r#""op":"request","report":true,{facts},{costs}"#),
            4 => format!(r#""op":"reserve","as":"r{of}",{facts},{costs}"#),
            5 => format!(r#""op":"settle","of":"r{of}","costs":{{"tokens":{tokens}}}"#),
            _ => format!(
                r#""op":"rls","domain":"edge","descriptors":[{{"entries":[{{"key":"user","value":"u{org}"}}],"hits":{}}},[{{"key":"calls"}}]]"#,
                tokens / 5
            ),
        };
        text.push_str(&format!("{{\"at\":\"{when}\",{line}}}\n"));
    }
    text
}

/// The embedded store, whose answers are compared with the plain one's.
#[tokio::test]
async fn b_overdraft_reports_on_the_embedded_store_are_those_of_the_plain_one() {
    let folder = conformance().join("overdraft");
    let (events, denied) = decided_alike(&overdrafts(), Some(&folder.join("policy.toml"))).await;
    assert!(events > 2_000 && denied > 300, "{denied} of {events}");
}

fn recordings(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}

/// A decision without the random parts of the challenge that it offers.
fn without_salt(mut decision: Decision) -> Decision {
    if let Some(offer) = &mut decision.offer {
        offer.parameters = ChallengeParameters::Own {};
    }
    decision
}

/// Number of events that both stores have decided alike, and how many of these were denied.
async fn decided_alike(text: &str, policy: Option<&Path>) -> (usize, usize) {
    let config = palisade_policy::load(policy, &Env::default(), &Overrides::default()).unwrap();
    let keyring = || Keyring::new(&[9; 32], None).unwrap();
    let policy = || Arc::clone(&config.policy);
    let mut plain = Replayer::new(policy(), keyring());
    let mut quick = Replayer::embedded(policy(), Arc::default(), keyring(), 100_000);
    let (mut decided, mut refused) = (0, 0);
    for (index, line) in text.lines().enumerate() {
        let event = parse_event(line).unwrap();
        let expected = plain.decide(&event).await;
        let given = quick.decide(&event).await;
        // A reservation that was denied cannot have later steps.
        let (Ok(expected), Ok(given)) = (expected, given) else {
            assert!(line.contains("\"of\""), "line {}", index + 1);
            continue;
        };
        // The id of a reservation and the salt of a challenge are drawn at random.
        let without_random = |decision: Decision| Decision {
            reservation: None,
            ..without_salt(decision)
        };
        let given = given.map(|answer| without_random(answer.decision));
        let expected = expected.map(|answer| without_random(answer.decision));
        assert_eq!(given, expected, "line {}", index + 1);
        decided += 1;
        refused += usize::from(given.is_some_and(|decision| !decision.is_allowed()));
    }
    (decided, refused)
}
