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

use palisade::cases::{Replayer, parse_event};
use palisade_core::Keyring;
use palisade_policy::{Env, Overrides};

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
    let folder = conformance().join("rls");
    let policy = folder.join("policy.toml");
    let (files, found) = differing(&folder, Some(&policy)).await;
    assert!(files >= 8, "only {files} files");
    assert_eq!(found, 0);
}
