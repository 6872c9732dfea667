//! Replays every file of the fuzz corpora on the stable compiler.
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

#[expect(unreachable_pub, reason = "the module is also a library of its own")]
#[path = "../../../fuzz/src/lib.rs"]
mod targets;

/// Most files that all corpora may have together.
const FILES_MAX: usize = 200;
/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

#[test]
fn i_key_every_corpus_file_passes_its_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut files = 0;
    for (name, target) in targets::TARGETS {
        let before = files;
        for entry in fs::read_dir(root.join(name)).unwrap() {
            let path = entry.unwrap().path();
            assert!(
                fs::metadata(&path).unwrap().len() <= FILE_BYTES_MAX,
                "{}",
                path.display()
            );
            target(&fs::read(path).unwrap());
            files += 1;
        }
        assert!(files > before, "`{name}` has no corpus");
    }
    assert!(files <= FILES_MAX, "{files} files");
}
