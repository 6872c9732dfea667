//! What operators find of those who log in through the proxy.

use serde_json::Value;

use crate::common::{Client, Options, Server, palisade};
use crate::scripted::Scripted;
use crate::{FORM, ONLY_THE_GUARD, post};

const TOKEN: &str = "an-operator-token-of-decent-length";

fn server(app: &Scripted) -> Server {
    let route = r#"
[[route]]
path = "/login"
method = "POST"
outcome = "status"
username = "form:email"
success_cookie = "session"
"#;
    let config = format!("{ONLY_THE_GUARD}\n[admin]\ntoken = \"env:ADMIN_TOKEN\"\n{route}");
    Server::with(&Options {
        config: Some(&config),
        args: &["--upstream", &app.url, "--proxy", "127.0.0.1:0"],
        env: &[("ADMIN_TOKEN", TOKEN)],
    })
}

fn run(server: &Server, args: &[&str]) -> (i32, String) {
    let output = palisade()
        .args(args)
        .args(["--admin", &server.admin.to_string()])
        .env("PALISADE_ADMIN_TOKEN", TOKEN)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code().unwrap(), text)
}

/// Support types the name as the customer's record spells it, and knows no address.
#[test]
fn n2_support_finds_and_frees_a_name_however_it_is_typed() {
    let app = Scripted::start();
    let server = server(&app);
    for ip in ["203.0.113.1", "203.0.113.2"] {
        let body = "email=ANN@example.com&answer=401";
        assert_eq!(post(&server, ip, "/login", &[FORM], body).status, 401);
    }
    let typed = "Ànn@Example.COM";
    let (code, words) = run(&server, &["explain", "--account", typed]);
    assert_eq!(code, 0);
    assert!(words.starts_with("soft_block\n"), "{words}");
    assert!(words.contains("looked up as typed: account "), "{words}");
    let folded = "looked up as the proxy counts it: account ";
    assert!(words.contains(folded), "{words}");
    assert!(
        words.contains("name the address"),
        "no all-clear of lockouts: {words}"
    );
    assert!(!words.to_lowercase().contains("nn@example"), "{words}");

    let listed: Value =
        serde_json::from_str(&run(&server, &["blocks", "list", "--json"]).1).unwrap();
    let id = listed["blocks"][0]["id"].as_str().unwrap();
    assert!(words.contains(&format!("{folded}{id}\n")), "{words}");

    let lift = [
        "blocks",
        "lift",
        "--account",
        typed,
        "--reason",
        "called back",
    ];
    let (code, lifted) = run(&server, &lift);
    assert_eq!(code, 0);
    assert!(lifted.starts_with("lifted 1\n"), "{lifted}");
    assert!(lifted.contains(&format!("{folded}{id}\n")), "{lifted}");
    assert_eq!(run(&server, &["blocks", "list"]).1, "nothing is blocked\n");
}

/// Behind the proxy the account is the name, so that its lockout is found under it too.
#[test]
fn n2_a_lockout_is_found_and_lifted_by_the_account_and_the_address() {
    let app = Scripted::start();
    let server = server(&app);
    let facts = r#"{"ip":"203.0.113.9","account":"bob","username":"BOB","device":{"client_id":"d","known":true}}"#;
    for _ in 0..5 {
        server.post("/v1/guard/login/failure", facts);
    }
    let whose = ["--account", "Bob", "--ip", "203.0.113.9"];
    let (_, words) = run(&server, &[&["explain"], &whose[..]].concat());
    assert!(words.contains("[A-WINDOW]"), "{words}");
    let bearer = format!("Bearer {TOKEN}");
    let found = Client::connect(server.admin).send(
        "POST",
        "/admin/lookup",
        &[("Authorization", &bearer)],
        br#"{"account":"Bob","ip":"203.0.113.9"}"#,
    );
    let rules = found.json()["findings"].to_string();
    assert!(rules.contains("A-WINDOW"), "{rules}");
    assert_eq!(found.json()["looked_up"][1]["spelling"], "folded");
    let lift = [&["blocks", "lift", "--reason", "x"], &whose[..]].concat();
    assert_eq!(run(&server, &lift).0, 0);
    let (_, words) = run(&server, &[&["explain"], &whose[..]].concat());
    assert!(!words.contains("[A-WINDOW]"), "{words}");
}

/// Who looks for a way in is seen, also where the application says no.
#[test]
fn m8_refusals_of_the_application_count_as_probing() {
    let app = Scripted::start();
    let server = server(&app);
    for n in 0..30 {
        let status = if n % 2 == 0 { 403 } else { 401 };
        let body = format!("answer={status}");
        let answered = post(&server, "203.0.113.7", "/accounts", &[FORM], &body);
        assert_eq!(answered.status, status);
    }
    let fine = post(&server, "203.0.113.8", "/accounts", &[FORM], "answer=404");
    assert_eq!(fine.status, 404);
    server.terminate();
    let (_, home) = server.wait();
    let audit = home.path().join("palisade-data/audit.jsonl");
    let audit = std::fs::read_to_string(audit).unwrap();
    // Events of one second are told together, with a count.
    let events = audit
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let probing = events.filter(|event| event["event"] == "privilege_probing");
    let told: u64 = probing
        .map(|event| event["count"].as_u64().unwrap_or(1))
        .sum();
    assert_eq!(told, 3, "{audit}");
    assert!(audit.contains("203.0.113.0/24") && !audit.contains("203.0.113.7"));
}
