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
        "--reason",
        "support",
    ];
    assert_eq!(run(&server, TOKEN, &lift), (0, "lifted 1\n".to_owned()));
    assert_eq!(run(&server, TOKEN, &lift).0, 1);
    assert_eq!(
        run(&server, TOKEN, &["blocks", "list"]).1,
        "nothing is blocked\n"
    );
}

/// The words of a command line of the guide, as a shell would split them.
fn guide_command(starts: &str) -> Vec<String> {
    let root = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = std::fs::read_to_string(root.join("docs/guard.md")).unwrap();
    let prompt = format!("$ palisade {starts}");
    let line = guide.lines().find(|line| line.starts_with(&prompt));
    let line = line.expect("the guide shows the command");
    let mut words = Vec::new();
    for (index, part) in line["$ palisade ".len()..].split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

#[test]
fn the_guide_explains_and_unblocks_a_customer_by_name() {
    let server = server();
    let facts = r#"{"ip":"203.0.113.5","account":"ann@example.com","device":{"client_id":"d1"}}"#;
    let fail = || server.post("/v1/guard/login/failure", facts).json()["decision"].clone();
    let decisions: Vec<_> = (0..4).map(|_| fail()).collect();
    assert_eq!(decisions[2], "hard_block");
    let command = guide_command("explain ");
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let (code, shown) = run(&server, TOKEN, &words);
    assert_eq!(code, 0);
    assert!(shown.contains("to end it now: palisade blocks lift account-login"));
    assert!(!shown.contains("ann@example.com"), "{shown}");
    let command = guide_command("blocks lift ");
    let mut words: Vec<&str> = command.iter().map(String::as_str).collect();
    assert_eq!(run(&server, TOKEN, &words), (0, "lifted 1\n".to_owned()));
    assert_eq!(fail(), "hard_block", "the score is still there");
    words.push("--score");
    assert_eq!(run(&server, TOKEN, &words).0, 0);
    assert_eq!(fail(), "allow");
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
