//! Every policy case of `conformance/` holds under the default policy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::fs;
use std::path::Path;

use palisade::cases::{Replayer, parse_event};
use palisade_core::Keyring;
use palisade_policy::{Env, Overrides};

async fn mismatches(path: &Path) -> usize {
    let config = palisade_policy::load(None, &Env::default(), &Overrides::default()).unwrap();
    let policy = config.policy;
    let keyring = Keyring::new(&[9; 32], None).unwrap();
    let mut replayer = Replayer::new(policy, keyring);
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

#[tokio::test]
async fn every_policy_case_holds() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let (mut files, mut found) = (0, 0);
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "jsonl")
        {
            files += 1;
            found += mismatches(&path).await;
        }
    }
    assert!(files >= 17, "only {files} files");
    assert_eq!(found, 0);
}
