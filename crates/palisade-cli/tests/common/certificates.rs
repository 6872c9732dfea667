//! The certificates that docs/tls.md makes: an authority, a service's and a caller's.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Blocks of this language on the page, in their order.
pub(crate) fn blocks(language: &str) -> Vec<String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/tls.md")).unwrap();
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    blocks
        .map(|rest| rest.split_once("```").unwrap().0.to_owned())
        .collect()
}

/// Whether a script ends well, and what it says.
pub(crate) fn sh(home: &Path, script: &str) -> (bool, String) {
    let output = Command::new("sh")
        .current_dir(home)
        .args(["-e", "-c", script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said + &failed)
}

/// Certificates made as the page says: `ca.pem`, `service.pem`, `caller.pem` and their keys.
pub(crate) fn certificates(home: &Path) {
    let (made, said) = sh(home, &blocks("sh")[0]);
    assert!(made, "{said}");
}
