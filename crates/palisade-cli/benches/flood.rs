//! What a flood from one address costs the proxy once the address has used up its limit:
//! tokens with a bad signature, over-long chains of proxies, long heads and large forms, beside
//! a plain denial and beside a denial of as many harmless bytes (I-COST).
//!
//! `cargo bench -p palisade-cli --bench flood` prints the processor time of the server
//! for a request. Kinds take turns, the median of the rounds counts; only ratios mean
//! anything. `openssl` makes the key that signatures are checked with.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints what it measured and stops at the first error"
)]

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use common::{Service, median};

const ROUNDS: usize = 7;
/// Enough that a clock tick of 10 ms is half a microsecond of each.
const REQUESTS: usize = 20_000;
const CLIENTS: usize = 4;

/// The address may do five things an hour; nothing is written for those it may not.
const CONFIG: &str = r#"
[policy]
defaults = false
[server]
trusted_proxies = ["127.0.0.0/8"]
[store]
url = "memory:"
[jwt]
algorithm = "RS256"
key = "file:public.pem"
expiry = "optional"
[[route]]
path = "/*"
class = "all"
[[limit]]
name = "per-address"
by = ["ip"]
class = "all"
rate = "5/h"
"#;

/// One kind of request.
struct Kind {
    name: &'static str,
    /// A new connection for each, as a refused body that was not read needs one.
    reconnects: bool,
    make: fn(usize) -> Vec<u8>,
}

/// Each flood stands behind a request of as many bytes with nothing wrong in it: what is left
/// between the two is what the wrong costs.
const KINDS: [Kind; 10] = [
    kind("plain denial", |_| get("")),
    kind("as long as a token", |n| {
        get(&format!("X-Other-Name-: Bearer {}\r\n", guess(n)))
    }),
    kind("token with a bad signature (RS256)", |n| {
        get(&format!("Authorization: Bearer {}\r\n", guess(n)))
    }),
    kind("600 bytes of another header", |_| {
        get(&format!("X-Forwarded-Fox: {}\r\n", "9".repeat(600)))
    }),
    kind("X-Forwarded-For of 600 bytes", |_| {
        get(&format!("X-Forwarded-For: {}\r\n", "9".repeat(600)))
    }),
    kind("head of 12 KiB", |_| get(&long(12))),
    on_new_connection("plain denial", |_| get("")),
    on_new_connection("64 KiB to a path whose body nobody reads", |_| {
        form("/things", 64 * 1024)
    }),
    on_new_connection("form of 64 KiB that may name a client", |_| {
        form("/auth/token", 64 * 1024)
    }),
    on_new_connection("head of 64 KiB", |_| get(&long(64))),
];

const fn kind(name: &'static str, make: fn(usize) -> Vec<u8>) -> Kind {
    Kind {
        name,
        reconnects: false,
        make,
    }
}

const fn on_new_connection(name: &'static str, make: fn(usize) -> Vec<u8>) -> Kind {
    Kind {
        name,
        reconnects: true,
        make,
    }
}

fn get(more: &str) -> Vec<u8> {
    format!("GET /things HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\n{more}\r\n").into_bytes()
}

/// A header line of so many KiB.
fn long(kib: usize) -> String {
    format!("X-Long: {}\r\n", "x".repeat(kib * 1024))
}

fn form(path: &str, bytes: usize) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {bytes}\r\n\r\n"
    );
    let mut request = head.into_bytes();
    request.resize(request.len() + bytes, b'a');
    request
}

/// A token that only its signature gives away, another one each time.
fn guess(n: usize) -> String {
    let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let claims = format!("{{\"sub\":\"guess-{n}\"}}");
    let signature = [u8::try_from(n % 251).unwrap(); 256];
    let (head, claims) = (part(b"{\"alg\":\"RS256\"}"), part(claims.as_bytes()));
    format!("{head}.{claims}.{}", part(&signature))
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let proxy = server.address;
    for _ in 0..6 {
        let _ = exchange(&mut TcpStream::connect(proxy).unwrap(), &get(""));
    }
    let mut costs: Vec<Vec<f64>> = KINDS.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS {
        for (kind, costs) in KINDS.iter().zip(&mut costs) {
            let before = server.processor_us();
            flood(proxy, kind, round);
            costs.push((server.processor_us() - before) / REQUESTS as f64);
        }
    }
    let mut beside = f64::NAN;
    for (kind, costs) in KINDS.iter().zip(&mut costs) {
        let cost = median(costs);
        if kind.name.starts_with("plain") {
            beside = cost;
        }
        println!(
            "{:<42} {cost:>6.1} µs a request   {:>5.2} of a plain denial{}",
            kind.name,
            cost / beside,
            if kind.reconnects {
                ", new connection"
            } else {
                ""
            },
        );
    }
}

fn flood(proxy: SocketAddr, kind: &Kind, round: usize) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut stream = TcpStream::connect(proxy).unwrap();
                for n in 0..REQUESTS / CLIENTS {
                    let request = (kind.make)((round * CLIENTS + client) * REQUESTS + n);
                    let status = exchange(&mut stream, &request);
                    assert!(status.is_none_or(|status| status == 429 || status == 431));
                    if kind.reconnects {
                        stream = TcpStream::connect(proxy).unwrap();
                    }
                }
            });
        }
    });
}

/// The status, unless the connection was reset before it could be read: the server need
/// not take a body that it refuses.
fn exchange(stream: &mut TcpStream, request: &[u8]) -> Option<u16> {
    let _ = stream.write_all(request);
    let mut reply = Vec::new();
    let mut part = [0; 4096];
    let head = loop {
        let read = stream.read(&mut part).ok().filter(|read| *read > 0)?;
        reply.extend_from_slice(&part[..read]);
        if let Some(end) = reply.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let text = String::from_utf8_lossy(&reply[..head]).to_ascii_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    while reply.len() < head + length {
        let read = stream.read(&mut part).ok().filter(|read| *read > 0)?;
        reply.extend_from_slice(&part[..read]);
    }
    text.split_whitespace().nth(1)?.parse().ok()
}

fn start(folder: &Path) -> Service {
    let made = "openssl genrsa 2048 2>/dev/null | openssl rsa -pubout -out public.pem 2>/dev/null";
    let mut openssl = Command::new("sh");
    let openssl = openssl.args(["-c", made]).current_dir(folder).status();
    assert!(openssl.unwrap().success(), "openssl makes a key");
    // Nobody is let through: the application need not be there.
    let upstream = ["--upstream", "http://127.0.0.1:9"];
    let args = [["--proxy", "127.0.0.1:0"], upstream].concat();
    Service::palisade(folder, CONFIG, &args, "proxy")
}
