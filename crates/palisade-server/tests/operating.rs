//! Operators' commands against a running server: list, explain, lift, allow, reset.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;

use common::{Options, Server, palisade};
use serde_json::Value;

const TOKEN: &str = "an-operator-token-of-decent-length";

fn server() -> Server {
    Server::with(&Options {
        config: Some("[admin]\ntoken = \"env:ADMIN_TOKEN\"\n"),
        env: &[("ADMIN_TOKEN", TOKEN)],
        ..Options::default()
    })
}

/// Exit code and standard output of a command that asks `server`.
fn run(server: &Server, token: &str, args: &[&str]) -> (i32, String) {
    let output = palisade()
        .args(args)
        .args(["--admin", &server.admin.to_string()])
        .env("PALISADE_ADMIN_TOKEN", token)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code().unwrap(), text)
}

fn fail_twice(server: &Server) {
    let facts = r#"{"ip":"203.0.113.6","account":"a1","device":{"client_id":"d1"}}"#;
    for _ in 0..3 {
        server.post("/v1/guard/login/failure", facts);
    }
}

#[test]
fn a_block_is_listed_explained_and_lifted() {
    let server = server();
    assert_eq!(
        run(&server, TOKEN, &["blocks", "list"]).1,
        "nothing is blocked\n"
    );
    fail_twice(&server);
    let explain = ["explain", "--ip", "203.0.113.6", "--account", "a1"];
    let (code, words) = run(&server, TOKEN, &explain);
    assert_eq!(code, 0);
    assert!(words.starts_with("hard_block\n"), "{words}");
    assert!(words.contains("[G-THRESHOLD]"), "{words}");
    let (_, listed) = run(&server, TOKEN, &["blocks", "list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let block = &listed["blocks"][0];
    let lift = [
        "blocks",
        "lift",
        block["record"].as_str().unwrap(),
        block["id"].as_str().unwrap(),
    ];
    assert_eq!(run(&server, TOKEN, &lift), (0, "lifted 1\n".to_owned()));
    assert_eq!(run(&server, TOKEN, &lift).0, 1);
    assert_eq!(
        run(&server, TOKEN, &["blocks", "list"]).1,
        "nothing is blocked\n"
    );
}

#[test]
fn an_address_is_allowed_and_no_longer() {
    let server = server();
    let ask = || {
        let facts = r#"{"ip":"203.0.113.5","method":"POST","path":"/auth/token"}"#;
        server.post("/v1/check", facts).json()["decision"].clone()
    };
    for _ in 0..10 {
        assert_eq!(ask(), "allow");
    }
    assert_eq!(ask(), "deny");
    let add = [
        "allowlist",
        "add",
        "ip",
        "203.0.113.5",
        "--reason",
        "monitoring",
    ];
    assert_eq!(run(&server, TOKEN, &add), (0, "added\n".to_owned()));
    assert_eq!(ask(), "allow");
    let (_, listed) = run(&server, TOKEN, &["allowlist", "list"]);
    assert!(
        listed.contains("monitoring") && !listed.contains("203.0.113.5"),
        "{listed}"
    );
    let remove = ["allowlist", "remove", "ip", "203.0.113.5"];
    assert_eq!(run(&server, TOKEN, &remove).0, 0);
    assert_eq!(run(&server, TOKEN, &remove).0, 1);
    assert_eq!(ask(), "deny");
    let reset = ["reset", "--ip", "203.0.113.5", "--reason", "support"];
    assert_eq!(run(&server, TOKEN, &reset).0, 0);
    assert_eq!(ask(), "allow");
}

#[test]
fn a_wrong_token_and_a_server_that_is_not_there_have_their_exit_codes() {
    let server = server();
    assert_eq!(run(&server, "wrong", &["blocks", "list"]).0, 2);
    let absent = palisade()
        .args(["status", "--admin", "127.0.0.1:1"])
        .output()
        .unwrap();
    assert_eq!(absent.status.code(), Some(3));
    assert_eq!(run(&server, TOKEN, &["status"]).0, 0);
}
