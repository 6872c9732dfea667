//! The listener for Redis clients: raw bytes, real clients, and every store.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "common/certificates.rs"]
mod certificates;
mod common;
#[path = "../../palisade-store/tests/common/postgres_server.rs"]
mod postgres_server;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

#[path = "resp/clients.rs"]
mod clients;
#[path = "resp/protocol.rs"]
mod protocol;
#[path = "resp/stores.rs"]
mod stores;
#[path = "resp/tls.rs"]
mod tls;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use common::{Options, PATIENCE, Server};

/// A service that also listens for Redis clients, and where.
fn start(config: &str, env: &[(&str, &str)]) -> (Server, SocketAddr) {
    let server = Server::with(&Options {
        args: &["--resp", "127.0.0.1:0"],
        config: Some(config),
        env,
    });
    let address = common::address_of(&server.banner, "RESP").unwrap();
    (server, address)
}

/// On the embedded store, open to everybody on this machine.
fn plain() -> (Server, SocketAddr) {
    start("[store]\nurl = \"memory:\"\n", &[])
}

/// A client that sees the bytes.
struct Raw(BufReader<TcpStream>);

impl Raw {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n"));
        self.answer()
    }

    /// One answer, its parts separated by spaces.
    fn answer(&mut self) -> String {
        let line = self.line();
        let (kind, rest) = line.split_at_checked(1).unwrap_or_default();
        match kind {
            "*" | "%" | "~" => {
                let parts: usize = rest.parse().unwrap();
                let parts = if kind == "%" { 2 * parts } else { parts };
                let parts: Vec<String> = (0..parts).map(|_| self.answer()).collect();
                parts.join(" ")
            }
            "$" if rest == "-1" => "nil".to_owned(),
            "$" => {
                let mut text = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut text).unwrap();
                String::from_utf8_lossy(&text).trim_end().to_owned()
            }
            ":" => rest.to_owned(),
            "_" => "nil".to_owned(),
            _ => line,
        }
    }

    /// Whether the other side has ended, and nothing more was said.
    fn has_ended(&mut self) -> bool {
        matches!(self.0.read(&mut [0; 1]), Ok(0))
    }
}

/// A request as clients send it.
fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    bytes
}
