//! The reverse proxy in front of a real application.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking and says why"
)]

#[path = "common/certificates.rs"]
mod certificates;
mod common;
#[path = "proxying/early.rs"]
mod early;
#[path = "common/h2_client.rs"]
mod h2_client;
#[path = "common/h2_upstream.rs"]
mod h2_upstream;
#[path = "proxying/instances.rs"]
mod instances;
#[path = "proxying/kept.rs"]
mod kept;
#[path = "proxying/load.rs"]
mod load;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;
#[path = "proxying/secure.rs"]
mod secure;
#[path = "proxying/slots.rs"]
mod slots;
#[path = "proxying/spend.rs"]
mod spend;
#[path = "proxying/two.rs"]
mod two;
#[path = "common/upstream.rs"]
mod upstream;

use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Client, Options, Server};
use upstream::Upstream;

fn proxy(config: &str, upstream: &str) -> Server {
    Server::with(&Options {
        config: Some(config),
        args: &["--upstream", upstream, "--proxy", "127.0.0.1:0"],
        ..Options::default()
    })
}

/// The test's address is then the client's, not a trusted proxy's.
const NOBODY_TRUSTED: &str = "[server]\ntrusted_proxies = []\n";

fn connect(server: &Server) -> Client {
    Client::connect(server.proxy.unwrap())
}

#[test]
fn requests_reach_the_application_with_the_clients_address_and_come_back_with_limits() {
    let app = Upstream::start();
    let server = proxy(NOBODY_TRUSTED, &app.url());
    let reply = connect(&server).send(
        "POST",
        "/things?a=1",
        &[
            ("X-Forwarded-For", "10.1.2.3"),
            ("X-Request-Id", "r-1"),
            ("Connection", "x-private"),
            ("X-Private", "1"),
        ],
        b"hello",
    );
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("x-app"), Some("yes"));
    assert_eq!(reply.header("keep-alive"), None);
    assert_eq!(reply.header("x-ratelimit-limit"), Some("50"));
    let id = reply.header("x-request-id").unwrap();
    assert_ne!(id, "r-1", "an id of an end user is not believed");
    let seen = reply.json();
    assert_eq!(seen["headers"]["x-request-id"], id);
    assert_eq!(seen["line"], "POST /things?a=1 HTTP/1.1");
    assert_eq!(seen["body"], "hello");
    assert_eq!(seen["headers"]["host"], "test");
    assert_eq!(seen["headers"]["x-forwarded-for"], "127.0.0.1");
    assert!(seen["headers"]["x-private"].is_null());
}

#[test]
fn the_eleventh_sign_in_is_refused_and_does_not_reach_the_application() {
    let app = Upstream::start();
    let server = proxy(NOBODY_TRUSTED, &app.url());
    let mut client = connect(&server);
    let mut sign_in = || {
        let form = ("Content-Type", "application/x-www-form-urlencoded");
        client.send("POST", "/auth/token", &[form], b"client_id=spa&code=1")
    };
    for _ in 0..10 {
        let reply = sign_in();
        assert_eq!(reply.status, 200);
        assert_eq!(reply.json()["body"], "client_id=spa&code=1");
    }
    let refused = sign_in();
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["error"], "rate_limit_exceeded");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(app.requests.load(Ordering::SeqCst), 10);
}

