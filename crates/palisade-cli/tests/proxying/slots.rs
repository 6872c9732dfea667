//! Limits on what is in progress: a request holds its place until the last byte of its answer.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::common::{eventually, signal};
use super::h2_client::H2;
use super::redis_server::RedisServer;
use super::*;

/// One at a time, for longer than a test takes.
const ONE: &str = r#"
[server]
trusted_proxies = []
workers = 1

[policy]
defaults = false

[[limit]]
name = "one-at-once"
by = ["ip"]
concurrency = 1
hold = "10min"

[[limit]]
name = "requests"
by = ["ip"]
rate = "100_000/min"
"#;

/// An application whose answers go on as the test says.
pub(super) struct DirectedUpstream {
    pub(super) url: String,
    /// Requests as they arrive, each with its connection.
    asked: Receiver<TcpStream>,
}

impl DirectedUpstream {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asks, asked) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let asks: Sender<TcpStream> = asks.clone();
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    let mut line = String::new();
                    while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
                        if line.ends_with("\r\n\r\n") {
                            let _ = asks.send(stream.try_clone().unwrap());
                            line.clear();
                        }
                    }
                });
            }
        });
        Self { url, asked }
    }

    /// The connection of the next request.
    pub(super) fn next(&self) -> TcpStream {
        self.asked.recv_timeout(common::PATIENCE).unwrap()
    }
}

/// Sends a request and does not wait for its answer.
pub(super) fn asks(server: &Server) -> Client {
    let mut client = connect(server);
    let head = b"GET /work HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\n\r\n";
    client.write(head).unwrap();
    client
}

pub(super) const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none \r\n";

/// The status of one more request; one that the application gets is answered.
pub(super) fn status(server: &Server, app: &DirectedUpstream) -> u16 {
    let mut client = asks(server);
    std::thread::scope(|scope| {
        let reply = scope.spawn(move || client.read_reply().unwrap());
        while !reply.is_finished() {
            if let Ok(mut stream) = app.asked.recv_timeout(Duration::from_millis(5)) {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            }
        }
        reply.join().unwrap().status
    })
}

#[test]
fn b_slot_a_place_is_held_from_the_head_to_the_last_byte() {
    let app = DirectedUpstream::start();
    let server = proxy(ONE, &app.url);
    let mut first = asks(&server);
    let mut answers = app.next();
    let refused = connect(&server).send("GET", "/", &[], b"");
    assert_eq!(refused.status, 429, "the application thinks");
    assert_eq!(refused.json()["error"], "rate_limit_exceeded");
    assert_eq!(
        refused.header("retry-after"),
        Some("600"),
        "the earliest end"
    );
    answers.write_all(HEAD).unwrap();
    assert_eq!(first.read_head().unwrap().0, 200);
    assert_eq!(status(&server, &app), 429, "the answer goes on");
    answers.write_all(b"0\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    while !rest.ends_with(b"0\r\n\r\n") {
        let mut byte = [0];
        first.stream.read_exact(&mut byte).unwrap();
        rest.extend(byte);
    }
    eventually("the place is free", || status(&server, &app) == 200);
}

#[test]
fn b_slot_a_client_that_hangs_up_frees_its_place() {
    let app = DirectedUpstream::start();
    let server = proxy(ONE, &app.url);
    // While the application thinks.
    let client = asks(&server);
    let quiet = app.next();
    assert_eq!(status(&server, &app), 429);
    client.stream.get_ref().shutdown(Shutdown::Both).unwrap();
    drop(client);
    eventually("it is free", || status(&server, &app) == 200);
    drop(quiet);
    // In the middle of a stream that has gone quiet.
    let mut client = asks(&server);
    let mut answers = app.next();
    answers.write_all(HEAD).unwrap();
    client.read_head().unwrap();
    assert_eq!(status(&server, &app), 429);
    drop(client);
    eventually("it is free", || status(&server, &app) == 200);
}

#[test]
fn b_slot_a_client_of_http_2_that_hangs_up_frees_its_place() {
    let app = DirectedUpstream::start();
    let server = proxy(ONE, &app.url);
    let client = H2::connect(server.proxy.unwrap());
    client.begin("/work");
    let _quiet = app.next();
    assert_eq!(status(&server, &app), 429);
    drop(client);
    eventually("it is free", || status(&server, &app) == 200);
}

