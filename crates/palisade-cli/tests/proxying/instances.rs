//! Several instances of an application: they take turns, and one that does not answer is
//! left out.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Client, Options, PATIENCE, Server, palisade};
use crate::upstream::Upstream;

fn before(urls: &[String]) -> Server {
    let list = urls.join("\", \"");
    started(&format!("[proxy]\nupstream = [\"{list}\"]\n"))
}

fn started(proxy: &str) -> Server {
    let config = format!("[server]\ntrusted_proxies = []\nworkers = 1\n{proxy}");
    Server::with(&Options {
        config: Some(&config),
        args: &["--proxy", "127.0.0.1:0"],
        ..Options::default()
    })
}

fn send(server: &Server, method: &str, body: &[u8]) -> u16 {
    let mut client = Client::connect(server.proxy.unwrap());
    client.send(method, "/things", &[], body).status
}

fn served(app: &Upstream) -> usize {
    app.requests.load(Ordering::SeqCst)
}

/// An address at which nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Takes requests and breaks off, or answers each with 500.
fn broken(answer: &'static [u8]) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            if stream.read(&mut head).is_ok_and(|read| read > 0) {
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = stream.write_all(answer);
            }
        }
    });
    (url, asked)
}

#[test]
fn instances_take_turns_and_one_that_is_away_is_left_out() {
    let (one, two) = (Upstream::start(), Upstream::start());
    let server = before(&[one.url(), two.url()]);
    for _ in 0..10 {
        assert_eq!(send(&server, "GET", b""), 200);
    }
    assert_eq!((served(&one), served(&two)), (5, 5));
    let server = before(&[nobody(), one.url()]);
    let statuses = [0; 10].map(|_| send(&server, "POST", b"x"));
    let lost = statuses.iter().filter(|status| **status == 502).count();
    assert!(lost <= 1, "left out after one failure: {statuses:?}");
}

#[test]
fn what_may_be_sent_twice_is_tried_on_another_instance_and_nothing_else() {
    let app = Upstream::start();
    for method in ["GET", "HEAD", "DELETE"] {
        let (url, asked) = broken(b"");
        let server = before(&[url, app.url()]);
        let statuses = [0; 2].map(|_| {
            let mut client = Client::connect(server.proxy.unwrap());
            let head = format!("{method} /head HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\n\r\n");
            client.write(head.as_bytes()).unwrap();
            client.read_head().unwrap().0
        });
        assert_eq!(statuses, [200; 2], "{method}");
        assert!(asked.load(Ordering::SeqCst) >= 1, "{method}");
    }
    for (method, body) in [("POST", &b""[..]), ("PUT", b"x")] {
        let (url, asked) = broken(b"");
        let server = before(&[url, app.url()]);
        let before = served(&app);
        let statuses = [0; 2].map(|_| send(&server, method, body));
        assert!(statuses.contains(&502), "{method}: {statuses:?}");
        assert_eq!(
            asked.load(Ordering::SeqCst) + served(&app) - before,
            2,
            "{method}: once each"
        );
    }
}

