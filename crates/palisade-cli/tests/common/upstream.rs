//! A small application behind the proxy, on threads and plain sockets.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// An application that says what it was sent.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    /// Connections that were opened to it.
    pub(crate) connections: Arc<AtomicUsize>,
    /// Requests that reached it.
    pub(crate) requests: Arc<AtomicUsize>,
    /// Connections that are open.
    pub(crate) open: Arc<AtomicUsize>,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, requests) = (Arc::<AtomicUsize>::default(), Arc::default());
        let (opened, served) = (Arc::clone(&connections), Arc::clone(&requests));
        let open = Arc::<AtomicUsize>::default();
        let held = Arc::clone(&open);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                opened.fetch_add(1, Ordering::SeqCst);
                let (served, held) = (Arc::clone(&served), Arc::clone(&held));
                held.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    serve(stream, &served);
                    held.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self {
            address,
            connections,
            requests,
            open,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

struct Asked {
    line: String,
    headers: Vec<(String, String)>,
}

impl Asked {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

fn serve(stream: TcpStream, served: &AtomicUsize) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some(asked) = read_head(&mut reader) {
        served.fetch_add(1, Ordering::SeqCst);
        let path = asked.line.split(' ').nth(1).unwrap_or("/").to_owned();
        match path.as_str() {
            "/ws" => return echo_forever(reader, stream),
            "/stream" => stream_slowly(&mut stream),
            "/endless" => return stream_forever(&mut stream),
            "/count" => count(&mut reader, &mut stream, &asked),
            "/head" => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n");
            }
            "/silent" => std::thread::sleep(Duration::from_secs(30)),
            _ => answer(&mut reader, &mut stream, &asked),
        }
    }
}

fn read_head(reader: &mut BufReader<TcpStream>) -> Option<Asked> {
    let line = read_line(reader)?;
    let mut headers = Vec::new();
    loop {
        let header = read_line(reader)?;
        match header.split_once(':') {
            Some((name, value)) => {
                headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            None => return Some(Asked { line, headers }),
        }
    }
}

fn read_line(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    match reader.read_line(&mut line) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(line.trim_end().to_owned()),
    }
}

/// Says what arrived: the request line, the headers, and how long the body was.
fn answer(reader: &mut BufReader<TcpStream>, stream: &mut TcpStream, asked: &Asked) {
    let body = read_body(reader, asked);
    let headers: serde_json::Map<_, _> = asked
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), value.as_str().into()))
        .collect();
    let text = serde_json::json!({
        "line": asked.line,
        "headers": headers,
        "body_bytes": body.len(),
        "body": String::from_utf8_lossy(&body[..body.len().min(100)]),
    })
    .to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-App: yes\r\nKeep-Alive: timeout=5\r\nContent-Length: {}\r\n\r\n",
        text.len()
    );
    let _ = stream.write_all((head + &text).as_bytes());
}

fn read_body(reader: &mut BufReader<TcpStream>, asked: &Asked) -> Vec<u8> {
    let mut body = Vec::new();
    if let Some(length) = asked.header("content-length") {
        body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
    } else if asked.header("transfer-encoding").is_some() {
        loop {
            let size = usize::from_str_radix(&read_line(reader).unwrap(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).unwrap();
            body.extend_from_slice(&chunk[..size]);
            if size == 0 {
                break;
            }
        }
    }
    body
}

/// Says how long the body was, without keeping it.
fn count(reader: &mut BufReader<TcpStream>, stream: &mut TcpStream, asked: &Asked) {
    let length = asked.header("content-length").unwrap().parse().unwrap();
    let mut body = reader.take(length);
    let read = std::io::copy(&mut body, &mut std::io::sink()).unwrap();
    let text = read.to_string();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
    let _ = stream.write_all((head + &text).as_bytes());
}

/// Three pieces, the last one only after the client had time to see the first.
fn stream_slowly(stream: &mut TcpStream) {
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    for piece in ["one", "two", "three"] {
        let _ = stream.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes());
        std::thread::sleep(Duration::from_millis(200));
    }
    let _ = stream.write_all(b"0\r\n\r\n");
}

/// As much as is taken.
fn stream_forever(stream: &mut TcpStream) {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut written = stream.write_all(head);
    let piece = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
    while written.is_ok() {
        written = stream.write_all(piece.as_bytes());
    }
}

/// Agrees to the other protocol and sends every byte back.
fn echo_forever(mut reader: BufReader<TcpStream>, mut stream: TcpStream) {
    let _ = stream.write_all(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    );
    let mut buffer = [0; 1024];
    while let Ok(read) = reader.read(&mut buffer) {
        if read == 0 || stream.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
}
