//! `CL.THROTTLE` on the embedded store beside `SET` of a redis-server on the same machine,
//! asked by the same client, `redis-benchmark`.
//!
//! `cargo bench -p palisade-server --bench resp`. Only the ratio means anything: the client
//! and the servers share the machine's cores. Rounds alternate, the median counts.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark prints what it measured and stops at the first error"
)]

mod common;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::process::Command;

use common::{Service, median};
use redis_server::RedisServer;

const ROUNDS: usize = 5;
/// Keys are chosen among so many.
const KEYS: &str = "100000";
const CLIENTS: &str = "50";

/// With one worker Palisade has as many threads as redis-server.
const CONFIGS: [(&str, &str); 3] = [
    ("default settings", ""),
    ("1 worker", "[server]\nworkers = 1\n"),
    (
        "2 workers for RESP",
        "[server]\nworkers = 2\nresp_workers = 2\n",
    ),
];

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let redis = RedisServer::start();
    for (name, config) in CONFIGS {
        let args = ["--store", "memory:", "--resp", "127.0.0.1:0"];
        let server = Service::palisade(folder.path(), config, &args, "RESP");
        compare(name, redis.port, server.address.port());
    }
}

fn compare(name: &str, redis_port: u16, resp_port: u16) {
    for (pipeline, requests) in [("1", "200000"), ("16", "2000000")] {
        let (mut set, mut throttle) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let words = ["SET", "key:__rand_int__", "value"];
            set.push(load(redis_port, pipeline, requests, &words));
            let words = ["CL.THROTTLE", "key:__rand_int__", "1000", "1000", "60"];
            throttle.push(load(resp_port, pipeline, requests, &words));
        }
        let (set, throttle) = (median(&mut set), median(&mut throttle));
        println!(
            "{name:<20}   pipeline {pipeline:>2}   SET {set:>9.0}/s   CL.THROTTLE {throttle:>9.0}/s   {:>5.1} %",
            100.0 * throttle / set
        );
    }
}

/// Requests a second.
fn load(port: u16, pipeline: &str, requests: &str, words: &[&str]) -> f64 {
    let output = Command::new("redis-benchmark")
        .args([
            "-p",
            &port.to_string(),
            "-c",
            CLIENTS,
            "-P",
            pipeline,
            "-n",
            requests,
        ])
        .args(["-r", KEYS, "--csv"])
        .args(words)
        .output()
        .expect("redis-benchmark, of the package redis-tools");
    let printed = String::from_utf8(output.stdout).unwrap();
    let last = printed.lines().last().expect("a line of figures");
    let figure = last.split("\",\"").nth(1).expect("a figure");
    figure.trim_matches('"').parse().expect("a number")
}
