//! Interim answers of the application: passed on between two messages, or not at all.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;

use crate::common::{Client, Server};
use crate::{NOBODY_TRUSTED, proxy, two};

/// With headers that are not for the client.
const HINT: &str = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\
                    Connection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n\
                    Content-Length: 5\r\n\r\n";

/// An application that says something before it answers.
struct App {
    url: String,
    requests: Arc<AtomicUsize>,
    /// Lets it answer a request that waits.
    go: Sender<()>,
}

impl App {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::<AtomicUsize>::default();
        let (go, waits) = channel();
        let (counted, waits) = (Arc::clone(&requests), Arc::new(Mutex::new(waits)));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (counted, waits) = (Arc::clone(&counted), Arc::clone(&waits));
                std::thread::spawn(move || serve(stream, &counted, &waits));
            }
        });
        Self { url, requests, go }
    }
}

/// The path says what comes before the answer, whose body is the path: `/waits/N` so many hints,
/// `/at-once/N` the same in one piece with the answer, `/large/N` the same with hints of 4 KiB.
fn serve(stream: TcpStream, requests: &AtomicUsize, waits: &Mutex<Receiver<()>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some((path, body)) = read_request(&mut reader) {
        requests.fetch_add(1, Ordering::SeqCst);
        let (how, count) = path[1..].split_once('/').unwrap_or((&path[1..], "0"));
        let count: usize = count.parse().unwrap();
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}",
            path.len()
        );
        let hints = match how {
            "large" => format!("HTTP/1.1 103 E\r\nX-Large: {}\r\n\r\n", "x".repeat(4000)),
            "codes" => (100..200)
                .filter(|code| ![100, 101].contains(code))
                .take(count)
                .map(|code| format!("HTTP/1.1 {code} Any\r\nX-Code: {code}\r\n\r\n"))
                .collect(),
            _ => HINT.to_owned(),
        };
        let hints = hints.repeat(if how == "codes" { 1 } else { count });
        let is_at_once = how != "waits";
        if !is_at_once {
            stream.write_all(hints.as_bytes()).unwrap();
        }
        std::io::copy(&mut (&mut reader).take(body), &mut std::io::sink()).unwrap();
        let rest = match is_at_once {
            true => hints + &answer,
            false => waits.lock().unwrap().recv().map(|()| answer).unwrap(),
        };
        if stream.write_all(rest.as_bytes()).is_err() {
            return;
        }
    }
}

/// Its path, and how long its body is, which is not read yet.
fn read_request(reader: &mut BufReader<TcpStream>) -> Option<(String, u64)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("content-length: ")?
            .parse()
            .ok()
    });
    Some((head.split(' ').nth(1)?.to_owned(), length.unwrap_or(0)))
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\n\r\n")
}

fn connect(server: &Server) -> Client {
    Client::connect(server.proxy.unwrap())
}

fn ask(client: &mut Client, path: &str) {
    client.write(request(path).as_bytes()).unwrap();
}

/// How many interim answers come before the answer, which must be this one.
fn hints_before(client: &mut Client, path: &str) -> usize {
    for count in 0.. {
        let reply = client.read_reply().unwrap();
        if reply.status != 103 {
            assert_eq!((reply.status, reply.text()), (200, path));
            return count;
        }
    }
    unreachable!()
}

#[test]
fn a_hint_arrives_while_the_answer_is_still_to_come() {
    let app = App::start();
    let server = proxy(NOBODY_TRUSTED, &app.url);
    let mut client = connect(&server);
    for _ in 0..3 {
        ask(&mut client, "/waits/1");
        let (status, headers) = client.read_head().unwrap();
        assert_eq!(status, 103);
        let link = ("link".to_owned(), "</style.css>; rel=preload".to_owned());
        assert_eq!(headers, [link], "nothing of the connection, and no length");
        app.go.send(()).unwrap();
        assert_eq!(hints_before(&mut client, "/waits/1"), 0);
        assert_eq!(
            client.send("GET", "/plain", &[], b"").text(),
            "/plain",
            "in step"
        );
    }
}

#[test]
fn as_many_arrive_as_were_sent_up_to_eight() {
    let app = App::start();
    let server = proxy(NOBODY_TRUSTED, &app.url);
    let mut client = connect(&server);
    for (sent, arrive) in [(2, 2), (8, 8), (12, 8), (0, 0), (1, 1)] {
        let path = format!("/waits/{sent}");
        ask(&mut client, &path);
        for _ in 0..arrive {
            assert_eq!(client.read_reply().unwrap().status, 103, "{path}");
        }
        app.go.send(()).unwrap();
        assert_eq!(hints_before(&mut client, &path), 0, "{path}");
    }
}

#[test]
fn any_interim_answer_passes() {
    let app = App::start();
    let server = proxy(NOBODY_TRUSTED, &app.url);
    let mut client = connect(&server);
    ask(&mut client, "/codes/3");
    for code in [102, 103, 104] {
        let reply = client.read_reply().unwrap();
        assert_eq!(reply.status, code);
        assert_eq!(reply.header("x-code"), Some(code.to_string().as_str()));
    }
    assert_eq!(hints_before(&mut client, "/codes/3"), 0);
}

/// The answer has then arrived here before the hint could be written.
#[test]
fn a_hint_that_comes_in_one_piece_with_the_answer_comes_before_it() {
    let app = App::start();
    let server = proxy(NOBODY_TRUSTED, &app.url);
    let mut client = connect(&server);
    for count in [1, 3, 0, 8, 1] {
        let path = format!("/at-once/{count}");
        ask(&mut client, &path);
        assert_eq!(hints_before(&mut client, &path), count);
    }
}

