//! The examples of the documentation do what it says, against the real service.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::Server;

fn example(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("docs/examples/guard").join(name)
}

fn run(server: &Server, program: &str, script: &PathBuf, args: [&str; 4]) -> String {
    let output = Command::new(program)
        .arg(script)
        .args(args)
        .env("PALISADE", format!("http://{}", server.listen))
        .output()
        .unwrap_or_else(|error| panic!("{program} could not be started: {error}"));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        !printed.is_empty(),
        "{program} printed nothing: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    printed.trim().to_owned()
}

/// Two failures of a new device, then the soft block; another account is free.
fn plays(program: &str, script: &PathBuf, [right, wrong, blocked]: [&str; 3]) {
    let server = Server::start();
    let attempt = |account, password| {
        let args = ["203.0.113.5", account, "device-1", password];
        run(&server, program, script, args)
    };
    assert_eq!(attempt("ann", "right"), right);
    assert_eq!(attempt("bob", "wrong"), wrong);
    assert_eq!(attempt("bob", "wrong"), wrong);
    assert!(attempt("bob", "right").starts_with(blocked));
    assert_eq!(attempt("ann", "right"), right);
}

#[test]
fn the_shell_example_protects_a_login() {
    let answers = ["200 OK", "401 Unauthorized", "429 Too Many Requests"];
    plays("sh", &example("login.sh"), answers);
}

#[test]
fn the_python_example_protects_a_login() {
    plays(
        "python3",
        &example("login.py"),
        ["200 None", "401 None", "429 "],
    );
}

#[test]
fn the_typescript_example_protects_a_login() {
    // It uses no syntax that JavaScript lacks, so a plain Node runs it as a module.
    let folder = tempfile::tempdir().unwrap();
    let module = folder.path().join("login.mjs");
    std::fs::copy(example("login.ts"), &module).unwrap();
    plays("node", &module, ["200 None", "401 None", "429 "]);
}
