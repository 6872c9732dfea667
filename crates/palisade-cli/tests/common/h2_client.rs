//! A client that speaks HTTP/2 from the first byte.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// One connection.
pub(crate) struct H2 {
    runtime: Runtime,
    sender: SendRequest<Empty<Bytes>>,
    connection: JoinHandle<()>,
}

fn request(method: &str, path: &str) -> Request<Empty<Bytes>> {
    Request::builder()
        .method(method)
        .uri(format!("http://test{path}"))
        .header("user-agent", "palisade-test")
        .header("x-forwarded-uri", "/")
        .body(Empty::new())
        .unwrap()
}

async fn status(mut sender: SendRequest<Empty<Bytes>>, request: Request<Empty<Bytes>>) -> u16 {
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    response.into_body().collect().await.unwrap();
    status
}

impl H2 {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (sender, connection) = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
            (sender, connection)
        });
        let connection = runtime.spawn(async move {
            let _ = connection.await;
        });
        Self {
            runtime,
            sender,
            connection,
        }
    }

    /// The statuses of so many GETs that are sent before any is answered.
    pub(crate) fn at_once(&self, count: usize, path: &str) -> Vec<u16> {
        self.runtime.block_on(async {
            let asked: Vec<_> = (0..count)
                .map(|_| tokio::spawn(status(self.sender.clone(), request("GET", path))))
                .collect();
            let mut statuses = Vec::new();
            for answer in asked {
                statuses.push(answer.await.unwrap());
            }
            statuses
        })
    }

    /// Sends a GET, and does not wait for its answer.
    pub(crate) fn begin(&self, path: &str) {
        let asked = status(self.sender.clone(), request("GET", path));
        self.runtime.spawn(asked);
    }

    pub(crate) fn post(&self, path: &str) -> u16 {
        self.runtime
            .block_on(status(self.sender.clone(), request("POST", path)))
    }

    /// True if the server ends the connection in this time.
    pub(crate) fn ends_within(self, time: Duration) -> bool {
        let Self {
            runtime,
            sender,
            connection,
        } = self;
        let ended = runtime.block_on(async { tokio::time::timeout(time, connection).await });
        drop(sender);
        ended.is_ok()
    }

    /// Asks for something without an end and reads a part of it, while other requests of the
    /// connection go on: true if that is all given up once `is_freed`, in this time.
    pub(crate) fn gives_up_one_of_many(
        &self,
        endless: &str,
        path: &str,
        is_freed: impl Fn() -> bool,
        time: Duration,
    ) -> bool {
        self.runtime.block_on(async {
            let mut sender = self.sender.clone();
            let response = sender.send_request(request("GET", endless)).await.unwrap();
            let mut body = response.into_body();
            assert!(body.frame().await.unwrap().is_ok());
            for _ in 0..time.as_millis() / 50 {
                status(self.sender.clone(), request("GET", path)).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
                if is_freed() {
                    return body.collect().await.is_err();
                }
            }
            false
        })
    }

    /// Asks and grants no window for the answer, but gives signs of life: true if the server
    /// gives the connection up in this time.
    pub(crate) fn takes_nothing(address: SocketAddr, path: &str, time: Duration) -> bool {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        // SETTINGS_INITIAL_WINDOW_SIZE (4) = 0
        const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        const SETTINGS: [u8; 15] = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
        let mut stream = TcpStream::connect(address).unwrap();
        let pause = Duration::from_millis(100);
        stream.set_read_timeout(Some(pause)).unwrap();
        let head = head(path);
        let mut frame = vec![0, 0, u8::try_from(head.len()).unwrap(), 1, 5, 0, 0, 0, 1];
        frame.extend_from_slice(&head);
        stream.write_all(PREFACE).unwrap();
        stream.write_all(&SETTINGS).unwrap();
        stream.write_all(&frame).unwrap();
        let mut buffer = [0; 4096];
        for _ in 0..time.as_millis() / (2 * pause).as_millis() {
            if stream.write_all(&PING).is_err() {
                return true;
            }
            // A pause between the signs, whatever is answered.
            std::thread::sleep(pause);
            match stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return true,
            }
        }
        false
    }
}

/// A GET without compression: every field is literal.
fn head(path: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "test"),
        (":path", path),
        ("x-forwarded-uri", "/"),
        ("user-agent", "palisade-test"),
        ("x-request-id", "0123456789abcdef"),
    ] {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}
