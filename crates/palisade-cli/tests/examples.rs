//! The examples of the documentation do what it says, against the real service.
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
#[path = "../../palisade/tests/path_readers/nginx.rs"]
mod nginx_server;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;
#[path = "common/upstream.rs"]
mod upstream;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Client, Options, Server};
use nginx_server::Nginx;
use redis_server::RedisServer;
use serde_json::Value;
use upstream::Upstream;

/// The first block of this language on a page of the documentation.
fn block(page: &str, language: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs").join(page)).unwrap();
    let fence = format!("```{language}\n");
    let after = text.split_once(&fence).expect("a block of this language").1;
    after.split_once("```").unwrap().0.to_owned()
}

/// Every block of this language on a page.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs").join(page)).unwrap();
    let fence = format!("```{language}\n");
    let found = text.split(&fence).skip(1);
    found
        .map(|after| after.split_once("```").unwrap().0.to_owned())
        .collect()
}

/// What a shell block of a page prints, one answer a line.
fn shell(server: &Server, block: &str) -> Vec<Value> {
    let script = block
        .replace("localhost:8080", &server.listen.to_string())
        .replace("\ncurl", "\necho; curl");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let lines = printed.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn the_examples_of_decisions_do_what_the_page_says() {
    let server = Server::start();
    let scopes = |answer: &Value| -> Vec<String> {
        let limits = answer["limits"].as_array().unwrap().iter();
        let mut scopes: Vec<_> = limits
            .map(|l| l["scope"].as_str().unwrap().to_owned())
            .collect();
        scopes.sort();
        scopes.dedup();
        scopes
    };
    let page = blocks("decisions.md", "sh");
    let [request, halves, job, refund] = page.as_slice() else {
        panic!("the page has other examples");
    };
    let answers = shell(&server, request);
    assert_eq!(answers[0]["decision"], "allow");
    assert_eq!(
        scopes(&answers[0]),
        ["client", "ip", "org", "token", "user"]
    );

    let answers = shell(&server, halves);
    assert_eq!(scopes(&answers[0]), ["ip"]);
    assert_eq!(scopes(&answers[1]), ["org", "user"]);

    let answers = shell(&server, job);
    assert_eq!(scopes(&answers[0]), ["org", "token"]);
    assert!(answers[0]["receipt"].is_string());

    let answers = shell(&server, refund);
    let shown: Value = serde_json::from_str(&block("decisions.md", "json")).unwrap();
    assert_eq!(answers[0]["refunded"], shown["refunded"]);
    let limits = answers[0]["limits"].as_array().unwrap();
    for (name, value) in shown["limits"][0].as_object().unwrap() {
        let named = limits
            .iter()
            .find(|l| l["name"] == shown["limits"][0]["name"]);
        assert_eq!(&named.unwrap()[name], value, "{name}");
    }
}

#[test]
fn the_examples_of_budgets_do_what_the_page_says() {
    let server = Server::configured(&block("budgets.md", "toml"));
    let answers = shell(&server, &block("budgets.md", "sh"));
    let [extended, settled, again] = answers.as_slice() else {
        panic!("{answers:?}");
    };
    assert_eq!(extended["decision"], "allow");
    assert_eq!(extended["reserved"]["tokens"], 5_000);
    assert_eq!(settled["used"]["tokens"], 812);
    let limits = settled["limits"].as_array().unwrap();
    let tokens = limits.iter().find(|one| one["name"] == "tokens-per-org");
    assert_eq!(tokens.unwrap()["remaining"], 99_188);
    assert_eq!(again["used"], settled["used"], "once");
    let folder = tempfile::tempdir().unwrap();
    let (policy, cases) = (folder.path().join("p.toml"), folder.path().join("c.jsonl"));
    std::fs::write(&policy, block("budgets.md", "toml")).unwrap();
    std::fs::write(&cases, block("budgets.md", "json")).unwrap();
    let tested = common::palisade()
        .args(["test".as_ref(), cases.as_os_str(), "--config".as_ref()])
        .arg(&policy)
        .output();
    let tested = tested.unwrap();
    assert!(
        tested.status.success(),
        "{}",
        String::from_utf8_lossy(&tested.stdout)
    );
}

#[test]
fn s_spend_the_examples_of_sends_do_what_the_page_says() {
    let policies = blocks("send-budgets.md", "toml");
    for policy in &policies {
        let server = Server::configured(policy);
        let answers = shell(&server, &block("send-budgets.md", "sh"));
        let [sent, again] = answers.as_slice() else {
            panic!("{answers:?}");
        };
        assert_eq!(sent["decision"], "allow");
        assert_eq!(again["rule"], "S-PAUSE");
        assert!((29..=30).contains(&again["retry_after"].as_u64().unwrap()));
    }
    let server = Server::configured(&policies[1]);
    let answers = shell(&server, &block("send-budgets.md", "sh"));
    let token = answers[0]["reservation"].as_str().unwrap();
    let settle = block("send-budgets.md", "json").replace('\u{2026}', token);
    let settled = server
        .connect()
        .send("POST", "/v1/settle", &[], settle.as_bytes())
        .json();
    assert_eq!(settled["used"]["send_eur_e4"], 745);
    assert_eq!(settled["reserved"]["send_eur_e4"], 800);
    let refused = server.connect().send(
        "POST",
        "/v1/guard/otp/send",
        &[],
        br#"{"ip":"203.0.113.5","destination":"canary","channel":"sms"}"#,
    );
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["field"], "destination");
    let batch = br#"{"checks":[{"op":"otp.send","ip":"203.0.113.9","destination":"+49176123456","channel":"sms"}]}"#;
    let batch = server.connect().send("POST", "/v1/batch", &[], batch);
    assert_eq!(batch.json()["answers"][0]["decision"], "allow");
}

