//! What holds on every address, whatever it serves: both versions of HTTP, and
//! bounds on what a connection may take.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "common/h2_client.rs"]
mod h2_client;
#[path = "common/upstream.rs"]
mod upstream;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use common::{Client, Options, PATIENCE, Server};
use h2_client::H2;
use upstream::Upstream;

fn served(config: &str) -> (Server, Upstream) {
    let app = Upstream::start();
    let server = Server::with(&Options {
        config: Some(&format!("[server]\n{config}")),
        args: &["--upstream", &app.url(), "--proxy", "127.0.0.1:0"],
        ..Options::default()
    });
    (server, app)
}

/// Every listener, with a request that it answers with 200.
fn listeners(server: &Server) -> [(&'static str, SocketAddr, &'static str); 3] {
    [
        ("decide", server.listen, "/forward-auth"),
        ("proxy", server.proxy.unwrap(), "/"),
        ("admin", server.admin, "/health/live"),
    ]
}

fn ask(client: &mut Client, path: &str) -> std::io::Result<u16> {
    let headers = [("X-Forwarded-Uri", "/")];
    client
        .try_send("GET", path, &headers, b"")
        .map(|reply| reply.status)
}

/// Sends a byte now and then, until the other side has had enough.
fn trickle(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(30)))
        .unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nX-Slow: ").unwrap();
    for _ in 0..PATIENCE.as_millis() / 30 {
        if stream.write_all(b"x").is_err() {
            return true;
        }
        match stream.read(&mut [0; 64]) {
            Ok(0) => return true,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return true,
            _ => {}
        }
    }
    false
}

#[test]
fn a_head_that_trickles_is_cut_off_on_every_listener() {
    let (server, _app) = served("header_timeout = \"200ms\"\nidle_timeout = \"60s\"\n");
    for (name, address, _) in listeners(&server) {
        assert!(trickle(address), "{name}");
    }
}

#[test]
fn a_connection_that_says_nothing_is_closed_on_every_listener() {
    let (server, _app) = served("header_timeout = \"200ms\"\nidle_timeout = \"1s\"\n");
    for (name, address, _) in listeners(&server) {
        let mut silent = TcpStream::connect(address).unwrap();
        silent.set_read_timeout(Some(PATIENCE)).unwrap();
        let read = silent.read(&mut [0; 64]);
        assert!(matches!(read, Ok(0)), "{name}: {read:?}");
    }
}

#[test]
fn connections_are_bounded_on_every_listener() {
    let (server, _app) = served("connections_max = 2\nworkers = 1\n");
    for (name, address, path) in listeners(&server) {
        let taken = [(); 2].map(|()| {
            let mut client = Client::connect(address);
            assert_eq!(ask(&mut client, path).unwrap(), 200, "{name}");
            client
        });
        let mut third = Client::connect(address);
        let short = Some(Duration::from_millis(300));
        third.stream.get_ref().set_read_timeout(short).unwrap();
        assert!(ask(&mut third, path).is_err(), "{name}: no place is left");
        drop(taken);
        let long = Some(PATIENCE);
        third.stream.get_ref().set_read_timeout(long).unwrap();
        assert_eq!(third.read_reply().unwrap().status, 200, "{name}");
    }
}

#[test]
fn http2_is_spoken_on_every_listener_many_requests_at_once() {
    let (server, _app) = served("");
    for (name, address, path) in listeners(&server) {
        let statuses = H2::connect(address).at_once(20, path);
        assert_eq!(statuses, [200; 20], "{name}");
    }
}

#[test]
fn http2_requests_are_counted_one_by_one() {
    let (server, _app) = served("");
    let client = H2::connect(server.proxy.unwrap());
    let mut statuses: Vec<u16> = (0..11).map(|_| client.post("/auth/token")).collect();
    assert_eq!(statuses.pop(), Some(429));
    assert_eq!(statuses, [200; 10]);
}

#[test]
fn an_idle_http2_connection_is_told_to_go_and_closed() {
    let (server, _app) = served("header_timeout = \"100ms\"\nidle_timeout = \"1s\"\n");
    for (name, address, path) in listeners(&server) {
        let client = H2::connect(address);
        assert_eq!(client.at_once(1, path), [200], "{name}");
        assert!(client.ends_within(PATIENCE), "{name}");
    }
}

#[test]
fn an_http2_client_that_takes_no_answer_is_given_up() {
    let (server, _app) = served("header_timeout = \"100ms\"\nidle_timeout = \"1s\"\n");
    for (name, address, path) in listeners(&server) {
        assert!(H2::takes_nothing(address, path, PATIENCE), "{name}");
    }
}

#[test]
fn a_preface_that_trickles_is_still_one_and_one_that_stops_is_cut_off() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const NO_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let (server, _app) = served("header_timeout = \"1s\"\nidle_timeout = \"60s\"\n");
    for (name, address, _) in listeners(&server) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        for part in [&PREFACE[..1], &PREFACE[1..20], &PREFACE[20..], &NO_SETTINGS] {
            stream.write_all(part).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut answered = [0; 9];
        stream.read_exact(&mut answered).unwrap();
        assert_eq!(answered[3], 4, "{name}: settings");

        let mut stopped = TcpStream::connect(address).unwrap();
        stopped.set_read_timeout(Some(PATIENCE)).unwrap();
        stopped.write_all(&PREFACE[..10]).unwrap();
        let read = stopped.read(&mut [0; 64]);
        assert!(matches!(read, Ok(0) | Err(_)), "{name}: {read:?}");
    }
}