#[test]
fn b_slot_an_application_that_dies_frees_the_place() {
    let app = DirectedUpstream::start();
    let server = proxy(ONE, &app.url);
    let mut client = asks(&server);
    app.next().shutdown(Shutdown::Both).unwrap();
    assert_eq!(client.read_reply().unwrap().status, 502);
    assert_eq!(status(&server, &app), 200);
    let mut client = asks(&server);
    let mut answers = app.next();
    answers.write_all(HEAD).unwrap();
    client.read_head().unwrap();
    assert_eq!(status(&server, &app), 429);
    answers.shutdown(Shutdown::Both).unwrap();
    eventually("it is free", || status(&server, &app) == 200);
}

#[test]
fn b_slot_a_websocket_holds_its_place_until_it_is_closed() {
    let app = Upstream::start();
    let server = proxy(ONE, &app.url());
    let status = || connect(&server).send("GET", "/", &[], b"").status;
    let mut client = tunnel(&server);
    assert!(echoes(&mut client));
    assert_eq!(status(), 429);
    assert!(echoes(&mut client));
    drop(client);
    eventually("it is free", || status() == 200);
}

#[test]
fn b_slot_a_place_is_extended_and_ends_with_max_hold() {
    let app = DirectedUpstream::start();
    let config = format!("{ONE}\n[reservations]\nmax_hold = \"3s\"\n").replace("10min", "1s");
    let server = proxy(&config, &app.url);
    let mut client = asks(&server);
    let mut answers = app.next();
    answers.write_all(HEAD).unwrap();
    client.read_head().unwrap();
    // Until the stream is cut off nobody else gets the place, though the hold passes twice.
    client.stream.get_ref().set_nonblocking(true).unwrap();
    let mut refused = 0;
    let cut = loop {
        let mut byte = [0];
        match client.stream.read(&mut byte) {
            Ok(0) => break true,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if status(&server, &app) == 200 {
                    break false;
                }
                refused += 1;
            }
            Err(_) => break true,
        }
    };
    assert!(refused > 1, "{refused}");
    // Freed at the same instant, give or take the way of the bytes.
    if !cut {
        client.stream.get_ref().set_nonblocking(false).unwrap();
        let mut rest = Vec::new();
        client.stream.read_to_end(&mut rest).unwrap();
        assert!(!rest.ends_with(b"0\r\n\r\n"), "it does not look whole");
    }
    eventually("it is free", || status(&server, &app) == 200);
}

#[test]
fn b_crash_a_proxy_that_is_killed_frees_its_places_after_the_hold() {
    let app = DirectedUpstream::start();
    let config = ONE.replace("10min", "2s");
    let home = tempfile::tempdir().unwrap();
    let options = Options {
        config: Some(&config),
        args: &[
            "--upstream",
            &app.url,
            "--proxy",
            "127.0.0.1:0",
            "--store",
            "embedded:data",
        ],
        ..Options::default()
    };
    let server = Server::at(home, &options);
    let _client = asks(&server);
    let _answers = app.next();
    assert_eq!(status(&server, &app), 429);
    // What the journal has not written yet may be lost.
    std::thread::sleep(Duration::from_millis(200));
    signal(server.pid(), "KILL");
    let (_, home) = server.wait();
    let server = Server::at(home, &options);
    eventually("it is free", || status(&server, &app) == 200);
}

#[test]
fn b_slot_a_place_is_one_of_all_nodes() {
    let store = RedisServer::start();
    let app = DirectedUpstream::start();
    let config = format!(
        "{ONE}\n[store]\nurl = \"{}\"\n[secrets]\nkey = \"env:KEY\"\n",
        store.url()
    );
    let node = || {
        Server::with(&Options {
            config: Some(&config),
            args: &["--upstream", &app.url, "--proxy", "127.0.0.1:0"],
            env: &[("KEY", "at least 32 random bytes go here, too")],
        })
    };
    let (first, second) = (node(), node());
    let mut client = asks(&first);
    let mut answers = app.next();
    answers.write_all(HEAD).unwrap();
    client.read_head().unwrap();
    assert_eq!(status(&second, &app), 429);
    drop(client);
    eventually("it is free", || status(&second, &app) == 200);
    eventually("it is free again", || status(&first, &app) == 200);
}

#[test]
fn b_slot_surfaces_that_hold_nothing_still_say_so() {
    let app = DirectedUpstream::start();
    let server = proxy(ONE, &app.url);
    let facts = r#"{"ip":"127.0.0.1","method":"GET","path":"/work"}"#;
    let answer = server.post("/v1/check", facts).json();
    assert_eq!(answer["not_asked"][0], "one-at-once", "{answer}");
}
