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
    let (code, lifted) = run(&server, TOKEN, &words);
    assert_eq!(code, 0);
    assert!(
        lifted.starts_with("lifted 1\nlooked up as typed: account "),
        "{lifted}"
    );
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

/// The status of `/metrics` for whoever presents `token`.
fn metrics(server: &Server, token: &str) -> u16 {
    let shown = format!("Bearer {token}");
    let headers = [("Authorization", shown.as_str())];
    let mut client = common::Client::connect(server.admin);
    client.send("GET", "/metrics", &headers, b"").status
}

#[test]
fn with_a_caller_token_whoever_may_look_still_reads_health_and_figures() {
    let (caller, viewer) = (
        "a-callers-token-of-decent-length",
        "a-viewers-token-of-decent-length",
    );
    let env = [
        ("CALLER", caller),
        ("ADMIN_TOKEN", TOKEN),
        ("VIEWER_TOKEN", viewer),
    ];
    let server = Server::with(&Options {
        config: Some(
            "[server]\ncaller_token = \"env:CALLER\"\n\
             [admin]\ntoken = \"env:ADMIN_TOKEN\"\nviewer_token = \"env:VIEWER_TOKEN\"\n",
        ),
        env: &env,
        ..Options::default()
    });
    for token in [TOKEN, viewer, caller] {
        let (code, said) = run(&server, token, &["status"]);
        assert_eq!(code, 0, "{said}");
        assert_eq!(metrics(&server, token), 200);
    }
    assert_eq!(metrics(&server, "wrong"), 401);
    assert_eq!(server.admin_get("/health/dependencies").status, 401);
    let doctor = palisade()
        .current_dir(server.home.path())
        .args(["doctor", "--config", "palisade.toml", "--admin"])
        .arg(server.admin.to_string())
        .envs(env)
        .env("PALISADE_ADMIN_TOKEN", TOKEN)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout);
    assert!(said.contains("the store is up"), "{said}");
    assert!(said.ends_with("nothing to do\n"), "{said}");
    assert_eq!(doctor.status.code(), Some(0), "{said}");
    let refused = palisade()
        .args(["status", "--admin", &server.admin.to_string()])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("set PALISADE_ADMIN_TOKEN"), "{said}");
}

#[test]
fn quotas_are_listed_from_a_key_on_and_a_new_tier_has_its_reason_in_the_audit() {
    let (first, second) = ("a".repeat(64), "b".repeat(64));
    let key = |hash: &str| format!("[[api_key]]\nhash = \"{hash}\"\ntier = \"starter\"\n");
    let admin = "[admin]\ntoken = \"env:ADMIN_TOKEN\"\n[audit]\nfile = \"audit.jsonl\"\n";
    let config = [admin, &key(&first), &key(&second)].concat();
    let server = Server::with(&Options {
        config: Some(&config),
        env: &[("ADMIN_TOKEN", TOKEN)],
        ..Options::default()
    });
    let (code, all) = run(&server, TOKEN, &["quota", "list"]);
    assert_eq!(code, 0);
    assert!(all.contains(&first) && all.contains(&second), "{all}");
    let (code, rest) = run(&server, TOKEN, &["quota", "list", "--after", &first]);
    assert_eq!(code, 0);
    assert!(!rest.contains(&first) && rest.contains(&second), "{rest}");
    let raw = ["quota", "list", "--after", "not-a-hash"];
    assert_eq!(run(&server, TOKEN, &raw).0, 2);
    let words = "agreed with sales";
    let tier = ["quota", "tier", &first, "business", "--reason", words];
    let (code, shown) = run(&server, TOKEN, &tier);
    assert_eq!(code, 0);
    assert!(shown.contains("business"), "{shown}");
    server.terminate();
    let (_, home) = server.wait();
    let audit = std::fs::read_to_string(home.path().join("audit.jsonl")).unwrap();
    assert!(audit.contains(words), "{audit}");
}

#[test]
fn ad_attack_an_operator_sets_the_state_and_sees_it() {
    let config = "[admin]\ntoken = \"env:ADMIN_TOKEN\"\n\
        [[limit]]\nname = \"sign-in\"\nby = [\"ip\"]\nclass = \"auth\"\nrate = \"4/min\"\nunder_attack = \"50%\"\n";
    let server = Server::with(&Options {
        config: Some(config),
        env: &[("ADMIN_TOKEN", TOKEN)],
        ..Options::default()
    });
    let said = |args: &[&str]| run(&server, TOKEN, args);
    assert_eq!(
        said(&["attack", "status"]),
        (0, "no class is under attack\n".to_owned())
    );
    let on = ["attack", "on", "--class", "auth", "--reason", "case 4711"];
    let words = "under attack: auth\nset by an operator: auth on: case 4711\n";
    assert_eq!(said(&on), (0, words.to_owned()));
    let facts = r#"{"ip":"203.0.113.7","method":"POST","path":"/auth/token"}"#;
    let answer = server.post("/v1/check", facts).json();
    assert_eq!(
        (&answer["attack"], &answer["limit_in_force"]),
        (&true.into(), &2.into())
    );
    let auto = ["attack", "auto", "--class", "auth"];
    assert_eq!(said(&auto), (0, "no class is under attack\n".to_owned()));
    let answer = server.post("/v1/check", facts).json();
    assert_eq!(
        (&answer["attack"], &answer["limit_in_force"]),
        (&false.into(), &4.into())
    );
}
