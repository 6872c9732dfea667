//! The commands beside `serve`: output and exit codes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;

use std::io::Write;
use std::process::{Output, Stdio};

use common::palisade;
use serde_json::Value;

fn run(args: &[&str]) -> Output {
    palisade().args(args).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_str(stdout(output)).unwrap()
}

fn file(content: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content.as_bytes()).unwrap();
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

#[test]
fn check_accepts_a_good_file_and_places_the_errors_of_a_bad_one() {
    let good = file("[server]\nlisten = \"127.0.0.1:8080\"\n");
    let accepted = run(&["check", path(&good)]);
    assert_eq!(accepted.status.code(), Some(0));
    assert!(stdout(&accepted).contains("ok"));
    assert_eq!(json(&run(&["check", "--json", path(&good)]))["valid"], true);

    let bad = file(
        "[server]\nlisten = \"127.0.0.1:8080\"\n\n[[limit]]\nname = \"x\"\nby = [\"ip\"]\nrate = \"0/min\"\n",
    );
    let refused = run(&["check", path(&bad)]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains(":7:"), "{said}");
    let refused = json(&run(&["check", "--json", path(&bad)]));
    assert_eq!(refused["valid"], false);
    assert_eq!(refused["errors"][0]["line"], 7);
}

#[test]
fn usage_errors_end_with_2() {
    assert_eq!(run(&["no-such-command"]).status.code(), Some(2));
    assert_eq!(run(&["check"]).status.code(), Some(2));
    assert_eq!(run(&["test", "/no/such/file"]).status.code(), Some(2));
}

const CASES: &str = r#"{"at":"2026-01-01T00:00:00Z","op":"request","ip":"203.0.113.5","method":"POST","path":"/auth/token","expect":{"decision":"allow"}}
{"at":"2026-01-01T00:00:01Z","op":"request","ip":"203.0.113.5","method":"POST","path":"/auth/token","expect":{"decision":"deny"}}
"#;

#[test]
fn test_prints_what_differs_and_ends_with_1() {
    let cases = file(CASES);
    let differing = run(&["test", path(&cases)]);
    assert_eq!(differing.status.code(), Some(1));
    let said = stdout(&differing);
    assert!(
        said.contains(":2\n  decision\n  - \"deny\"\n  + \"allow\""),
        "{said}"
    );
    assert!(said.contains("2 events in 1 files, 1 differ"), "{said}");
    assert!(said.contains("why: allow by "), "{said}");
    assert!(
        said.contains("bucket: ip-auth of each ip, class auth: 8 of 10 left"),
        "{said}"
    );
    let as_json = json(&run(&["test", "--json", path(&cases)]));
    assert_eq!(as_json["failures"][0]["line"], 2);

    let good = file(CASES.lines().next().unwrap());
    assert_eq!(run(&["test", path(&good)]).status.code(), Some(0));
}

#[test]
fn a_case_that_cannot_be_read_is_named_by_its_line_and_not_echoed() {
    let cases = file(r#"{"at":"2026-01-01T00:00:00Z","op":"request","ip":"canary"}"#);
    let refused = run(&["test", path(&cases)]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2));
    assert!(said.contains(":1: `ip` is not an IP address"), "{said}");
    assert!(!said.contains("canary"));
}

#[test]
fn quota_hash_reads_the_key_from_standard_input() {
    let hash = |input: &str, args: &[&str]| {
        let mut child = palisade()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        child.wait_with_output().unwrap()
    };
    let plain = hash("key-1\n", &["quota", "hash"]);
    let sha256 = "be2974546978e3739e6d6da85c4be9f334ce32df2b9fd4b6ff1b55c0d57e9d44";
    assert_eq!(stdout(&plain).trim(), sha256);
    assert_eq!(
        json(&hash("key-1", &["quota", "hash", "--json"]))["hash"],
        sha256
    );
    let empty = hash("", &["quota", "hash"]);
    assert_eq!(empty.status.code(), Some(2));
}