#[test]
fn pipelined_requests_have_their_own_hints_each_before_its_answer() {
    let app = App::start();
    let server = proxy(NOBODY_TRUSTED, &app.url);
    let mut client = connect(&server);
    let paths = ["/at-once/2", "/plain", "/at-once/1", "/at-once/3", "/plain"];
    let all: String = paths.iter().map(|path| request(path)).collect();
    client.write(all.as_bytes()).unwrap();
    let counts = paths.map(|path| hints_before(&mut client, path));
    assert_eq!(counts, [2, 0, 1, 3, 0]);
}

/// Its answers do not fit into what lies between it and the proxy: writing stops anywhere, in
/// the middle of a hint most of the time, because these are nearly all there is to write.
#[test]
fn a_client_that_reads_late_finds_every_message_whole() {
    const REQUESTS: usize = 1500;
    let app = App::start();
    let limit = "[[limit]]\nname = \"one\"\nby = []\nrate = \"100_000/s\"\nalgorithm = \"token-bucket\"\n\
                 [[route]]\npath = \"/*\"\nclass = \"any\"\n[policy]\ndefaults = false\n";
    let server = proxy(&format!("{NOBODY_TRUSTED}{limit}"), &app.url);
    let mut client = connect(&server);
    let mut other_half = client.stream.get_ref().try_clone().unwrap();
    let asking = std::thread::spawn(move || {
        let all = request("/large/7").repeat(REQUESTS);
        other_half.write_all(all.as_bytes()).unwrap();
    });
    let mut seen = 0;
    while seen == 0 || seen != app.requests.load(Ordering::SeqCst) {
        seen = app.requests.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(
        seen < REQUESTS,
        "all {seen} were answered before anything was read"
    );
    let hints: usize = (0..REQUESTS)
        .map(|_| hints_before(&mut client, "/large/7"))
        .sum();
    assert!(hints > REQUESTS, "{hints}");
    asking.join().unwrap();
}

#[test]
fn clients_of_http_1_0_and_2_get_the_answer_alone() {
    let app = App::start();
    let server = proxy(NOBODY_TRUSTED, &app.url);
    let mut old = connect(&server);
    old.write(b"GET /at-once/2 HTTP/1.0\r\nHost: t\r\nUser-Agent: t\r\n\r\n")
        .unwrap();
    assert_eq!(hints_before(&mut old, "/at-once/2"), 0);
    let asked = two::request("/at-once/2")
        .body(Full::<Bytes>::default())
        .unwrap();
    let (answer, body, _) = two::ask(server.proxy.unwrap(), asked);
    assert_eq!(
        (answer.status().as_u16(), &body[..]),
        (200, &b"/at-once/2"[..])
    );
}

#[test]
fn a_client_that_waits_for_100_hears_it_and_hints_and_the_answer() {
    let app = App::start();
    let server = proxy(NOBODY_TRUSTED, &app.url);
    let mut client = connect(&server);
    client
        .write(
            b"POST /waits/1 HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nExpect: 100-continue\r\n\
              Content-Length: 5\r\n\r\n",
        )
        .unwrap();
    let mut interim = [(); 2].map(|()| client.read_reply().unwrap().status);
    interim.sort_unstable();
    assert_eq!(interim, [100, 103]);
    client.write(b"hello").unwrap();
    app.go.send(()).unwrap();
    assert_eq!(hints_before(&mut client, "/waits/1"), 0);
    assert_eq!(
        client.send("GET", "/plain", &[], b"").text(),
        "/plain",
        "in step"
    );
}

/// What it says is no answer that the proxy passes on before it knows how the attempt ended.
#[test]
fn a_login_has_no_hints() {
    let app = App::start();
    let login = "[[route]]\npath = \"/at-once/2\"\nmethod = \"POST\"\nclass = \"auth\"\n\
                 outcome = \"status\"\nusername = \"form:email\"\ncookieless = true\n\
                 success_cookie = \"session\"\n[lockout]\nchallenge = \"advise\"\n";
    let server = proxy(&format!("{NOBODY_TRUSTED}{login}"), &app.url);
    let mut client = connect(&server);
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    let reply = client.send("POST", "/at-once/2", &[form], b"email=ann&password=x");
    assert_eq!((reply.status, reply.text()), (200, "/at-once/2"));
}

/// The first connection ends under a request, which is then sent again.
#[test]
fn a_request_that_is_sent_again_has_no_hints() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        let mut streams = listener.incoming().flatten();
        let mut first = streams.next().unwrap();
        let _ = first.read(&mut [0; 4096]);
        first.write_all(ok.as_bytes()).unwrap();
        let _ = first.read(&mut [0; 4096]);
        drop(first);
        let mut second = streams.next().unwrap();
        let _ = second.read(&mut [0; 4096]);
        second.write_all(format!("{HINT}{ok}").as_bytes()).unwrap();
        let _ = second.read(&mut [0; 4096]);
    });
    let server = proxy(&format!("{NOBODY_TRUSTED}workers = 1\n"), &url);
    let mut client = connect(&server);
    let statuses = [(); 2].map(|()| client.send("GET", "/", &[], b"").status);
    assert_eq!(statuses, [200; 2]);
}
