//! Trying a policy before it binds: replayed, beside the live one, promoted. Every command of
//! `docs/try-a-policy.md` is run here.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "trying/replay.rs"]
mod replay;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{Client, Options, Server, palisade};
use serde_json::Value;
use tempfile::TempDir;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Windows so long that how fast a test runs changes nothing.
fn policy(rate: &str, guard: &str) -> String {
    format!(
        "[policy]\ndefaults = false\n[[route]]\npath = \"/*\"\nclass = \"all\"\n\n\
         [[limit]]\nname = \"per-address\"\nby = [\"ip\"]\nrate = \"{rate}\"\n{guard}"
    )
}

fn service(policy: &str) -> String {
    format!(
        "[store]\nurl = \"memory:\"\n[admin]\ntoken = \"env:ADMIN\"\n\
         [candidate]\nfile = \"next.toml\"\nheader = true\n{policy}"
    )
}

fn start(live: &str, next: &str) -> Server {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("next.toml"), next).unwrap();
    started(home, live)
}

fn started(home: TempDir, live: &str) -> Server {
    let options = Options {
        config: Some(live),
        env: &[("ADMIN", TOKEN)],
        ..Options::default()
    };
    Server::at(home, &options)
}

/// Runs a command beside a server.
fn command(server: &Server, args: &[&str]) -> Output {
    let mut command = palisade();
    command
        .current_dir(server.home.path())
        .env("ADMIN", TOKEN)
        .env("PALISADE_ADMIN_TOKEN", TOKEN)
        .args(args);
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

fn admin(server: &Server, path: &str) -> Value {
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("Authorization", bearer.as_str())];
    Client::connect(server.admin)
        .send("GET", path, &headers, b"")
        .json()
}

/// A caller's request or login, by a fixed sequence.
fn traffic() -> Vec<(&'static str, String)> {
    let mut seed = 11_u64;
    let mut next = move |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    let one = |n: usize, a: u64, b: u64, c: u64| match a {
        0 => (
            "/v1/guard/login/failure",
            format!(
                r#"{{"ip":"198.51.100.{b}","account":"a{c}","device":{{"client_id":"d{b}"}},"request_id":"r{n}"}}"#
            ),
        ),
        _ => (
            "/v1/check",
            format!(r#"{{"ip":"192.0.2.{b}","method":"GET","path":"/a"}}"#),
        ),
    };
    (0..300)
        .map(|n| one(n, next(4), next(6), next(3)))
        .collect()
}

/// What was decided, and what the candidate would have decided.
fn decide(server: &Server) -> Vec<(String, String)> {
    let mut client = server.connect();
    let mut all = Vec::new();
    for (path, body) in traffic() {
        let answer = client.send("POST", path, &[], body.as_bytes()).json();
        let decision = answer["decision"].as_str().unwrap().to_owned();
        let refused = |decision: &str| {
            if decision == "allow" {
                "allow"
            } else {
                "refuse"
            }
        };
        let header = answer["headers"]["X-RateLimit-Candidate"].as_str();
        let predicted = match header.and_then(|header| header.split(';').next()) {
            Some("newly-denied") => "refuse",
            Some("newly-allowed") => "allow",
            _ => refused(&decision),
        };
        all.push((refused(&decision).to_owned(), predicted.to_owned()));
    }
    all
}

#[test]
fn l_candidate_what_was_predicted_is_what_the_promoted_policy_decides() {
    let live = service(&policy("30/day", "[guard.login]\nmode = \"shadow\"\n"));
    let next = policy("20/day", "");
    let server = start(&live, &next);
    let before = decide(&server);
    let report = admin(&server, "/admin/candidate");
    let differ = before
        .iter()
        .filter(|(is, would_be)| is != would_be)
        .count();
    assert!(differ > 20, "{report}");
    assert_eq!(report["verdicts"]["newly_denied"], differ);
    let told = said(&command(
        &server,
        &["candidate", "status", "--admin", &server.admin.to_string()],
    ));
    assert!(told.contains(&format!("{differ} newly denied")), "{told}");
    assert!(told.contains("per-address"), "{told}");
    assert!(
        !told.contains("192.0.2") && !told.contains("198.51.100"),
        "{told}"
    );
    let metrics = server.admin_get("/metrics");
    let counted =
        format!("rate_limiter_candidate_decisions_total{{verdict=\"newly_denied\"}} {differ}");
    assert!(metrics.text().contains(&counted));

    let address = server.admin.to_string();
    let promoted = command(
        &server,
        &[
            "candidate",
            "promote",
            "--yes",
            "--config",
            "palisade.toml",
            "--admin",
            &address,
        ],
    );
    assert_eq!(promoted.status.code(), Some(0), "{}", said(&promoted));
    assert!(
        !said(&promoted).contains("not taken it over"),
        "{}",
        said(&promoted)
    );
    let now = admin(&server, "/admin/candidate");
    assert_eq!(now["live_revision"], 2);
    // The limit that was the candidate's binds: addresses have used up their twenty.
    let home = server.home.path();
    assert_eq!(
        std::fs::read_to_string(home.join("next.toml")).unwrap(),
        live
    );
    let files = std::fs::read_dir(home).unwrap().count();
    let promoted = std::fs::read_to_string(home.join("palisade.toml")).unwrap();
    assert!(
        promoted.starts_with(&next) && promoted.contains("memory:"),
        "{promoted}"
    );
    assert!(files <= 3, "something was left behind");

    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("next.toml"), &live).unwrap();
    let after = decide(&started(home, &promoted));
    for (n, ((_, predicted), (is, _))) in before.iter().zip(&after).enumerate() {
        assert_eq!(predicted, is, "event {n}");
    }
}

