//! A service whose Redis is far away, is not there, or may lose what it is told.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;
#[path = "../../palisade-store/tests/common/slow_path.rs"]
mod slow_path;

use std::process::Output;
use std::time::Duration;

use common::{Options, Server, eventually, palisade};
use redis_server::RedisServer;
use serde_json::{Value, json};

const KEY: (&str, &str) = ("KEY", "0123456789abcdef0123456789abcdef0123456789abcdef");

fn config(port: u16) -> String {
    format!(
        r#"
        [store]
        url = "redis://127.0.0.1:{port}"
        [secrets]
        key = "env:KEY"
        "#
    )
}

fn start(port: u16) -> Server {
    Server::with(&Options {
        config: Some(&config(port)),
        env: &[KEY],
        ..Options::default()
    })
}

fn is_ready(server: &Server) -> bool {
    server.admin_get("/health/ready").status == 200
}

fn circuits(server: &Server) -> Vec<Value> {
    let report = server.admin_get("/health/dependencies").json();
    let circuits = report["circuits"].as_array().unwrap();
    circuits.iter().map(|pair| pair[1].clone()).collect()
}

fn metrics(server: &Server) -> String {
    server.admin_get("/metrics").text().to_owned()
}

fn mode(server: &Server, path: &str, facts: &Value) -> Value {
    server.post(path, &facts.to_string()).json()["mode"].clone()
}

#[test]
fn x6_f_ready_the_first_calls_over_a_long_path_open_no_breaker() {
    let redis = RedisServer::start();
    let far = slow_path::open(redis.port, Duration::from_millis(50));
    let server = start(far);
    // Each on a connection, hence perhaps a worker, of its own.
    for number in 0..12 {
        let facts = json!({"ip": format!("192.0.2.{number}"), "method": "GET", "path": "/"});
        assert_eq!(mode(&server, "/v1/check", &facts), "normal", "{number}");
    }
    let login = json!({"ip": "203.0.113.1", "account": "ann", "user_agent": "Firefox/124.0"});
    assert_eq!(mode(&server, "/v1/guard/login/check", &login), "normal");
    assert!(is_ready(&server));
    assert!(circuits(&server).iter().all(|circuit| circuit == "closed"));
}

#[test]
fn x6_f_ready_a_node_without_its_store_is_ready_once_it_decides_locally() {
    let server = start(redis_server::free_port());
    assert!(!is_ready(&server), "nothing has answered yet");
    eventually("readiness", || is_ready(&server));
    assert!(circuits(&server).contains(&json!("open")));
}

#[test]
fn x6_f_ready_a_node_that_nobody_asks_is_ready_when_its_store_has_answered() {
    let redis = RedisServer::start();
    redis.freeze();
    let server = start(redis.port);
    assert!(!is_ready(&server));
    redis.thaw();
    eventually("readiness", || is_ready(&server));
}

fn said(output: &Output) -> String {
    let streams = [&output.stdout, &output.stderr];
    streams.map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

#[test]
fn s4_f_evict_a_redis_that_evicts_is_told_everywhere() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "volatile-lru"]);
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("palisade.toml");
    std::fs::write(&file, config(redis.port)).unwrap();
    let run = |words: &[&str]| {
        let mut command = palisade();
        said(&command.args(words).env(KEY.0, KEY.1).output().unwrap())
    };
    let path = file.to_str().unwrap();
    let checked = run(&["check", path, "--connect"]);
    assert!(checked.contains("maxmemory-policy"), "{checked}");
    let strict = run(&["check", path, "--connect", "--strict"]);
    assert!(strict.contains("refused by `--strict`"), "{strict}");
    let json: Value = serde_json::from_str(&run(&["check", path, "--connect", "--json"])).unwrap();
    assert_eq!(json["store_risks"].as_array().unwrap().len(), 1, "{json}");
    let doctor = run(&["doctor", "--config", path]);
    assert!(doctor.contains("maxmemory-policy"), "{doctor}");

    let server = start(redis.port);
    let evicts = |value: u8| {
        let line = format!("rate_limiter_store_risk{{risk=\"eviction\"}} {value}");
        metrics(&server).contains(&line)
    };
    eventually("the metric", || evicts(1));
    assert!(metrics(&server).contains("rate_limiter_store_evicted_keys_total 0"));
    redis.says(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let checked = run(&["check", path, "--connect"]);
    assert!(!checked.contains("maxmemory-policy"), "{checked}");
}
