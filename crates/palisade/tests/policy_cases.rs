//! Every policy case of `conformance/` holds under the default policy, and those of Envoy's
//! calls under theirs.
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
use palisade_core::{Keyring, Micros};
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

/// Folders of Envoy's calls, each with a policy of its own, and how many files they have.
const OF_ENVOY: [(&str, usize); 2] = [("rls", 10), ("rls/refunds", 1)];

/// Files of cases in a folder, and how many of their answers differ.
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
async fn every_case_of_envoys_calls_holds() {
    for (folder, files_min) in OF_ENVOY {
        let folder = conformance().join(folder);
        let policy = folder.join("policy.toml");
        let (files, found) = differing(&folder, Some(&policy)).await;
        assert!(files >= files_min, "only {files} files");
        assert_eq!(found, 0);
    }
}

/// Requests and logins of a few callers, some of them too many.
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

/// What `palisade replay` counts with is what `palisade test` counts with.
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
    for (folder, _) in OF_ENVOY {
        let folder = conformance().join(folder);
        for text in recordings(&folder) {
            let (events, denials) = decided_alike(&text, Some(&folder.join("policy.toml"))).await;
            decided += events;
            refused += denials;
        }
    }
    assert!(decided > 40 && refused > 10, "{refused} of {decided}");
}

fn recordings(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}

/// How many events both have decided alike, and how many of these were denied.
async fn decided_alike(text: &str, policy: Option<&Path>) -> (usize, usize) {
    let config = palisade_policy::load(policy, &Env::default(), &Overrides::default()).unwrap();
    let keyring = || Keyring::new(&[9; 32], None).unwrap();
    let policy = || Arc::clone(&config.policy);
    let mut plain = Replayer::new(policy(), keyring());
    let mut quick = Replayer::embedded(policy(), Arc::default(), keyring(), 100_000);
    let (mut decided, mut refused) = (0, 0);
    for (index, line) in text.lines().enumerate() {
        let event = parse_event(line).unwrap();
        let expected = plain.decide(&event).await.unwrap();
        let given = quick.decide(&event).await.unwrap();
        let given = given.map(|answer| answer.decision);
        let expected = expected.map(|answer| answer.decision);
        assert_eq!(given, expected, "line {}", index + 1);
        decided += 1;
        refused += usize::from(given.is_some_and(|decision| !decision.is_allowed()));
    }
    (decided, refused)
}
