//! Where one message ends and the next begins (RFC 9112): the proxy, the application
//! and the client agree, whatever is sent.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;
#[path = "common/upstream.rs"]
mod upstream;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Client, Options, PATIENCE, Server};
use upstream::Upstream;

fn proxy(app: &Upstream) -> Server {
    Server::with(&Options {
        config: Some("[server]\ntrusted_proxies = []\n"),
        args: &["--upstream", &app.url(), "--proxy", "127.0.0.1:0"],
        ..Options::default()
    })
}

/// Every address that speaks HTTP.
fn listeners(server: &Server) -> [(&'static str, SocketAddr); 3] {
    [
        ("decide", server.listen),
        ("proxy", server.proxy.unwrap()),
        ("admin", server.admin),
    ]
}

/// Everything that comes back until the connection ends or is silent.
fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    stream.write_all(bytes).unwrap();
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        said.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8_lossy(&said).into_owned()
}

fn statuses(said: &str) -> Vec<&str> {
    said.split("HTTP/1.1 ")
        .skip(1)
        .map(|rest| &rest[..3])
        .collect()
}

#[test]
fn heads_that_can_be_read_in_two_ways_are_refused_on_every_listener() {
    let app = Upstream::start();
    let server = proxy(&app);
    for (what, head) in [
        (
            "two lengths",
            "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        ),
        (
            "a list of lengths",
            "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5, 6\r\n\r\nhello",
        ),
        (
            "a signed length",
            "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: +5\r\n\r\nhello",
        ),
        (
            "a folded header",
            "GET / HTTP/1.1\r\nHost: t\r\nX-A: one\r\n two\r\n\r\n",
        ),
        (
            "a space before the colon",
            "GET / HTTP/1.1\r\nHost : t\r\n\r\n",
        ),
        ("two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        (
            "one host twice",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        ),
        ("no host", "GET / HTTP/1.1\r\nUser-Agent: t\r\n\r\n"),
        (
            "no host but the target's",
            "GET http://a/ HTTP/1.1\r\nUser-Agent: t\r\n\r\n",
        ),
        (
            "chunked, but not last",
            "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        ),
        (
            "a control character",
            "GET / HTTP/1.1\r\nHost: t\r\nX-A: a\x00b\r\n\r\n",
        ),
    ] {
        for (name, address) in listeners(&server) {
            let said = exchange(address, head.as_bytes());
            assert_eq!(statuses(&said), ["400"], "{what} on {name}: {said}");
        }
    }
    assert_eq!(app.requests.load(Ordering::SeqCst), 0);
}

#[test]
fn heads_that_are_too_long_are_refused_on_every_listener() {
    let app = Upstream::start();
    let server = proxy(&app);
    let long = format!(
        "GET / HTTP/1.1\r\nHost: t\r\nX-A: {}\r\n\r\n",
        "a".repeat(64 * 1024)
    );
    for (name, address) in listeners(&server) {
        let said = exchange(address, long.as_bytes());
        assert_eq!(statuses(&said), ["431"], "{name}");
    }
    assert_eq!(app.requests.load(Ordering::SeqCst), 0);
}

#[test]
fn a_length_beside_chunks_does_not_hide_a_request() {
    let app = Upstream::start();
    let server = proxy(&app);
    let said = exchange(
        server.proxy.unwrap(),
        b"POST /one HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nContent-Length: 40\r\n\
          Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
          GET /two HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\n\r\n",
    );
    // Whatever reached the application was decided about, one by one.
    let seen = app.requests.load(Ordering::SeqCst);
    assert_eq!(statuses(&said).len(), seen.max(1), "{said}");
    assert_eq!(said.matches("x-ratelimit-limit").count(), seen, "{said}");
    assert!(!said.contains(r#""content-length":"40""#), "{said}");
}

#[test]
fn a_body_that_cannot_be_read_is_the_clients_fault() {
    let app = Upstream::start();
    let server = proxy(&app);
    let head =
        "POST /echo HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    for chunks in [
        "zz\r\n",
        " 1\r\na\r\n0\r\n\r\n",
        "1;a=\"\r\nb\"\r\na\r\n0\r\n\r\n",
    ] {
        let said = exchange(server.proxy.unwrap(), format!("{head}{chunks}").as_bytes());
        assert_eq!(statuses(&said), ["400"], "{chunks:?}: {said}");
    }
}

/// Passed on without the coding's name, what is coded would be taken for something else.
#[test]
fn a_transfer_coding_that_nobody_undoes_here_is_refused_on_every_listener() {
    let app = Upstream::start();
    let server = proxy(&app);
    for coding in [
        "gzip, chunked",
        "identity, chunked",
        "chunked, chunked",
        "gzip\r\nTransfer-Encoding: chunked",
    ] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nTransfer-Encoding: {coding}\r\n\r\n\
             3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n"
        );
        for (name, address) in listeners(&server) {
            let said = exchange(address, request.as_bytes());
            assert_eq!(statuses(&said), ["501"], "{coding} on {name}: {said}");
        }
    }
    assert_eq!(app.requests.load(Ordering::SeqCst), 0);
}

#[test]
fn an_answer_in_a_transfer_coding_that_nobody_asked_for_is_not_passed_on() {
    for coding in [
        "gzip, chunked",
        "gzip",
        "gzip\r\nTransfer-Encoding: chunked",
    ] {
        let url = answers_once(format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        ));
        let server = Server::with(&Options {
            args: &["--upstream", &url, "--proxy", "127.0.0.1:0"],
            ..Options::default()
        });
        let head = b"GET / HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\n\r\n";
        let said = exchange(server.proxy.unwrap(), head);
        assert_eq!(statuses(&said), ["502"], "{coding}: {said}");
    }
}

