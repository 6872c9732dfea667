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
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Client, Options, PATIENCE, Server};
use h2_client::H2;
use socket2::{Domain, Socket, Type};
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
fn s5_a_connection_that_says_nothing_is_closed_on_every_listener_in_the_time_for_a_head() {
    let (server, _app) = served("header_timeout = \"200ms\"\nidle_timeout = \"1h\"\n");
    for (name, address, _) in listeners(&server) {
        let mut silent = TcpStream::connect(address).unwrap();
        silent.set_read_timeout(Some(PATIENCE)).unwrap();
        let read = silent.read(&mut [0; 64]);
        assert!(matches!(read, Ok(0)), "{name}: {read:?}");
    }
}

/// A connection from another address of this machine.
fn connect_from(source: &str, address: SocketAddr) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let source = SocketAddr::new(source.parse().unwrap(), 0);
    socket.bind(&source.into()).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Client {
        stream: std::io::BufReader::new(stream),
    }
}

/// A request to the decision API whose body never comes.
fn busy(mut client: Client) -> Client {
    let head =
        "POST /v1/check HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 99\r\n\r\n";
    client.write(head.as_bytes()).unwrap();
    assert_eq!(client.read_head().unwrap().0, 100, "it is under way");
    client
}

fn has_ended(client: &mut Client) -> bool {
    matches!(client.stream.read(&mut [0; 1]), Ok(0))
}

/// Whether a read gives nothing for a moment.
fn waits(client: &mut Client) -> bool {
    let stream = client.stream.get_ref().try_clone().unwrap();
    let moment = Some(Duration::from_millis(300));
    stream.set_read_timeout(moment).unwrap();
    let read = client.stream.read(&mut [0; 1]);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

const PATIENT: &str = "header_timeout = \"5min\"\nidle_timeout = \"1h\"\n";

#[test]
fn connections_that_are_of_use_are_bounded() {
    let (server, _app) = served(&format!("connections_max = 2\nworkers = 1\n{PATIENT}"));
    let mut taken = [(); 2].map(|()| busy(Client::connect(server.listen)));
    let mut third = Client::connect(server.listen);
    third
        .write(b"GET /forward-auth HTTP/1.1\r\nHost: t\r\nX-Forwarded-Uri: /\r\n\r\n")
        .unwrap();
    assert!(waits(&mut third), "none is free");
    assert!(taken.iter_mut().all(waits), "and none is cut off");
    drop(taken);
    assert!(third.read_reply().unwrap().status > 0);
}

#[test]
fn s5_silent_connections_keep_nobody_out() {
    for trusted in ["", "trusted_proxies = []\n"] {
        let bounds = format!("connections_max = 20\n{trusted}{PATIENT}");
        let (server, _app) = served(&bounds);
        for (name, address, path) in listeners(&server) {
            let silent: Vec<_> = (0..60)
                .map(|_| TcpStream::connect(address).unwrap())
                .collect();
            for _ in 0..5 {
                let mut honest = connect_from("127.0.0.2", address);
                let patience = Some(Duration::from_secs(3));
                honest.stream.get_ref().set_read_timeout(patience).unwrap();
                assert!(ask(&mut honest, path).is_ok(), "{name} {trusted}");
            }
            drop(silent);
        }
    }
}

#[test]
fn s5_who_fills_a_listener_closes_connections_of_its_own() {
    let bounds = format!("connections_max = 20\ntrusted_proxies = []\n{PATIENT}");
    let (server, _app) = served(&bounds);
    for (name, address, path) in listeners(&server) {
        let mut honest = ["127.0.0.2", "127.0.0.3", "127.0.0.4"].map(|source| {
            let mut client = connect_from(source, address);
            assert!(ask(&mut client, path).is_ok(), "{name}");
            client
        });
        let flood: Vec<_> = (0..100)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let mut late = connect_from("127.0.0.5", address);
        assert!(ask(&mut late, path).is_ok(), "{name}");
        for client in &mut honest {
            assert!(ask(client, path).is_ok(), "{name}: it was kept");
        }
        drop(flood);
    }
}

#[test]
fn s5_one_address_has_half_of_the_connections_unless_it_is_a_trusted_proxy() {
    let bounds = format!("connections_max = 4\ntrusted_proxies = [\"127.0.0.9\"]\n{PATIENT}");
    let (server, _app) = served(&bounds);
    let listen = server.listen;
    let mut taken: Vec<_> = (0..2)
        .map(|_| busy(connect_from("127.0.0.2", listen)))
        .collect();
    let mut third = connect_from("127.0.0.2", listen);
    assert!(has_ended(&mut third), "it has its share, and uses it");
    taken.push(busy(connect_from("127.0.0.9", listen)));
    taken.push(busy(connect_from("127.0.0.9", listen)));
    assert!(taken.iter_mut().all(waits), "none is cut off");
    taken.drain(..2);
    for _ in 0..2 {
        taken.push(busy(connect_from("127.0.0.9", listen)));
    }
    assert!(taken.iter_mut().all(waits));
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
fn s6_an_http2_client_that_takes_no_answer_is_given_up_whatever_else_it_says() {
    let (server, _app) = served("header_timeout = \"100ms\"\nidle_timeout = \"1s\"\n");
    for (name, address, path) in listeners(&server) {
        // Our own sign of life, which it does not answer, would end it after 50 s.
        let time = Duration::from_secs(30);
        assert!(H2::takes_nothing(address, path, time), "{name}");
    }
}

#[test]
fn s6_a_stream_that_waits_for_its_window_is_given_up_with_what_it_holds() {
    let (server, app) = served("header_timeout = \"100ms\"\nidle_timeout = \"1s\"\n");
    let client = H2::connect(server.proxy.unwrap());
    // The other requests of the connection take another connection to the application.
    let is_freed = || app.open.load(Ordering::SeqCst) <= 1;
    assert!(client.gives_up_one_of_many("/endless", "/health/live", is_freed, PATIENCE));
    assert_eq!(
        client.at_once(3, "/health/live"),
        [200; 3],
        "the rest goes on"
    );
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