/// Every command that the binary says it has.
fn commands() -> Vec<String> {
    let help = run(&["--help"]);
    let listed = stdout(&help).split("Commands:\n").nth(1).unwrap();
    let names = listed.lines().take_while(|line| !line.is_empty());
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect()
}

#[test]
fn completions_name_every_command() {
    let script = run(&["completions", "bash"]);
    assert_eq!(script.status.code(), Some(0));
    let commands = commands();
    for known in ["serve", "import-state", "completions"] {
        assert!(commands.iter().any(|name| name == known), "{commands:?}");
    }
    for command in commands {
        let case = format!("palisade,{command})");
        assert!(stdout(&script).contains(&case), "{command}");
    }
}

#[test]
fn policy_says_what_a_flag_of_serve_would_change() {
    let file = file("[store]\nurl = \"memory:\"\n");
    let args = ["policy", "--json", "--config", path(&file)];
    let origin = |args: &[&str]| {
        let shown = json(&run(args));
        let figures = shown["figures"].as_array().unwrap().clone();
        let url = figures.iter().find(|one| one["key"] == "store.url");
        (url.unwrap()["from"].clone(), shown["guard"].clone())
    };
    let (from, guard) = origin(&args);
    assert!(from.as_str().unwrap().ends_with(":2"), "{from}");
    assert!(guard.as_str().unwrap().contains("login"), "{guard}");
    let flagged = [&args[..], &["--store", "embedded:./elsewhere"]].concat();
    assert_eq!(origin(&flagged).0, "--store");
}

#[test]
fn replay_decides_an_access_log_line_by_line() {
    let entry = |second: u32| {
        format!(
            "203.0.113.9 - - [10/Oct/2026:13:55:{second:02} +0000] \"POST /auth/token HTTP/1.1\" 200 1 \"-\" \"Mozilla/5.0\"\n"
        )
    };
    let log: String = (0..12).map(entry).collect::<String>() + "nonsense\n";
    let log = file(&log);
    let replayed = run(&[
        "replay",
        "--json",
        "--lines",
        "--format",
        "combined",
        path(&log),
    ]);
    assert_eq!(replayed.status.code(), Some(0));
    let lines: Vec<Value> = stdout(&replayed)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 13, "a decision per request and the summary");
    assert_eq!(lines[9]["decision"], "allow");
    assert_eq!(lines[10]["decision"], "deny");
    assert_eq!(lines[11]["rule"], "L-IP");
    assert_eq!(lines[11]["limit"], "ip-auth");
    assert_eq!(lines[11]["asked"], "POST /auth/token");
    let summary = &lines[12]["summary"];
    assert_eq!(summary["decisions"]["deny"], 2);
    assert_eq!(summary["wrong_lines"], 1);
    assert_eq!(summary["first_wrong_lines"][0]["line"], 13);
    assert_eq!(summary["refused_by"]["L-IP ip-auth"], 2);
    assert_eq!(summary["classes"]["auth"]["refused"], 2);
    assert_eq!(summary["subjects"][0]["first_line"], 1);
}

#[test]
fn replay_against_another_policy_shows_who_is_treated_differently() {
    let events = file(CASES);
    let strict =
        file("[[limit]]\nname = \"ip-auth\"\nby = [\"ip\"]\nclass = \"auth\"\nrate = \"1/min\"\n");
    let replayed = run(&[
        "replay",
        path(&events),
        "--lines",
        "--against",
        path(&strict),
    ]);
    let said = stdout(&replayed);
    assert!(
        said.contains("2 2026-01-01T00:00:01.000Z POST /auth/token allow → deny L-IP ip-auth 59s"),
        "{said}"
    );
    assert!(
        said.contains("newly denied: 1\n    L-IP ip-auth: 1\n    1 subjects: of line 2 (1)\n"),
        "{said}"
    );
    let back = run(&[
        "replay",
        path(&events),
        "--config",
        path(&strict),
        "--against",
        path(&file("")),
    ]);
    let said = stdout(&back);
    assert!(
        said.contains("newly allowed: 1\n    L-IP ip-auth: 1"),
        "{said}"
    );
    insta::assert_snapshot!(said);
}
