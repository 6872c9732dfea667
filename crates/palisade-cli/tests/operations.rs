//! `palisade doctor` finds what is wrong on real servers, and the commands of
//! docs/operations.md do what the page says.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{Options, PATIENCE, Server, palisade, signal};
use redis_server::RedisServer;
use serde_json::Value;

const KEY: (&str, &str) = (
    "PALISADE_KEY",
    "0123456789abcdef0123456789abcdef0123456789abcdef",
);

/// What the doctor says of a server, and how it ends.
fn doctor(server: &Server, env: &[(&str, &str)]) -> (Option<i32>, Vec<Value>) {
    let output = palisade()
        .current_dir(server.home.path())
        .args(["doctor", "--json", "--config", "palisade.toml", "--admin"])
        .arg(server.admin.to_string())
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let told: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let findings = told["findings"].as_array().unwrap().clone();
    let healthy = output.status.code() == Some(0);
    assert_eq!(told["healthy"], healthy, "{told}");
    (output.status.code(), findings)
}

fn weight<'a>(findings: &'a [Value], about: &str, words: &str) -> &'a str {
    let found = findings.iter().find(|one| {
        one["about"] == about
            && one["message"]
                .as_str()
                .is_some_and(|text| text.contains(words))
    });
    let found = found.unwrap_or_else(|| panic!("{about}: {words}: {findings:#?}"));
    if found["weight"] == "warning" || found["weight"] == "error" {
        assert_ne!(found["todo"], "", "{found}");
    }
    found["weight"].as_str().unwrap()
}

#[test]
fn doctor_has_nothing_against_a_healthy_server_and_names_what_is_wrong_with_another() {
    let server = Server::configured("");
    let (code, findings) = doctor(&server, &[]);
    assert_eq!(code, Some(0), "{findings:#?}");
    assert_eq!(weight(&findings, "store", "can be written"), "ok");
    assert_eq!(weight(&findings, "server", "the store is up"), "ok");
    assert_eq!(weight(&findings, "secret", "the one configured here"), "ok");
    assert_eq!(weight(&findings, "keys", "% of the keys"), "ok");

    let secret = server.home.path().join("palisade-data/secret");
    fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    let (code, findings) = doctor(&server, &[KEY]);
    assert_eq!(code, Some(1));
    assert_eq!(
        weight(&findings, "permissions", "every user may read"),
        "error"
    );
    assert_eq!(weight(&findings, "secret", "another secret"), "error");

    fs::write(
        server.home.path().join("palisade.toml"),
        "[store]\nurll = 1\n",
    )
    .unwrap();
    let (code, findings) = doctor(&server, &[]);
    assert_eq!(code, Some(1));
    assert_eq!(weight(&findings, "configuration", "urll"), "error");
    let admin = server.admin;
    drop(server);
    let home = tempfile::tempdir().unwrap();
    let output = palisade()
        .current_dir(home.path())
        .args(["doctor", "--admin", &admin.to_string()])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.contains("checks that need the running server were skipped"),
        "{told}"
    );
    assert!(told.contains("-> start the server"), "{told}");
}

/// On a full disk a file can be made, and nothing be written to it.
#[test]
fn x11_doctor_does_not_say_of_a_full_disk_that_it_can_be_written() {
    let server = Server::configured("");
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"";
    let output = Command::new("sh")
        .current_dir(server.home.path())
        .env_clear()
        .args(["-c", script, env!("CARGO_BIN_EXE_palisade"), "doctor"])
        .args(["--json", "--config", "palisade.toml", "--admin"])
        .arg(server.admin.to_string())
        .output()
        .unwrap();
    let told: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let findings = told["findings"].as_array().unwrap();
    assert_eq!(weight(findings, "store", "cannot be written"), "error");
    let left = fs::read_dir(server.home.path().join("palisade-data")).unwrap();
    let names: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
    let is_probe = |name: &std::ffi::OsString| name.to_string_lossy().contains("probe");
    assert!(!names.iter().any(is_probe), "{names:?}");
}

