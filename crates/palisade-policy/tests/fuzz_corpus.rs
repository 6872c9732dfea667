//! Replays the fuzz corpus of the policy file on the stable compiler.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "../../../fuzz/src/policy_parser.rs"]
mod policy_parser;

#[test]
fn every_corpus_file_passes_its_target() {
    let root = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fuzz/corpus/policy_parser"
    );
    let mut files = 0;
    for entry in std::fs::read_dir(root).unwrap() {
        policy_parser::policy_parser(&std::fs::read(entry.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files >= 10, "{files} files");
}
