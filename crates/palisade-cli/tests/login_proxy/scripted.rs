//! Applications on threads and plain sockets: one that answers a login as the form tells it to,
//! and one with sessions.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What an application was asked.
pub(crate) struct Asked {
    /// Request line and headers, in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Asked {
    /// A field of the form.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let mut pairs = self.body.split('&').filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(key, _)| *key == name);
        found.map(|(_, value)| value.to_owned())
    }
}

/// The whole answer, or `None` for a connection that is closed without one.
type Answer = fn(&Asked) -> Option<String>;

pub(crate) struct Scripted {
    pub(crate) url: String,
    pub(crate) asked: Arc<AtomicUsize>,
}

impl Scripted {
    /// `answer=STATUS` is the status, `wait=MS` the time it takes, `say=WORD` the value of its
    /// `X-Login`, `answer=0` a connection that is closed without an answer.
    pub(crate) fn start() -> Self {
        Self::answering(as_told)
    }

    pub(crate) fn answering(how: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || while answer(&stream, &counted, how).is_some() {});
            }
        });
        Self { url, asked }
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn answer(mut stream: &TcpStream, asked: &AtomicUsize, how: Answer) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
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
        head = head + &line + "\n";
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    asked.fetch_add(1, Ordering::SeqCst);
    let body = String::from_utf8_lossy(&body).into_owned();
    stream
        .write_all(how(&Asked { head, body })?.as_bytes())
        .ok()
}

fn as_told(asked: &Asked) -> Option<String> {
    let wait = asked.field("wait").and_then(|wait| wait.parse().ok());
    std::thread::sleep(Duration::from_millis(wait.unwrap_or(0)));
    let status = asked.field("answer").unwrap_or_else(|| "200".to_owned());
    if status == "0" {
        return None;
    }
    let said = asked.field("say");
    let said = said.map_or(String::new(), |word| format!("X-Login: {word}\r\n"));
    // A session starts with a right password only.
    let session = match status.as_bytes() {
        [b'2' | b'3', ..] => "Set-Cookie: session=1\r\n",
        _ => "",
    };
    let body = &asked.body;
    Some(format!(
        "HTTP/1.1 {status} X\r\n{said}{session}Content-Length: {}\r\n\r\n{body}",
        body.len()
    ))
}

/// Sends who is logged in on to the start page, whatever they post, as many applications do; a
/// password is right if it is `right-` and the name.
pub(crate) fn with_sessions(asked: &Asked) -> Option<String> {
    let to = |place: &str, more: &str| {
        Some(format!(
            "HTTP/1.1 302 Found\r\nLocation: {place}\r\n{more}Content-Length: 0\r\n\r\n"
        ))
    };
    if asked.head.contains("session=of-") {
        return to("/home", "");
    }
    let name = asked.field("email").unwrap_or_default();
    if asked.field("password") == Some(format!("right-{name}")) {
        return to(
            "/home",
            &format!("Set-Cookie: session=of-{name}; HttpOnly\r\n"),
        );
    }
    to("/login?error=1", "")
}

/// A site with a form at `/login` and pages everywhere else, which show the cookies that reached
/// them. The password of everybody is `right`.
pub(crate) fn site(asked: &Asked) -> Option<String> {
    let line = asked.head.lines().next().unwrap_or_default();
    let form = "<form method=post action=/login><input name=email><input name=password>\
                <button>Sign in</button></form>";
    let page = |status: &str, body: &str| {
        Some(format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    };
    if line.starts_with("get /login") {
        return page("200 OK", &format!("<h1>Login</h1>{form}"));
    }
    if line.starts_with("post /login") && asked.field("password").as_deref() == Some("right") {
        return Some(
            "HTTP/1.1 303 See Other\r\nLocation: /home\r\nSet-Cookie: session=new\r\n\
             Content-Length: 0\r\n\r\n"
                .to_owned(),
        );
    }
    if line.starts_with("post /login") {
        return page("401 Unauthorized", &format!("<h1>Wrong</h1>{form}"));
    }
    let mut lines = asked.head.lines();
    let cookies = lines
        .find(|line| line.starts_with("cookie:"))
        .unwrap_or("no cookies");
    page(
        "200 OK",
        &format!("<h1>Page of the application</h1><p>{cookies}</p>"),
    )
}
