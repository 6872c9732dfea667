//! The page's examples with real clients.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where `scripts/test` installs clients.
pub(super) fn tool(path: &str, otherwise: &str) -> PathBuf {
    let installed = root().join("target/tools/redis-clients").join(path);
    match installed.exists() {
        true => installed,
        false => otherwise.into(),
    }
}

/// Every block of this language on the page, which says 6390.
pub(super) fn blocks(language: &str, port: u16) -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs/resp.md")).unwrap();
    let fence = format!("```{language}\n");
    let found: Vec<String> = text
        .split(&fence)
        .skip(1)
        .map(|after| after.split_once("```").unwrap().0)
        .map(|block| block.replace("6390", &port.to_string()))
        .collect();
    assert!(!found.is_empty(), "the page has no {language}");
    found
}

pub(super) fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{:?} cannot be started: {error}", command.get_program()));
    let said = String::from_utf8(output.stdout).unwrap();
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{failed}");
    said
}

/// What each block prints is what stands after it in a `text` block.
#[test]
fn redis_cli_does_what_the_page_says() {
    let (_server, address) = plain();
    let shown = blocks("text", address.port());
    let asked = blocks("sh", address.port());
    for (script, shown) in asked.iter().skip(1).zip(shown) {
        let said = run(Command::new("sh").args(["-c", script]));
        assert_eq!(said, shown, "{script}");
    }
}

#[test]
fn redis_py_does_what_the_page_says() {
    let (_server, address) = plain();
    for block in blocks("python", address.port()) {
        let said = run(Command::new(tool("bin/python", "python3")).args(["-c", &block]));
        assert_eq!(said, "limited for 60 s\n");
    }
}

#[test]
fn ioredis_does_what_the_page_says() {
    let (_server, address) = plain();
    for block in blocks("js", address.port()) {
        let modules = tool("node_modules", "node_modules");
        let mut node = Command::new("node");
        node.args(["-e", &block]).env("NODE_PATH", modules);
        assert_eq!(run(&mut node), "limited for 60 s\n");
    }
}
