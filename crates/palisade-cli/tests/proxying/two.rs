//! HTTP/2 on either side of the proxy, and on both.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::TempDir;

use crate::certificates::certificates;
use crate::common::{Client, Options, Server};
use crate::h2_upstream::H2Upstream;
use crate::upstream::Upstream;

const PIECE: usize = 64 * 1024;
/// Sixteen megabytes.
const PIECES: usize = 256;

/// A proxy before an application that speaks HTTP/2 only.
fn before(requests_max: usize) -> (Server, H2Upstream, TempDir) {
    limited(
        "by = []\nrate = \"100_000/s\"\nalgorithm = \"token-bucket\"",
        requests_max,
    )
}

fn limited(limit: &str, requests_max: usize) -> (Server, H2Upstream, TempDir) {
    let home = tempfile::tempdir().unwrap();
    certificates(home.path());
    let app = H2Upstream::start(home.path(), requests_max);
    let authority = home.path().join("ca.pem");
    let config = format!(
        "[server]\ntrusted_proxies = []\nworkers = 1\n[proxy]\nupstream_ca = \"{}\"\n\
         [[limit]]\nname = \"one\"\n{limit}\n\
         [[route]]\npath = \"/*\"\nclass = \"any\"\n[policy]\ndefaults = false\n",
        authority.display()
    );
    let server = Server::with(&Options {
        config: Some(&config),
        args: &["--upstream", &app.url(), "--proxy", "127.0.0.1:0"],
        ..Options::default()
    });
    (server, app, home)
}

/// Piece by piece, each of its own byte, and a trailer at the end.
fn pieces() -> impl Body<Data = Bytes, Error = std::convert::Infallible> + Send + Unpin {
    let data = (0..PIECES).map(|at| Ok(Frame::data(Bytes::from(vec![byte(at); PIECE]))));
    let sum = HeaderMap::from_iter([("x-sum".parse().unwrap(), "42".parse().unwrap())]);
    let all = data.chain([Ok(Frame::trailers(sum))]);
    StreamBody::new(futures_util::stream::iter(all))
}

fn byte(piece: usize) -> u8 {
    u8::try_from(piece % 251).unwrap()
}

fn is_whole(body: &[u8]) -> bool {
    let mut pieces = body.chunks(PIECE).enumerate();
    body.len() == PIECES * PIECE
        && pieces.all(|(at, piece)| piece.iter().all(|found| *found == byte(at)))
}

/// One request of a client that speaks HTTP/2.
pub(crate) fn ask<B>(
    address: SocketAddr,
    request: Request<B>,
) -> (Response<()>, Bytes, Option<HeaderMap>)
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned();
        (Response::from_parts(parts, ()), body.to_bytes(), trailers)
    })
}

pub(crate) fn request(path: &str) -> http::request::Builder {
    Request::builder()
        .uri(format!("http://shop.example{path}"))
        .header("user-agent", "t")
}

fn json(body: &[u8]) -> serde_json::Value {
    serde_json::from_slice(body).unwrap()
}

#[test]
fn an_http_2_application_is_told_the_clients_host_whichever_version_it_spoke() {
    let (server, app, _home) = before(usize::MAX);
    let address = server.proxy.unwrap();
    let from_one = Client::connect(address).send("GET", "/a?b=1", &[], b"");
    assert_eq!(from_one.status, 200, "{}", from_one.text());
    assert!(from_one.header("x-ratelimit-limit").is_some());
    let asked = request("/a?b=1").body(Full::<Bytes>::default()).unwrap();
    let (from_two, body, _) = ask(address, asked);
    assert!(from_two.headers().contains_key("x-ratelimit-limit"));
    for (seen, host) in [(from_one.json(), "test"), (json(&body), "shop.example")] {
        assert_eq!(seen["version"], "HTTP/2.0");
        assert_eq!(seen["target"], "/a?b=1");
        // Another name in `Host` makes a request malformed (RFC 9113 §8.3.1).
        assert_eq!(seen["authority"], host, "{seen}");
        assert!(seen["hosts"].as_array().unwrap().is_empty(), "{seen}");
        assert_eq!(seen["forwarded_host"], host);
    }
    assert_eq!(app.connections.load(Ordering::SeqCst), 1, "one for all");
}

#[test]
fn sixteen_megabytes_and_trailers_pass_from_http_2_to_http_2_and_back() {
    let (server, _app, _home) = before(usize::MAX);
    let asked = request("/echo")
        .method("POST")
        .header("te", "trailers")
        .body(pieces());
    let (response, body, trailers) = ask(server.proxy.unwrap(), asked.unwrap());
    assert_eq!(response.status(), 200);
    assert!(is_whole(&body), "{} bytes", body.len());
    assert_eq!(trailers.unwrap()["x-sum"], "42");
}

