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

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ROUNDS: usize = 5;
/// Keys are chosen among so many.
const KEYS: &str = "100000";
const CLIENTS: &str = "50";

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let (mut redis, redis_port) = start_redis(folder.path());
    for workers in [1, 2] {
        let (mut server, resp_port) = start_palisade(folder.path(), workers);
        compare(workers, redis_port, resp_port);
        server.kill().unwrap();
        server.wait().unwrap();
    }
    redis.kill().unwrap();
    redis.wait().unwrap();
}

/// With one worker Palisade has as many threads as redis-server.
fn compare(workers: u8, redis_port: u16, resp_port: u16) {
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
            "workers {workers}   pipeline {pipeline:>2}   SET {set:>9.0}/s   CL.THROTTLE {throttle:>9.0}/s   {:>5.1} %",
            100.0 * throttle / set
        );
    }
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
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

fn start_redis(folder: &std::path::Path) -> (Child, u16) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    drop(socket);
    let child = Command::new("redis-server")
        .current_dir(folder)
        .args([
            "--port",
            &port.to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
        ])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let answers = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    let comes_up = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        answers()
    });
    assert!(comes_up, "redis-server did not come up");
    (child, port)
}

fn start_palisade(folder: &std::path::Path, workers: u8) -> (Child, u16) {
    let config = format!("[server]\nworkers = {workers}\n");
    std::fs::write(folder.join("palisade.toml"), config).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .current_dir(folder)
        .args(["serve", "--config", "palisade.toml", "--store", "memory:"])
        .args(["--resp", "127.0.0.1:0"])
        .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let row = lines
        .by_ref()
        .map_while(Result::ok)
        .find(|line| line.trim_start().starts_with("RESP"))
        .expect("the address");
    let port = row.rsplit(':').next().unwrap().trim().parse().unwrap();
    std::thread::spawn(move || lines.for_each(drop));
    (child, port)
}
