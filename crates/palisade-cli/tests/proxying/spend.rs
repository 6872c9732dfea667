//! Costs that the proxy reads from requests and answers, before a small model that speaks OpenAI's
//! chat completions.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::common::{Reply, eventually};
use super::*;

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The model of the documentation, ended when dropped.
pub(super) struct Model {
    child: Child,
    pub(super) url: String,
    _said: BufReader<ChildStdout>,
}

impl Model {
    pub(super) fn start() -> Self {
        let mut child = Command::new("python3")
            .arg(root().join("docs/examples/llm/model.py"))
            .arg("0")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let url = line
            .trim()
            .strip_prefix("listening on ")
            .unwrap()
            .to_owned();
        Self {
            child,
            url,
            _said: said,
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const PATH: &str = "/v1/chat/completions";

/// Ten thousand tokens an hour for each address, and what they cost.
fn policy(spend: &str) -> String {
    format!(
        r#"
[server]
trusted_proxies = []
workers = 1

[policy]
defaults = false
default_class = "rest"

[[route]]
path = "{PATH}"
method = "POST"
class = "llm"

[route.spend]
errors = "openai"
output_default = 100
estimate_max = 9_000
price = {{ small = {{ input = 2.5, output = 10.0, cached = 0.25 }}, default = {{ input = 15.0, output = 60.0 }} }}
{spend}

[[limit]]
name = "tokens"
by = ["ip"]
rate = "10_000/h"
unit = "tokens"

[[limit]]
name = "dollars"
by = ["ip"]
rate = "10_000_000/day"
unit = "usd_micros"

[[limit]]
name = "requests"
by = ["ip"]
rate = "1000/min"

[[limit]]
name = "at-once"
by = ["ip"]
class = "llm"
concurrency = 2
hold = "10min"
"#
    )
}

fn asking(model: &str, prompt: &str) -> Value {
    json!({ "model": model, "max_tokens": 50, "messages": [{ "role": "user", "content": prompt }] })
}

fn ask(server: &Server, body: &Value) -> Reply {
    let body = serde_json::to_vec(body).unwrap();
    let gzip = [("Accept-Encoding", "gzip")];
    connect(server).send("POST", PATH, &gzip, &body)
}

/// Used units of a limit.
fn used(server: &Server, unit: &str) -> u64 {
    let facts = json!({
        "ip": "127.0.0.1", "method": "POST", "path": PATH, "costs": { unit: 1 },
    });
    let answer = server.post("/v1/peek", &facts.to_string()).json();
    let limit = &answer["limits"][0];
    limit["limit"].as_u64().unwrap() - limit["remaining"].as_u64().unwrap()
}

/// Counts of `rate_limiter_spend_total`.
fn counted(server: &Server, result: &str) -> u64 {
    let metrics = server.admin_get("/metrics");
    let name = format!("rate_limiter_spend_total{{result=\"{result}\"}} ");
    let mut lines = metrics.text().lines();
    let line = lines.find_map(|line| line.strip_prefix(&*name)).unwrap();
    line.parse().unwrap()
}

/// The estimate of a body with `max_tokens` of 50.
fn estimate(body: &Value) -> u64 {
    let bytes = serde_json::to_vec(body).unwrap().len() as u64;
    bytes.div_ceil(4) + 50
}

/// Eight places are free again: what was held has been settled.
fn settled(server: &Server) {
    let held = r#"{"ip":"127.0.0.1","method":"POST","path":"/v1/chat/completions"}"#;
    eventually("nothing is held", || {
        let asked = server.post("/v1/reserve", held).json();
        let limits = asked["limits"].as_array().unwrap();
        let places = limits.iter().find(|one| one["name"] == "at-once").unwrap();
        let is_free = asked["decision"] == "allow" && places["remaining"] == 1;
        if let Some(token) = asked["reservation"].as_str() {
            let body = json!({ "reservation": token }).to_string();
            server.post("/v1/release", &body);
        }
        is_free
    });
}

#[test]
fn b_spend_an_answer_is_settled_by_what_it_used() {
    let model = Model::start();
    let server = proxy(&policy(""), &model.url);
    let asked = asking("small", "30");
    let reply = ask(&server, &asked);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["usage"]["total_tokens"], 40);
    assert_eq!(reply.header("x-ratelimit-limit-tokens"), Some("10000"));
    let left = (10_000 - estimate(&asked)).to_string();
    assert_eq!(reply.header("x-ratelimit-remaining-tokens"), Some(&*left));
    settled(&server);
    assert_eq!(used(&server, "tokens"), 40);
    // 6 of 10 at 2.5, 4 at 0.25 and 30 at 10: rounded up.
    assert_eq!(used(&server, "usd_micros"), 316);
    ask(&server, &asking("unknown", "30"));
    settled(&server);
    assert_eq!(used(&server, "usd_micros"), 316 + 10 * 15 + 30 * 60);
    assert_eq!(counted(&server, "seen"), 2);
}

#[test]
fn b_spend_a_compressed_answer_is_not_asked_for() {
    let model = Model::start();
    let server = proxy(&policy(""), &model.url);
    let reply = ask(&server, &asking("zipped", "30"));
    assert_eq!(reply.header("content-encoding"), None);
    settled(&server);
    assert_eq!(used(&server, "tokens"), 40);
}

fn stream(server: &Server, body: &Value) -> Client {
    let mut client = connect(server);
    let body = serde_json::to_vec(body).unwrap();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.write(&[head.as_bytes(), &body].concat()).unwrap();
    client
}

#[test]
fn b_spend_a_stream_is_settled_by_its_last_event_or_by_its_estimate() {
    let model = Model::start();
    let server = proxy(&policy(""), &model.url);
    let mut asked = asking("small", "30");
    asked["stream"] = true.into();
    let read = |body: &Value| {
        let reply = stream(&server, body).read_reply().unwrap();
        settled(&server);
        String::from_utf8(reply.body).unwrap()
    };
    let silent = read(&asked);
    assert!(silent.ends_with("data: [DONE]\n\n"), "{silent}");
    assert!(!silent.contains("total_tokens"), "nobody asked for it");
    let estimated = estimate(&asked);
    assert_eq!(used(&server, "tokens"), estimated);
    assert_eq!(counted(&server, "unseen"), 1);
    asked["stream_options"] = json!({ "include_usage": true });
    assert!(read(&asked).contains("total_tokens"));
    assert_eq!(used(&server, "tokens"), estimated + 40);
    assert_eq!(counted(&server, "seen"), 1);

    let server = proxy(&policy("include_usage = true"), &model.url);
    asked.as_object_mut().unwrap().remove("stream_options");
    let reply = stream(&server, &asked).read_reply().unwrap();
    assert!(
        String::from_utf8(reply.body)
            .unwrap()
            .contains("total_tokens")
    );
    settled(&server);
    assert_eq!(used(&server, "tokens"), 40);
}

#[test]
fn b_spend_who_hangs_up_pays_what_was_seen_else_the_estimate() {
    let model = Model::start();
    let server = proxy(&policy(""), &model.url);
    let hang_up = |model: &str| {
        let mut asked = asking(model, "30");
        asked["stream"] = true.into();
        let mut client = stream(&server, &asked);
        client.read_head().unwrap();
        let mut seen = String::new();
        while seen.matches("data:").count() < 1 {
            let mut byte = [0];
            client.stream.read_exact(&mut byte).unwrap();
            seen.push(byte[0].into());
        }
        client.stream.read_exact(&mut [0; 150]).ok();
        drop(client);
        settled(&server);
        estimate(&asked)
    };
    // Its events say how much so far.
    hang_up("endless");
    let seen = used(&server, "tokens");
    assert!(seen > 10, "{seen}");
    assert_eq!(counted(&server, "seen"), 1);
    // It says one word and falls silent.
    let mut asked = asking("quiet", "30");
    asked["stream"] = true.into();
    let mut client = stream(&server, &asked);
    client.read_head().unwrap();
    drop(client);
    settled(&server);
    assert_eq!(used(&server, "tokens"), seen + estimate(&asked));
    // It never answers.
    let asked = asking("silent", "30");
    let before = used(&server, "tokens");
    let client = stream(&server, &asked);
    eventually("it is reserved", || used(&server, "tokens") > before);
    // Once the application has it: until then nothing would be spent.
    std::thread::sleep(Duration::from_millis(300));
    drop(client);
    settled(&server);
    assert_eq!(used(&server, "tokens"), before + estimate(&asked));
    assert_eq!(counted(&server, "unseen"), 2);
}

#[test]
fn b_spend_errors_cost_nothing_and_what_never_arrived_is_released() {
    let model = Model::start();
    let server = proxy(&policy(""), &model.url);
    let reply = ask(&server, &asking("broken", "30"));
    assert_eq!(reply.status, 500);
    assert_eq!(
        reply.json()["error"]["message"],
        "as told",
        "the application's own"
    );
    settled(&server);
    assert_eq!(used(&server, "tokens"), 0);
    assert_eq!(
        (counted(&server, "failed"), used(&server, "requests")),
        (1, 1)
    );
    drop(model);
    let reply = ask(&server, &asking("small", "30"));
    assert_eq!(reply.status, 502);
    assert_eq!(reply.json()["error"]["type"], "server_error");
    settled(&server);
    assert_eq!((used(&server, "tokens"), used(&server, "requests")), (0, 1));
    assert_eq!(counted(&server, "released"), 1);
}

#[test]
fn b_spend_refusals_have_the_shape_that_openai_clients_parse() {
    let model = Model::start();
    let server = proxy(&policy(""), &model.url);
    let large = json!({ "max_tokens": 9_001, "messages": [] });
    let reply = ask(&server, &large);
    assert_eq!(reply.status, 400);
    let error = &reply.json()["error"];
    assert_eq!(error["type"], "invalid_request_error");
    assert!(
        error["message"].as_str().unwrap().contains("estimated"),
        "{error}"
    );
    let wrong = ask(&server, &json!({ "max_tokens": "many" }));
    assert_eq!(wrong.json()["error"]["param"], "max_tokens");
    assert_eq!(used(&server, "tokens"), 0);

    let mut asked = asking("small", "2000");
    for _ in 0..4 {
        assert_eq!(ask(&server, &asked).status, 200);
    }
    settled(&server);
    assert_eq!(used(&server, "tokens"), 4 * 2_010, "surplus is charged");
    asked["max_tokens"] = 5_000.into();
    let reply = ask(&server, &asked);
    assert_eq!(reply.status, 429);
    let error = &reply.json()["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("tokens"), &json!("rate_limit_exceeded"))
    );
    assert!(error["param"].is_null());
    assert!(reply.header("retry-after").is_some());
    assert_eq!(reply.header("x-ratelimit-remaining-tokens"), Some("1960"));
    assert_eq!(counted(&server, "seen"), 4);
}

#[test]
fn b_spend_places_are_held_with_the_costs() {
    let model = Model::start();
    let server = proxy(&policy(""), &model.url);
    let mut asked = asking("quiet", "1");
    asked["stream"] = true.into();
    let mut clients = [stream(&server, &asked), stream(&server, &asked)];
    for client in &mut clients {
        assert_eq!(client.read_head().unwrap().0, 200);
    }
    let before = used(&server, "tokens");
    let reply = ask(&server, &asking("small", "30"));
    assert_eq!(reply.status, 429);
    assert_eq!(reply.json()["error"]["type"], "requests");
    assert_eq!(used(&server, "tokens"), before, "together or not at all");
    drop(clients);
    settled(&server);
}

#[test]
fn b_spend_long_bodies_are_estimated_by_their_length() {
    let app = Upstream::start();
    let server = proxy(
        &policy("estimate_max = 100_000_000")
            .replace("estimate_max = 9_000\n", "")
            .replace("10_000/h", "1_000_000/h"),
        &app.url(),
    );
    let long = vec![b' '; 300 * 1024];
    let reply = connect(&server).send("POST", PATH, &[], &long);
    assert_eq!(reply.json()["body_bytes"], long.len());
    settled(&server);
    assert_eq!(
        used(&server, "tokens"),
        300 * 256 + 100,
        "a quarter, and the default"
    );
    let mut client = connect(&server);
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    client.write(head.as_bytes()).unwrap();
    client
        .write(format!("{:x}\r\n", long.len()).as_bytes())
        .unwrap();
    client.write(&long).unwrap();
    client.write(b"\r\n0\r\n\r\n").unwrap();
    assert_eq!(client.read_reply().unwrap().status, 413);
    let coded = [("Content-Encoding", "gzip")];
    let reply = connect(&server).send("POST", PATH, &coded, b"x");
    assert_eq!(reply.status, 415);
    assert_eq!(used(&server, "tokens"), 300 * 256 + 100);
}

/// OpenAI's own client, which `scripts/test` installs, finds what it expects.
fn client_is_content(command: &mut Command) {
    let model = Model::start();
    let server = proxy(&policy(""), &model.url);
    let url = format!("http://{}", server.proxy.unwrap());
    let output = command.arg(url).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, "ok\n", "{failed}");
    settled(&server);
    assert_eq!(counted(&server, "unseen"), 0);
}

#[test]
fn b_spend_openais_client_for_python_parses_answers_and_refusals() {
    let python = root().join("target/tools/openai/bin/python");
    let script = root().join("crates/palisade-cli/tests/proxying/openai_client.py");
    client_is_content(Command::new(python).arg(script));
}

#[test]
fn b_spend_openais_client_for_node_parses_answers_and_refusals() {
    let modules = root().join("target/tools/openai/node_modules");
    let script = root().join("crates/palisade-cli/tests/proxying/openai_client.js");
    client_is_content(Command::new("node").arg(script).env("NODE_PATH", modules));
}
