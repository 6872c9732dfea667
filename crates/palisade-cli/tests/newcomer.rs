//! The three paths of docs/start.md, from a clone to a refusal: the page's own commands, counted
//! and timed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking and says why"
)]

#[path = "common/shell.rs"]
mod shell;

use std::fs;
use std::path::Path;
use std::time::Instant;

use shell::{Shell, codes, root, ten_then_refused};

/// What a newcomer may have to type.
const COMMANDS_MAX: usize = 15;

fn copy(from: &Path, to: &Path, change: &dyn Fn(&str) -> String) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if name == "node_modules" || name == "__pycache__" || name == "build" {
            continue;
        }
        if path.is_dir() {
            copy(&path, &to.join(name), change);
        } else if path.extension().is_some_and(|end| end == "md") {
            let text = fs::read_to_string(&path).unwrap();
            fs::write(to.join(name), change(&text)).unwrap();
        } else {
            fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

/// The block under a heading.
fn block(heading: &str) -> String {
    let page = fs::read_to_string(root().join("docs/start.md")).unwrap();
    let after = page.split_once(heading).unwrap().1;
    let after = after.split_once("```sh\n").unwrap().1;
    after.split_once("\n```\n").unwrap().0.to_owned()
}

/// Lines that are typed: what stands between a file's first and last line is not.
fn commands(block: &str) -> usize {
    let mut inside = false;
    let typed = block.lines().filter(|line| {
        let ends = inside && *line == "PYTHON";
        let counts = !inside;
        inside = (inside || line.ends_with("<<'PYTHON'")) && !ends;
        counts && !line.trim().is_empty()
    });
    typed.count()
}

/// Runs a path and gives what it printed to its end.
fn walk(heading: &str) -> String {
    let page = block(heading);
    let count = commands(&page);
    assert!(count < COMMANDS_MAX, "{heading}: {count} commands");
    let shell = Shell::new();
    let clone = shell.home.path().join("palisade");
    copy(&root().join("docs"), &clone.join("docs"), &|text| {
        shell.moved(text)
    });
    copy(
        &root().join("clients/python"),
        &clone.join("clients/python"),
        &|text| text.to_owned(),
    );
    fs::create_dir_all(clone.join("target/release")).unwrap();
    let binary = env!("CARGO_BIN_EXE_palisade");
    std::os::unix::fs::symlink(binary, clone.join("target/release/palisade")).unwrap();
    let script: Vec<String> = page
        .lines()
        .map(|line| match line {
            line if line.starts_with("git clone ") => "cd palisade".to_owned(),
            line if line.starts_with("cargo build ") => ":".to_owned(),
            line => line.to_owned(),
        })
        .collect();
    let started = Instant::now();
    let printed = shell.run(&script.join("\n"));
    eprintln!(
        "{heading}: {count} commands, {:?} without the build",
        started.elapsed()
    );
    printed
}

#[test]
fn a_newcomer_has_a_limited_nginx() {
    ten_then_refused(&walk("## A limited nginx"));
}

#[test]
fn a_newcomer_has_a_limited_fastapi_application() {
    ten_then_refused(&walk("## A limited FastAPI application"));
}

#[test]
fn a_newcomer_has_a_protected_login() {
    let printed = walk("## A protected login");
    let codes = codes(&printed);
    assert!(codes.ends_with(&[401, 401, 429, 200]), "{printed}");
}

#[test]
fn what_stands_in_a_file_is_not_typed_command_by_command() {
    assert_eq!(commands("a\ncat > f <<'PYTHON'\nx\ny\nPYTHON\nb"), 3);
}