#[test]
fn b_overdraft_a_report_is_charged_even_if_it_is_refused() {
    let server = Server::configured(&block("budgets.md", "toml"));
    let mut client = server.connect();
    let mut ask = |more: &str| {
        let facts = r#""org":"acme","ip":"203.0.113.5","method":"POST","path":"/v1/chat""#;
        let body = format!("{{{facts},{more}}}");
        let reply = client.send("POST", "/v1/check", &[], body.as_bytes());
        (reply.status, reply.json())
    };
    let left = |answer: &Value| -> u64 {
        let limits = answer["limits"].as_array().unwrap();
        let mut limits = limits.iter();
        let tokens = limits.find(|one| one["name"] == "tokens-per-org");
        tokens.unwrap()["remaining"].as_u64().unwrap()
    };
    let (status, allowed) = ask(r#""report":true,"costs":{"requests":60,"tokens":99000}"#);
    assert_eq!((status, &allowed["decision"]), (200, &"allow".into()));
    assert_eq!(left(&allowed), 1_000);
    let (_, refused) = ask(r#""report":true,"costs":{"requests":1,"tokens":900}"#);
    assert_eq!(refused["decision"], "deny", "{refused}");
    assert_eq!(left(&refused), 100, "charged all the same");
    let (_, unreported) = ask(r#""costs":{"requests":1,"tokens":50}"#);
    assert_eq!(left(&unreported), 100, "{unreported}");
    let (_, above) = ask(r#""report":true,"costs":{"tokens":500000}"#);
    assert_eq!(above["decision"], "allow", "no error of L-COST: {above}");
    let metrics = server.admin_get("/metrics");
    let counted = "rate_limiter_overdraft_total{unit=\"tokens\"} 499900";
    assert!(metrics.text().contains(counted), "{}", metrics.text());
    let (status, wrong) = ask(r#""report":"s3cret""#);
    assert_eq!(status, 400, "{wrong}");
    assert!(!wrong.to_string().contains("s3cret"), "{wrong}");
    let body = r#"{"ip":"203.0.113.5","method":"POST","path":"/","report":true}"#;
    let reply = client.send("POST", "/v1/reserve", &[], body.as_bytes());
    assert_eq!(
        (reply.status, &reply.json()["field"]),
        (400, &"report".into())
    );
}

#[test]
fn overage_and_probing_are_in_the_audit_as_the_page_shows() {
    let server = Server::configured(&block("metrics-and-audit.md", "toml"));
    assert!(shell(&server, &block("metrics-and-audit.md", "sh")).is_empty());
    server.terminate();
    let (code, home) = server.wait();
    assert_eq!(code, Some(0));
    let audit = std::fs::read_to_string(home.path().join("audit.jsonl")).unwrap();
    let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    let events: Vec<Value> = audit.lines().map(parse).collect();
    for shown in block("metrics-and-audit.md", "json").lines().map(parse) {
        let named: Vec<&Value> = events
            .iter()
            .filter(|event| event["event"] == shown["event"])
            .collect();
        let [event] = named.as_slice() else {
            panic!("{} of {}: {audit}", named.len(), shown["event"]);
        };
        for (field, value) in shown.as_object().unwrap() {
            assert_eq!(&event[field], value, "{field} of {}", shown["event"]);
        }
    }
    for raw in ["demo-key", "u-17", "198.51.100.9", "203.0.113.7"] {
        assert!(!audit.contains(raw), "{raw}");
    }
}

fn example(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("docs/examples/guard").join(name)
}

fn run(listen: SocketAddr, program: &str, script: &PathBuf, args: [&str; 4]) -> String {
    let output = Command::new(program)
        .arg(script)
        .args(args)
        .env("PALISADE", format!("http://{listen}"))
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

/// Two failures of a new device, then the soft block; another account is free. With the
/// service away nothing is verified.
fn plays(program: &str, script: &PathBuf, [right, wrong, blocked, away]: [&str; 4]) {
    let server = Server::start();
    let attempt = |account, password| {
        let args = ["203.0.113.5", account, "device-1", password];
        run(server.listen, program, script, args)
    };
    assert_eq!(attempt("ann", "right"), right);
    let began = Instant::now();
    assert_eq!(attempt("bob", "wrong"), wrong);
    assert_eq!(attempt("bob", "wrong"), wrong);
    // A-BACKOFF, 250 ms and 500 ms: only who sends the username is told to wait.
    assert!(began.elapsed() >= Duration::from_millis(750));
    assert!(attempt("bob", "right").starts_with(blocked));
    assert_eq!(attempt("ann", "right"), right);
    server.terminate();
    let listen = server.listen;
    server.wait();
    let args = ["203.0.113.5", "ann", "device-1", "right"];
    assert_eq!(run(listen, program, script, args), away);
}

/// What a pending attempt is told apart by: the outcome names the id of its check.
#[test]
fn the_examples_send_the_username_and_the_id_of_the_check() {
    for name in ["login.sh", "login.py", "login.ts"] {
        let text = std::fs::read_to_string(example(name)).unwrap();
        for wanted in ["username", "request_id", "delay_ms", "503"] {
            assert!(text.contains(wanted), "{name} has no {wanted}");
        }
    }
    let shown = block("guard.md", "sh");
    let script = std::fs::read_to_string(example("login.sh")).unwrap();
    assert!(script.ends_with(&shown), "the guide shows the example");
}

#[test]
fn the_shell_example_protects_a_login() {
    let answers = [
        "200 OK",
        "401 Unauthorized",
        "429 Too Many Requests",
        "503 Service Unavailable",
    ];
    plays("sh", &example("login.sh"), answers);
}

#[test]
fn the_python_example_protects_a_login() {
    plays(
        "python3",
        &example("login.py"),
        ["200 None", "401 None", "429 ", "503 None"],
    );
}

#[test]
fn the_typescript_example_protects_a_login() {
    // It uses no syntax that JavaScript lacks, so a plain Node runs it as a module.
    let folder = tempfile::tempdir().unwrap();
    let module = folder.path().join("login.mjs");
    std::fs::copy(example("login.ts"), &module).unwrap();
    plays(
        "node",
        &module,
        ["200 None", "401 None", "429 ", "503 None"],
    );
}

/// The block of this language below a heading.
fn block_below(page: &str, heading: &str, language: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join(page)).unwrap();
    let below = text.split_once(heading).expect("the heading").1;
    let after = below.split_once(&format!("```{language}\n")).unwrap().1;
    after.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_readme_asks_before_and_after_a_login() {
    let server = Server::start();
    let script = block_below("README.md", "## Ask before and after a login", "sh")
        .replace("localhost:8080", &server.listen.to_string());
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["decision"], "allow");
    assert_eq!(answer["delay_ms"], 250, "the lockout was asked: {answer}");
    assert!(script.contains(r#"\"request_id\":\"$id\""#));
}

#[test]
fn the_policy_of_the_checklist_is_accepted() {
    let home = tempfile::tempdir().unwrap();
    let policy = block_below("docs/production.md", "A policy file to start from", "toml")
        .replace("/etc/palisade", common::text(home.path()));
    std::fs::write(home.path().join("policy.toml"), policy).unwrap();
    let certificates = block("tls.md", "sh");
    let made = Command::new("sh")
        .current_dir(home.path())
        .args(["-e", "-c", &certificates])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let output = common::palisade()
        .current_dir(home.path())
        .args(["check", "policy.toml"])
        .env("PALISADE_KEY", "0123456789abcdef0123456789abcdef")
        .env("PALISADE_CALLER", "0123456789abcdef0123456789abcdef")
        .env("PALISADE_ADMIN", "0123456789abcdef0123456789abcdef")
        .output()
        .unwrap();
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{failed}");
}

/// A policy of the page about coming from elsewhere, and what shows that it holds.
fn migrates(heading: &str, cases: &str) {
    let home = tempfile::tempdir().unwrap();
    let policy = block_below("docs/migrate.md", heading, "toml");
    std::fs::write(home.path().join("policy.toml"), policy).unwrap();
    std::fs::write(home.path().join("cases.jsonl"), cases).unwrap();
    let output = common::palisade()
        .current_dir(home.path())
        .args(["test", "cases.jsonl", "--config", "policy.toml"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{heading}: {said}{failed}");
}

/// As many pass at once, and the next one is refused.
fn passes(number: u32) -> String {
    let ask = |expect: &str| {
        format!(
            r#"{{"at":"2026-01-01T00:00:00Z","op":"request","ip":"203.0.113.5","method":"GET","path":"/search","expect":{{{expect}}}}}"#
        ) + "\n"
    };
    let passed = (0..number).map(|_| ask(r#""decision":"allow""#));
    passed.collect::<String>() + &ask(r#""decision":"deny","status":429"#)
}

#[test]
fn policies_for_who_comes_from_elsewhere_refuse_where_the_page_says() {
    migrates("## governor", &passes(100));
    migrates("## rate-limiter-flexible", &passes(6));
    migrates("## nginx", &passes(21));
    let attempt = |minute: u32, op: &str, account: u32, expect: &str| {
        format!(
            r#"{{"at":"2026-01-01T00:{minute:02}:00Z","op":"{op}","ip":"203.0.113.5","account":"a{account}","username":"ann","device":{{"client_id":"d1"}},"expect":{{{expect}}}}}"#
        ) + "\n"
    };
    let allow = r#""decision":"allow""#;
    let failures = (0..5).map(|n| attempt(4 * n, "login.failure", n, allow));
    let next = attempt(
        17,
        "login.check",
        9,
        r#""decision":"deny","rules":["A-WINDOW"]"#,
    );
    migrates("## django-axes", &(failures.collect::<String>() + &next));
    let waits = r#""decision":"soft_block","level":"L1","retry_after":60"#;
    let guesses = [allow, waits].map(|expect| attempt(0, "login.failure", 1, expect));
    migrates("## Keycloak", &guesses.concat());
}

#[test]
fn nginx_passes_ten_and_refuses_the_eleventh_with_the_headers_of_the_decision() {
    let app = Upstream::start();
    let palisade = Server::start();
    let config = block("nginx.md", "nginx")
        .replace("127.0.0.1:8080", &palisade.listen.to_string())
        .replace("127.0.0.1:3000", &app.address.to_string());
    let nginx = Nginx::start(&config);
    let sign_in = |forged: &str| {
        let headers = [
            ("X-Forwarded-For", forged),
            ("Forwarded", "for=198.51.100.9"),
            ("X-Forwarded-Uri", "/free"),
            ("X-Original-URI", "/free"),
            ("X-Original-Method", "GET"),
        ];
        Client::connect(nginx.address).send("POST", "/auth/token", &headers, b"grant_type=x")
    };
    for number in 0..10 {
        let reply = sign_in(&format!("198.51.100.{number}"));
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.header("x-app"), Some("yes"));
        assert_eq!(reply.header("x-ratelimit-limit"), Some("10"));
        let left = (9 - number).to_string();
        assert_eq!(reply.header("x-ratelimit-remaining"), Some(left.as_str()));
    }
    let refused = sign_in("198.51.100.200");
    assert_eq!(refused.status, 429);
    let told = refused.json();
    assert_eq!(told["error"], "rate_limit_exceeded");
    assert_eq!(told["code"], "throttling.rate_limit_exceeded");
    assert_eq!(told["request_id"].as_str(), refused.header("x-request-id"));
    let at = told["timestamp"].as_str().unwrap();
    assert!(palisade_core::Micros::parse_rfc3339(at).is_some(), "{at}");
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait));
    assert_eq!(told["retry_after"], wait);
    assert_eq!(app.requests.load(Ordering::SeqCst), 10);

    drop(palisade);
    assert_eq!(
        sign_in("198.51.100.1").status,
        503,
        "nothing passes unasked"
    );
    assert_eq!(app.requests.load(Ordering::SeqCst), 10);
}

#[test]
fn a_redis_user_of_its_own_and_a_prefix_are_enough() {
    let redis = RedisServer::start();
    let command = block("shared-stores.md", "redis");
    let words: Vec<&str> = command.split_whitespace().collect();
    assert_eq!(redis.says(&words).trim(), "+OK");
    let url = format!("redis://palisade:change-me@127.0.0.1:{}", redis.port);
    let config = block("shared-stores.md", "toml").replace("redis://127.0.0.1:6379", &url);
    // A missing permission degrades, and so does an answer past the page's 100 ms, which says
    // nothing about permissions: a busy machine has more time here.
    let server = Server::with(&Options {
        config: Some(&config),
        env: &[
            ("PALISADE_KEY", "0123456789abcdef0123456789abcdef"),
            ("PALISADE_STORE__TIMEOUT", "10s"),
        ],
        ..Options::default()
    });
    let facts = r#"{"ip":"203.0.113.7","method":"POST","path":"/auth/token"}"#;
    for _ in 0..10 {
        let answer = server.post("/v1/check", facts).json();
        assert_eq!(answer["decision"], "allow");
        assert_eq!(answer["mode"], "normal", "{answer}");
    }
    assert_eq!(server.post("/v1/check", facts).json()["status"], 429);
    let failed = r#"{"ip":"203.0.113.7","account":"a1","device":{"client_id":"d1"}}"#;
    for decision in ["allow", "soft_block"] {
        let answer = server.post("/v1/guard/login/failure", failed).json();
        assert_eq!(answer["decision"], decision, "{answer}");
        assert_eq!(answer["mode"], "normal");
    }
    let keys = redis.says(&["KEYS", "*"]);
    let keys: Vec<&str> = keys.lines().filter(|line| line.contains(':')).collect();
    assert!(!keys.is_empty());
    assert!(keys.iter().all(|key| key.starts_with("edge:")), "{keys:?}");
}
