//! An application that answers a login as the form tells it to, on threads and plain
//! sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// `answer=STATUS` is the status, `wait=MS` the time it takes, `say=WORD` the value of its
/// `X-Login`, `answer=0` a connection that is closed without an answer.
pub(crate) struct Scripted {
    pub(crate) url: String,
    pub(crate) asked: Arc<AtomicUsize>,
}

impl Scripted {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || while answer(&stream, &counted).is_some() {});
            }
        });
        Self { url, asked }
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn answer(mut stream: &TcpStream, asked: &AtomicUsize) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().ok()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    asked.fetch_add(1, Ordering::SeqCst);
    let body = String::from_utf8_lossy(&body).into_owned();
    let field = |name: &str| {
        let pair = body.split('&').find_map(|pair| pair.strip_prefix(name));
        pair.map(str::to_owned)
    };
    let wait = field("wait=").and_then(|wait| wait.parse().ok());
    std::thread::sleep(Duration::from_millis(wait.unwrap_or(0)));
    let status = field("answer=").unwrap_or_else(|| "200".to_owned());
    if status == "0" {
        return None;
    }
    let said = field("say=").map_or(String::new(), |word| format!("X-Login: {word}\r\n"));
    let text = format!(
        "HTTP/1.1 {status} X\r\n{said}Set-Cookie: session=1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).ok()
}