#[test]
fn connections_to_the_application_are_kept() {
    let app = Upstream::start();
    let server = proxy("[server]\nworkers = 1\ntrusted_proxies = []\n", &app.url());
    let mut client = connect(&server);
    for _ in 0..10 {
        assert_eq!(client.send("GET", "/", &[], b"").status, 200);
    }
    assert_eq!(app.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn large_bodies_pass_without_a_bound() {
    let app = Upstream::start();
    let server = proxy(NOBODY_TRUSTED, &app.url());
    let body = vec![b'x'; 5 * 1024 * 1024];
    let reply = connect(&server).send("POST", "/upload", &[], &body);
    assert_eq!(reply.json()["body_bytes"], body.len());
}

#[test]
fn answers_are_streamed() {
    let app = Upstream::start();
    let server = proxy(NOBODY_TRUSTED, &app.url());
    let mut client = connect(&server);
    client
        .write(b"GET /stream HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\n\r\n")
        .unwrap();
    let mut seen = String::new();
    let mut buffer = [0; 256];
    while !seen.contains("one") {
        let read = client.stream.read(&mut buffer).unwrap();
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert!(
        !seen.contains("three"),
        "the first piece did not wait for the last"
    );
    while !seen.ends_with("0\r\n\r\n") {
        let read = client.stream.read(&mut buffer).unwrap();
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert!(seen.contains("three"));
}

#[test]
fn websockets_pass_in_both_directions() {
    let app = Upstream::start();
    let server = proxy(NOBODY_TRUSTED, &app.url());
    let mut client = connect(&server);
    let upgrade = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
    let reply = client.send("GET", "/ws", &upgrade, b"");
    assert_eq!(reply.status, 101);
    assert_eq!(reply.header("upgrade"), Some("websocket"));
    for word in ["hello", "again"] {
        client.write(word.as_bytes()).unwrap();
        let mut echoed = vec![0; word.len()];
        client.stream.read_exact(&mut echoed).unwrap();
        assert_eq!(echoed, word.as_bytes());
    }
}

#[test]
fn an_application_that_is_away_or_silent_gives_502_or_504() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let server = proxy(NOBODY_TRUSTED, &url);
    let away = connect(&server).send("GET", "/", &[], b"");
    assert_eq!(away.status, 502);
    assert_eq!(away.json()["type"], "urn:palisade:problem:bad-gateway");

    let app = Upstream::start();
    let config = format!("{NOBODY_TRUSTED}[proxy]\nresponse_timeout = \"200ms\"\n");
    let server = proxy(&config, &app.url());
    let silent = connect(&server).send("GET", "/silent", &[], b"");
    assert_eq!(silent.status, 504);
}

#[test]
fn a_forged_chain_from_a_stranger_does_not_change_whose_bucket_it_is() {
    let app = Upstream::start();
    let server = proxy(NOBODY_TRUSTED, &app.url());
    let mut statuses = Vec::new();
    for forged in 0..11 {
        let chain = format!("192.0.2.{forged}");
        let headers = [("X-Forwarded-For", chain.as_str())];
        let reply = connect(&server).send("POST", "/auth/revoke", &headers, b"");
        statuses.push(reply.status);
    }
    assert_eq!(statuses[..10], [200; 10]);
    assert_eq!(statuses[10], 429);
}

#[test]
fn a_stranger_cannot_speak_for_a_proxy_and_a_trusted_one_can() {
    let app = Upstream::start();
    let names = [
        "x-real-ip",
        "x-original-url",
        "x-rewrite-url",
        "x-forwarded-user",
    ];
    let blurred = ["x_forwarded_for", "x_real_ip"];
    let passed = |config: &str, name: &str| {
        let server = proxy(config, &app.url());
        let told = connect(&server).send("GET", "/", &[(name, "/admin")], b"");
        !told.json()["headers"][name].is_null()
    };
    for name in names.into_iter().chain(blurred) {
        assert!(!passed(NOBODY_TRUSTED, name), "{name}");
    }
    assert!(passed("", names[0]), "by a proxy on this host");
    assert!(!passed("", blurred[0]));
}

#[test]
fn what_a_connection_names_is_removed_unless_it_describes_the_request() {
    let app = Upstream::start();
    let server = proxy(NOBODY_TRUSTED, &app.url());
    let headers = [
        (
            "Connection",
            "content-type, cookie, authorization, host, x-private",
        ),
        ("Content-Type", "text/plain"),
        ("Cookie", "a=b"),
        ("Authorization", "x"),
        ("X-Private", "1"),
    ];
    let told = connect(&server).send("POST", "/", &headers, b"x").json();
    for kept in ["content-type", "cookie", "authorization", "host"] {
        assert!(!told["headers"][kept].is_null(), "{kept}: {told}");
    }
    assert!(told["headers"]["x-private"].is_null());
}

#[test]
fn a_quiet_stream_outlives_the_idle_time() {
    let app = Upstream::start();
    let config = "[server]\ntrusted_proxies = []\nidle_timeout = \"1s\"\n";
    let server = proxy(config, &app.url());
    let mut client = connect(&server);
    let upgrade = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
    client.send("GET", "/ws", &upgrade, b"");
    std::thread::sleep(Duration::from_millis(1700));
    client.write(b"still").unwrap();
    let mut echoed = [0; 5];
    client.stream.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"still");
}

const WEBSOCKET: [(&str, &str); 2] = [("Connection", "Upgrade"), ("Upgrade", "websocket")];

#[test]
fn no_protocol_but_a_websocket_is_passed_on() {
    let app = Upstream::start();
    let server = proxy(NOBODY_TRUSTED, &app.url());
    let cleartext = [
        ("Connection", "Upgrade, HTTP2-Settings"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAMAAABkAAQAoAAAAAIAAAAA"),
    ];
    let ignored = connect(&server).send("GET", "/", &cleartext, b"");
    assert_eq!(ignored.status, 200);
    for gone in ["connection", "upgrade", "http2-settings"] {
        assert!(ignored.json()["headers"][gone].is_null(), "{gone}");
    }
    let both = [("Connection", "Upgrade"), ("Upgrade", "h2c, websocket")];
    let told = connect(&server).send("GET", "/", &both, b"").json();
    assert_eq!(told["headers"]["upgrade"], "websocket");

    // An application that switches all the same has nobody to talk to.
    let mut client = connect(&server);
    let refused = client.send("GET", "/ws", &cleartext, b"");
    assert_eq!(refused.status, 502);
    let posted = connect(&server).send("POST", "/ws", &WEBSOCKET, b"");
    assert_eq!(posted.status, 502);
}

fn tunnel(server: &Server) -> Client {
    let mut client = connect(server);
    assert_eq!(client.send("GET", "/ws", &WEBSOCKET, b"").status, 101);
    client
}

fn echoes(client: &mut Client) -> bool {
    let mut echoed = [0; 4];
    client.write(b"ping").is_ok()
        && client.stream.read_exact(&mut echoed).is_ok()
        && &echoed == b"ping"
}

#[test]
fn tunnels_count_among_the_open_connections() {
    let app = Upstream::start();
    let server = proxy("[server]\nconnections_max = 2\nworkers = 1\n", &app.url());
    let mut tunnels = vec![tunnel(&server), tunnel(&server)];
    assert!(tunnels.iter_mut().all(echoes));
    let mut third = connect(&server);
    let short = Some(Duration::from_millis(300));
    third.stream.get_ref().set_read_timeout(short).unwrap();
    assert!(third.try_send("GET", "/", &[], b"").is_err(), "no place");
    tunnels.pop();
    let long = Some(common::PATIENCE);
    third.stream.get_ref().set_read_timeout(long).unwrap();
    assert_eq!(third.read_reply().unwrap().status, 200);
}

#[test]
fn a_tunnel_ends_when_both_sides_are_silent_and_not_before() {
    let app = Upstream::start();
    let config = format!("{NOBODY_TRUSTED}[proxy]\ntunnel_idle_timeout = \"1s\"\n");
    let server = proxy(&config, &app.url());
    let (mut used, mut silent) = (tunnel(&server), tunnel(&server));
    for _ in 0..8 {
        assert!(echoes(&mut used));
        std::thread::sleep(Duration::from_millis(250));
    }
    let read = silent.stream.read(&mut [0; 1]);
    assert!(matches!(read, Ok(0)), "{read:?}");
    assert!(echoes(&mut used));
}