#[test]
fn sixteen_megabytes_and_trailers_pass_from_http_1_to_http_2_and_back() {
    let (server, _app, _home) = before(usize::MAX);
    let mut client = Client::connect(server.proxy.unwrap());
    let mut upload = client.stream.get_ref().try_clone().unwrap();
    let sent = std::thread::spawn(move || {
        let head = "POST /echo HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nTE: trailers\r\n\
                    Connection: TE\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n";
        upload.write_all(head.as_bytes()).unwrap();
        for at in 0..PIECES {
            upload
                .write_all(format!("{PIECE:x}\r\n").as_bytes())
                .unwrap();
            upload.write_all(&vec![byte(at); PIECE]).unwrap();
            upload.write_all(b"\r\n").unwrap();
        }
        upload.write_all(b"0\r\nX-Sum: 42\r\n\r\n").unwrap();
    });
    let (status, _) = client.read_head().unwrap();
    assert_eq!(status, 200);
    let (body, trailers) = chunked(&mut client);
    sent.join().unwrap();
    assert!(is_whole(&body), "{} bytes", body.len());
    assert!(trailers.eq_ignore_ascii_case("x-sum: 42\r\n"), "{trailers}");
}

/// The chunks of an answer, and what follows the last of them.
fn chunked(client: &mut Client) -> (Vec<u8>, String) {
    let line = |client: &mut Client| {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut client.stream, &mut line).unwrap();
        line
    };
    let mut body = Vec::new();
    loop {
        let size = usize::from_str_radix(line(client).trim_end(), 16).unwrap();
        if size == 0 {
            let mut trailers = String::new();
            loop {
                match line(client).as_str() {
                    "\r\n" => return (body, trailers),
                    trailer => trailers.push_str(trailer),
                }
            }
        }
        let start = body.len();
        body.resize(start + size, 0);
        client.stream.read_exact(&mut body[start..]).unwrap();
        line(client);
    }
}

/// Requests of several clients share a connection, and some are on their way to it when it ends.
#[test]
fn a_connection_that_an_application_ends_after_some_requests_loses_none() {
    let (server, app, _home) = before(10);
    let address = server.proxy.unwrap();
    let ask = move || {
        let mut client = Client::connect(address);
        [0; 50].map(|_| client.send("POST", "/a", &[], b"x").status)
    };
    let clients: Vec<_> = (0..8).map(|_| std::thread::spawn(ask)).collect();
    for client in clients {
        assert_eq!(client.join().unwrap(), [200; 50]);
    }
    let opened = app.connections.load(Ordering::SeqCst);
    assert!((2..=400).contains(&opened), "{opened} connections");
}

/// RFC 9113 §8.2.3: browsers send each cookie in a line of its own, which an application that
/// speaks HTTP/1 would take for several headers.
#[test]
fn cookies_of_an_http_2_client_are_one_header_to_an_http_1_application() {
    let app = Upstream::start();
    let server = super::proxy(super::NOBODY_TRUSTED, &app.url());
    let asked = request("/")
        .header("cookie", "session=1")
        .header("cookie", "theme=dark")
        .header("cookie", "lang=en")
        .body(Full::<Bytes>::default());
    let (response, body, _) = ask(server.proxy.unwrap(), asked.unwrap());
    assert_eq!(response.status(), 200);
    let seen = json(&body);
    assert_eq!(seen["headers"]["cookie"], "session=1; theme=dark; lang=en");
}

#[test]
fn ten_pass_and_the_eleventh_is_refused_whichever_version_of_http_is_spoken() {
    let (server, _app, _home) = limited("by = [\"ip\"]\nrate = \"10/h\"", usize::MAX);
    let address = server.proxy.unwrap();
    let from_two = || {
        ask(
            address,
            request("/").body(Full::<Bytes>::default()).unwrap(),
        )
        .0
    };
    for left in (0..5).rev() {
        let reply = Client::connect(address).send("GET", "/", &[], b"");
        let said = reply.header("x-ratelimit-remaining").map(str::to_owned);
        assert_eq!(
            (reply.status, said),
            (200, Some((2 * left + 1).to_string()))
        );
        let reply = from_two();
        assert_eq!(reply.status(), 200);
        let said = &reply.headers()["x-ratelimit-remaining"];
        assert_eq!(said, &(2 * left).to_string());
    }
    let refused = Client::connect(address).send("GET", "/", &[], b"");
    assert_eq!(refused.status, 429);
    assert!(refused.header("retry-after").is_some());
    let refused = from_two();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["x-ratelimit-limit"], "10");
    assert!(refused.headers().contains_key("retry-after"));
}