#[test]
fn l_candidate_is_read_again_and_taken_away_while_it_runs() {
    let server = start(&service(&policy("9/day", "")), &policy("1/day", ""));
    let ask = |server: &Server| {
        server
            .post(
                "/v1/check",
                r#"{"ip":"192.0.2.1","method":"GET","path":"/a"}"#,
            )
            .json()
    };
    ask(&server);
    assert!(ask(&server)["headers"]["X-RateLimit-Candidate"].is_string());
    let path = server.home.path().join("next.toml");
    let revision = || admin(&server, "/admin/candidate")["candidate_revision"].as_u64();
    let before = revision();
    std::fs::write(&path, policy("50/day", "")).unwrap();
    until("the candidate is replaced", || revision() > before);
    assert!(ask(&server)["headers"]["X-RateLimit-Candidate"].is_null());
    let without =
        service(&policy("9/day", "")).replace("file = \"next.toml\"\nheader = true\n", "");
    std::fs::write(server.home.path().join("palisade.toml"), without).unwrap();
    until("the candidate is gone", || {
        admin(&server, "/admin/candidate")["verdicts"].is_null()
    });
    let told = command(
        &server,
        &["candidate", "status", "--admin", &server.admin.to_string()],
    );
    assert_eq!(told.status.code(), Some(1), "{}", said(&told));
}

#[test]
fn promoting_asks_first_and_a_wrong_candidate_stops_the_start() {
    let live = service(&policy("9/day", ""));
    let server = start(&live, &policy("1/day", ""));
    let address = server.admin.to_string();
    let unasked = command(
        &server,
        &[
            "candidate",
            "promote",
            "--config",
            "palisade.toml",
            "--admin",
            &address,
        ],
    );
    assert_eq!(unasked.status.code(), Some(2), "{}", said(&unasked));
    let home = server.home.path();
    assert_eq!(
        std::fs::read_to_string(home.join("palisade.toml")).unwrap(),
        live
    );
    std::fs::write(home.join("next.toml"), policy("0/day", "")).unwrap();
    let checked = command(&server, &["check", "palisade.toml"]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(said(&checked).contains("next.toml:"), "{}", said(&checked));
}

/// Waits for something within a minute.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !is_so() {
        assert!(started.elapsed() < common::PATIENCE, "{what}: not in time");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// The commands of the page.
fn commands() -> Vec<String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/try-a-policy.md")).unwrap();
    let found = text.split("```sh\n").skip(1);
    found
        .map(|after| after.split_once("```").unwrap().0.trim().to_owned())
        .collect()
}

/// Runs a line of shell with the binary on the path.
fn shell(folder: &Path, line: &str) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_palisade"));
    let path = format!("{}:/usr/bin:/bin", binary.parent().unwrap().display());
    let output = Command::new("sh")
        .args(["-c", line])
        .current_dir(folder)
        .env_clear()
        .env("PATH", path)
        .env("ADMIN", TOKEN)
        .env("PALISADE_ADMIN_TOKEN", TOKEN)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}: {}", said(&output));
    said(&output)
}