#[test]
fn nobody_gets_a_tunnel_by_asking_to_connect() {
    let app = Upstream::start();
    let server = proxy(&app);
    for target in ["t:80", "/", "http://t/"] {
        let head = format!("CONNECT {target} HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\n\r\n");
        let said = exchange(server.proxy.unwrap(), head.as_bytes());
        assert_eq!(statuses(&said), ["405"], "{target}: {said}");
    }
    assert_eq!(app.requests.load(Ordering::SeqCst), 0);
}

#[test]
fn the_target_names_the_host() {
    let app = Upstream::start();
    let server = proxy(&app);
    let said = exchange(
        server.proxy.unwrap(),
        b"GET http://user@here/x HTTP/1.1\r\nHost: elsewhere\r\nUser-Agent: t\r\n\r\n",
    );
    assert!(said.contains(r#""host":"here""#), "{said}");
    assert!(said.contains(r#""line":"GET /x HTTP/1.1""#), "{said}");
}

#[test]
fn a_client_that_asks_first_is_told_to_go_on() {
    let app = Upstream::start();
    let server = proxy(&app);
    for (address, path, body) in [
        (server.proxy.unwrap(), "/things", "hello"),
        (
            server.listen,
            "/v1/check",
            r#"{"ip":"::1","method":"GET","path":"/"}"#,
        ),
    ] {
        let mut client = Client::connect(address);
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        client.write(head.as_bytes()).unwrap();
        assert_eq!(client.read_head().unwrap().0, 100, "{path}");
        client.write(body.as_bytes()).unwrap();
        assert_eq!(client.read_reply().unwrap().status, 200, "{path}");
    }
}

#[test]
fn a_refused_client_is_not_asked_for_its_body() {
    let app = Upstream::start();
    let server = proxy(&app);
    for _ in 0..10 {
        let mut client = Client::connect(server.proxy.unwrap());
        assert_eq!(client.send("POST", "/auth/revoke", &[], b"").status, 200);
    }
    let mut client = Client::connect(server.proxy.unwrap());
    let head = b"POST /auth/revoke HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    client.write(head).unwrap();
    assert_eq!(client.read_head().unwrap().0, 429);
}

#[test]
fn an_answer_to_head_has_no_body_and_the_connection_goes_on() {
    let app = Upstream::start();
    let server = proxy(&app);
    let mut client = Client::connect(server.proxy.unwrap());
    client
        .write(b"HEAD /head HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\n\r\n")
        .unwrap();
    let (status, headers) = client.read_head().unwrap();
    assert_eq!(status, 200);
    let length = headers.iter().find(|(name, _)| name == "content-length");
    assert_eq!(length.map(|(_, value)| value.as_str()), Some("1234"));
    assert_eq!(client.send("GET", "/", &[], b"").status, 200);
}

/// Most memory that a process has held, in KiB.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.unwrap().split_whitespace().nth(1);
    number.unwrap().parse().unwrap()
}

#[test]
fn a_gigabyte_passes_in_constant_memory() {
    const PIECES: usize = 1024;
    let app = Upstream::start();
    let server = proxy(&app);
    let before = peak(server.pid());
    let mut client = Client::connect(server.proxy.unwrap());
    let head =
        b"POST /count HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nContent-Length: 1073741824\r\n\r\n";
    client.write(head).unwrap();
    let piece = vec![b'x'; 1024 * 1024];
    for _ in 0..PIECES {
        client.write(&piece).unwrap();
    }
    let reply = client.read_reply().unwrap();
    assert_eq!(reply.text(), "1073741824");
    let grown = peak(server.pid()) - before;
    assert!(grown < 64 * 1024, "{grown} KiB more than before");
}

#[test]
fn a_client_that_sends_its_body_by_the_byte_gets_an_answer_or_an_end() {
    let app = Upstream::start();
    let server = Server::with(&Options {
        config: Some("[server]\ntrusted_proxies = []\n[proxy]\nresponse_timeout = \"500ms\"\n"),
        args: &["--upstream", &app.url(), "--proxy", "127.0.0.1:0"],
        ..Options::default()
    });
    let mut stream = TcpStream::connect(server.proxy.unwrap()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    stream
        .write_all(
            b"POST /things HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nContent-Length: 100000\r\n\r\n",
        )
        .unwrap();
    let ended = (0..PATIENCE.as_millis() / 50).any(|_| {
        let sent = stream.write_all(b"x").is_ok();
        let mut buffer = [0; 256];
        !sent || stream.read(&mut buffer).is_ok()
    });
    assert!(ended);
}

/// A body that takes longer than the application may for its answer is no failure of anybody.
#[test]
fn a_slow_body_is_waited_for_and_the_application_has_its_time_after_it() {
    let app = Upstream::start();
    let server = Server::with(&Options {
        config: Some("[server]\ntrusted_proxies = []\n[proxy]\nresponse_timeout = \"2s\"\n"),
        args: &["--upstream", &app.url(), "--proxy", "127.0.0.1:0"],
        ..Options::default()
    });
    const PIECES: usize = 12;
    let piece = vec![b'x'; 64 * 1024];
    let mut client = Client::connect(server.proxy.unwrap());
    let head = format!(
        "POST /count HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nContent-Length: {}\r\n\r\n",
        PIECES * piece.len()
    );
    client.write(head.as_bytes()).unwrap();
    for _ in 0..PIECES {
        std::thread::sleep(Duration::from_millis(300));
        client.write(&piece).unwrap();
    }
    let reply = client.read_reply().unwrap();
    assert_eq!((reply.status, reply.text()), (200, "786432"));

    // Who stops in the middle is told so, and it is not the application's failure.
    client.write(head.as_bytes()).unwrap();
    client.write(&piece).unwrap();
    assert_eq!(client.read_reply().unwrap().status, 408);
    let metrics = server.admin_get("/metrics").text().to_owned();
    assert!(
        !metrics.contains("rate_limiter_upstream_failures_total{"),
        "{metrics}"
    );
}

#[test]
fn a_body_of_unknown_length_passes_whatever_the_method() {
    let app = Upstream::start();
    let server = proxy(&app);
    for method in ["GET", "DELETE", "POST"] {
        let mut client = Client::connect(server.proxy.unwrap());
        let head = format!("{method} /things HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\n");
        let body = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        client.write(format!("{head}{body}").as_bytes()).unwrap();
        let told = client.read_reply().unwrap().json();
        assert_eq!(told["body"], "hello", "{method}: {told}");
    }
    let told = Client::connect(server.proxy.unwrap()).send("GET", "/", &[], b"");
    assert!(told.json()["headers"]["transfer-encoding"].is_null());
}

/// RFC 9112 §9.6: who has said all it wants to say still wants to hear.
#[test]
fn a_client_that_closes_its_half_gets_its_answer() {
    let app = Upstream::start();
    let server = proxy(&app);
    for (name, address) in listeners(&server) {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
        let head = "GET /stream HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.1 "), "{name}: {said}");
        if name == "proxy" {
            assert!(said.contains("three"), "the whole answer: {said}");
        }
    }
}

/// Where an application is that says this to the first request.
fn answers_once(said: String) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(said.as_bytes());
        let _ = stream.read(&mut [0; 4096]);
    });
    url
}

#[test]
fn trailers_and_interim_answers_pass() {
    let url = answers_once(
        "HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n\
         HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\nabc\r\n0\r\nX-Sum: 42\r\n\r\n"
            .to_owned(),
    );
    let server = Server::with(&Options {
        args: &["--upstream", &url, "--proxy", "127.0.0.1:0"],
        ..Options::default()
    });
    let said = exchange(
        server.proxy.unwrap(),
        b"GET / HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nTE: trailers\r\nConnection: TE, close\r\n\r\n",
    );
    assert_eq!(statuses(&said), ["103", "200"], "{said}");
    let lower = said.to_ascii_lowercase();
    assert!(lower.contains("3\r\nabc\r\n0\r\nx-sum: 42\r\n"), "{said}");
}