#[test]
fn an_instance_that_says_it_is_not_well_gets_no_requests() {
    let app = Upstream::start();
    let (url, asked) = broken(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/proxy.md");
    let page = std::fs::read_to_string(page).unwrap();
    let after = page.split_once("```toml\n[proxy]\n").unwrap().1;
    let shown = after.split_once("```").unwrap().0;
    let proxy = shown
        .replace("http://127.0.0.1:3000", &url)
        .replace("http://127.0.0.1:3001", &app.url());
    let server = started(&format!("[proxy]\n{proxy}health_interval = \"100ms\"\n"));
    let until = Instant::now() + PATIENCE;
    while asked.load(Ordering::SeqCst) < 3 {
        assert!(Instant::now() < until, "it is not asked");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!((0..10).all(|_| send(&server, "GET", b"") == 200));
}

/// The lines of `/metrics` about instances, without the names' common start.
fn figures(server: &Server) -> Vec<String> {
    let text = server.admin_get("/metrics").text().to_owned();
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("rate_limiter_upstream_"));
    lines.map(str::to_owned).collect()
}

#[test]
fn metrics_say_which_instance_is_down_how_often_it_failed_and_when_it_is_back() {
    let app = Upstream::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let away = listener.local_addr().unwrap();
    drop(listener);
    let server = before(&[app.url(), format!("http://{away}")]);
    let up = |address, is: u8| format!("up{{instance=\"{address}\"}} {is}");
    let failed = |reason: &str, times: u8| {
        format!("failures_total{{instance=\"{away}\",reason=\"{reason}\"}} {times}")
    };
    let seen = figures(&server);
    assert!(
        seen.contains(&up(app.address, 1)) && seen.contains(&up(away, 1)),
        "{seen:?}"
    );
    assert!((0..4).all(|_| send(&server, "GET", b"") == 200));
    let seen = figures(&server);
    assert!(
        seen.contains(&up(app.address, 1)) && seen.contains(&up(away, 0)),
        "{seen:?}"
    );
    assert!(
        seen.contains(&failed("unreachable", 1)),
        "left out since: {seen:?}"
    );

    let back = TcpListener::bind(away).unwrap();
    std::thread::spawn(move || {
        for mut stream in back.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let until = Instant::now() + PATIENCE;
    while !figures(&server).contains(&up(away, 1)) {
        assert!(Instant::now() < until, "{:?}", figures(&server));
        assert_eq!(send(&server, "GET", b""), 200);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a service that ends by itself has logged, line by line.
fn logged(server: Server, log: &std::path::Path) -> Vec<serde_json::Value> {
    server.terminate();
    let (_, _home) = server.wait();
    let text = std::fs::read_to_string(log).unwrap();
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    lines.collect()
}

/// An outage is a line, not one for each request; it says who does not answer, and why.
#[test]
fn the_log_says_once_which_instance_does_not_answer_and_why_and_once_that_it_is_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let away = listener.local_addr().unwrap();
    drop(listener);
    let home = tempfile::tempdir().unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = palisade();
    command
        .current_dir(home.path())
        .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args([
            "--upstream",
            &format!("http://{away}"),
            "--proxy",
            "127.0.0.1:0",
        ])
        .env("PALISADE_LOG__LEVEL", "info")
        .env("PALISADE_LOG__FORMAT", "json")
        .stdout(Stdio::piped())
        .stderr(log.reopen().unwrap());
    let server = Server::run(command, home);
    assert!((0..5).all(|_| send(&server, "GET", b"") == 502));
    let back = TcpListener::bind(away).unwrap();
    std::thread::spawn(move || {
        for mut stream in back.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    assert!((0..5).all(|_| send(&server, "GET", b"") == 200));
    let lines = logged(server, log.path());
    let about: Vec<_> = lines
        .iter()
        .filter(|line| line["instance"] == away.to_string())
        .collect();
    let [gone, back] = &about[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(
        (&gone["level"], &gone["reason"]),
        (&"WARN".into(), &"unreachable".into())
    );
    let error = gone["error"].as_str().unwrap();
    assert!(error.to_lowercase().contains("refused"), "{error}");
    assert_eq!(back["message"], "the application answers again");
}

#[test]
fn an_instance_that_is_late_is_counted_and_stays() {
    let app = Upstream::start();
    let url = app.url();
    let server = started(&format!(
        "[proxy]\nupstream = \"{url}\"\nresponse_timeout = \"200ms\"\n"
    ));
    let mut client = Client::connect(server.proxy.unwrap());
    assert_eq!(client.send("GET", "/silent", &[], b"").status, 504);
    let seen = figures(&server);
    let instance = format!("instance=\"{}\"", app.address);
    assert!(seen.contains(&format!("up{{{instance}}} 1")), "{seen:?}");
    let late = format!("failures_total{{{instance},reason=\"timeout\"}} 1");
    assert!(seen.contains(&late), "{seen:?}");
}

/// Else anybody could have instances left out.
#[test]
fn a_client_that_breaks_off_is_no_failure_of_the_instance() {
    let app = Upstream::start();
    let server = before(&[app.url()]);
    for _ in 0..20 {
        let mut client = Client::connect(server.proxy.unwrap());
        let head = "POST /count HTTP/1.1\r\nHost: t\r\nUser-Agent: t\r\nTransfer-Encoding: chunked\r\n\r\n";
        client
            .write(format!("{head}5\r\nhello\r\nzz\r\n").as_bytes())
            .unwrap();
        let _ = client.read_head();
    }
    assert_eq!(send(&server, "GET", b""), 200);
    let seen = figures(&server);
    assert_eq!(seen, [format!("up{{instance=\"{}\"}} 1", app.address)]);
}
