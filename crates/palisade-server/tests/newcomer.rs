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

use std::fs;
use std::io::{BufReader, Read};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a newcomer may have to type.
const COMMANDS_MAX: usize = 15;
/// How long all of it may take, without the build, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

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

/// Free ports in place of the page's.
fn ports() -> Vec<(String, String)> {
    let held: Vec<TcpListener> = (0..4)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    ["8080", "9090", "8000", "3000"]
        .iter()
        .zip(&held)
        .map(|(page, free)| {
            let free = free.local_addr().unwrap().port().to_string();
            ((*page).to_owned(), free)
        })
        .collect()
}

/// Runs a path and gives what it printed to its end. Whatever it started ends with it.
fn walk(heading: &str) -> String {
    let page = block(heading);
    let count = commands(&page);
    assert!(count < COMMANDS_MAX, "{heading}: {count} commands");
    let ports = ports();
    let moved = |text: &str| {
        ports.iter().fold(text.to_owned(), |text, (page, free)| {
            text.replace(&format!("127.0.0.1:{page}"), &format!("127.0.0.1:{free}"))
                .replace(&format!("--port {page}"), &format!("--port {free}"))
        })
    };
    let home = tempfile::tempdir().unwrap();
    let clone = home.path().join("palisade");
    copy(&root().join("docs"), &clone.join("docs"), &moved);
    copy(
        &root().join("clients/python"),
        &clone.join("clients/python"),
        &|text| text.to_owned(),
    );
    fs::create_dir_all(clone.join("target/release")).unwrap();
    let binary = env!("CARGO_BIN_EXE_palisade");
    std::os::unix::fs::symlink(binary, clone.join("target/release/palisade")).unwrap();
    let script: Vec<String> = moved(&page)
        .lines()
        .map(|line| match line {
            line if line.starts_with("git clone ") => "cd palisade".to_owned(),
            line if line.starts_with("cargo build ") => ":".to_owned(),
            line => line.to_owned(),
        })
        .collect();
    let started = Instant::now();
    let printed = run(home.path(), &script.join("\n"), &ports);
    eprintln!(
        "{heading}: {count} commands, {:?} without the build",
        started.elapsed()
    );
    printed
}

/// The shell is the head of a group of its own, which ends with it.
fn run(home: &Path, script: &str, ports: &[(String, String)]) -> String {
    let listen = format!("127.0.0.1:{}", ports[0].1);
    let mut child = Command::new("sh")
        .args(["-e", "-c", script])
        .current_dir(home)
        .env("PALISADE_SERVER__LISTEN", &listen)
        .env(
            "PALISADE_SERVER__ADMIN",
            format!("127.0.0.1:{}", ports[1].1),
        )
        .env("PALISADE", format!("http://{listen}"))
        .env("PALISADE_LOG__LEVEL", "error")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut printed = Vec::new();
        let _ = out.read_to_end(&mut printed);
        String::from_utf8_lossy(&printed).into_owned()
    });
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if started.elapsed() > PATIENCE {
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    // What it left in the background, and itself if it hangs.
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
    let _ = child.wait();
    let printed = reader.join().unwrap();
    assert!(status.is_some_and(|status| status.success()), "{printed}");
    printed
}

/// The status codes in what was printed, in their order.
fn codes(printed: &str) -> Vec<u16> {
    let words = printed.split_whitespace();
    let code = |word: &str| word.parse().ok().filter(|code| (200..600).contains(code));
    words.filter_map(code).collect()
}

fn ten_then_refused(printed: &str) {
    let codes = codes(printed);
    let (first, last) = codes.split_at(codes.len() - 1);
    assert!(first.ends_with(&[200; 10]) && last == [429], "{printed}");
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