fn log(lines: u32) -> String {
    let line = |n: u32| {
        let (minute, second, host) = (n / 60, n % 60, n % 3);
        format!(
            "192.0.2.{host} - - [10/Oct/2026:13:{minute:02}:{second:02} +0000] \"GET /a HTTP/1.1\" 200 1 \"-\" \"curl/8\"\n"
        )
    };
    (0..lines).map(line).collect()
}

#[test]
fn the_commands_of_the_page_do_what_it_says() {
    let commands = commands();
    let has = |part: &str| {
        let found = commands.iter().find(|line| line.contains(part));
        found
            .unwrap_or_else(|| panic!("no command has `{part}`"))
            .clone()
    };
    let server = start(&service(&policy("9/day", "")), &policy("4/day", ""));
    let home = server.home.path();
    std::fs::copy(home.join("palisade.toml"), home.join("policy.toml")).unwrap();
    std::fs::write(home.join("access.log"), log(60)).unwrap();

    let said = shell(home, &has("replay access.log --config policy.toml"));
    assert!(said.starts_with("60 events: allow 27, deny 33\n"), "{said}");
    assert!(said.contains("L-IP per-address"), "{said}");
    let said = shell(home, &has("--against"));
    assert!(said.contains("newly denied: 15"), "{said}");
    assert!(
        said.contains("line 13: 2026-10-10T13:00:12.000Z GET /a by L-IP per-address"),
        "{said}"
    );
    let page = std::fs::read_to_string(home.join("page.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("192.0.2") && !page.contains("GET /a"));
    assert!(!page.contains("<script") && !page.contains("http://") && !page.contains("src="));

    let at = format!(" --admin {}", server.admin);
    let said = shell(home, &(has("candidate status") + &at));
    assert!(said.starts_with("0 decisions since "), "{said}");
    let promote = has("candidate promote").replace("policy.toml", "palisade.toml");
    let said = shell(home, &(promote + " --yes" + &at));
    assert!(said.contains("promoted: "), "{said}");
}

/// Two hours of a hundred addresses, five of them ten times as busy.
fn busy_log() -> String {
    let mut text = String::new();
    for second in 0..7200_u32 {
        let (hour, minute, left) = (13 + second / 3600, second / 60 % 60, second % 60);
        let mut line = |host: u32| {
            text.push_str(&format!("192.0.2.{host} - - [10/Oct/2026:{hour}:{minute:02}:{left:02} +0000] \"GET /a HTTP/1.1\" 200 1\n"));
        };
        line(second % 95 + 5);
        if second % 3 == 0 {
            line(second / 3 % 5);
        }
    }
    text
}

#[test]
fn suggest_writes_a_policy_that_touches_no_more_callers_than_were_granted() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("access.log"), busy_log()).unwrap();
    let command = commands()
        .into_iter()
        .find(|line| line.contains("suggest"))
        .unwrap();
    let all = shell(folder.path(), &command);
    assert_eq!(all, "", "it went to the file");
    for (share, touched_max) in [("1%", 1), ("5%", 5), ("0", 0)] {
        let line = format!(
            "palisade suggest access.log --deny-at-most {share} > s.toml && palisade check s.toml && palisade replay --json access.log --config s.toml"
        );
        let said = shell(folder.path(), &line);
        let replayed: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        let touched = replayed["summary"]["subjects_refused"].as_u64().unwrap();
        assert!(touched <= touched_max, "{share}: {touched} touched");
        let text = std::fs::read_to_string(folder.path().join("s.toml")).unwrap();
        assert!(
            text.contains(&format!("by ip: {touched} of 100 callers touched")),
            "{text}"
        );
        assert!(!text.contains("192.0.2"), "{text}");
    }
    let said = shell(
        folder.path(),
        "palisade suggest access.log --deny-at-most 5% --json",
    );
    let told: Value = serde_json::from_str(&said).unwrap();
    let limit = told["limits"]
        .as_array()
        .unwrap()
        .iter()
        .find(|limit| limit["name"] == "read-per-ip-and-h");
    // The five busy ones make 240 an hour, the others 38: five percent may be cut.
    assert!(limit.unwrap()["max"].as_u64().unwrap() >= 240, "{told}");
    assert!(
        limit.unwrap()["rate"].as_str().unwrap().starts_with("39/")
            || limit.unwrap()["rate"].as_str().unwrap().starts_with("40/"),
        "{told}"
    );
}