/// A key that is no key, a secret that is not there, a setting to look at: each is found by
/// another step, and one does not hide the next.
#[test]
fn doctor_finds_in_a_configuration_all_that_check_finds() {
    let home = tempfile::tempdir().unwrap();
    let text = "[server]\ntrusted_proxies = [\"0.0.0.0/0\"]\ncaller_token = \"env:NONE\"\n\
                [store]\nurll = 1\n";
    fs::write(home.path().join("palisade.toml"), text).unwrap();
    let told = |args: &[&str]| -> Value {
        let mut command = palisade();
        let output = command.current_dir(home.path()).args(args).output();
        serde_json::from_slice(&output.unwrap().stdout).unwrap()
    };
    let check = told(&["check", "--json", "palisade.toml"]);
    let admin = ["--admin", "127.0.0.1:1"];
    let doctor = told(
        &[
            &["doctor", "--json", "--config", "palisade.toml"][..],
            &admin,
        ]
        .concat(),
    );
    let findings = doctor["findings"].as_array().unwrap();
    for (kind, count, expected) in [("errors", 2, "error"), ("warnings", 1, "warning")] {
        let listed = check[kind].as_array().unwrap();
        assert_eq!(listed.len(), count, "{check:#}");
        for one in listed {
            let message = one["message"].as_str().unwrap();
            assert_eq!(weight(findings, "configuration", message), expected);
        }
    }
}

#[test]
fn doctor_says_that_a_shared_store_is_away_or_takes_no_writes() {
    let redis = RedisServer::start();
    let config = format!("[store]\nurl = \"{}\"\ntimeout = \"2s\"\n", redis.url());
    let server = Server::with(&Options {
        config: Some(&config),
        env: &[KEY],
        ..Options::default()
    });
    let (code, findings) = doctor(&server, &[KEY]);
    assert_eq!(code, Some(0), "{findings:#?}");
    assert_eq!(weight(&findings, "store", "takes writes"), "ok");
    assert_eq!(weight(&findings, "clock", "ms from this one"), "ok");

    redis.says(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let (code, findings) = doctor(&server, &[KEY]);
    assert_eq!(code, Some(1));
    assert_eq!(weight(&findings, "store", "the store:"), "error");
    drop(redis);
    let (code, findings) = doctor(&server, &[KEY]);
    assert_eq!(code, Some(1));
    assert_eq!(weight(&findings, "store", "the store:"), "error");
}

/// A folder with the binary under its name, for the shell's path.
fn with_binary() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let binary = env!("CARGO_BIN_EXE_palisade");
    std::os::unix::fs::symlink(binary, folder.path().join("palisade")).unwrap();
    folder
}

fn shell(home: &Path, bin: &Path, script: &str) -> Output {
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    Command::new("sh")
        .args(["-e", "-c", script])
        .current_dir(home)
        .env("PATH", path)
        .env(KEY.0, KEY.1)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn the_commands_of_the_operations_page_do_what_it_says() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/operations.md")).unwrap();
    let blocks: Vec<&str> = page
        .split("```sh\n")
        .skip(1)
        .map(|after| after.split_once("```").unwrap().0)
        .collect();
    let [doctor, backup, restore, moves] = blocks.as_slice() else {
        panic!("the page has other examples");
    };
    let redis = RedisServer::start();
    let server = Server::with(&Options {
        config: Some("[store]\nurl = \"embedded:./data\"\n"),
        env: &[KEY],
        ..Options::default()
    });
    let home = server.home.path();
    let shared = format!("[store]\nurl = \"{}\"\n", redis.url());
    fs::write(home.join("shared.toml"), shared).unwrap();
    let bin = with_binary();
    let run = |home: &Path, script: &str| {
        let output = shell(home, bin.path(), script);
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let failed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}{told}{failed}");
        told
    };
    let asked = doctor.replace("\n", &format!(" --admin {}\n", server.admin));
    assert!(run(home, &asked).ends_with("nothing to do\n"));
    assert!(run(home, backup).contains("changes"));
    run(home, moves);
    server.terminate();
    let (code, home) = server.wait();
    assert_eq!(code, Some(0));
    assert!(run(home.path(), restore).contains("start the server"));
}

/// What a supervisor hears of a service from its start to its end.
#[test]
fn a_supervisor_is_told_ready_alive_and_stopping() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut bytes = [0; 256];
        let count = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let server = Server::with(&Options {
        env: &[
            ("NOTIFY_SOCKET", path.to_str().unwrap()),
            ("WATCHDOG_USEC", "1000000"),
        ],
        ..Options::default()
    });
    assert!(heard().starts_with("READY=1\n"));
    assert_eq!(heard(), "WATCHDOG=1");
    assert_eq!(heard(), "WATCHDOG=1");
    signal(server.pid(), "TERM");
    loop {
        let said = heard();
        if said.starts_with("STOPPING=1\n") {
            break;
        }
        assert_eq!(said, "WATCHDOG=1");
    }
    assert_eq!(server.wait().0, Some(0));
}
