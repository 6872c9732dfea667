//! Spellings of names against a real collator: ICU's root collation at its first level, which
//! Node has (`Intl.Collator` with `sensitivity: "base"`), over all code points.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use palisade_core::spelling;

/// Differences between ICU and us.
#[derive(Debug, serde::Deserialize)]
struct Differences {
    /// Characters that ICU ignores within a name and we do not.
    ignored: Vec<String>,
    /// Characters that ICU compares as others, or as ASCII text, and we do not.
    apart: Vec<String>,
    /// Characters that we compare as others and ICU does not.
    together: Vec<String>,
    compared: usize,
}

fn compared() -> Differences {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spelling/compare.mjs");
    let child = Command::new("node")
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.expect("node is installed by `scripts/test`");
    let mut lines = String::new();
    for c in (' '..=char::MAX).filter(|c| !c.is_control()) {
        let row = [
            c.to_string(),
            spelling::one(&c.to_string()),
            spelling::one(&format!("a{c}b")),
        ];
        lines += &serde_json::to_string(&row).unwrap();
        lines.push('\n');
    }
    let mut stdin = child.stdin.take().unwrap();
    let writing = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The iota subscript on its own: ICU compares it as an iota, and we drop it.
const APART: [&str; 1] = ["ͺ"];

/// Characters that Unicode decomposes into another one with a mark, or into a mark alone, and that
/// ICU compares as letters of their own: Cyrillic `й`, Arabic letters with hamza and their shapes,
/// a Thai and a Lao vowel. Then letters that MySQL compares as `th`, `t` and `i`, or that share a
/// case with another letter, those that WordPress compares as `n` and `k`, and fillers. Names that
/// differ only in these share a count.
const TOGETHER: &str = "йЙأإؤئآﺁﺂﺃﺄﺅﺆﺇﺈﺉﺊﺋﺌﻵﻶﻷﻸﻹﻺﯹﯺﯻﰀﰁﰂﰃﰄﱤﱥﱦﱧﱨﱩﲗﲘﲙﲚﲛﳟﳠำຳⵯ\
     ¨´¸˘˙˚˛˜˝ͺ΄΅᾽᾿῀῁῍῎῏῝῞῟῭΅´῾‗‾゛゜﹉﹊﹋﹌\
     þÞŧŦıɜꞫᶟ𝚤𐗉𐗤ŋŊᵑŉĸ\u{1fee}\u{1ffd}\u{115f}\u{1160}\u{3164}\u{ffa0}";

#[test]
fn s3_what_icu_takes_for_one_name_is_one() {
    let found = compared();
    assert!(found.compared > 40_000, "{}", found.compared);
    assert!(found.ignored.is_empty(), "{:?}", found.ignored);
    let apart: Vec<&String> = found
        .apart
        .iter()
        .filter(|c| !APART.contains(&c.as_str()))
        .collect();
    assert!(apart.is_empty(), "{apart:?}");
    let is_accepted = |c: &String| TOGETHER.contains(c.as_str()) || c.trim().is_empty();
    let together: Vec<&String> = found.together.iter().filter(|c| !is_accepted(c)).collect();
    assert!(together.is_empty(), "{together:?}");
}
